"""How many chunks may be stored: the page of arithmetic at the heart of offloading.

A request's KV is offloaded in whole *chunks*.  Three things must be there before a
chunk of a group can be stored: its tokens must be computed, its blocks must be
allocated and known to the planner, and its key must have arrived.  They come
independently of each other, so the number of storable chunks is the least of the
three counts (vLLM PR #52923; the engine that left the keys out of it died on
``assert len(offload_keys) == len(offload_block_ids)``).

In a draft group (EAGLE/MTP drafter layers) the KV of the last accepted position is
computed from a token that is still a guess.  If the guess is rejected it is
computed again, so while a request decodes its last chunk is *volatile* and is left
out; once the request has finished nothing rewrites it and it is storable
(vLLM issues #46971, #52735).

The same count must be used wherever the cursor, the index of the next chunk to
consider, is derived.  Where two places disagree, a chunk is passed over and never
considered again: a permanent hole at which every later prefix lookup ends.

Every rule works on plain numbers and on terms of the notation alike.  `Design`
gathers the places where an engine applies them; a variant replaces one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .connecting import AWARE, Sharing
from .fencing import CAREFUL, Care
from .holding import SOUND, Holding
from .kinds import DOCUMENTED, Seeking
from .ordering import ORDERLY, Order
from .sliding import EXACT, Sliding
from .terms import Value, ite, maximum, minimum, not_
from .tiering import TIERED, Tier


class Claim(NamedTuple):
    """What the planner knows of one request in one group when it counts chunks.

    ``tokens``: positions whose KV is computed, this step's included, drafts not.
    ``prompt``: tokens of the prompt.  ``finished``: ended, by itself or aborted.
    ``draft``: whether the group holds drafter layers.  ``blocks``: allocated blocks
    known to the planner.  ``keys``: keys that have arrived.
    """

    tokens: Value
    prompt: Value
    finished: Value
    draft: Value
    blocks: Value
    keys: Value
    tokens_per_chunk: Value
    blocks_per_chunk: Value


def whole_chunks(tokens: Any, tokens_per_chunk: Any) -> Any:
    """Chunks all of whose tokens are among the first ``tokens``."""
    return tokens // tokens_per_chunk


def is_decoding(claim: Claim) -> Any:
    """Whether the computed tokens reach beyond the prompt."""
    return claim.tokens > claim.prompt


def has_volatile_tail(claim: Claim) -> Any:
    """Whether the last whole chunk's KV may still be rewritten.

    Not during prefill: the drafter's input for a chunk's last position is then the next
    token of the prompt.  Not after the end: nothing is speculated any more.
    """
    return claim.draft & is_decoding(claim) & not_(claim.finished)


def by_tokens(claim: Claim) -> Any:
    """Chunks whose KV is computed and final."""
    whole = whole_chunks(claim.tokens, claim.tokens_per_chunk)
    return ite(has_volatile_tail(claim), maximum(whole - 1, 0), whole)


def by_blocks(claim: Claim) -> Any:
    """Chunks all of whose blocks are allocated and known."""
    return claim.blocks // claim.blocks_per_chunk  # type: ignore[operator]


def by_keys(claim: Claim) -> Any:
    """Chunks whose key has arrived."""
    return claim.keys


def storable(claim: Claim) -> Any:
    """Leading chunks that may be stored now: the rule of vLLM PR #52923."""
    return minimum(by_tokens(claim), by_blocks(claim), by_keys(claim))


def tokens_counted(computed: Any, tokens: Any, finished: Any, aborted: Any) -> Any:
    """The tokens a claim is made for: what is computed, however the request ended.

    A finished request's last token was sampled and never computed (vLLM 0.30 clamps the count
    for it); an aborted one may have all its keys and no block at all (vLLM issue #49118).
    """
    del tokens, finished, aborted
    return computed


def cursor_after_offer(cursor: Any, offered: Any, claim: Claim) -> Any:
    """The cursor once the host pool took an offer of all chunks up to ``offered``."""
    del claim
    return maximum(cursor, offered)


def cursor_in_passing(cursor: Any, bound: Any, claim: Claim) -> Any:
    """The cursor when a planner passes over a request that has nothing to offer up to ``bound``.

    Never moved back: at the edge from prefill to decoding the storable count of a draft
    group drops by one.
    """
    del claim
    return maximum(cursor, bound)


def cursor_after_refusal(cursor: Any, bound: Any, claim: Claim) -> Any:
    """The cursor when the host pool refused an offer up to ``bound``: where it was, so that the
    offer is made again."""
    del bound, claim
    return cursor


def cursor_after_clearing(cursor: Any) -> Any:
    """The cursor when preemption empties the block list: where it was."""
    return cursor


@dataclass(frozen=True)
class Design:
    """The rules in force, one field for each place an engine applies one; those of transfers
    are gathered in ``care``, those of the GPU's blocks in ``holding``, those of streams in
    ``order``, those between connectors in ``sharing``, those of lookups in ``seeking``, those of
    a second tier in ``tier``, those of windows in ``sliding``."""

    storable: Callable[[Claim], Any] = storable
    tokens_counted: Callable[[Any, Any, Any, Any], Any] = tokens_counted
    cursor_after_offer: Callable[[Any, Any, Claim], Any] = cursor_after_offer
    cursor_in_passing: Callable[[Any, Any, Claim], Any] = cursor_in_passing
    cursor_after_refusal: Callable[[Any, Any, Claim], Any] = cursor_after_refusal
    cursor_after_clearing: Callable[[Any], Any] = cursor_after_clearing
    care: Care = CAREFUL
    holding: Holding = SOUND
    order: Order = ORDERLY
    sharing: Sharing = AWARE
    seeking: Seeking = DOCUMENTED
    tier: Tier = TIERED
    sliding: Sliding = EXACT


REFERENCE = Design()
