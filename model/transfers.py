"""Part *transfers*: stores with a life of their own, and the host pool they fill.

A planned store names the blocks to read and makes their keys *pending*.  Each worker
copies its share of a chunk when it gets to it, and what it copies is what the block holds
at that moment.  When all have reported, the keys are *ready*, or given up if a copy
failed.  Until then nothing may write the blocks: this is the fence.
"""

from __future__ import annotations

from collections.abc import Callable

from .fencing import MISSING, PENDING, POOLED
from .keys import CHUNK, CHUNKS, Chunk, Chunks
from .machine import Part, View
from .pool import BLOCK, TEXT, WORKER, Text, Worker, written
from .requests import GROUP, PREEMPTED, REQUEST, Group, Request, Tokens, ended
from .terms import BOOL, Term, Value, exists, forall, implies, lift

part = Part("transfers", "transfers: stores under way, workers, the host pool, eviction")
part.variable("flight", (REQUEST, GROUP, CHUNK), BOOL, "a store of the chunk is under way")
part.variable("source", (REQUEST, GROUP, CHUNK), BLOCK, "the block that it reads")
part.variable("copied", (REQUEST, GROUP, CHUNK, WORKER), BOOL, "the worker is done with it")
part.variable("failed", (REQUEST, GROUP, CHUNK), BOOL, "a worker could not copy its share")
part.variable("pooled", (TEXT, GROUP, CHUNK), POOLED, "what the host pool says of the key")
part.variable("byte_text", (TEXT, GROUP, CHUNK, WORKER), TEXT,
              "whose KV lies under the key in a worker's share")
part.variable("byte_g", (TEXT, GROUP, CHUNK, WORKER), GROUP, "which group's KV lies there")
part.variable("byte_end", (TEXT, GROUP, CHUNK, WORKER), CHUNKS,
              "the end of the chunk whose KV lies there; 0: of none")
part.ghost("filler", (TEXT, GROUP, CHUNK), REQUEST, "whose store is to fill the pending key")


def true_bytes(s: View, t: Term, g: Term, c: Term, w: Term) -> Term:
    """Whether what lies under the key in the worker's share is the key's KV."""
    return (
        (s.byte_text[t, g, c, w] == t) & (s.byte_g[t, g, c, w] == g)
        & (s.byte_end[t, g, c, w] == c + 1)
    )


def pinned(s: View, t: Term, g: Term, c: Term) -> Value:
    """Whether a load holds the key."""
    if not s.has("loads"):
        return False
    return exists(REQUEST, lambda q: s.pin[q, g, c] & (s.text[q] == t))


def fenced(s: View, writes: Callable[[Term], Value],
           waits: Callable[[Term, Term], Value]) -> Term:
    """Whether no store that must be waited for (by request, by done) reads what is written."""
    return forall(REQUEST, GROUP, CHUNK, WORKER, lambda q, h, d, w: implies(
        s.flight[q, h, d] & waits(q, s.copied[q, h, d, w]) & writes(s.source[q, h, d]), False))


@part.extend("compute")
def _fence(s: View, r: Request, n: Tokens) -> None:
    s.require("no store still reads what is written", fenced(
        s, lambda b: written(s, b, r, n),
        lambda q, done: s.rules.care.still_reads(done, ended(s, q), s.life[q] == PREEMPTED)))


@part.extend("plan_store")
def _take_off(s: View, r: Request, g: Group, n: Chunks, d: Chunks) -> None:
    def taken(c: Term) -> Term:
        return (s.cursor[r, g] <= c) & (c < n) & (c != d)

    t = s.text[r]
    s.require("what is taken is not in the pool",
              forall(CHUNK, lambda c: implies(taken(c), s.pooled[t, g, c] == MISSING)))
    s.require("what is declined is", implies(d < n, s.pooled[t, g, d] != MISSING))
    s.flight.where(lambda r2, g2, c: (r2 == r) & (g2 == g) & taken(c), True)
    s.source.where(lambda r2, g2, c: (r2 == r) & (g2 == g) & taken(c),
                   lambda r2, g2, c: s.table[r2, g2, c])
    s.pooled.where(lambda t2, g2, c: (t2 == t) & (g2 == g) & taken(c), PENDING)
    s.filler.where(lambda t2, g2, c: (t2 == t) & (g2 == g) & taken(c), r)


