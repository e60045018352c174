"""Part *lag*: asynchronous scheduling, a step dispatched before the last one's output is known.

The engine plans and dispatches a request's next step while the output of the one before is
on its way.  That output may end the request, or the request may be preempted meanwhile; the
dispatched step runs all the same, as a *stray*, and writes the next position's KV into the
block that the request had.  Steps run in the order in which they were dispatched, so that
kernels of a later one do not overtake it; a load, on a stream of its own, may.  So a block that
was freed waits for the step before it goes to anybody (vLLM PR45357), and preempting the
request makes no room at once (vLLM issue #49674).
"""

from __future__ import annotations

from .machine import Part, View
from .pool import BLOCK, HOLDS, NONE, Block
from .requests import (
    GROUP,
    PREEMPTED,
    REQUEST,
    RUNNING,
    Group,
    Request,
    Tokens,
    between_steps,
    ended,
)
from .rules import whole_chunks
from .terms import Term, enumeration, exists, forall, implies, ite
from .transfers import fenced

AHEAD = enumeration("Ahead", "nothing", "its next token", "a stray")
NOTHING, NEXT, STRAY = range(3)

part = Part("lag", "lag: steps dispatched before the last one's output is known")
part.variable("ahead", (REQUEST,), AHEAD, "what a step that was dispatched is to the request")
part.variable("aimed", (REQUEST, GROUP), BLOCK, "the block that the step writes")


def _steps_before(s: View) -> Term:
    return forall(REQUEST, lambda q: s.ahead[q] == NOTHING)


@part.action("request {r}'s next step is dispatched before its last output is known")
def dispatch(s: View, r: Request) -> None:
    """It will compute the token that the outstanding output brings."""
    def written(b: Term) -> Term:
        last = whole_chunks(s.tokens[r], s.tokens_per_chunk[s.place_g[b]])
        mine: Term = (s.hold[b, r] == HOLDS) & (s.place_c[b] == last)
        return mine

    s.require("runs", s.life[r] == RUNNING)
    s.require("its output is outstanding", s.computed[r] == s.tokens[r])
    s.require("one step ahead", s.ahead[r] == NOTHING)
    s.require("a block for the token to come", forall(
        GROUP, lambda g: whole_chunks(s.tokens[r], s.tokens_per_chunk[g]) < s.allocated[r, g]))
    s.require("no store still reads what is written", fenced(
        s, written, lambda q, done, submitted: s.rules.care.still_reads(
            done, submitted, ended(s, q), s.life[q] == PREEMPTED)))
    s.ahead[r] = NEXT
    s.aimed.where(
        lambda r2, g: r2 == r,
        lambda r2, g: s.table[r2, g, whole_chunks(s.tokens[r2], s.tokens_per_chunk[g])])


@part.action("the step of request {r} that was dispatched runs")
def run_ahead(s: View, r: Request) -> None:
    """It writes where it was told to.  What it writes there is the request's KV as long as the
    block is the request's; and it counts unless it is a stray."""
    s.require("was dispatched", s.ahead[r] != NOTHING)
    s.require("strays were dispatched before", implies(s.ahead[r] == NEXT, forall(
        REQUEST, lambda q: s.ahead[q] != STRAY)))
    s.require("the output before is known", implies(s.ahead[r] == NEXT, between_steps(s, r)))

    def written(b: Term) -> Term:
        return exists(GROUP, lambda g: s.aimed[r, g] == b)

    s.tag_text.where(lambda b, w: written(b), s.text[r])
    s.tag_g.where(lambda b, w: written(b), lambda b, w: s.place_g[b])
    s.tag_end.where(lambda b, w: written(b),
                    lambda b, w: ite(s.hold[b, r] != NONE, s.place_c[b] + 1, 0))
    s.computed[r] = ite(s.ahead[r] == NEXT, s.computed[r] + 1, s.computed[r])
    s.ahead[r] = NOTHING
    s.aimed.where(lambda r2, g: r2 == r, 0)
    if not s.rules.holding.frees_once:
        _free_again(s, r)


def _free_again(s: View, r: Term) -> None:
    """The late output of a request that has ended ends it once more: whoever holds what is on its
    list loses it."""
    s.hold.where(
        lambda b, q: ended(s, r) & (s.hold[b, q] == HOLDS)
        & (s.place_c[b] < s.allocated[r, s.place_g[b]])
        & (s.table[r, s.place_g[b], s.place_c[b]] == b), NONE)


@part.extend("compute")
def _in_order(s: View, r: Request, n: Tokens) -> None:
    s.require("what was dispatched before has run", _steps_before(s))


@part.extend("allocate")
def _after_the_step(s: View, r: Request, g: Group, b: Block) -> None:
    if s.rules.holding.waits_for_steps:
        s.require("no step still writes it", forall(REQUEST, GROUP, lambda q, g2: implies(
            s.ahead[q] != NOTHING, s.aimed[q, g2] != b)))


def _goes_astray(s: View, r: Term) -> None:
    s.ahead[r] = ite(s.ahead[r] == NEXT, STRAY, s.ahead[r])


@part.extend("preempt")
def _preempted(s: View, r: Request) -> None:
    _goes_astray(s, r)


@part.extend("finish")
def _finished(s: View, r: Request) -> None:
    _goes_astray(s, r)


@part.extend("abort")
def _aborted(s: View, r: Request) -> None:
    _goes_astray(s, r)


@part.extend("retire")
def _has_run(s: View, r: Request) -> None:
    s.require("no step of it is to run", s.ahead[r] == NOTHING)
