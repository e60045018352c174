"""What must hold of storing: jobs, keys, cursors, volatile chunks, and nothing left behind."""

from __future__ import annotations

from typing import Any

from kvoracle.model.keys import Chunk
from kvoracle.model.machine import View
from kvoracle.model.requests import ABSENT, FINISHED, RUNNING, Group, Request, ended
from kvoracle.model.rules import REFERENCE, whole_chunks
from kvoracle.model.slots import SLOT, is_free
from kvoracle.model.store import COVERED, HELD, NEVER, SPOILED, claim, planned_for
from kvoracle.model.terms import exists, implies, not_

from .property import Property, Seen, Witness

PLANNING = ("requests", "keys", "blocks", "store")


def _final(s: View, r: Any, g: Any) -> Any:
    return whole_chunks(s.computed[r], s.tokens_per_chunk[g])


# --- KeysEqBlocks ------------------------------------------------------------


def _keys_eq_blocks(s: View, r: Request, g: Group) -> Any:
    return s.job_keys[r, g] == s.job_blocks[r, g]


def _unequal(seen: Seen) -> str:
    return (f"the job of request {seen.request}{seen.group} names {seen.of('job_keys')} keys and "
            f"the blocks of {seen.of('job_blocks')} chunks")


def _planned_with_a_key_late(s: View, r: Request, g: Group) -> Any:
    return (s.job_keys[r, g] > 0) & (s.keys[r, g] < s.blocks[r, g] // s.blocks_per_chunk[g])


def _planned_with_a_block_late(s: View, r: Request, g: Group) -> Any:
    return (s.job_keys[r, g] > 0) & (s.blocks[r, g] // s.blocks_per_chunk[g] < s.keys[r, g])


KEYS_EQ_BLOCKS = Property(
    name="KeysEqBlocks",
    statement="a planned job has exactly one key per chunk and exactly that chunk's blocks",
    why="A job pairs keys with blocks by position. If one list is cut shorter than the other, "
        "either the engine's own assertion takes it down with every request in it, or, without "
        "the assertion, blocks are stored under the keys of other chunks and served to whoever "
        "asks for those.",
    source="vLLM offloading scheduler, `assert len(offload_keys) == len(offload_block_ids)`; "
           "PR #52923",
    function=_keys_eq_blocks,
    because=_unequal,
    witnesses=(
        Witness("a job is planned while a block waits for its key", _planned_with_a_key_late),
        Witness("a job is planned while a key waits for its block", _planned_with_a_block_late),
    ),
    bugs=("vLLM#52170", "vLLM#49118", "vLLM PR52211", "vLLM PR41549"),
    fatal=True,
    parts=PLANNING,
)


# --- KeyedOnly -----------------------------------------------------------------


def _keyed_only(s: View, r: Request, g: Group, c: Chunk) -> Any:
    stored = (s.mark[r, g, c] == HELD) | (s.mark[r, g, c] == SPOILED)
    return implies(stored, c < s.keys[r, g])


def _unkeyed(seen: Seen) -> str:
    return (f"chunk {seen.where['c']} of request {seen.request}{seen.group} is stored, and the "
            f"keys known are {seen.of('keys')}")


def _computed_but_not_keyed(s: View, r: Request, g: Group) -> Any:
    return (s.cursor[r, g] > 0) & (s.keys[r, g] < _final(s, r, g)) & planned_for(s, r)


KEYED_ONLY = Property(
    name="KeyedOnly",
    statement="nothing is stored before its key exists",
    why="The key is the only name a stored chunk has. Bytes stored before it is known are stored "
        "under a made-up or stale name, or never found again.",
    source="vLLM PR #52923 (number of keyed chunks); PR46824",
    function=_keyed_only,
    because=_unkeyed,
    witnesses=(
        Witness("a whole computed chunk waits for its key", _computed_but_not_keyed),
    ),
    bugs=("vLLM#52170", "vLLM#33864"),
    parts=PLANNING,
)


# --- NoHole ----------------------------------------------------------------------


def _no_hole(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return implies(c < s.cursor[r, g], s.mark[r, g, c] != NEVER)


def _passed_over(seen: Seen) -> str:
    return (f"chunk {seen.where['c']} of request {seen.request}{seen.group} is behind the cursor "
            f"{seen.of('cursor')} and was never offered")


def _behind_the_cursor_declined(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return (c < s.cursor[r, g]) & (s.mark[r, g, c] == COVERED)


def _null_passed(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return (c < s.cursor[r, g]) & (c < s.slid[r, g]) & (s.mark[r, g, c] == COVERED)


def _refused_after_a_store(s: View, r: Request, g: Group) -> Any:
    return s.excused[r] & (s.cursor[r, g] > 0) & (s.life[r] == RUNNING)


NO_HOLE = Property(
    name="NoHole",
    statement="a chunk behind the cursor was offered, is covered by a hit, or was never storable",
    why="The cursor never comes back, so a chunk it jumped over is never stored. A prefix lookup "
        "stops at the first gap: one hole makes everything behind it useless, silently.",
    source="vLLM issue #46971, PR #46972; docstring of storable_chunks",
    function=_no_hole,
    because=_passed_over,
    witnesses=(
        Witness("a chunk behind the cursor was declined", _behind_the_cursor_declined),
        Witness("an offer is refused after an earlier store", _refused_after_a_store),
        Witness("a chunk behind the cursor has the null block, and was not stored", _null_passed,
                ("windows",)),
    ),
    bugs=("vLLM#46971", "vLLM#26329", "vLLM PR27697", "vLLM#33864"),
    parts=PLANNING,
)


# --- NoVolatileStore -----------------------------------------------------------------


def _no_volatile_store(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.mark[r, g, c] != SPOILED


def _not_final(seen: Seen) -> str:
    whole = seen.get("computed", seen.where["r"]) // seen.constant("tokens_per_chunk")
    chunk = f"chunk {seen.where['c']} of request {seen.request}{seen.group}"
    if seen.where["c"] >= whole:
        return f"{chunk} is stored, and the chunks wholly computed are {whole}"
    if seen.has("windows"):
        return f"{chunk} is stored, and its list has the null block there"
    return f"{chunk}, a draft group's, is stored while its last position may still be rewritten"


def _stored_part_of_what_is_computed(s: View, r: Request, g: Group) -> Any:
    return (s.life[r] == RUNNING) & (s.cursor[r, g] > 0) & (s.computed[r] < s.tokens[r])


def _tail_left_out(s: View, r: Request, g: Group) -> Any:
    whole = _final(s, r, g)
    return (
        (s.life[r] == RUNNING) & s.draft[g] & (s.computed[r] > s.prompt[r])
        & (s.cursor[r, g] > 0) & (s.cursor[r, g] < whole)
        & (whole <= s.keys[r, g]) & (whole <= s.blocks[r, g] // s.blocks_per_chunk[g])
    )


NO_VOLATILE_STORE = Property(
    name="NoVolatileStore",
    statement="no chunk is stored whose KV can still change or was never (wholly) computed",
    why="What the host holds under a key is served to every later request with that prefix. If "
        "the KV was not there yet, they read garbage; if a rejected draft rewrites it, the copy "
        "is stale (in a draft group that costs acceptance, not correctness).",
    source="vLLM PR #44784, #46972, docstring of storable_chunks; issue #34526",
    function=_no_volatile_store,
    because=_not_final,
    witnesses=(
        Witness("a request that computes on has stored chunks", _stored_part_of_what_is_computed),
        Witness("a draft group's volatile chunk is left out", _tail_left_out, ("drafts",)),
    ),
    bugs=("vLLM PR44784", "vLLM#34526", "vLLM PR55055"),
    parts=PLANNING,
)


# --- MonotoneProgress -------------------------------------------------------------------

MAY_MOVE_BACK = frozenset({"reset", "load", "report_load", "rewind", "retire"})
"""Actions after which a cursor may be lower: everything is considered again, a request comes
back with a hit or waits to come back, or it is forgotten.  NoHole holds then as well."""


def _monotone(s: View, t: View, action: str, r: Request, g: Group) -> Any:
    return True if action in MAY_MOVE_BACK else s.cursor[r, g] <= t.cursor[r, g]


def _fell_back(seen: Seen) -> str:
    assert seen.before is not None
    before = seen.before("cursor", seen.where["r"], seen.where["g"])
    return (f"the cursor of request {seen.request}{seen.group} moves back from {before} to "
            f"{seen.of('cursor')}")


def _storable_fell(s: View, r: Request, g: Group) -> Any:
    return (s.life[r] == RUNNING) & (s.rules.storable(claim(s, r, g)) < s.cursor[r, g])


MONOTONE_PROGRESS = Property(
    name="MonotoneProgress",
    statement="cursors move back only at reset or resume, and then to a place that re-offers "
              "what is lost",
    why="A cursor that falls back offers and copies the same chunks again, in the worst case in "
        "every step; and what made it fall is a count derived differently in two places.",
    source="vLLM advance_stored_idx (the max at the prefill-to-decode edge); PR50069",
    function=_monotone,
    because=_fell_back,
    is_step=True,
    witnesses=(Witness("fewer chunks are storable than were stored", _storable_fell),),
    bugs=("vLLM PR52211", "vLLM PR50069"),
    parts=PLANNING,
)


# --- EventuallyStored -----------------------------------------------------------------------


def _eventually_stored(s: View, r: Request, g: Group) -> Any:
    # If anything can be offered, then the next chunk can, taken or declined; said of that chunk
    # alone, the solver need not look for one.
    at = s.cursor[r, g]
    offered = s.possible("plan_store", r=r, g=g, n=at + 1, d=at + 1)
    declined = s.possible("plan_store", r=r, g=g, n=at + 1, d=at)
    at_rest = planned_for(s, r) & not_(offered | declined)
    if s.has("slots"):
        at_rest &= exists(SLOT, lambda h: is_free(s, h))
    if s.has("windows"):
        at_rest &= not_(s.possible("pass_over", r=r, g=g))
    return implies(at_rest, REFERENCE.storable(claim(s, r, g, REFERENCE)) <= s.cursor[r, g])


def _left_behind(seen: Seen) -> str:
    return (f"chunk {seen.of('cursor')} of request {seen.request}{seen.group} is storable, "
            f"and the planner has nothing to offer")


def _last_chunk_stored_at_the_end(s: View, r: Request, g: Group) -> Any:
    whole = _final(s, r, g)
    return (s.life[r] == FINISHED) & (whole > 0) & (s.cursor[r, g] == whole)


def _last_key_is_late(s: View, r: Request, g: Group) -> Any:
    return (s.life[r] == FINISHED) & (s.keys[r, g] < _final(s, r, g))


EVENTUALLY_STORED = Property(
    name="EventuallyStored",
    statement="at rest, with keys arrived and room in the pool, nothing storable is left",
    why="A chunk that no rule forbids to store and that nobody will ever store is a hit lost for "
        "every later request with that prefix. Nothing crashes; the pool just never pays.",
    source="vLLM issue #52735 (finish), PR48596, PR42611",
    function=_eventually_stored,
    because=_left_behind,
    witnesses=(
        Witness("a finished request's last whole chunk is stored", _last_chunk_stored_at_the_end),
        Witness("a finished request waits for its last key", _last_key_is_late),
    ),
    bugs=("vLLM#52735", "vLLM PR48596", "vLLM#41704"),
    derived=True,
    parts=PLANNING,
)


# --- strengthening invariants ------------------------------------------------------------------


def _counts_in_order(s: View, r: Request) -> Any:
    return (
        (s.computed[r] <= s.tokens[r]) & (s.prompt[r] <= s.tokens[r])
        & implies(s.life[r] == ABSENT, s.tokens[r] == 0)
    )


COUNTS_IN_ORDER = Property(
    name="CountsInOrder",
    statement="no more tokens are computed than known, nor are there fewer than the prompt's",
    why="The bound by tokens counts computed tokens and compares with the prompt; both must be "
        "parts of the same list.",
    source="vLLM Request.num_computed_tokens, num_tokens, num_prompt_tokens",
    function=_counts_in_order,
    because=lambda seen: (
        f"request {seen.request} has {seen.of('computed')} tokens computed, {seen.of('tokens')} "
        f"known and {seen.of('prompt')} in its prompt"),
    lemma=True,
    supports="NoVolatileStore",
    parts=("requests",),
)


def _held_is_known(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return implies(
        s.mark[r, g, c] == HELD, c < whole_chunks(s.tokens[r], s.tokens_per_chunk[g])
    )


HELD_IS_KNOWN = Property(
    name="HeldIsKnown",
    statement="a held chunk lies wholly within the request's known tokens",
    why="Preemption takes the computed count back to zero but not what was stored: the stored "
        "chunks stay within what is known, which only grows.",
    source="follows from storable counting whole chunks of computed tokens",
    function=_held_is_known,
    because=_not_final,
    lemma=True,
    supports="NoVolatileStore",
    parts=PLANNING,
)


def _tail_not_held(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return implies(
        s.draft[g] & (s.mark[r, g, c] == HELD) & (s.prompt[r] < s.tokens[r]) & not_(ended(s, r)),
        c < whole_chunks(s.tokens[r] - 1, s.tokens_per_chunk[g]),
    )


TAIL_NOT_HELD = Property(
    name="TailNotHeld",
    statement="while a request may still decode, a draft group's chunk with the last known token "
              "is not held",
    why="This is what leaving out the volatile chunk is for: the position that a rejected draft "
        "rewrites lies in no stored chunk.",
    source="vLLM docstring of storable_chunks",
    function=_tail_not_held,
    because=_not_final,
    lemma=True,
    supports="NoVolatileStore",
    parts=(*PLANNING, "drafts"),
)

STORING = (
    KEYS_EQ_BLOCKS, KEYED_ONLY, NO_HOLE, NO_VOLATILE_STORE, MONOTONE_PROGRESS, EVENTUALLY_STORED,
)
LEMMAS = (COUNTS_IN_ORDER, HELD_IS_KNOWN, TAIL_NOT_HELD)
