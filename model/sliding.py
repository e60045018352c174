"""Rules of tables with holes: when a block that no later position reads may go, and what the
null block in its place stands for.

A group whose layers read a window keeps no more than that.  While a request runs, the blocks of
chunks behind the window are freed and the *null block* takes their place in its table: nothing is
here (vLLM: block id 0).  `Sliding` gathers the rules; a variant replaces one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .kinds import reads
from .terms import not_


def passed(kind: Any, reach: Any, n: Any, p: Any) -> Any:
    """Whether position ``p`` is read no more by a request that has computed ``n`` positions.  In
    every kind, what a position does not read of what came before no later one does."""
    return (p < n) & not_(reads(kind, reach, n, p))


def still_waits(slid: Any) -> Any:
    """Whether the next writer of a block waits for the store that reads it where the block has
    ``slid`` out of its request's window: as in any other case.  No end of a request frees it, so a
    fence at ends and preemptions alone does not see it (vLLM issue #47282)."""
    del slid
    return True


def offers(null: Any) -> Any:
    """Whether the pool takes a chunk: not where its table has the ``null`` block, which holds
    nobody's KV (vLLM issue #53084)."""
    return not_(null)


def brings(null: Any) -> Any:
    """Whether a load brings a chunk: not where its table has the ``null`` block, since nobody will
    read it and everybody's tables name that block (vLLM issue #48959: only what is needed)."""
    return not_(null)


@dataclass(frozen=True)
class Sliding:
    """The rules of windows in force."""

    passed: Callable[[Any, Any, Any, Any], Any] = passed
    still_waits: Callable[[Any], Any] = still_waits
    offers: Callable[[Any], Any] = offers
    brings: Callable[[Any], Any] = brings


EXACT = Sliding()
