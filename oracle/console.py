"""What goes where: results on standard output, progress on standard error.

Results are the same for the same seed, byte for byte; progress is shown on a terminal
only, and in a log as a line now and then.

A reader that goes away (``kvoracle prove | head -1``) changes nothing but what is read: the
command runs to its end and its exit code says what it came to.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from .exits import UserError

LINE_SECONDS = 10.0
"""How often a log, as opposed to a terminal, gets a line of progress."""


_people: TextIO | None = None
"""None: standard output, as it is when something is written."""


def begin(machine_readable: bool = False) -> None:
    """Before a command: what cannot be encoded is shown escaped.  ``machine_readable`` keeps
    standard output for one document; people read standard error then."""
    global _people
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    _people = sys.stderr if machine_readable else None


def end() -> None:
    """After a command: whatever is buffered is written, or found to be not writable."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with _written(stream):
                stream.flush()


@contextlib.contextmanager
def _written(stream: TextIO) -> Iterator[None]:
    """Nobody who reads is no error; no room for what is written is one."""
    try:
        yield
    except BrokenPipeError:
        _let_go(stream)
    except OSError as error:
        _let_go(stream)
        name = "error" if stream is sys.stderr else "output"
        raise UserError(f"cannot write standard {name}: {error.strerror}") from None


def _let_go(stream: TextIO) -> None:
    """Nobody reads this any more: from now on it goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _say(text: str, stream: TextIO | None) -> None:
    if stream is not None:  # closed by who started us
        with _written(stream):
            print(text, file=stream)


def out(text: str = "") -> None:
    """A line of result, for people."""
    _say(text, _people or sys.stdout)


def note(text: str) -> None:
    """A line beside the result: times, rates, what is being done."""
    _say(text, sys.stderr)


class Status:
    """One line of progress that overwrites itself on a terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._shown = 0
        self._last = time.monotonic()

    def show(self, text: str) -> None:
        """Show what is going on now."""
        if self._live:
            sys.stderr.write("\r" + text[:118].ljust(self._shown))
            sys.stderr.flush()
            self._shown = min(len(text), 118)
        elif time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            note(text)

    def clear(self) -> None:
        """Leave no trace on the terminal."""
        if self._live and self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned to their widest cell; cells may hold several lines."""
    split = [[str(c).split("\n") for c in row] for row in [header, *rows]]
    widths = [max(len(line) for row in split for line in row[i]) for i in range(len(header))]
    lines = []
    for n, row in enumerate(split):
        for k in range(max(map(len, row))):
            cells = [(c[k] if k < len(c) else "").ljust(w) for c, w in zip(row, widths)]
            lines.append("  ".join(cells).rstrip())
        if n == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


# --- files ---------------------------------------------------------------------------


def need_writable(path: str, folder: bool = False) -> None:
    """Before the work and not after it: raises `UserError` where a file, or files in a folder
    that may have to be made, cannot be written."""
    if path == "-" and not folder:
        return
    if not path:
        raise UserError("cannot write a file without a name")
    wanted = Path(path)
    there = wanted if folder else wanted.parent
    while folder and not there.exists() and there != there.parent:
        there = there.parent
    problem = ""
    if wanted.exists() and wanted.is_dir() != folder:
        problem = "Not a directory" if folder else "Is a directory"
    elif not there.exists():
        problem = "No such file or directory"
    elif not there.is_dir():
        problem = "Not a directory"
    elif not os.access(wanted if wanted.exists() else there, os.W_OK):
        problem = "Permission denied"
    if problem:
        raise UserError(f"cannot write {path}: {problem}")


def write_json(path: str, data: dict[str, Any]) -> None:
    """Write a machine-readable document to a file, or to standard output for ``-``."""
    text = json.dumps(data, indent=1, sort_keys=False)
    if path == "-":
        _say(text, sys.stdout)
        return
    write_text(path, text + "\n")


def write_text(path: str, text: str) -> None:
    """Write a file; raises `UserError` where it cannot be written."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
