"""Why blocks may be shared and written late: the lemmas that carry the promises of transfers
where requests share blocks, and where steps run behind what the engine knows."""

from __future__ import annotations

from typing import Any

from kvoracle.model.keys import Chunk
from kvoracle.model.lag import NEXT, NOTHING
from kvoracle.model.machine import View
from kvoracle.model.pool import HOLDS, NONE, Block, Worker, lives
from kvoracle.model.requests import ABSENT, RUNNING, Group, Request, ended
from kvoracle.model.rules import whole_chunks
from kvoracle.model.terms import implies, ite, not_

from .property import Property, Seen
from .transferring import TRANSFERS

SHARED = ("pool", "slots", "transfers", "loads", "sharing")


LATE = ("pool", "slots", "transfers", "loads", "lag")


def _lemma(name: str, statement: str, why: str, source: str, supports: str, function: Any,
           because: Any, parts: tuple[str, ...] = SHARED) -> Property:
    return Property(name=name, statement=statement, why=why, source=source, function=function,
                    because=because, lemma=True, supports=supports, parts=parts,
                    family=TRANSFERS)


def _block(seen: Seen) -> str:
    return f"block {seen.where['b']}"


def _name_is_true(s: View, b: Block, w: Worker) -> Any:
    return implies(s.named[b], (s.tag_text[b, w] == s.name[b]) & (s.tag_g[b, w] == s.place_g[b])
                   & (s.tag_end[b, w] == s.place_c[b] + 1))


NAME_IS_TRUE = _lemma(
    "NameIsTrue", "a block that can be found holds what its name says",
    "Whoever finds a block by its name looks no further. A name outlives its request, so it must "
    "come after the KV and go before the block is written again.",
    "vLLM BlockPool: a block is cached when full, and evicted from the cache when it is given away",
    "LoadedBytes", _name_is_true,
    lambda seen: f"{_block(seen)} has a name, and on worker {seen.where['w']} it holds something "
                 "else")


def _named_is_behind(s: View, b: Block, q: Request) -> Any:
    g, c = s.place_g[b], s.place_c[b]
    return implies(
        s.named[b] & (s.hold[b, q] == HOLDS),
        (s.name[b] == s.text[q])
        & (c < ite(s.life[q] == RUNNING, whole_chunks(s.computed[q], s.tokens_per_chunk[g]),
                   s.found[q, g])))


NAMED_IS_BEHIND = _lemma(
    "NamedIsBehind",
    "who holds a block with a name is of its text, and has computed it or found it",
    "Kernels write behind what is computed, and loads behind what was found: no block that others "
    "may find and hold is written.",
    "vLLM KVCacheManager: computed blocks come first in a request's list",
    "ReuseFence", _named_is_behind,
    lambda seen: f"request {seen.where['q']} may yet write {_block(seen)}, which others find")


def _found_is_short(s: View, r: Request, g: Group) -> Any:
    size = s.tokens_per_chunk[g]
    found = s.found[r, g]
    return (
        ite(s.life[r] == ABSENT, found == 0, found <= whole_chunks(s.tokens[r] - 1, size))
        & implies(s.hit[r] > 0, found <= whole_chunks(s.hit[r], size))
        & (found <= s.allocated[r, g])
    )


FOUND_IS_SHORT = _lemma(
    "FoundIsShort", "what was found ends before the request's last token, and within its load",
    "The last token is computed in any case. Were its chunk found, computing it would write a "
    "block that others read.",
    "vLLM: a hit is capped at one token less than the request",
    "ReuseFence", _found_is_short,
    lambda seen: f"request {seen.request} found {seen.of('found')} chunks, one too many")


def _found_keeps_its_name(s: View, r: Request, g: Group, c: Chunk) -> Any:
    b = s.table[r, g, c]
    held = lives(s, r) | (s.hit[r] > 0)
    return implies(held & (c < s.found[r, g]), s.named[b])


FOUND_KEEPS_ITS_NAME = _lemma(
    "FoundKeepsItsName", "a block that a request found has its name as long as it is held",
    "A block loses its name when it is given to another, which nobody can be while one holds it.",
    "vLLM KVCacheManager: a found block is touched, which takes it off the free list",
    "LoadedBytes", _found_keeps_its_name,
    lambda seen: f"request {seen.request} found a block for chunk {seen.where['c']}{seen.group}, "
                 "and it can be found no more")


def _aim_is_its_own(s: View, r: Request, g: Group, q: Request) -> Any:
    return implies((s.ahead[r] != NOTHING) & (q != r), s.hold[s.aimed[r, g], q] == NONE)


AIM_IS_ITS_OWN = _lemma(
    "AimIsItsOwn", "the block that a dispatched step writes is nobody else's",
    "The step was told the block before its request ended. It goes to another only when the step "
    "has run.",
    "vLLM PR45357",
    "ReuseFence", _aim_is_its_own,
    lambda seen: f"a step of request {seen.request} is to write a block of request "
                 f"{seen.where['q']}", LATE)


def _aim_is_ahead(s: View, r: Request, g: Group) -> Any:
    b, size = s.aimed[r, g], s.tokens_per_chunk[g]
    at = whole_chunks(s.computed[r], size)
    mine = (s.ahead[r] != NOTHING) & (s.hold[b, r] != NONE)
    return implies(mine, (s.place_g[b] == g) & (at <= s.place_c[b])
                   & ((s.ahead[r] == NEXT) | ended(s, r))) & implies(
        s.ahead[r] == NEXT,
        (s.life[r] == RUNNING) & (s.table[r, g, at] == b) & (at < s.allocated[r, g]))


AIM_IS_AHEAD = _lemma(
    "AimIsAhead", "a dispatched step writes behind what its request has computed",
    "No whole chunk is written again, so what the planner offers of a request that has ended stays "
    "as it was, whatever strays come.",
    "vLLM PR45357",
    "ReuseFence", _aim_is_ahead,
    lambda seen: f"a step of request {seen.request} is to write a chunk that it has computed",
    LATE)


def _fresh_aims(s: View, r: Request, g: Group, q: Request, h: Group, d: Chunk, w: Worker) -> Any:
    reading = s.flight[q, h, d] & (s.copied[q, h, d, w] == 0)
    return not_((s.ahead[r] != NOTHING) & reading & (s.source[q, h, d] == s.aimed[r, g]))


FRESH_AIMS = _lemma(
    "FreshAims", "no store reads a block that a dispatched step writes",
    "The fence is passed when a step is dispatched; nothing that comes after may read what it "
    "writes.",
    "vLLM jobs_to_flush: flushed before the next forward pass",
    "ReuseFence", _fresh_aims,
    lambda seen: f"a step of request {seen.request} is to write a block that the store of chunk "
                 f"{seen.where['d']} of request {seen.where['q']} still reads", LATE)

LAG_LEMMAS = (AIM_IS_ITS_OWN, AIM_IS_AHEAD, FRESH_AIMS)
RESIDENT_LEMMAS = (NAME_IS_TRUE, NAMED_IS_BEHIND, FOUND_IS_SHORT, FOUND_KEEPS_ITS_NAME)
