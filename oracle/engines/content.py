"""What should the KV at a position be, and is it?

Every position has a *tag*: a hash of the tokens up to it, in a draft group of one
token more (an EAGLE/MTP drafter computes its KV at a position from the next token as
well).  :class:`Content` writes tags as kernels would, and compares what was
stored, loaded or is read with the request's own.

The last position of a draft group's chunk is never compared: it depends on a
token that the chunk's key does not cover, and a stale one there lowers the
acceptance of drafts, not the truth of output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvoracle.oracle.engines.memory import UNWRITTEN, Memory
from kvoracle.oracle.engines.planner import Job
from kvoracle.oracle.events import BadBytes, Config

_MODULUS = (1 << 61) - 1
_MULTIPLIER = 0x1D8AF066F0B2C3E5 % _MODULUS
_NO_CONTENT = UNWRITTEN - 1
"""Wanted where a chunk reaches beyond the known tokens: nothing could be right there."""


@dataclass
class Text:
    """The tokens of a request, prompt and output; ``tags[i]`` names the first ``i + 1``."""

    name: str
    tokens: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)


def _next_tag(tag: int, token: int) -> int:
    return (tag * _MULTIPLIER + token) % _MODULUS


def key(g: int, tag: int) -> bytes:
    """A chunk's key: the tokens up to its end, and the group."""
    return tag.to_bytes(8, "big") + g.to_bytes(2, "big")


class Content:
    """Ghost content of one run.  ``stored`` and ``read`` count positions compared so far."""

    def __init__(self, config: Config, memory: Memory) -> None:
        self.config = config
        self.memory = memory
        self.stored = self.read = 0
        self._names: dict[int, str] = {UNWRITTEN: "nothing", _NO_CONTENT: "no tokens yet"}

    def extend(self, text: Text, tokens: Sequence[int]) -> None:
        """Append tokens to ``text``."""
        tag = text.tags[-1] if text.tags else 1
        for token in tokens:
            tag = _next_tag(tag, token)
            text.tokens.append(token)
            text.tags.append(tag)
            self._names.setdefault(tag, f"KV of {text.name}'s first {len(text.tags)} tokens")

    def write(
        self, text: Text, g: int, addresses: list[int], start: int, end: int, accepted: list[int]
    ) -> None:
        """A kernel computes positions ``[start, end)`` of the request, drafts included.

        ``addresses`` are those of all its positions.  ``accepted`` are the drafts that
        will turn out right; what is computed from other drafts is worth nothing.
        """
        tags = list(text.tags)
        for token in accepted:
            tags.append(_next_tag(tags[-1], token))
        ahead = 1 if self.config.groups[g].draft else 0
        # A drafter computes the last position again, with the token that came of it.
        first = max(0, start - ahead)
        values = [
            tags[p + ahead] if p + ahead < len(tags) else self._volatile(text, p)
            for p in range(first, end)
        ]
        self.memory.write(g, addresses[first:end], values)

    def check_read(self, text: Text, g: int, addresses: list[int], end: int) -> BadBytes | None:
        """Attention reads the first ``end`` positions."""
        # The drafter's last position is still to be rewritten.
        end -= 1 if self.config.groups[g].draft else 0
        return self._check_gpu(text, g, addresses, end, None)

    def check_load(
        self, text: Text, g: int, addresses: list[int], end: int, job: int
    ) -> BadBytes | None:
        """A load has filled the first ``end`` positions."""
        return self._check_gpu(text, g, addresses, end, job)

    def check_store(self, text: Text, job: Job) -> list[BadBytes]:
        """A store has filled host slots with chunks of the request."""
        found = []
        for move in job.moves:
            size = self.config.tokens_per_chunk(move.g)
            start = move.chunk * size
            want = self._want(text, move.g, start, start + size)
            want += [_NO_CONTENT] * (size - len(want))
            got = self.memory.host(move.g, move.slot)
            self.stored += len(want) - want.count(None)
            wrong = _first_wrong(want, got)
            if wrong is not None:
                found.append(
                    BadBytes(
                        "store",
                        text.name,
                        move.g,
                        want=self._name(want[wrong]),
                        got=self._name(got[wrong]),
                        chunk=move.chunk,
                        position=start + wrong,
                        job=job.id,
                    )
                )
        return found

    def _check_gpu(
        self, text: Text, g: int, addresses: list[int], end: int, job: int | None
    ) -> BadBytes | None:
        if end <= 0:
            return None
        want = self._want(text, g, 0, end)
        got = self.memory.read(g, addresses[:end])
        self.read += len(want) - want.count(None)
        wrong = _first_wrong(want, got)
        if wrong is None:
            return None
        return BadBytes(
            "read" if job is None else "load",
            text.name,
            g,
            want=self._name(want[wrong]),
            got=self._name(got[wrong]),
            position=wrong,
            job=job,
        )

    def _want(self, text: Text, g: int, start: int, end: int) -> list[int | None]:
        """Tags of positions ``[start, end)``; ``None`` where nothing is claimed."""
        if not self.config.groups[g].draft:
            return list(text.tags[start:end])
        size = self.config.tokens_per_chunk(g)
        known = len(text.tags) - 1
        return [
            text.tags[p + 1] if p < known and (p + 1) % size else None for p in range(start, end)
        ]

    def _volatile(self, text: Text, position: int) -> int:
        """The tag of a position computed from a token that was not kept."""
        tag = -2 - _next_tag(text.tags[-1], position)
        self._names[tag] = f"KV of a draft of {text.name} at position {position}, not accepted"
        return tag

    def _name(self, tag: int | None) -> str:
        return self._names.get(tag, "something else") if tag is not None else "anything"


def _first_wrong(want: list[int | None], got: list[int]) -> int | None:
    if want == got:
        return None
    for i, (expected, tag) in enumerate(zip(want, got)):
        if expected is not None and expected != tag:
            return i
    return None
