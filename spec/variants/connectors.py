"""Designs that forget the other connector, each by one rule of `kvoracle.model.connecting`."""

from __future__ import annotations

from typing import Any

from kvoracle.model.connecting import Sharing
from kvoracle.model.rules import Design
from kvoracle.model.scopes import CONNECTOR_PARTS
from kvoracle.model.terms import maximum

from .variant import Variant


def _unaware(name: str, statement: str, lacks: str, source: str, scope: str,
             breaks: tuple[str, ...], **rules: Any) -> Variant:
    return Variant(name=name, statement=statement, lacks=lacks, source=source,
                   design=Design(sharing=Sharing(**rules)), breaks=breaks, scope=scope,
                   parts=CONNECTOR_PARTS)


BORROWED_UNFENCED = _unaware(
    "borrowed-unfenced",
    "another connector brings KV into a block that a store of ours still reads",
    "the fence for blocks that another connector writes",
    "vLLM issue #46951: told of blocks with nothing to load, it does not record them",
    "borrowed", ("ReuseFence", "TrueBytes"),
    borrow_waits=lambda copied: False,
)

BORROWED_COUNTS_AT_ONCE = _unaware(
    "borrowed-counts-at-once",
    "what another connector is to bring counts as computed when it starts",
    "the wait until another connector has brought what it promised",
    "vLLM issue #34526: blocks are stored that another connector has not filled yet",
    "borrowed", ("ReuseFence", "TrueBytes", "LoadedBytes", "ConnectorFence"),
    waits_for_bytes=False,
)

CURSOR_OVER_BORROWED = _unaware(
    "cursor-over-borrowed",
    "the cursor moves over what another connector has brought",
    "the offer of what another connector has brought",
    "vLLM before PR46865: a connector that does not win the lookup stores nothing",
    "borrowed", ("NoHole",),
    cursor_after_borrowing=lambda cursor, end: maximum(cursor, end),
)

FIRST_CONNECTOR_FREES = _unaware(
    "first-connector-frees",
    "an ended request's blocks are free when the first of several transfers is over",
    "waiting for the reports of all connectors",
    "vLLM issue #46240: load and send pending, freed at the first report; PR18246",
    "sent", ("ConnectorFence",),
    frees=lambda others: True,
)

SENT_IS_FREED = _unaware(
    "sent-is-freed",
    "an ended request's blocks are free while another connector sends them",
    "keeping an ended request's blocks until they are sent",
    "vLLM PR25067: a second way to end frees blocks that are kept for a reader",
    "sent", ("ConnectorFence",),
    frees_at_end=lambda used: True,
)

UNAWARE = (
    BORROWED_UNFENCED, BORROWED_COUNTS_AT_ONCE, CURSOR_OVER_BORROWED, FIRST_CONNECTOR_FREES,
    SENT_IS_FREED,
)
