"""Designs that were tried, in public or in thought, and what is wrong with each.

Each is the reference design with one place changed (`kvoracle.model.rules`), so that
its few lines are the whole difference.
"""

from __future__ import annotations

from typing import Any

from kvoracle.model.rules import (
    Claim,
    Design,
    by_blocks,
    by_keys,
    by_tokens,
    storable,
    whole_chunks,
)
from kvoracle.model.terms import ite, maximum, minimum, not_

from .variant import Variant

# --- a bound is missing ---------------------------------------------------------


def _by_tokens_and_blocks(claim: Claim) -> Any:
    return minimum(by_tokens(claim), by_blocks(claim))


NO_KEY_BOUND = Variant(
    name="no-key-bound",
    statement="chunks are counted by tokens and by allocated blocks, not by keys",
    lacks="the bound by keys that have arrived",
    source="vLLM before PR #52923 (0.27 to 0.29)",
    design=Design(storable=_by_tokens_and_blocks),
    breaks=("KeysEqBlocks", "KeyedOnly"),
    scope="seed",
)


def _tokens_of_the_aborted(computed: Any, tokens: Any, finished: Any, aborted: Any) -> Any:
    return ite(aborted, tokens, computed)


def _by_tokens_and_keys(claim: Claim) -> Any:
    return minimum(by_tokens(claim), by_keys(claim))


NO_BLOCK_BOUND = Variant(
    name="no-block-bound",
    statement="chunks are counted by tokens and by keys, not by blocks, and an aborted request "
              "counts all its tokens",
    lacks="the bound by allocated blocks",
    source="vLLM issue #49118, before PR #49146",
    design=Design(storable=_by_tokens_and_keys, tokens_counted=_tokens_of_the_aborted),
    breaks=("KeysEqBlocks", "NoVolatileStore"),
    scope="seed",
)

REWIND_AT_CLEAR = Variant(
    name="rewind-at-clear",
    statement="no bound but by tokens; the cursor goes back to 0 where the block list is emptied",
    lacks="the bounds by blocks and by keys (rewinding the cursor does not replace them)",
    source="vLLM PR52211, closed by its author who saw it fail",
    design=Design(storable=by_tokens, cursor_after_clearing=lambda cursor: 0),
    breaks=("KeysEqBlocks", "KeyedOnly", "MonotoneProgress"),
    scope="seed",
)


def _by_blocks_and_keys(claim: Claim) -> Any:
    return minimum(by_blocks(claim), by_keys(claim))


NO_TOKEN_BOUND = Variant(
    name="no-token-bound",
    statement="chunks are counted by blocks and by keys, not by computed tokens",
    lacks="the bound by computed tokens",
    source="vLLM issue #34526: blocks are there, their KV is not",
    design=Design(storable=_by_blocks_and_keys),
    breaks=("NoVolatileStore",),
    scope="seed",
)

def _tokens_of_the_finished(computed: Any, tokens: Any, finished: Any, aborted: Any) -> Any:
    return ite(finished, tokens, computed)


COUNTS_LAST_TOKEN = Variant(
    name="counts-last-token",
    statement="a finished request counts all its tokens, the last one included, whose KV is never "
              "computed",
    lacks="the rule that leaves out a finished request's last token, sampled and never computed",
    source="vLLM 0.26 to 0.29 (finish-time stores, PR48596); clamped in 0.30",
    design=Design(tokens_counted=_tokens_of_the_finished),
    breaks=("NoVolatileStore",),
    scope="seed",
)

# --- the cursor is derived by another rule -----------------------------------------


def _whole(claim: Claim) -> Any:
    return whole_chunks(claim.tokens, claim.tokens_per_chunk)


def _storable_with_the_tail(claim: Claim) -> Any:
    return minimum(_whole(claim), by_blocks(claim), by_keys(claim))


