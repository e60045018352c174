"""What is the planner seen to know?  Its state of each request, told when it changes.

The planner is ``OffloadingConnectorScheduler``; it holds, for each request and group, the keys
it knows, the blocks it knows and the cursor.  They are only read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .content import Text
from .serve import BadInput
from .shims import lacking_state
from .shims.release import Release

Emit = Callable[[dict[str, Any]], None]


class Watched:
    """One request as seen from outside: its objects in the engine, and what was last told."""

    __slots__ = ("name", "request", "text", "status", "groups", "keys", "blocks", "cursors",
                 "tokens", "reach", "computed", "admitted", "finished", "key_limit", "chunk_of",
                 "looked_up", "most_loaded")

    def __init__(self, name: str, request: Any, text: Text, groups: int) -> None:
        self.name = name
        self.request = request
        self.text = text
        # Kept here, since the planner drops it in the very step it last plans for it.
        self.status: Any = None
        self.groups: tuple[Any, ...] = ()
        self.keys = [0] * groups
        self.blocks = [0] * groups
        self.cursors = [0] * groups
        self.tokens = len(text.prompt)
        self.reach = self.computed = 0  # by the last step scheduled, drafts and all; known ones
        self.admitted = False
        self.finished = False
        self.key_limit: int | None = None
        self.most_loaded: int | None = None
        self.looked_up: dict[str, Any] = {}
        self.chunk_of: list[dict[bytes, int]] = [{} for _ in range(groups)]

    def find_chunk(self, key: bytes) -> tuple[int, int] | None:
        """Group and chunk index of one of this request's keys."""
        for group, (known, state) in enumerate(zip(self.chunk_of, self.groups)):
            keys = state.offload_keys
            for index in range(len(known), len(keys)):
                known.setdefault(keys[index], index)
            if key in known:
                return group, known[key]
        return None


class Planner:
    """All requests the planner still knows, or has just forgotten."""

    def __init__(self, release: Release, inner: Any, groups: int, emit: Emit) -> None:
        self.release = release
        self.inner = inner
        self.emit = emit
        self.watched: dict[str, Watched] = {}
        self._groups = groups
        self._cursor = release.cursor()
        self._checked = False

    def arrived(self, name: str, request: Any, text: Text) -> Watched:
        """Watch a request from now on."""
        watched = self.watched[name] = Watched(name, request, text, self._groups)
        self.bind(watched)
        return watched

    def bind(self, watched: Watched) -> bool:
        """Find the planner's state of a request; some releases make it when they first look."""
        if watched.status is not None:
            return True
        status = self.release.status(self.inner, watched.name)
        if status is None:
            return False
        if not self._checked:
            missing = lacking_state(self.release, status)
            if missing:
                raise BadInput("this release lacks what the adapter relies on: "
                               + ", ".join(missing))
            self._checked = True
        watched.status = status
        watched.groups = tuple(status.group_states)
        return True

    def cursors(self, name: str) -> list[int]:
        watched = self.watched.get(name)
        if watched is None or not self.bind(watched):
            return []
        return [self._cursor(group) for group in watched.groups]

    def tell_known(self) -> None:
        """``keys`` and ``blocks`` of every request whose counts changed."""
        for name, watched in self.watched.items():
            if watched.status is None and not self.bind(watched):
                continue
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
        cursor_of = self._cursor
        for watched in self.watched.values():
            told = watched.cursors
            for g, state in enumerate(watched.groups):
                cursor = cursor_of(state)
                if cursor != told[g]:
                    told[g] = cursor
                    self.emit({"saw": "cursor", "r": watched.name, "g": g, "n": cursor})

    def tell_retired(self) -> list[str]:
        """``retired`` for finished requests the planner has forgotten."""
        known = self.release.known(self.inner)
        gone = [name for name, watched in self.watched.items()
                if watched.finished and name not in known]
        for name in gone:
            del self.watched[name]
            self.emit({"saw": "retired", "r": name})
        return gone
