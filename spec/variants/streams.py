"""Designs that leave one pair of operations unordered, each by a rule of `model.ordering`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvoracle.model.ordering import Hazard, Order, Who
from kvoracle.model.rules import Design
from kvoracle.model.scopes import STREAM_PARTS
from kvoracle.model.terms import not_

from .variant import Variant

BOTH = ("StreamOrder", "TrueReads")


def _but(later: Who, earlier: Who, hazard: Hazard,
         instead: Callable[[Any], Any] = lambda aged: False) -> Order:
    """All pairs are ordered but this one."""
    def waits(who: Who, other: Who, what: Hazard, aged: Any) -> Any:
        return instead(aged) if (who, other, what) == (later, earlier, hazard) else True

    return Order(waits=waits)


def _unordered(name: str, statement: str, lacks: str, source: str, order: Order,
               breaks: tuple[str, ...] = BOTH, scope: str = "streams") -> Variant:
    return Variant(name=name, statement=statement, lacks=lacks, source=source,
                   design=Design(order=order), breaks=breaks, scope=scope, parts=STREAM_PARTS)


# --- stores --------------------------------------------------------------------------

STORE_BESIDE_KERNELS = _unordered(
    "store-beside-kernels",
    "a store does not wait for the kernels that write its block",
    "an event of the compute stream before a store",
    "vLLM before PR31341; issue #45704: what the host has confirmed the device need not have done",
    _but("store", "kernel", "RAW"),
)

STEP_LATE_IS_NO_EVENT = _unordered(
    "step-late-is-no-event",
    "a store is queued a step late, and does not wait for the kernels of the step before",
    "an event of the compute stream before a store",
    "half of vLLM PR31341: a step has passed for the host, on the device none need have",
    _but("store", "kernel", "RAW", not_), scope="late",
)

LATE_STORE_UNFENCED = _unordered(
    "late-store-unfenced",
    "a block is written again while a store of it is planned and not queued",
    "the fence for stores that are queued late",
    "vLLM PR31341, which queues stores a step late, and PR48596: reuse in between",
    _but("kernel", "planned store", "WAR"), breaks=("TrueReads",),
)

STORE_OF_WHAT_LOADS = _unordered(
    "store-of-what-loads",
    "a store does not wait for the load that fills its block",
    "an event of the load stream before a store",
    "vLLM issue #34526: blocks are stored that are still being filled",
    _but("store", "load", "RAW"), scope="copies",
)

STORE_OVER_SLOT = _unordered(
    "store-over-slot",
    "a slot is stored to while a load of what was in it is queued",
    "an event of the load stream before a slot is used again",
    "vLLM PR41956 (review): a reset, and a new store writes a slot that a load still reads",
    _but("store", "load", "WAR"), scope="one-slot",
)

READY_AT_QUEUEING = _unordered(
    "ready-at-queueing",
    "a slot counts as filled when the store to it is queued",
    "the host's wait until it has seen the store done",
    "tpu-inference PR3152: readable though half stored; LMCache#4991",
    Order(ready=lambda queued, seen: queued), scope="one-slot",
)

# --- kernels -------------------------------------------------------------------------

KERNELS_BEFORE_LOAD = _unordered(
    "kernels-before-load",
    "kernels do not wait for the load of what they read",
    "an event of the load stream before each reader, each layer's too",
    "SGLang PR22811: of several accessors one lacks the wait for its layer",
    _but("kernel", "load", "RAW"),
)

KERNELS_OVER_STORE = _unordered(
    "kernels-over-store",
    "kernels do not wait for the store that reads what they write",
    "an event of the store stream before a block is written again",
    "SGLang PR20611: copies to the host race with the forward pass both ways",
    _but("kernel", "store", "WAR"),
)

# --- loads ---------------------------------------------------------------------------

LOAD_OVER_READS = _unordered(
    "load-over-reads",
    "a load does not wait for the kernels that still read its block",
    "an event of the compute stream before a load",
    "vLLM issue #47282: a freed block is loaded into, and older kernels still read it",
    _but("load", "kernel", "WAR"), scope="overwrites",
)

LOAD_OVER_WRITES = _unordered(
    "load-over-writes",
    "a load does not wait for the kernels that still write its block",
    "an event of the compute stream before a load",
    "SGLang PR36738: the round before is launched, and still writes; vLLM PR45357",
    _but("load", "kernel", "WAW"),
)

LOAD_OVER_STORE = _unordered(
    "load-over-store",
    "a load does not wait for the store that still reads its block",
    "an event of the store stream before a load",
    "SGLang PR20611; vLLM PR31341 with PR48596",
    _but("load", "store", "WAR"), scope="copies",
)

# --- the host ------------------------------------------------------------------------

HOST_OVER_SLOT = _unordered(
    "host-over-slot",
    "the host writes a slot while a load of what was in it is queued",
    "the host's wait until it has seen the load done",
    "SGLang PR31427: a load is only queued, and its host memory is given away",
    _but("host", "load", "WAR"),
)

TABLE_WRITTEN_EARLY = _unordered(
    "table-written-early",
    "the host fills a table while kernels that read it are queued",
    "the host's wait until it has seen those kernels done, or a table for each step under way",
    "TensorRT-LLM PR15546: a block table is overwritten while its copy is pending",
    _but("host", "kernel", "WAR"), scope="tables",
)

UNORDERED = (
    STORE_BESIDE_KERNELS, STEP_LATE_IS_NO_EVENT, LATE_STORE_UNFENCED, STORE_OF_WHAT_LOADS,
    STORE_OVER_SLOT, READY_AT_QUEUEING, KERNELS_BEFORE_LOAD, KERNELS_OVER_STORE,
    LOAD_OVER_READS, LOAD_OVER_WRITES, LOAD_OVER_STORE, HOST_OVER_SLOT, TABLE_WRITTEN_EARLY,
)
