"""Which releases does a name mean?  ``vllm==0.33.0`` is one, ``vllm>=0.20,<=0.33`` a range.

A bound with fewer numbers than a release stands for all releases that begin with it, as people
mean it: ``<=0.33`` includes 0.33.1, ``>0.30`` does not include 0.30.1, ``==0.20.*`` is 0.20.0 and
its patches.  What exists is asked of the package index, and kept for a day.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .errors import BadVersion, EnvironmentProblem, NoRegistry
from .pip import explain

OLDEST = "0.11.0"
"""The oldest release that can be driven; there was no offloading before."""

KEPT = 24 * 3600.0
"""Seconds for which a list of releases is not asked for again."""

_BOUND = re.compile(r"(<=|>=|==|!=|<|>)\s*(\d+(?:\.\d+){0,3})(\.\*)?")


class NoneInRange(EnvironmentProblem):
    """No release lies in the range."""

    def __init__(self, text: str, releases: Sequence[str]) -> None:
        there = f"there are {releases[0]} to {releases[-1]}" if releases else "none is known"
        super().__init__(f"no release of vllm lies in {text!r} ({there})")


def parse(text: str) -> tuple[int, ...]:
    """``0.33.0`` as ``(0, 33, 0)``; what is no plain release is not comparable (`BadVersion`)."""
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        raise BadVersion(text)
    return tuple(map(int, text.split(".")))


def is_range(name: str) -> bool:
    """Whether an engine's name stands for several releases: ``vllm>=0.20`` and the like."""
    return bool(re.match(r"vllm\s*(<|>|!=)", name)) or \
        (name.startswith("vllm==") and ("," in name or name.endswith(".*")))


def within(version: str, text: str) -> bool:
    """Whether a release lies in a range such as ``>=0.20,<=0.33``.  Raises `BadVersion`."""
    mine = parse(version)
    for part in text.removeprefix("vllm").split(","):
        bound = _BOUND.fullmatch(part.strip())
        if bound is None:
            raise BadVersion(part.strip())
        operator, limit = bound[1], parse(bound[2])
        place = mine[:len(limit)]
        holds = {"<=": place <= limit, ">=": place >= limit, "==": place == limit,
                 "!=": place != limit, "<": place < limit, ">": place > limit}[operator]
        if not holds:
            return False
    return True


def resolve(text: str, releases: Iterable[str]) -> list[str]:
    """The releases in a range, oldest first.  Raises `BadVersion` and `NoneInRange`."""
    every = sorted(releases, key=parse)
    found = [version for version in every if within(version, text)]
    if not found:
        raise NoneInRange(text, every)
    return found


def released(kept_in: Path, *, ask: Callable[[], Sequence[str]] | None = None,
             now: Callable[[], float] = time.time) -> list[str]:
    """All releases that can be driven, oldest first, as the index lists them.

    ``kept_in`` is the file where they are kept.  An index that cannot be reached is no problem
    while such a file exists, however old; else it is a `NoRegistry`.
    """
    kept = _read(kept_in)
    if kept is not None and 0 <= now() - kept[0] < KEPT:
        return kept[1]
    try:
        found = _ours((ask or index)())
    except NoRegistry:
        if kept is None:
            raise
        return kept[1]
    kept_in.parent.mkdir(parents=True, exist_ok=True)
    new = kept_in.with_suffix(".new")
    new.write_text(json.dumps({"asked": now(), "releases": found}), "utf-8")
    new.replace(kept_in)
    return found


def index() -> list[str]:
    """Everything the index has of vLLM, asked through pip.  Raises `NoRegistry`."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "index",
            "versions", "vllm"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    listed = re.search(r"Available versions: (.*)", found.stdout)
    if listed is None:
        failure = explain(found.stderr, found.returncode, "asking for releases", Path(), Path())
        raise failure if isinstance(failure, NoRegistry) else NoRegistry(
            (found.stderr.strip().splitlines() or ["no answer"])[-1])
    return [version.strip() for version in listed[1].split(",")]


def _ours(versions: Iterable[str]) -> list[str]:
    """Those that are plain releases and not too old."""
    plain = [version for version in versions if re.fullmatch(r"\d+\.\d+\.\d+", version)]
    return sorted((v for v in plain if parse(v) >= parse(OLDEST)), key=parse)


def _read(path: Path) -> tuple[float, list[str]] | None:
    try:
        kept = json.loads(path.read_text("utf-8"))
        return float(kept["asked"]), [str(version) for version in kept["releases"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
