"""Rules of transfers: what a writer waits for, when a transfer is over, what may be evicted.

A copy takes its time, and meanwhile the request it belongs to may finish, be preempted
or lose its client, and its blocks go to another one.  Most public bugs of offloading are
one of these rules missing on one path.  `Care` gathers them; a variant replaces one.
Every rule works on plain truths and on terms of the notation alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .terms import enumeration, ite, not_

POOLED = enumeration("Pooled", "missing", "pending", "ready")
MISSING, PENDING, READY = range(3)


def still_reads(copied: Any, submitted: Any, finished: Any, preempted: Any) -> Any:
    """Whether the next writer of a block waits for a store that reads it on some worker.

    However the store and its request stand: the copy is no less to come because it is planned
    and not submitted yet, or because the request has finished or was preempted (vLLM PR31341,
    PR48596, issue #52360).
    """
    del submitted, finished, preempted
    return not_(copied)


def load_waits(copied: Any, submitted: Any) -> Any:
    """Whether a load into a block waits for a store that reads it on some worker."""
    del submitted
    return not_(copied)


def submits(running: Any) -> Any:
    """Whether planned stores are submitted, with or without a request that is ``running``: the
    last ones have none to wait for (vLLM PR42611)."""
    del running
    return True


def complete(some: Any, every: Any) -> Any:
    """Whether a transfer is over, when ``some`` or ``every`` worker is done with it."""
    del some
    return every


def outcome(failed: Any) -> Any:
    """What becomes of a key when its store is over."""
    return ite(failed, MISSING, READY)


def evictable(pooled: Any, pinned: Any) -> Any:
    """Whether a key may be evicted: its bytes are there, and no load reads them."""
    return (pooled == READY) & not_(pinned)


def counts_slot(some: Any, every: Any) -> Any:
    """Whether the pool has a slot, when ``some`` or ``every`` worker has memory for it: a key's
    bytes lie in the same slot of all workers (vLLM PR50653)."""
    del some
    return every


def refusable(room: Any, several: Any) -> Any:
    """Whether an offer may be refused: where there is no ``room`` for one more key.

    How many slots an offer of ``several`` chunks needs is not counted here, so that an engine
    that takes all of them or none may refuse it.
    """
    return several | not_(room)


def droppable(pooled: Any, pinned: Any) -> Any:
    """Whether a reset drops a key at once: what a load reads stays until it is over (vLLM
    PR41956, review)."""
    return (pooled != MISSING) & not_(pinned)


def reusable(late: Any) -> Any:
    """Whether a slot may be given to another key: not while a worker may still write it, ``late``,
    for a store that a reset has dropped (vLLM PR41956, review)."""
    return not_(late)


def loadable(pooled: Any) -> Any:
    """Whether a load may read a key."""
    return pooled == READY


def frees_at_abort(loading: Any) -> Any:
    """Whether an abort frees the request's blocks at once: not while a load writes them."""
    return not_(loading)


def startable(failed: Any) -> Any:
    """Whether a request starts when its load is over: not if a worker could not copy its share.
    It waits on, and computes what the load did not bring (LMCache#3388, vLLM issue #49250)."""
    return not_(failed)


def admits(first: Any) -> Any:
    """Whether a request that waits may start, be it the first of the queue or not: whoever has
    what it needs does, though the first one does not (vLLM issue #45387)."""
    del first
    return True


@dataclass(frozen=True)
class Care:
    """The rules of transfers in force.

    ``pins``: a load pins its keys until it has ended.  ``forgets_reused``: when a block of an
    ended request goes to another one, the planner's list of its blocks is empty from then on.
    ``exclusive``: a load waits for the request's own stores.  ``frees_failed``: the slot of a
    key whose store failed is free again.  ``drops_jobs``: a reset drops the stores under way, and
    what their workers report later is ignored.  ``holds_tails``: a store of a chunk that a step in
    flight will write once more is submitted after that; not needed where the tail is not offered.
    """

    still_reads: Callable[[Any, Any, Any, Any], Any] = still_reads
    load_waits: Callable[[Any, Any], Any] = load_waits
    submits: Callable[[Any], Any] = submits
    complete: Callable[[Any, Any], Any] = complete
    outcome: Callable[[Any], Any] = outcome
    evictable: Callable[[Any, Any], Any] = evictable
    counts_slot: Callable[[Any, Any], Any] = counts_slot
    refusable: Callable[[Any, Any], Any] = refusable
    droppable: Callable[[Any, Any], Any] = droppable
    reusable: Callable[[Any], Any] = reusable
    loadable: Callable[[Any], Any] = loadable
    frees_at_abort: Callable[[Any], Any] = frees_at_abort
    startable: Callable[[Any], Any] = startable
    admits: Callable[[Any], Any] = admits
    pins: bool = True
    frees_failed: bool = True
    drops_jobs: bool = True
    forgets_reused: bool = True
    exclusive: bool = True
    holds_tails: bool = False


CAREFUL = Care()
