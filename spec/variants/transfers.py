"""Designs that lose track of a transfer, each by one rule of `kvoracle.model.fencing`."""

from __future__ import annotations

from typing import Any

from kvoracle.model.fencing import MISSING, PENDING, READY, Care
from kvoracle.model.rules import Design
from kvoracle.model.scopes import TRANSFER_PARTS
from kvoracle.model.terms import ite, not_

from .variant import Variant


def _careless(name: str, statement: str, lacks: str, source: str, scope: str,
              breaks: tuple[str, ...], starves: tuple[str, ...] = (), **rules: Any) -> Variant:
    return Variant(name=name, statement=statement, lacks=lacks, source=source,
                   design=Design(care=Care(**rules)), breaks=breaks, scope=scope,
                   starves=starves, parts=TRANSFER_PARTS)


# --- the fence is missing on a path --------------------------------------------------

NO_FENCE_AT_FINISH = _careless(
    "no-fence-at-finish",
    "a block is written again while a store of a request that ended still reads it",
    "the fence for stores whose request has ended",
    "vLLM issue #46951, PR48596: the store is submitted after the block was given away",
    "reuse", ("ReuseFence", "TrueBytes"),
    still_reads=lambda copied, submitted, finished, preempted: not_(copied) & not_(finished),
)

NO_FENCE_AT_PREEMPTION = _careless(
    "no-fence-at-preemption",
    "a block is written again while a store of a preempted request still reads it",
    "the fence for stores whose request was preempted",
    "vLLM issue #52360: the notice of preemption comes after the blocks are reused",
    "reuse", ("ReuseFence", "TrueBytes"),
    still_reads=lambda copied, submitted, finished, preempted: not_(copied) & not_(preempted),
)

FENCE_OF_SUBMITTED = _careless(
    "fence-of-submitted",
    "a block is written again while a store that reads it is planned and not submitted yet",
    "the fence for stores that are not submitted yet",
    "vLLM PR48596: planned at the end of a request, submitted a step later (PR31341)",
    "reuse", ("ReuseFence", "TrueBytes"),
    still_reads=lambda copied, submitted, finished, preempted: not_(copied) & submitted,
)

LOAD_INTO_READ = _careless(
    "load-into-read",
    "a load writes a block that a store still reads",
    "the fence for blocks that a load writes",
    "vLLM PR31341 and PR48596: stores submitted late; the fence was for kernels",
    "fences", ("ReuseFence", "TrueBytes", "LoadedBytes"),
    load_waits=lambda copied, submitted: False,
)

LIST_KEPT_AT_REUSE = _careless(
    "list-kept-at-reuse",
    "an ended request's blocks are offered although another request was given them",
    "forgetting an ended request's blocks when they go to another",
    "vLLM PR48596: the window in which a freed block is reused",
    "reuse", ("ReuseFence", "TrueBytes"),
    forgets_reused=False,
)

ABORT_FREES_AT_ONCE = _careless(
    "abort-frees-at-once",
    "an abort frees the blocks that a load still writes",
    "keeping an aborted request's blocks until its load has ended",
    "vLLM issue #46240: aborted with a load pending, freed at the first report",
    "workers", ("ReuseFence",),
    frees_at_abort=lambda loading: True,
)

LOAD_BESIDE_STORES = _careless(
    "load-beside-stores",
    "a preempted request is loaded while stores of it are under way",
    "waiting with a load until the request's stores are over",
    "vLLM issue #46240: one flag for a load and a store, freed at the first report",
    "pieces", ("JobExclusive",),
    exclusive=False,
)

# --- the host's side ------------------------------------------------------------------

PIN_DROPPED_AT_ISSUE = _careless(
    "pin-dropped-at-issue",
    "a load's keys may be evicted as soon as the load is issued",
    "the pin that lasts until the load has ended",
    "SGLang PR31427: host eviction looks at a lock that the queued load does not hold",
    "slots", ("ReuseFence", "LoadReady", "LoadedBytes", "RefExact"),
    pins=False,
)

EVICT_PENDING = _careless(
    "evict-pending",
    "a key may be evicted while its store is under way",
    "keeping a key that is pending",
    "SGLang PR28468: a batch of write-backs frees the slots of its own copies; TensorRT-LLM#12542",
    "slots", ("ReuseFence", "TrueBytes", "LoadedBytes"),
    evictable=lambda pooled, pinned: (pooled != MISSING) & not_(pinned),
)

LATE_REPORT_COUNTS = _careless(
    "late-report-counts",
    "a reset gives up the keys of stores under way, and their reports make them ready all the same",
    "dropping, at a reset, the stores under way",
    "vLLM PR41956 (review): a reset clears the manager alone",
    "workers", ("TrueBytes", "LoadedBytes"),
    drops_jobs=False,
)

