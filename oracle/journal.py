"""What a long campaign has done so far, in a file, so that it can go on after an interruption.

The first line names the campaign, each further line is a batch of runs that was played.  A line
that was not written to its end (the machine went down) is a batch that was not played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from .campaign import Campaign, Met
from .guide import Kept

FORMAT = 1


class JournalRefused(Exception):
    """The file is no journal of this campaign, or cannot be read or written."""


@dataclass(frozen=True)
class Played:
    """A batch that was played: the figures of its runs, which of them failed, and of a guided
    campaign those that led to something new."""

    first: int
    runs: int
    figures: Campaign
    met: tuple[Met, ...] = ()
    led: tuple[Kept, ...] = ()


class Journal:
    """The journal of a campaign, at ``path``: begun anew, or read if it is there.

    Raises `JournalRefused` for another campaign's journal and for anything else.
    """

    def __init__(self, path: Path, engine: str, profiles: Sequence[str], seed: int,
                 guided: bool = False) -> None:
        self.path = path
        self._header = {"kvoracle": FORMAT, "kind": "journal", "engine": engine,
                        "profiles": list(profiles), "seed": seed, "guided": guided}
        self.played: list[Played] = []
        try:
            if path.exists():
                self._read()
            else:
                path.write_bytes(msgspec.json.encode(self._header) + b"\n")
        except OSError as error:
            raise JournalRefused(f"{path}: {error.strerror}") from None

    def append(self, played: Played) -> None:
        """Keep a batch."""
        figures = asdict(played.figures)
        for name in ("findings", "unstable", "unwritten"):
            del figures[name]
        line = msgspec.json.encode({"first": played.first, "runs": played.runs,
                                    "figures": figures,
                                    "met": [[m.number, list(m.key), m.text] for m in played.met],
                                    "led": [[k.number, k.text, k.points] for k in played.led]})
        try:
            with self.path.open("ab") as file:
                file.write(line + b"\n")
        except OSError as error:
            raise JournalRefused(f"{self.path}: {error.strerror}") from None

    def _read(self) -> None:
        whole, end, rest = self.path.read_bytes().rpartition(b"\n")
        if rest:  # cut off while it was written
            with self.path.open("r+b") as file:
                file.truncate(len(whole) + len(end))
        first, *lines = whole.split(b"\n") if whole else [b""]
        header = self._decoded(1, first)
        if header.get("kind") != "journal" or header.get("kvoracle") != FORMAT:
            raise JournalRefused(f"{self.path} is no journal of a campaign: name another file")
        for name, mine in self._header.items():
            if header.get(name) != mine:
                raise JournalRefused(f"{self.path} is the journal of another campaign: {name} is "
                                     f"{header.get(name)!r} there and {mine!r} here")
        self.played = [self._batch(i, line) for i, line in enumerate(lines, 2)]

    def _batch(self, number: int, line: bytes) -> Played:
        raw = self._decoded(number, line)
        try:
            figures = Campaign(**raw["figures"])
            figures.unseen = tuple(figures.unseen)
            met = tuple(Met(n, tuple(key), text) for n, key, text in raw["met"])
            led = tuple(Kept(n, text, tuple(points)) for n, text, points in raw["led"])
            return Played(int(raw["first"]), int(raw["runs"]), figures, met, led)
        except (KeyError, TypeError, ValueError) as error:
            raise JournalRefused(f"{self.path}:{number}: no batch of runs ({error}); remove the "
                                 "line, and its runs are played again") from None

    def _decoded(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            raw = msgspec.json.decode(line)
        except msgspec.DecodeError:
            raw = None
        if not isinstance(raw, dict):
            raise JournalRefused(f"{self.path}:{number}: not a line of a journal; remove it, or "
                                 "name another file")
        return raw
