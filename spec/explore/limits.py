"""How much of the machine a compiled search may take, and where it is kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class OutOfMemory(Exception):
    """The memory allowed does not hold even the beginning of a search."""


@dataclass(frozen=True)
class Limits:
    """``memory``: bytes of states, table and buffers (default: `default_memory`).

    ``threads``: default, as many as this process may use.  ``symmetry``: of states that differ
    by a renaming of interchangeable things, only one is searched.  ``checkpoint``: the file
    that the search is written to now and then and where it stops; ``resume``: one to go on from.
    """

    memory: int | None = None
    threads: int | None = None
    symmetry: bool = False
    checkpoint: Path | None = None
    resume: Path | None = None


def default_memory() -> int:
    """Three quarters of what is free on this machine, or allowed to this process."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2]
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text("ascii").strip()
        if most != "max":
            free.append(int(most) - int((group / "memory.current").read_text("ascii")))
    except (OSError, ValueError, IndexError):
        pass  # no Linux, or no limit of this kind
    return max(min(free), 0) * 3 // 4


def default_threads() -> int:
    """The processors this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1
