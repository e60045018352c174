"""What is the planner seen to know?  Its state of each request, told when it changes.

The planner is ``OffloadingConnectorScheduler``; its ``_req_status`` holds, for each request
and group, the keys it knows, the blocks it knows and the cursor.  They are only read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .content import Text
from .shims import lacking_state

Emit = Callable[[dict[str, Any]], None]


class Watched:
    """One request as seen from outside: its objects in the engine, and what was last told."""

    __slots__ = ("name", "request", "text", "status", "groups", "keys", "blocks", "cursors",
                 "tokens", "admitted", "finished", "key_limit", "chunk_of")

    def __init__(self, name: str, request: Any, text: Text, status: Any) -> None:
        self.name = name
        self.request = request
        self.text = text
        # Kept here, since the planner drops it in the very step it last plans for it.
        self.status = status
        self.groups: tuple[Any, ...] = tuple(status.group_states) if status is not None else ()
        self.keys = [0] * len(self.groups)
        self.blocks = [0] * len(self.groups)
        self.cursors = [0] * len(self.groups)
        self.tokens = len(text.prompt)
        self.admitted = False
        self.finished = False
        self.key_limit: int | None = None
        self.chunk_of: list[dict[bytes, int]] = [{} for _ in self.groups]

    def find_chunk(self, key: bytes) -> tuple[int, int] | None:
        """Group and chunk index of one of this request's keys."""
        # An offload key ends in its group's number, four bytes, big-endian.
        group = int.from_bytes(key[-4:], "big")
        if group >= len(self.groups):
            return None
        known = self.chunk_of[group]
        if len(known) < len(self.groups[group].offload_keys):
            keys = self.groups[group].offload_keys
            for index in range(len(known), len(keys)):
                known[keys[index]] = index
        index = known.get(key, -1)
        return (group, index) if index >= 0 else None


class Planner:
    """All requests the planner still knows, or has just forgotten."""

    def __init__(self, connector_scheduler: Any, emit: Emit) -> None:
        self.inner = connector_scheduler
        self.emit = emit
        self.watched: dict[str, Watched] = {}
        self._checked = False

    def arrived(self, name: str, request: Any, text: Text) -> list[str]:
        """Watch a request; returns what this adapter reads that its state lacks."""
        status = self.inner._req_status.get(name)
        missing = lacking_state(status) if status is not None and not self._checked else []
        if not missing:
            self._checked = status is not None or self._checked
            self.watched[name] = Watched(name, request, text, status)
        return missing

    def cursors(self, name: str) -> list[int]:
        watched = self.watched.get(name)
        return [g.next_stored_chunk_idx for g in watched.groups] if watched else []

    def tell_known(self) -> None:
        """``keys`` and ``blocks`` of every request whose counts changed."""
        for name, watched in self.watched.items():
            keys = watched.keys
            blocks = watched.blocks
            for g, state in enumerate(watched.groups):
                count = len(state.offload_keys)
                if count != keys[g]:
                    keys[g] = count
                    self.emit({"saw": "keys", "r": name, "g": g, "n": count})
                count = len(state.block_ids)
                if count != blocks[g]:
                    blocks[g] = count
                    self.emit({"saw": "blocks", "r": name, "g": g, "n": count})

    def tell_cursors(self, watched: Watched, now: list[int]) -> None:
        for g, cursor in enumerate(now):
            if cursor != watched.cursors[g]:
                watched.cursors[g] = cursor
                self.emit({"saw": "cursor", "r": watched.name, "g": g, "n": cursor})

    def tell_all_cursors(self) -> None:
        for watched in self.watched.values():
            told = watched.cursors
            for g, state in enumerate(watched.groups):
                cursor = state.next_stored_chunk_idx
                if cursor != told[g]:
                    told[g] = cursor
                    self.emit({"saw": "cursor", "r": watched.name, "g": g, "n": cursor})

    def tell_retired(self) -> list[str]:
        """``retired`` for finished requests the planner has forgotten."""
        known = self.inner._req_status
        gone = [name for name, watched in self.watched.items()
                if watched.finished and name not in known]
        for name in gone:
            del self.watched[name]
            self.emit({"saw": "retired", "r": name})
        return gone
