"""Part *transfers*: stores with a life of their own.

A planned store names the block to read and the slot to fill, and makes its key *pending*.
Once it is submitted, each worker copies its share of the chunk when it gets to it, and what
it copies is what the block holds at that moment.  When all have reported, the key is
*ready*, or given up if a copy failed.  Until then nothing may write the block: this is the
fence.  A reset drops the stores under way; their workers write the slots all the same.

An offer is made a chunk at a time here, so that each names its slot.  An engine that offers
several at once takes several of these steps in a row.
"""

from __future__ import annotations

from collections.abc import Callable

from .fencing import MISSING, PENDING
from .keys import CHUNK, Chunk, Chunks
from .machine import Part, View
from .pool import BLOCK, TEXT, WORKER, Worker, written
from .requests import (
    GROUP,
    PREEMPTED,
    REQUEST,
    RUNNING,
    Group,
    Request,
    Tokens,
    ended,
)
from .slots import SLOT, Slot, give_slot, give_up, is_free
from .terms import BOOL, Term, Value, exists, forall, implies, ite, lift, not_

part = Part("transfers", "transfers: stores under way, workers")
part.variable("flight", (REQUEST, GROUP, CHUNK), BOOL, "a store of the chunk is under way")
part.variable("source", (REQUEST, GROUP, CHUNK), BLOCK, "the block that it reads")
part.variable("target", (REQUEST, GROUP, CHUNK), SLOT, "the slot that it writes")
part.variable("submitted", (REQUEST, GROUP, CHUNK), BOOL, "the workers know of the store")
part.variable("copied", (REQUEST, GROUP, CHUNK, WORKER), BOOL, "the worker is done with it")
part.variable("failed", (REQUEST, GROUP, CHUNK), BOOL, "a worker could not copy its share")
part.variable("filler", (TEXT, GROUP, CHUNK), REQUEST, "whose store is to fill the pending key")


def fenced(s: View, writes: Callable[[Term], Value],
           waits: Callable[[Term, Term, Term], Value]) -> Term:
    """Whether no store that must be waited for (by its request, whether it is copied, whether
    it is submitted) reads what is written."""
    def awaited(q: Term, h: Term, d: Term) -> Value:
        return s.rules.sliding.still_waits(d < s.slid[q, h]) if s.has("windows") else True

    return forall(REQUEST, GROUP, CHUNK, WORKER, lambda q, h, d, w: implies(
        s.flight[q, h, d] & waits(q, s.copied[q, h, d, w], s.submitted[q, h, d])
        & awaited(q, h, d)
        & writes(s.source[q, h, d]), False))


@part.extend("compute")
def _fence(s: View, r: Request, n: Tokens) -> None:
    fence(s, r, n)


def fence(s: View, r: Term, n: Term) -> None:
    """The request's kernels wait for stores that read what they write up to ``n`` tokens."""
    s.require("no store still reads what is written", fenced(
        s, lambda b: written(s, b, r, n),
        lambda q, done, submitted: s.rules.care.still_reads(
            done, submitted, ended(s, q), s.life[q] == PREEMPTED)))


@part.extend("plan_store", ", slot {h}")
def _take_off(s: View, r: Request, g: Group, n: Chunks, d: Chunks, h: Slot) -> None:
    t, c = s.text[r], s.cursor[r, g]
    takes = d == n
    s.require("a chunk at a time", n == c + 1)
    s.require("what is taken is not in the pool", implies(
        takes, (s.pooled[t, g, c] == MISSING) & is_free(s, h)))
    s.require("what is declined is", implies(
        d < n, (s.pooled[t, g, c] != MISSING) & (s.slot[t, g, c] == h)))
    s.flight[r, g, c] = s.flight[r, g, c] | takes
    s.source[r, g, c] = ite(takes, s.table[r, g, c], s.source[r, g, c])
    s.target[r, g, c] = ite(takes, h, s.target[r, g, c])
    s.filler[t, g, c] = ite(takes, r, s.filler[t, g, c])
    s.pooled[t, g, c] = ite(takes, PENDING, s.pooled[t, g, c])
    give_slot(s, h, t, g, c)


@part.action("the store of chunk {c} of request {r} in group {g} is submitted")
def submit(s: View, r: Request, g: Group, c: Chunk) -> None:
    """In a later step than it was planned in, whoever runs then (vLLM PR31341, PR42611)."""
    s.require("planned", s.flight[r, g, c])
    s.require("once", not_(s.submitted[r, g, c]))
    s.require("may be submitted now", lift(s.rules.care.submits(
        exists(REQUEST, lambda q: s.life[q] == RUNNING))))
    s.submitted[r, g, c] = True


