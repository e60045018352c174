"""Part *loads*: a prefix is loaded from the host pool, worker by worker, into blocks.

A request waits while its load is under way.  The load pins its keys, so that they are
not evicted while they are read, and keeps the request's blocks, so that they are not given
to another while they are written, even if the client goes away meanwhile.
"""

from __future__ import annotations

from .hits import chunks_touched
from .keys import CHUNK, Chunk
from .machine import Part, View
from .pool import HOLDS, WORKER, Worker, brought, goes_further, has_blocks, leave_blocks
from .requests import (
    ABORTED,
    GROUP,
    PREEMPTED,
    REQUEST,
    RUNNING,
    TOKENS,
    WAITING,
    Group,
    Request,
    Tokens,
)
from .slots import SLOT
from .store import COVERED, NEVER
from .terms import BOOL, Term, forall, implies, minimum
from .transfers import fenced

part = Part("loads", "loads: prefixes read from the host pool, pins")
part.variable("hit", (REQUEST,), TOKENS, "tokens that are being loaded; 0: none")
part.variable("pin", (REQUEST, GROUP, CHUNK), BOOL, "the request's load holds the chunk's key")
part.variable("origin", (REQUEST, GROUP, CHUNK), SLOT, "the slot that it reads")
part.variable("loaded", (REQUEST, GROUP, CHUNK, WORKER), BOOL, "the worker is done with it")
part.variable("load_failed", (REQUEST,), BOOL, "a worker could not copy its share")


def loads(s: View, r: Term, g: Term, c: Term) -> Term:
    """Whether a load of the request's chunk is under way."""
    return (s.hit[r] > 0) & brought(s, r, g, c, s.hit[r])


def waits(s: View, r: Term) -> Term:
    """Whether the request waits to start, or to come back."""
    return (s.life[r] == WAITING) | (s.life[r] == PREEMPTED)


@part.action("request {r} starts to load from the host pool, tokens: {n}")
def plan_load(s: View, r: Request, n: Tokens) -> None:
    """The blocks that the load will write are there, and nothing reads them any more."""
    def chunks(g: Term) -> Term:
        return chunks_touched(n, s.tokens_per_chunk[g])

    s.require("waits", waits(s, r))
    s.require("one load", s.hit[r] == 0)
    s.require("no store of it is under way", implies(
        s.rules.care.exclusive, forall(GROUP, CHUNK, lambda g, c: s.flight[r, g, c] == 0)))
    s.require("a hit", n >= 1)
    s.require("within the request", n <= s.tokens[r])
    s.require("every chunk of the hit has its key",
              forall(GROUP, lambda g: chunks(g) <= s.keys[r, g]))
    s.require("every chunk of the hit can be loaded", forall(GROUP, CHUNK, lambda g, c: implies(
        brought(s, r, g, c, n), s.rules.care.loadable(s.pooled[s.text[r], g, c]))))
    s.require("a block for each chunk of the hit", has_blocks(s, r, n))
    s.require("no store still reads what is written", fenced(
        s, lambda b: (s.hold[b, r] == HOLDS) & brought(s, r, s.place_g[b], s.place_c[b], n),
        lambda q, done, submitted: s.rules.care.load_waits(done, submitted)))
    if s.has("sharing"):
        s.require("further than what was found", goes_further(s, r, n))
    s.hit[r] = n
    s.pin.where(
        lambda r2, g, c: (r2 == r) & brought(s, r2, g, c, n) & s.rules.care.pins, True)
    s.origin.where(lambda r2, g, c: (r2 == r) & brought(s, r2, g, c, n),
                   lambda r2, g, c: s.slot[s.text[r2], g, c])


@part.action("worker {w} copies chunk {c} in group {g} from the host for request {r}")
def copy_in(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    """Whatever lies in the slot now comes into the block."""
    s.require("under way", loads(s, r, g, c))
    s.require("once", s.loaded[r, g, c, w] == 0)
    b, h = s.table[r, g, c], s.origin[r, g, c]
    s.tag_text[b, w] = s.byte_text[h, w]
    s.tag_g[b, w] = s.byte_g[h, w]
    s.tag_end[b, w] = s.byte_end[h, w]
    s.loaded[r, g, c, w] = True


@part.action("worker {w} fails to copy chunk {c} in group {g} from the host for request {r}",
             external=True)
def copy_in_fails(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    """It is done with the chunk all the same, and what the block holds is nobody's KV."""
    s.require("under way", loads(s, r, g, c))
    s.require("once", s.loaded[r, g, c, w] == 0)
    s.tag_end[s.table[r, g, c], w] = 0
    s.loaded[r, g, c, w] = True
    s.load_failed[r] = True


def _ends(s: View, r: Term, all_done: bool = True) -> None:
    """All workers have reported; the load lets go of its keys."""
    s.require("under way", s.hit[r] > 0)
    if all_done:
        s.require("every worker is done", forall(GROUP, CHUNK, WORKER, lambda g, c, w: implies(
            loads(s, r, g, c), s.loaded[r, g, c, w])))
    s.hit[r] = 0
    s.load_failed[r] = False
    s.pin.where(lambda r2, g, c: r2 == r, False)
    s.origin.where(lambda r2, g, c: r2 == r, 0)
    s.loaded.where(lambda r2, g, c, w: r2 == r, False)


@part.action("the load of request {r} is over, and it starts")
def report_load(s: View, r: Request) -> None:
    """As if it had computed the hit (vLLM: the load sets the cursor to the end of the hit)."""
    s.require("waits", waits(s, r))
    s.require("no copy failed", s.rules.care.startable(s.load_failed[r]))
    _ends(s, r)
    s.life[r] = RUNNING
    # The last token is computed even on a full hit: its logits are needed.
    s.computed[r] = minimum(s.hit[r], s.tokens[r] - 1)
    s.cursor.where(lambda r2, g: r2 == r,
                   lambda r2, g: chunks_touched(s.hit[r2], s.tokens_per_chunk[g]))
    s.mark.where(
        lambda r2, g, c: (r2 == r) & (c < chunks_touched(s.hit[r2], s.tokens_per_chunk[g]))
        & (s.mark[r2, g, c] == NEVER), COVERED)


@part.action("the load of request {r} has failed")
def load_fails(s: View, r: Request) -> None:
    """It waits as before, with its blocks; what they hold is not its KV."""
    s.require("waits", waits(s, r))
    s.require("a copy failed", s.load_failed[r])
    _ends(s, r, s.rules.holding.failure_waits)


@part.action("the load of request {r}, whose client went away, is over")
def load_dropped(s: View, r: Request) -> None:
    """Now its blocks can go."""
    s.require("aborted", s.life[r] == ABORTED)
    _ends(s, r)
    leave_blocks(s, r)


@part.extend("start")
def _not_while_loading(s: View, r: Request, n: Tokens) -> None:
    s.require("nothing is being loaded", s.hit[r] == 0)


@part.extend("retire")
def _nothing_under_way(s: View, r: Request) -> None:
    s.require("nothing of it is being loaded", s.hit[r] == 0)
