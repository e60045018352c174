"""Designs that misjudge a second tier, each by one rule of `kvoracle.model.tiering`."""

from __future__ import annotations

from typing import Any

from kvoracle.model.rules import Design
from kvoracle.model.scopes import TIER_PARTS
from kvoracle.model.tiering import PRESENT_BELOW, Tier

from .variant import Variant


def _mistiered(name: str, statement: str, lacks: str, source: str, breaks: tuple[str, ...],
               scope: str = "tiers", **rules: Any) -> Variant:
    return Variant(name=name, statement=statement, lacks=lacks, source=source,
                   design=Design(tier=Tier(**rules)), breaks=breaks, scope=scope,
                   parts=TIER_PARTS)


COPY_DOWN_UNHELD = _mistiered(
    "copy-down-unheld",
    "a key may be evicted while it is copied to the second tier",
    "holding a key until its copy down has ended",
    "SGLang PR28468: a copy under way is not held; Mooncake#4239: a lease ends before the read",
    ("TrueBytes", "LoadReady", "RefExact"),
    holds=False,
)

FAILED_BELOW_IS_PRESENT = _mistiered(
    "failed-below-is-present",
    "a key whose copy to the second tier failed counts as being there",
    "withdrawing a key whose copy down has failed",
    "LMCache#4991: a failed store of the second tier stays visible; Mooncake#3465",
    ("TrueBytes", "LoadedBytes"),
    written=lambda failed: PRESENT_BELOW,
)

UNREAD_COUNTED_ON = _mistiered(
    "unread-counted-on",
    "a request counts on the second tier for a key that could not be read",
    "taking back the answer when a read has failed",
    "vLLM issue #49176, before PR49328: the verdict is cached and the read is tried in each step",
    ("TierVerdict",),
    withdraws=False,
)

ONE_FAILS_ALL = _mistiered(
    "one-fails-all",
    "keys read together are all given up when one of them could not be read",
    "judging each key of a batch by its own read",
    "vLLM PR50321: one flag for the whole batch",
    ("TierVerdict",), scope="promotions",
    unreadable=lambda own, any_of_them: any_of_them,
)

PROMOTIONS_TAKE_ALL = _mistiered(
    "promotions-take-all",
    "keys are read from the second tier into the last free slots",
    "leaving room for the stores of requests that run",
    "vLLM issue #49902: promotions for queued requests fill the host pool",
    ("NoStall",), scope="last-slot",
    may_promote=lambda spare: True,
)

MISTIERED = (
    COPY_DOWN_UNHELD, FAILED_BELOW_IS_PRESENT, UNREAD_COUNTED_ON, ONE_FAILS_ALL,
    PROMOTIONS_TAKE_ALL,
)
