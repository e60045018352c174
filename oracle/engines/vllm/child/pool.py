"""What does the host pool hold?  Its keys with their pins; read, never changed.

A pool keeps for each key a status whose ``ref_cnt`` counts the loads that read the chunk, -1
while a store has still to fill it (all releases from 0.11 on).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

TABLES = ("chunks", "blocks", "t1", "t2")
"""Where the policies keep them: LRU since 0.30 and before, the two lists of ARC."""


class Pool:
    """One release's host pool."""

    def __init__(self, manager: Any) -> None:
        self._policy = getattr(manager, "_policy", manager)
        self._names = tuple(name for name in TABLES
                            if isinstance(getattr(self._policy, name, None), Mapping))
        self.readable = bool(self._names)

    def _tables(self) -> Iterator[Mapping[bytes, Any]]:
        for name in self._names:
            yield getattr(self._policy, name)

    def states(self, keys: list[bytes]) -> str:
        """A letter for each key: ready, pending, or nothing."""
        tables = list(self._tables())
        letters = []
        for key in keys:
            letter = "."
            for table in tables:
                status = table.get(key)
                if status is not None:
                    letter = "P" if status.ref_cnt < 0 else "R"
                    break
            letters.append(letter)
        return "".join(letters)

    def wrong_pins(self, loaded: Counter[bytes], stored: set[bytes]) -> tuple[int, int]:
        """Chunks whose pins are not the loads under way; chunks pending, or not, without reason."""
        pinned = pending = 0
        for table in self._tables():
            for key, status in table.items():
                count = status.ref_cnt
                if (count < 0) != (key in stored):
                    pending += 1
                elif count >= 0 and count != loaded[key]:
                    pinned += 1
        return pinned, pending
