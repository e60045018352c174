"""What goes where: results on standard output, progress on standard error.

Results are the same for the same seed, byte for byte; progress is shown on a terminal
only, and in a log as a line now and then.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from .exits import UserError

LINE_SECONDS = 10.0
"""How often a log, as opposed to a terminal, gets a line of progress."""


_people: TextIO | None = None
"""None: standard output, as it is when something is written."""


def people_to_stderr() -> None:
    """Keep standard output for one machine-readable document."""
    global _people
    _people = sys.stderr


def out(text: str = "") -> None:
    """A line of result, for people."""
    print(text, file=_people)


def note(text: str) -> None:
    """A line beside the result: times, rates, what is being done."""
    print(text, file=sys.stderr)


class Status:
    """One line of progress that overwrites itself on a terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
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


def write_json(path: str, data: dict[str, Any]) -> None:
    """Write a machine-readable document to a file, or to standard output for ``-``."""
    text = json.dumps(data, indent=1, sort_keys=False)
    if path == "-":
        print(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
