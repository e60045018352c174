"""Part *windows*: tables that keep a window, the null block in place of what lies behind it.

What a group reads of what came before is the rule of its kind (`kvoracle.model.kinds`).  The
chunks without a block are the leading ones of a table: those that a running request's window has
left, or those that a load need not bring.  A chunk that has slid away before it was offered is
never stored: the planner passes over it.
"""

from __future__ import annotations

from .keys import CHUNKS, Chunks
from .kinds import goes_on_at, reads
from .loads import waits
from .machine import Part, View
from .pool import HOLDS, NONE, free_blocks, lose_list
from .requests import GROUP, REQUEST, RUNNING, TOKENS, Group, Request, Tokens
from .rules import whole_chunks
from .store import COVERED, NEVER, SPOILED, claim, planned_for
from .terms import Term, exists, forall, implies, ite, lift

part = Part("windows", "windows: tables without what no later position reads")
part.variable("slid", (REQUEST, GROUP), CHUNKS,
              "leading chunks of the request's list with the null block: nothing is there")


def kept(s: View, r: Term, g: Term, n: Term, p: Term) -> Term:
    """Whether the table has a block for position ``p``, if a request that goes on at ``n`` reads
    it."""
    return lift(implies(reads(s.kind[g], s.reach[g], n, p), has_place(s, r, g, p)))


def has_place(s: View, r: Term, g: Term, p: Term) -> Term:
    """Whether the table has no null block for position ``p``."""
    return lift(s.slid[r, g] <= whole_chunks(p, s.tokens_per_chunk[g]))


def _window_kept(s: View, r: Term, n: Term) -> Term:
    """Whether a request that goes on at ``n`` has places for what it reads and will write."""
    return forall(GROUP, lambda g: has_place(s, r, g, n)) & forall(
        GROUP, TOKENS, lambda g, p: kept(s, r, g, n, p))


@part.action("the window of request {r} in group {g} slides past position {p}")
def slide(s: View, r: Request, g: Group, p: Tokens) -> None:
    """Blocks of whole chunks up to there are freed at once, though a store may still read them."""
    n = whole_chunks(p + 1, s.tokens_per_chunk[g])
    s.require("runs", s.life[r] == RUNNING)
    s.require("read no more", s.rules.sliding.passed(s.kind[g], s.reach[g], s.computed[r], p))
    s.require("a chunk more", s.slid[r, g] < n)

    def gone(b: Term) -> Term:
        mine: Term = (s.hold[b, r] == HOLDS) & (s.place_g[b] == g) & (s.place_c[b] < n)
        return mine

    s.hold.where(lambda b, q: (q == r) & gone(b), NONE)
    s.place_g.where(gone, 0)
    s.place_c.where(gone, 0)
    s.table.where(lambda r2, g2, c: (r2 == r) & (g2 == g) & (c < n), 0)
    s.slid[r, g] = n


@part.action("request {r}, which waits, gets no blocks for its first {n} chunks in group {g}")
def leave_out(s: View, r: Request, g: Group, n: Chunks) -> None:
    """A load to come will not bring them: behind it, nothing reads them."""
    s.require("waits", waits(s, r))
    s.require("nothing is being loaded", s.hit[r] == 0)
    s.require("has no block yet", s.allocated[r, g] == 0)
    s.require("some", n >= 1)
    s.allocated[r, g] = n
    s.slid[r, g] = n


@part.action("request {r}, which waits, gives its whole list back")
def hand_back(s: View, r: Request) -> None:
    """What it was to load is gone meanwhile, and without it the list is of no use."""
    s.require("waits", waits(s, r))
    s.require("nothing is being loaded", s.hit[r] == 0)
    s.require("something was left out", exists(GROUP, lambda g: s.slid[r, g] > 0))
    free_blocks(s, r)
    lose_list(s, r)
    _nothing_slid(s, r)


@part.action("the planner passes over a chunk of request {r} in group {g}: nothing is there")
def pass_over(s: View, r: Request, g: Group) -> None:
    """There is nothing to offer, now or later, so it is not owed."""
    c = s.cursor[r, g]
    s.require("planned for", planned_for(s, r))
    s.require("the null block", c < s.slid[r, g])
    s.require("storable but for that", c < s.rules.storable(claim(s, r, g)))
    s.mark[r, g, c] = ite(s.mark[r, g, c] == NEVER, COVERED, s.mark[r, g, c])
    s.cursor[r, g] = c + 1


@part.extend("plan_store")
def _nothing_to_take(s: View, r: Request, g: Group, n: Chunks, d: Chunks) -> None:
    c = s.cursor[r, g]
    null, takes = c < s.slid[r, g], d == n
    s.require("something is there", implies(takes, s.rules.sliding.offers(null)))
    s.mark.where(lambda r2, g2, c2: (r2 == r) & (g2 == g) & (c2 == c) & takes & null, SPOILED)


@part.extend("start")
def _keeps_what_it_reads(s: View, r: Request, n: Tokens) -> None:
    s.require("a block for all that is read", _window_kept(s, r, n))


@part.extend("plan_load")
def _brings_what_is_read(s: View, r: Request, n: Tokens) -> None:
    s.require("a block for all that is read", _window_kept(s, r, goes_on_at(s.tokens[r], n)))


def _nothing_slid(s: View, r: Term) -> None:
    s.slid.where(lambda r2, g: r2 == r, 0)


@part.extend("preempt")
def _lose_the_window(s: View, r: Request) -> None:
    _nothing_slid(s, r)


@part.extend("retire")
def _forget(s: View, r: Request) -> None:
    _nothing_slid(s, r)
