"""Designs under which something waits for ever, though no state of theirs is wrong by itself."""

from __future__ import annotations

from kvoracle.model import loads, store
from kvoracle.model.fencing import Care
from kvoracle.model.keys import Chunks
from kvoracle.model.machine import View
from kvoracle.model.requests import Group, Request
from kvoracle.model.rules import REFERENCE, Design
from kvoracle.model.scopes import CORE, QUEUE_PARTS, TRANSFER_PARTS

from .variant import Variant


def _asks_once(s: View, r: Request, g: Group, n: Chunks, d: Chunks) -> None:
    store.plan_store(s, r, g, n, d)
    s.require("was not refused", s.excused[r] == 0)


GIVES_UP_AT_REFUSAL = Variant(
    name="gives-up-at-refusal",
    statement="a request whose offer was refused is offered nothing more",
    lacks="making an offer again that was refused",
    source="vLLM issue #54415: what is declined once is never offered again",
    design=REFERENCE,
    overrides={"plan_store": _asks_once},
    breaks=("EventuallyStored",),
    scope="seed",
    parts=CORE,
)

BEGINS_ANEW_AT_REFUSAL = Variant(
    name="begins-anew-at-refusal",
    statement="when the host pool refuses an offer, the cursor goes back to 0",
    lacks="keeping the cursor where it is when the pool refuses",
    source="vLLM PR50069: the same chunks are offered in every step",
    design=Design(cursor_after_refusal=lambda cursor, bound, claim: 0),
    breaks=("MonotoneProgress",),
    starves=("EventuallyStored",),
    scope="seed",
    parts=CORE,
)

NEVER_COMPLETE = Variant(
    name="never-complete",
    statement="the test whether a store is over is never true",
    lacks="an end of the store when every worker has reported",
    source="Dynamo#3730: one pending save is counted too many",
    design=Design(care=Care(complete=lambda some, every: False)),
    breaks=("NoStall",),
    starves=("EventuallyStored", "NoLeak"),
    scope="workers",
    parts=TRANSFER_PARTS,
)


def _keeps_its_pins(s: View, r: Request) -> None:
    loads.load_dropped(s, r)
    s.pin.where(lambda r2, g, c: r2 == r, lambda r2, g, c: s.pin[r2, g, c])


PINS_KEPT_AT_ABORT = Variant(
    name="pins-kept-at-abort",
    statement="a load whose client has gone away never lets go of its keys",
    lacks="letting go of the keys of a load whose client has gone away",
    source="SGLang PR30053: what an aborted request had reserved is never given back",
    design=REFERENCE,
    overrides={"load_dropped": _keeps_its_pins},
    breaks=("RefExact",),
    starves=("NoLeak",),
    scope="workers",
    parts=TRANSFER_PARTS,
)

STRICT_QUEUE = Variant(
    name="strict-queue",
    statement="only the first of the queue may start, though it has no room and a loaded one has",
    lacks="starting a loaded request when those before it have no room",
    source="vLLM issues #45387, #53868: loaded requests hold the blocks that the first one needs",
    design=Design(care=Care(admits=lambda first: first)),
    breaks=(),
    starves=("NoLeak", "NoStall"),
    scope="queue",
    parts=QUEUE_PARTS,
)

STARVING = (
    GIVES_UP_AT_REFUSAL, BEGINS_ANEW_AT_REFUSAL, NEVER_COMPLETE, PINS_KEPT_AT_ABORT, STRICT_QUEUE,
)
