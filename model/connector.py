"""Part *connector*: another connector that brings and sends the KV of the same requests.

Its copies are not ours to plan: it writes the blocks of a waiting request when it likes, and
reads those of one that has ended for as long as it likes.  What it brings is taken to be right.
The blocks of an ended request are kept, given to nobody, until all of it has ended.
"""

from __future__ import annotations

from typing import Annotated

from .hits import chunks_touched
from .keys import CHUNK, Chunk
from .loads import waits
from .machine import Part, View
from .pool import HOLDS, NONE, WORKER, Block, Worker, has_blocks
from .requests import (
    ABORTED,
    GROUP,
    REQUEST,
    RUNNING,
    TOKENS,
    Group,
    Request,
    Tokens,
)
from .terms import BOOL, Term, forall, implies, minimum, not_
from .transfers import fenced

Truth = Annotated[Term, BOOL]

part = Part("connector", "connector: another one that brings and sends the same requests' KV")
part.variable("borrowed", (REQUEST,), TOKENS, "tokens that the other one is bringing; 0: none")
part.variable("filled", (REQUEST, GROUP, CHUNK, WORKER), BOOL, "its worker has brought the chunk")
part.variable("sending", (REQUEST,), BOOL, "it is sending the blocks of the ended request")
part.variable("kept", (REQUEST,), BOOL, "blocks that the ended request left go to nobody yet")


def brings(s: View, r: Term, g: Term, c: Term) -> Term:
    """Whether the other connector is bringing the request's chunk."""
    return (s.borrowed[r] > 0) & (c < chunks_touched(s.borrowed[r], s.tokens_per_chunk[g]))


@part.action("another connector starts to bring request {r}, tokens: {n}")
def borrow(s: View, r: Request, n: Tokens) -> None:
    """It has won the lookup.  The blocks it will write are there, and no store of ours reads
    them any more."""
    s.require("waits", waits(s, r))
    s.require("one load", (s.hit[r] == 0) & (s.borrowed[r] == 0))
    s.require("a hit", n >= 1)
    s.require("within the request", n <= s.tokens[r])
    s.require("a block for each chunk of the hit", has_blocks(s, r, n))
    s.require("no store of ours still reads what is written", fenced(
        s, lambda b: (s.hold[b, r] == HOLDS)
        & (s.place_c[b] < chunks_touched(n, s.tokens_per_chunk[s.place_g[b]])),
        lambda q, done, submitted: s.rules.sharing.borrow_waits(done)))
    s.borrowed[r] = n
    if not s.rules.sharing.waits_for_bytes:
        _starts(s, r, n)


@part.action("worker {w} of another connector brings chunk {c} in group {g} of request {r}")
def bring(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    """The request's own KV, from wherever it was."""
    s.require("under way", brings(s, r, g, c))
    s.require("once", s.filled[r, g, c, w] == 0)
    b = s.table[r, g, c]
    s.tag_text[b, w] = s.text[r]
    s.tag_g[b, w] = g
    s.tag_end[b, w] = c + 1
    s.filled[r, g, c, w] = True


def _starts(s: View, r: Term, n: Term) -> None:
    s.life[r] = RUNNING
    s.computed[r] = minimum(n, s.tokens[r] - 1)
    s.cursor.where(lambda r2, g: r2 == r, lambda r2, g: s.rules.sharing.cursor_after_borrowing(
        s.cursor[r2, g], chunks_touched(n, s.tokens_per_chunk[g])))


def _arrived(s: View, r: Term) -> None:
    s.require("under way", s.borrowed[r] > 0)
    s.require("all is there", forall(GROUP, CHUNK, WORKER, lambda g, c, w: implies(
        brings(s, r, g, c), s.filled[r, g, c, w])))
    s.borrowed[r] = 0
    s.filled.where(lambda r2, g, c, w: r2 == r, False)


@part.action("another connector has brought request {r}, and it starts")
def borrowed_over(s: View, r: Request) -> None:
    """As if it had computed what was brought; our pool need not have it, so it is offered."""
    if s.rules.sharing.waits_for_bytes:
        s.require("waits", waits(s, r))
        _starts(s, r, s.borrowed[r])
    _arrived(s, r)


@part.action("another connector has brought request {r}, whose client went away")
def borrowed_dropped(s: View, r: Request) -> None:
    """Its blocks can go, unless they are being sent."""
    s.require("aborted", s.life[r] == ABORTED)
    _arrived(s, r)
    s.kept[r] = not_(s.rules.sharing.frees(s.sending[r]))


@part.action("another connector has sent request {r}")
def sent(s: View, r: Request) -> None:
    """Its blocks can go, unless they are still written."""
    s.require("sending", s.sending[r])
    s.sending[r] = False
    s.kept[r] = not_(s.rules.sharing.frees(s.borrowed[r] > 0))


@part.extend("load_dropped")
def _sends_on(s: View, r: Request) -> None:
    s.kept[r] = not_(s.rules.sharing.frees(s.sending[r]))


@part.extend("finish", ", sent by another connector: {y}")
def _sends_at_the_end(s: View, r: Request, y: Truth) -> None:
    s.sending[r] = y
    s.kept[r] = not_(s.rules.sharing.frees_at_end(y))


@part.extend("abort", ", sent by another connector: {y}")
def _sends_when_aborted(s: View, r: Request, y: Truth) -> None:
    s.sending[r] = y
    s.kept[r] = not_(s.rules.sharing.frees_at_end(y | (s.borrowed[r] > 0)))


@part.extend("allocate")
def _kept_for_another(s: View, r: Request, g: Group, b: Block) -> None:
    s.require("not kept for another connector",
              forall(REQUEST, lambda q: not_(s.kept[q] & (s.hold[b, q] != NONE))))


@part.extend("start")
def _not_while_borrowing(s: View, r: Request, n: Tokens) -> None:
    s.require("nothing is being brought", s.borrowed[r] == 0)


@part.extend("plan_load")
def _one_winner(s: View, r: Request, n: Tokens) -> None:
    s.require("nothing is being brought", s.borrowed[r] == 0)


@part.extend("retire")
def _nothing_under_way(s: View, r: Request) -> None:
    s.require("nothing of it is brought or sent", (s.borrowed[r] == 0) & (s.sending[r] == 0))
    s.kept[r] = False