CURSOR_KEEPS_TAIL = Variant(
    name="cursor-keeps-tail",
    statement="the volatile chunk is left out of the offer, but the cursor moves past it",
    lacks="the exclusion of the volatile chunk where the cursor is derived",
    source="vLLM issue #46971, before PR #46972",
    design=Design(
        cursor_after_offer=lambda cursor, offered, claim: maximum(
            cursor, _storable_with_the_tail(claim)),
        cursor_in_passing=lambda cursor, bound, claim: maximum(
            cursor, _storable_with_the_tail(claim)),
    ),
    breaks=("NoHole",),
    scope="draft",
)

CURSOR_IGNORES_KEYS = Variant(
    name="cursor-ignores-keys",
    statement="chunks without a key are not offered, but the cursor moves past them",
    lacks="the bound by keys where the cursor is derived",
    source="vLLM issue #33864: a chunk counts as handled before its key exists",
    design=Design(
        cursor_after_offer=lambda cursor, offered, claim: maximum(
            cursor, _by_tokens_and_blocks(claim)),
        cursor_in_passing=lambda cursor, bound, claim: maximum(
            cursor, _by_tokens_and_blocks(claim)),
    ),
    breaks=("NoHole",),
    scope="seed",
)

CURSOR_FALLS_BACK = Variant(
    name="cursor-falls-back",
    statement="the cursor is set to the storable count, without a maximum",
    lacks="the maximum with the cursor's old value",
    source="vLLM advance_stored_idx: the count drops by one where decoding begins",
    design=Design(cursor_in_passing=lambda cursor, bound, claim: bound),
    breaks=("MonotoneProgress",),
    scope="draft",
)

ADVANCE_ON_REFUSAL = Variant(
    name="advance-on-refusal",
    statement="the cursor moves although the host pool refused the offer",
    lacks="keeping the cursor where it is when the pool refuses",
    source="vLLM issue #26329, PR27697",
    design=Design(cursor_after_refusal=lambda cursor, bound, claim: maximum(cursor, bound)),
    breaks=("NoHole",),
    scope="seed",
)

# --- the volatile chunk -----------------------------------------------------------------

NO_EXCLUSION = Variant(
    name="no-exclusion",
    statement="a draft group's volatile chunk is stored like any other",
    lacks="the exclusion of a draft group's volatile chunk while decoding",
    source="vLLM before PR #44784",
    design=Design(storable=_storable_with_the_tail),
    breaks=("NoVolatileStore",),
    scope="draft",
)


def _excluding_always(claim: Claim) -> Any:
    tail = claim.draft & not_(claim.finished)
    steady = ite(tail, maximum(_whole(claim) - 1, 0), _whole(claim))
    return minimum(steady, by_blocks(claim), by_keys(claim))


PREFILL_TAIL_EXCLUDED = Variant(
    name="prefill-tail-excluded",
    statement="a draft group's last chunk is left out during prefill as well",
    lacks="storing a prefill's last chunk at once: it is final",
    source="vLLM issue #46971: the trailing chunk of every prefill piece",
    design=Design(storable=_excluding_always),
    breaks=("EventuallyStored",),
    scope="draft",
)


def _excluding_for_ever(claim: Claim) -> Any:
    return storable(claim._replace(finished=False))


EXCLUSION_NEVER_LIFTED = Variant(
    name="exclusion-never-lifted",
    statement="a draft group's last chunk is left out even when the request has finished",
    lacks="lifting the exclusion when a request has finished",
    source="vLLM issue #52735 (finish), before 0.30",
    design=Design(storable=_excluding_for_ever),
    breaks=("EventuallyStored",),
    scope="draft",
)

ALL = (
    NO_KEY_BOUND, NO_BLOCK_BOUND, REWIND_AT_CLEAR, NO_TOKEN_BOUND, COUNTS_LAST_TOKEN,
    CURSOR_KEEPS_TAIL,
    CURSOR_IGNORES_KEYS, CURSOR_FALLS_BACK, ADVANCE_ON_REFUSAL, NO_EXCLUSION,
    PREFILL_TAIL_EXCLUDED, EXCLUSION_NEVER_LIFTED,
)
