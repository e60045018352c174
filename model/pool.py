"""Part *pool*: the GPU's blocks, who holds them, and what is written in them.

A block here is all the blocks of one chunk: they are allocated, freed and copied
together.  Content is named, not stored: a block holds, on each worker, the KV of some
chunk of some text, and keeps it when it is freed, until it is written again.  Requests
with one text share keys and KV; a key is a text, a group and a chunk.

A request that ends frees its blocks at once, while the planner may still offer what
they hold.  That works until one of them goes to another request (vLLM plans those stores
in the very step of the end); from then on the planner's list of them is empty.
"""

from __future__ import annotations

from typing import Annotated

from .hits import chunks_touched
from .keys import CHUNK, CHUNKS, Blocks
from .machine import Part, View
from .requests import (
    GROUP,
    PREEMPTED,
    REQUEST,
    RUNNING,
    WAITING,
    Group,
    Request,
    Tokens,
)
from .rules import whole_chunks
from .terms import Sort, Term, Value, enumeration, exists, forall, implies, ite, lift, not_

BLOCK = Sort("Block", symmetric=True)
TEXT = Sort("Text", symmetric=True)
WORKER = Sort("Worker", symmetric=True)
Block = Annotated[Term, BLOCK]
Text = Annotated[Term, TEXT]
Worker = Annotated[Term, WORKER]

HOLD = enumeration("Hold", "none", "holds", "left")
NONE, HOLDS, LEFT = range(3)

part = Part("pool", "pool: blocks, who holds them, what is written in them")
part.variable("text", (REQUEST,), TEXT, "what the request says, prompt and output")
part.variable("allocated", (REQUEST, GROUP), CHUNKS, "chunks that it was given a block for")
part.variable("table", (REQUEST, GROUP, CHUNK), BLOCK, "the block of each of those chunks")
part.variable("hold", (BLOCK, REQUEST), HOLD,
              "whether the request holds the block, or left it when it ended, for the planner to "
              "offer yet; the requests that hold a block are its reference count, as a set")
part.variable("place_g", (BLOCK,), GROUP, "the group that the block is for")
part.variable("place_c", (BLOCK,), CHUNK, "the chunk that the block is for")
part.variable("tag_text", (BLOCK, WORKER), TEXT, "whose KV a worker's block holds")
part.variable("tag_g", (BLOCK, WORKER), GROUP, "which group's KV it holds")
part.variable("tag_end", (BLOCK, WORKER), CHUNKS, "the end of the chunk it holds; 0: of none")


def lives(s: View, r: Term) -> Term:
    """Whether the request has arrived and not ended."""
    return (s.life[r] == WAITING) | (s.life[r] == RUNNING) | (s.life[r] == PREEMPTED)


def holds(s: View, b: Term, w: Term, r: Term, g: Term, c: Term) -> Term:
    """Whether a worker's block holds the KV of the request's chunk."""
    return (s.tag_text[b, w] == s.text[r]) & (s.tag_g[b, w] == g) & (s.tag_end[b, w] == c + 1)


def written(s: View, b: Term, r: Term, n: Term) -> Term:
    """Whether the request's kernels write the block when they compute up to ``n`` tokens."""
    size = s.tokens_per_chunk[s.place_g[b]]
    within: Term = (
        (s.hold[b, r] == HOLDS)
        & (whole_chunks(s.computed[r], size) <= s.place_c[b])
        & (s.place_c[b] < chunks_touched(n, size))
    )
    return within


def has_blocks(s: View, r: Term, n: Term) -> Term:
    """Whether each chunk with any of the first ``n`` tokens has its block."""
    return forall(
        GROUP, lambda g: chunks_touched(n, s.tokens_per_chunk[g]) <= s.allocated[r, g])


def held_alone(s: View, b: Term, r: Term) -> Term:
    """Whether nobody but the request holds the block."""
    return forall(REQUEST, lambda q: implies(s.hold[b, q] == HOLDS, q == r))


def brought(s: View, r: Term, g: Term, c: Term, n: Term) -> Term:
    """Whether a load of the request's first ``n`` tokens brings the chunk: what was found on the
    GPU it leaves out, since others may read it there (vLLM PR35831, LMCache#2206); so it does what
    has the null block."""
    within: Term = c < chunks_touched(n, s.tokens_per_chunk[g])
    if s.has("sharing") and s.rules.holding.skips_found:
        return within & (s.found[r, g] <= c)
    if s.has("windows"):
        return lift(within & s.rules.sliding.brings(c < s.slid[r, g]))
    return within


