"""Why a table may lack what its request reads no more: the lemmas that carry the promises of
transfers where windows slide."""

from __future__ import annotations

from typing import Any

from kvoracle.model.kinds import goes_on_at
from kvoracle.model.machine import View
from kvoracle.model.requests import RUNNING, Group, Request, Tokens
from kvoracle.model.terms import implies, ite
from kvoracle.model.windows import has_place, kept

from .property import Property, Seen
from .transferring import TRANSFERS

SLIDING = ("pool", "slots", "transfers", "loads", "kinds", "windows")


def _lemma(name: str, statement: str, why: str, source: str, supports: str, function: Any,
           because: Any) -> Property:
    return Property(name=name, statement=statement, why=why, source=source, function=function,
                    because=because, lemma=True, supports=supports, parts=SLIDING,
                    family=TRANSFERS)


def _goes(s: View, r: Any) -> Any:
    return (s.life[r] == RUNNING) | (s.hit[r] > 0)


def _at(s: View, r: Any) -> Any:
    """Where a request that runs, or is being loaded, goes on."""
    return ite(s.life[r] == RUNNING, s.computed[r], goes_on_at(s.tokens[r], s.hit[r]))


def _window_is_kept(s: View, r: Request, g: Group, p: Tokens) -> Any:
    return implies(_goes(s, r) & (p < s.tokens[r]), kept(s, r, g, _at(s, r), p))


def _slid_too_far(seen: Seen) -> str:
    return (f"request {seen.request} reads position {seen.where['p']}{seen.group}, and "
            f"its first {seen.of('slid')} chunks have no block")


WINDOW_IS_KEPT = _lemma(
    "WindowIsKept", "what a request reads, where it is or where its load ends, has a block",
    "A window's start only moves on, whatever the kind of the group: what was given back behind it "
    "is never read again.",
    "vLLM SlidingWindowManager: blocks are freed once no later position reads them",
    "LoadedBytes", _window_is_kept, _slid_too_far)


def _slid_is_behind(s: View, r: Request, g: Group) -> Any:
    return (s.slid[r, g] <= s.allocated[r, g]) & implies(
        _goes(s, r), has_place(s, r, g, _at(s, r)))


SLID_IS_BEHIND = _lemma(
    "SlidIsBehind", "null blocks have their places in the list, behind what is computed next",
    "Places in a list are chunks: what slides away leaves those of the others as they are, and "
    "kernels write none of them.",
    "vLLM block id 0",
    "LoadedBytes", _slid_is_behind,
    lambda seen: f"request {seen.request} lists {seen.of('allocated')} chunks, and "
                 f"{seen.of('slid')} of them have the null block")

WINDOW_LEMMAS = (WINDOW_IS_KEPT, SLID_IS_BEHIND)
