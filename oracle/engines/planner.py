"""What does a scheduler tell an offload planner, and what does it ask of it?

:class:`Planner` is the narrow interface between the simulator and whatever plans
offloading: ``impl``'s offloader, the formal machine, broken variants of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvoracle.oracle.events import Chunks


class Move(NamedTuple):
    """One chunk of a job: ``blocks[i]`` pairs with place ``offset + i`` of host ``slot``."""

    g: int
    chunk: int
    slot: int
    blocks: tuple[int, ...]
    offset: int = 0


class Job(NamedTuple):
    """One transfer of several chunks."""

    id: int
    moves: tuple[Move, ...]


class Offer(NamedTuple):
    """What was offered to the host pool: what it took, and what it had no room for.

    ``taken`` with no ``job``: all of it was declined, being present.
    """

    taken: tuple[Chunks, ...] = ()
    job: Job | None = None
    refused: tuple[Chunks, ...] = ()


class Known(NamedTuple):
    """What a planner knows of a request in one group."""

    keys: int
    blocks: int
    cursor: int


class Planner(Protocol):
    """The calls an offload connector gets from the scheduler.

    Within a step they come in this order: ``preempt``, ``lookup``, ``load``, ``keys`` and
    ``blocks`` as requests are scheduled; ``plan`` once for each scheduled request and then
    for each that ended and is not retired; ``fence``; ``retire``; ``done`` for each
    transfer that completed; ``tokens`` and ``finish`` from sampling.  The others come
    between steps.
    """

    def arrive(self, r: str, prompt: int) -> None:
        """Request ``r`` of ``prompt`` tokens waits."""
        ...

    def keys(self, r: str, g: int, new: Sequence[bytes]) -> None:
        """Further keys, in chunk order."""
        ...

    def blocks(self, r: str, g: int, new: Sequence[int]) -> None:
        """Further blocks, in order of position."""
        ...

    def tokens(self, r: str, n: int) -> None:
        """``n`` tokens are known, prompt and accepted output."""
        ...

    def known(self, r: str, g: int) -> Known:
        """What is known of a tracked request, for the observations."""
        ...

    def lookup(self, r: str) -> int:
        """How many leading tokens of a waiting request may be loaded, at most all but one."""
        ...

    def load(self, r: str, upto: int) -> Job:
        """Load the first ``upto`` tokens into the request's blocks, which are known by now.
        The transfer runs before this step's kernels."""
        ...

    def plan(self, r: str, computed: int) -> Offer | None:
        """Offer to the pool what is storable of ``r``, now that KV of ``computed`` known
        tokens is or will be written in this step; ``None`` if that is nothing."""
        ...

    def fence(self) -> Sequence[int]:
        """Jobs that must run before this step's loads and kernels write."""
        ...

    def retire(self) -> Sequence[str]:
        """Requests forgotten just now."""
        ...

    def done(self, job: int) -> None:
        """The transfer is complete on every worker."""
        ...

    def preempt(self, r: str) -> None:
        """``r`` lost its blocks and waits again."""
        ...

    def finish(self, r: str, computed: int, aborted: bool) -> None:
        """``r`` ended; KV of its first ``computed`` tokens was written while it ran.
        Its blocks are free from now on."""
        ...

    def refuse(self, n: int) -> None:
        """The host pool is to refuse the next ``n`` store requests."""
        ...

    def reset(self) -> None:
        """Empty the host pool."""
        ...

    def held(self) -> str:
        """What is held that should not be when nothing runs, in words; empty if nothing."""
        ...