RESET_FREES_WRITTEN = _careless(
    "reset-frees-written",
    "a slot that a dropped store may still write is given to another key",
    "waiting, after a reset, for the copies that are outstanding",
    "vLLM PR41956 (review): slots are used again while older transfers are under way",
    "workers", ("ReuseFence", "TrueBytes", "LoadedBytes"),
    reusable=lambda late: True,
)

RESET_FREES_READ = _careless(
    "reset-frees-read",
    "a reset gives up keys that a load still reads",
    "keeping, through a reset, what a load still reads",
    "vLLM PR41956 (review): a new store may write a slot that an old load still reads",
    "resets", ("ReuseFence", "TrueBytes", "LoadReady", "LoadedBytes"),
    droppable=lambda pooled, pinned: pooled != MISSING,
)

LOAD_PENDING = _careless(
    "load-pending",
    "a load may read a key whose store is under way",
    "waiting for a key until it is ready",
    "tpu-inference PR3152: readable though half stored",
    "loads", ("LoadReady", "LoadedBytes"),
    loadable=lambda pooled: pooled != MISSING,
)

LARGEST_RANK_COUNTS = _careless(
    "largest-rank-counts",
    "the pool has as many slots as the worker with the most memory",
    "counting the slots that every worker has",
    "vLLM PR50653: rank 0's larger number of slots is used for all",
    "ranks", ("WorkerAgreement", "TrueBytes", "LoadedBytes"),
    counts_slot=lambda some, every: some,
)

REFUSED_WITH_ROOM = _careless(
    "refused-with-room",
    "an offer is refused although a slot is free",
    "refusing only where room lacks",
    "SGLang PR30203: reservations are counted and never given back; LMCache#987",
    "ranks", ("NoStall",),
    refusable=lambda room, several: True,
)

FAILED_KEEPS_ITS_SLOT = _careless(
    "failed-keeps-its-slot",
    "the slot of a key whose store failed is never free again",
    "freeing the slot of a key that is given up",
    "SGLang PR9648: host slots leak when what they were for is gone",
    "workers", ("NoLeak",), ("NoLeak",),
    frees_failed=False,
)

LAST_STORE_WAITS = _careless(
    "last-store-waits",
    "planned stores are submitted in a request's next step",
    "submitting the last stores though no request is left",
    "vLLM PR42611: with no next step nothing submits deferred stores",
    "workers", ("NoStall",), ("EventuallyStored", "NoLeak"),
    submits=lambda running: running,
)

# --- reports ----------------------------------------------------------------------------

FIRST_REPORT_COUNTS = _careless(
    "first-report-counts",
    "a store is over when the first worker has reported",
    "waiting for the reports of all workers",
    "tpu-inference PR3152: the first host's report is taken as completion",
    "workers", ("ReuseFence", "TrueBytes", "LoadedBytes", "WorkerAgreement"),
    complete=lambda some, every: some,
)

FAILED_IS_READY = _careless(
    "failed-is-ready",
    "a key is ready when its store is over, whether or not a copy failed",
    "giving up the key when a copy has failed",
    "LMCache#4991: a failed store stays visible to lookup",
    "workers", ("ReuseFence", "TrueBytes", "LoadedBytes"),
    outcome=lambda failed: READY,
)

FAILED_STAYS_PENDING = _careless(
    "failed-stays-pending",
    "a key whose store failed stays pending, and nobody fills it",
    "giving up the key when a copy has failed",
    "Dynamo#3730: kept for ever, since the test for completion is never true",
    "workers", ("NoLeak",), ("NoLeak",),
    outcome=lambda failed: ite(failed, PENDING, READY),
)

CARELESS = (
    NO_FENCE_AT_FINISH, NO_FENCE_AT_PREEMPTION, FENCE_OF_SUBMITTED, LOAD_INTO_READ,
    LIST_KEPT_AT_REUSE, ABORT_FREES_AT_ONCE, LOAD_BESIDE_STORES, PIN_DROPPED_AT_ISSUE,
    EVICT_PENDING, LATE_REPORT_COUNTS, RESET_FREES_WRITTEN, RESET_FREES_READ, LOAD_PENDING,
    FIRST_REPORT_COUNTS, FAILED_IS_READY, FAILED_STAYS_PENDING, LAST_STORE_WAITS,
    LARGEST_RANK_COUNTS, REFUSED_WITH_ROOM, FAILED_KEEPS_ITS_SLOT,
)