@part.action("worker {w} copies chunk {c} of request {r} in group {g} to the host")
def copy_out(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    """Whatever the block holds now comes to lie under the key."""
    s.require("under way", s.flight[r, g, c])
    s.require("once", s.copied[r, g, c, w] == 0)
    b, t = s.source[r, g, c], s.text[r]
    s.byte_text[t, g, c, w] = s.tag_text[b, w]
    s.byte_g[t, g, c, w] = s.tag_g[b, w]
    s.byte_end[t, g, c, w] = s.tag_end[b, w]
    s.copied[r, g, c, w] = True


@part.action("worker {w} fails to copy chunk {c} of request {r} in group {g} to the host",
             external=True)
def copy_out_fails(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    """It is done with the chunk all the same, and what lies under the key is nobody's KV."""
    s.require("under way", s.flight[r, g, c])
    s.require("once", s.copied[r, g, c, w] == 0)
    s.byte_end[s.text[r], g, c, w] = 0
    s.copied[r, g, c, w] = True
    s.failed[r, g, c] = True


@part.action("the store of chunk {c} of request {r} in group {g} is over")
def report_store(s: View, r: Request, g: Group, c: Chunk) -> None:
    """All workers have reported.  A key one of them failed to copy is given up."""
    s.require("under way", s.flight[r, g, c])
    s.require("every worker is done", s.rules.care.complete(
        exists(WORKER, lambda w: s.copied[r, g, c, w]),
        forall(WORKER, lambda w: s.copied[r, g, c, w])))
    t = s.text[r]
    s.flight[r, g, c] = False
    s.source[r, g, c] = 0
    s.failed[r, g, c] = False
    s.copied.where(lambda r2, g2, c2, w: (r2 == r) & (g2 == g) & (c2 == c), False)
    s.pooled[t, g, c] = s.rules.care.outcome(s.failed[r, g, c])
    s.filler[t, g, c] = 0
    _wipe(s, lambda t2, g2, c2: (t2 == t) & (g2 == g) & (c2 == c)
          & (s.rules.care.outcome(s.failed[r, g, c]) == MISSING))


def _wipe(s: View, gone: Callable[[Term, Term, Term], Term]) -> None:
    """The places of these keys are another's to fill: nothing true lies there."""
    s.byte_text.where(lambda t, g, c, w: gone(t, g, c), 0)
    s.byte_g.where(lambda t, g, c, w: gone(t, g, c), 0)
    s.byte_end.where(lambda t, g, c, w: gone(t, g, c), 0)


@part.action("chunk {c} of text {t} in group {g} is evicted")
def evict(s: View, t: Text, g: Group, c: Chunk) -> None:
    """Which key goes is the engine's choice."""
    s.require("may go", s.rules.care.evictable(s.pooled[t, g, c], pinned(s, t, g, c)))
    s.pooled[t, g, c] = MISSING
    _wipe(s, lambda t2, g2, c2: (t2 == t) & (g2 == g) & (c2 == c))


@part.extend("reset")
def _drop(s: View) -> None:
    """What nothing reads or writes is dropped; what is under way arrives later."""
    def gone(t: Term, g: Term, c: Term) -> Term:
        return lift(s.rules.care.droppable(s.pooled[t, g, c], pinned(s, t, g, c)))

    s.pooled.where(gone, MISSING)
    _wipe(s, gone)


@part.extend("retire")
def _nothing_under_way(s: View, r: Request) -> None:
    s.require("nothing of it is under way",
              forall(GROUP, CHUNK, lambda g, c: s.flight[r, g, c] == 0))