@part.action("worker {w} copies chunk {c} of request {r} in group {g} to the host")
def copy_out(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    """Whatever the block holds now comes to lie in the slot, if the worker has it."""
    s.require("under way", s.flight[r, g, c], s.submitted[r, g, c])
    s.require("once", s.copied[r, g, c, w] == 0)
    b, h = s.source[r, g, c], s.target[r, g, c]
    s.byte_text[h, w] = ite(s.short[h, w], 0, s.tag_text[b, w])
    s.byte_g[h, w] = ite(s.short[h, w], 0, s.tag_g[b, w])
    s.byte_end[h, w] = ite(s.short[h, w], 0, s.tag_end[b, w])
    s.copied[r, g, c, w] = True


@part.action("worker {w} fails to copy chunk {c} of request {r} in group {g} to the host",
             external=True)
def copy_out_fails(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    """It is done with the chunk all the same, and what lies in the slot is nobody's KV."""
    s.require("under way", s.flight[r, g, c], s.submitted[r, g, c])
    s.require("once", s.copied[r, g, c, w] == 0)
    h = s.target[r, g, c]
    s.byte_text[h, w] = 0
    s.byte_g[h, w] = 0
    s.byte_end[h, w] = 0
    s.copied[r, g, c, w] = True
    s.failed[r, g, c] = True


@part.action("the store of chunk {c} of request {r} in group {g} is over")
def report_store(s: View, r: Request, g: Group, c: Chunk) -> None:
    """All workers have reported.  A key one of them failed to copy is given up."""
    s.require("under way", s.flight[r, g, c])
    s.require("every worker is done", s.rules.care.complete(
        exists(WORKER, lambda w: s.copied[r, g, c, w]),
        forall(WORKER, lambda w: s.copied[r, g, c, w])))
    t, becomes = s.text[r], s.rules.care.outcome(s.failed[r, g, c])
    s.flight[r, g, c] = False
    s.source[r, g, c] = 0
    s.target[r, g, c] = 0
    s.submitted[r, g, c] = False
    s.failed[r, g, c] = False
    s.copied.where(lambda r2, g2, c2, w: (r2 == r) & (g2 == g) & (c2 == c), False)
    s.pooled[t, g, c] = becomes
    s.slot[t, g, c] = s.target[r, g, c]
    s.filler[t, g, c] = 0
    give_up(s, lambda t2, g2, c2: (t2 == t) & (g2 == g) & (c2 == c) & (becomes == MISSING),
            s.rules.care.frees_failed)


@part.action("worker {w} copies to slot {h} for a store that was dropped")
def copy_late(s: View, h: Slot, w: Worker) -> None:
    """Its report is ignored.  What it copies is nothing that anybody may count on."""
    s.require("a copy is outstanding", s.late[h, w])
    s.late[h, w] = False
    s.byte_text[h, w] = 0
    s.byte_g[h, w] = 0
    s.byte_end[h, w] = 0


@part.extend("reset")
def _drop_jobs(s: View) -> None:
    """What was planned only is forgotten; what was submitted is copied late (vLLM: ``reset_cache``
    ignores reports of jobs up to a threshold)."""
    if not s.rules.care.drops_jobs:
        return

    def outstanding(h: Term, w: Term) -> Term:
        g, c = s.slot_g[h], s.slot_c[h]
        r = s.filler[s.slot_text[h], g, c]
        return lift(s.flight[r, g, c] & (s.target[r, g, c] == h) & s.submitted[r, g, c]
                    & not_(s.copied[r, g, c, w]))

    s.late.where(lambda h, w: s.taken[h] & outstanding(h, w), True)
    for truth in (s.flight, s.submitted, s.failed):
        truth.where(lambda r, g, c: True, False)
    for place in (s.source, s.target):
        place.where(lambda r, g, c: True, 0)
    s.copied.where(lambda r, g, c, w: True, False)
    s.filler.where(lambda t, g, c: True, 0)


@part.extend("retire")
def _nothing_under_way(s: View, r: Request) -> None:
    s.require("nothing of it is under way",
              forall(GROUP, CHUNK, lambda g, c: s.flight[r, g, c] == 0))
