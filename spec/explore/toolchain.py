"""A C compiler, where there is one, and the libraries it made, kept for the next run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import platformdirs

FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")

KEPT_DAYS = 30
"""A library not used for so long is removed when another is made."""


class NoCompiler(Exception):
    """There is no C compiler, or it cannot make a library."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command of the system's C compiler (``CC``, else cc, gcc or clang); raises
    `NoCompiler`."""
    asked = os.environ.get("CC")
    names = [shlex.split(asked)] if asked and asked.strip() else [["cc"], ["gcc"], ["clang"]]
    for command in names:
        path = shutil.which(command[0])
        if path is not None and sys.maxsize > 2**32:
            return (path, *command[1:])
    wanted = f"CC={asked}" if asked else "cc, gcc or clang"
    raise NoCompiler(f"no C compiler found ({wanted}): install one, or use the backend python")


def folder() -> Path:
    """Where libraries are kept; ``KVORACLE_CACHE`` names another place."""
    chosen = os.environ.get("KVORACLE_CACHE")
    return (Path(chosen) if chosen else Path(platformdirs.user_cache_dir("kvoracle"))) / "explore"


def library(source: str) -> ctypes.CDLL:
    """The compiled source, from the last run where it is kept; raises `NoCompiler`."""
    command = compiler()
    known = (*command, *FLAGS, str(Path(command[0]).stat().st_mtime_ns), source)
    name = hashlib.sha256("\0".join(known).encode()).hexdigest()[:32] + ".so"
    kept = folder() / name
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if kept.exists():
            os.utime(kept)
            with contextlib.suppress(OSError):  # a broken one is made again
                return ctypes.CDLL(str(kept))
        _remove_old(kept.parent)
        _compile(command, source, kept)
        return ctypes.CDLL(str(kept))
    except OSError:
        pass  # nowhere to keep it: make it for this run alone
    try:
        with tempfile.TemporaryDirectory(prefix="kvoracle-") as scratch:
            made = Path(scratch) / name
            _compile(command, source, made)
            return ctypes.CDLL(str(made))
    except OSError as error:
        raise NoCompiler(f"cannot use what {shlex.join(command)} makes: {error}") from None


def _compile(command: tuple[str, ...], source: str, target: Path) -> None:
    """Compile to a file beside the target and rename it: others see all of it or nothing."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as scratch:
        made = Path(scratch) / "made.so"
        text = Path(scratch) / "search.c"
        text.write_text(source, "utf-8")
        done = subprocess.run([*command, *FLAGS, "-o", str(made), str(text)],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line),
                        done.stderr.strip()[:200])
            raise NoCompiler(
                f"{shlex.join(command)} failed: {said} (the backend python needs no compiler)")
        os.replace(made, target)


def _remove_old(kept: Path) -> None:
    limit = time.time() - KEPT_DAYS * 86_400
    for path in kept.glob("*.so"):
        try:
            if path.stat().st_mtime < limit:
                path.unlink()
        except OSError:
            continue  # another run was quicker