def goes_further(s: View, r: Term, n: Term) -> Term:
    """Whether the first ``n`` tokens are all that was found of the request, and more."""
    return forall(GROUP, lambda g: s.found[r, g] <= whole_chunks(n, s.tokens_per_chunk[g])) \
        & exists(GROUP, CHUNK, lambda g, c: brought(s, r, g, c, n))


@part.extend("arrive", ", its text: {t}")
def _says(s: View, r: Request, p: Tokens, t: Text) -> None:
    s.text[r] = t


@part.action("request {r} is given block {b} in group {g}")
def allocate(s: View, r: Request, g: Group, b: Block) -> None:
    """The next chunk's block; also of a request that waits, for a load.  What was in the block
    stays in it.  If a request that ended had left it, the planner offers no more of that
    group's chunks."""
    s.require("lives", lives(s, r))
    s.require("nobody holds it", forall(REQUEST, lambda q: s.hold[b, q] != HOLDS))
    s.blocks.where(
        lambda r2, g2: (s.hold[b, r2] == LEFT) & (s.place_g[b] == g2)
        & s.rules.care.forgets_reused,
        0,
    )
    s.table[r, g, s.allocated[r, g]] = b
    s.hold.where(lambda b2, q: b2 == b, lambda b2, q: ite(q == r, HOLDS, NONE))
    s.place_g[b] = g
    s.place_c[b] = s.allocated[r, g]
    s.allocated[r, g] = s.allocated[r, g] + 1


@part.extend("blocks_told")
def _told_what_is_allocated(s: View, r: Request, g: Group, n: Blocks) -> None:
    s.require("allocated", n // s.blocks_per_chunk[g] <= s.allocated[r, g])


@part.extend("start")
def _found_in_blocks(s: View, r: Request, n: Tokens) -> None:
    s.require("a block for each chunk of the hit", has_blocks(s, r, n))
    if s.has("sharing"):
        return  # found by their names
    s.require(
        "the blocks hold its KV",
        forall(GROUP, CHUNK, WORKER, lambda g, c, w: implies(
            brought(s, r, g, c, n),
            holds(s, s.table[r, g, c], w, r, g, c))),
    )


@part.extend("compute")
def _write(s: View, r: Request, n: Tokens) -> None:
    s.require("a block for each chunk", has_blocks(s, r, n))
    write(s, r, n)


def write(s: View, r: Term, n: Term) -> None:
    """The request's kernels write its KV up to ``n`` tokens."""
    s.tag_text.where(lambda b, w: written(s, b, r, n), s.text[r])
    s.tag_g.where(lambda b, w: written(s, b, r, n), lambda b, w: s.place_g[b])
    s.tag_end.where(lambda b, w: written(s, b, r, n), lambda b, w: s.place_c[b] + 1)


def leave_blocks(s: View, r: Term, when: Value = True) -> None:
    """The request holds its blocks no more; the planner still knows what is in them."""
    s.hold.where(lambda b, q: (q == r) & (s.hold[b, q] == HOLDS) & when, LEFT)
    _free_for_all(s, r, when)


def free_blocks(s: View, r: Term) -> None:
    """Nobody knows any more whose the request's blocks were."""
    def mine(b: Term) -> Term:
        held: Term = s.hold[b, r] != NONE
        return held & not_(s.named[b]) if s.has("sharing") else held

    s.hold.where(lambda b, q: q == r, NONE)
    _free_for_all(s, r)
    s.place_g.where(mine, 0)
    s.place_c.where(mine, 0)


def _free_for_all(s: View, r: Term, when: Value = True) -> None:
    """Where holders are not counted, the first to let go of a block takes it from the others."""
    if not s.rules.holding.counts_holders:
        s.hold.where(lambda b, q: (q != r) & (s.hold[b, q] == HOLDS) & (s.hold[b, r] == HOLDS)
                     & when, NONE)


def lose_list(s: View, r: Term) -> None:
    """The request has no blocks any more."""
    s.allocated.where(lambda r2, g: r2 == r, 0)
    s.table.where(lambda r2, g, c: r2 == r, 0)


@part.extend("preempt")
def _lose_blocks(s: View, r: Request) -> None:
    free_blocks(s, r)
    lose_list(s, r)


@part.extend("finish")
def _leave_blocks(s: View, r: Request) -> None:
    leave_blocks(s, r)


@part.extend("abort")
def _leave_blocks_unless_loading(s: View, r: Request) -> None:
    loading = s.hit[r] > 0 if s.has("loads") else False
    leave_blocks(s, r, s.rules.care.frees_at_abort(loading))


@part.extend("retire")
def _forget(s: View, r: Request) -> None:
    free_blocks(s, r)
    lose_list(s, r)
    s.text[r] = 0
