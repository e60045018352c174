"""Part *sharing*: the GPU's prefix cache, in which requests with one prefix share blocks.

A block whose chunk is wholly computed gets a *name*, the key of what it holds.  A later
request of that text finds it by the name, whether others hold it still or it was freed
(what is in a freed block stays there: its *residue*), and holds it too.  Nobody writes a
block that has a name; it loses the name when it is given to a request anew.

Without this part a request may find its KV in any block that it is given.  With it come
loads, which leave out what was found.
"""

from __future__ import annotations

from .hits import chunks_touched
from .keys import CHUNKS
from .machine import Part, View
from .pool import BLOCK, HOLDS, TEXT, Block, free_blocks, lose_list
from .requests import GROUP, PREEMPTED, REQUEST, WAITING, Group, Request, Tokens
from .rules import whole_chunks
from .terms import BOOL, Term, exists, forall

part = Part("sharing", "sharing: the GPU's prefix cache, blocks of several requests, residue")
part.variable("named", (BLOCK,), BOOL, "the block can be found by the key of what it holds")
part.variable("name", (BLOCK,), TEXT,
              "the text of that key; its group and chunk are those that the block is for")
part.variable("found", (REQUEST, GROUP), CHUNKS,
              "leading chunks of the request's list whose blocks were found, not given anew")


@part.action("request {r} finds block {b} in group {g}")
def find(s: View, r: Request, g: Group, b: Block) -> None:
    """The next chunk of a request to be admitted is in the prefix cache.  Never the chunk with
    its last token, which is computed in any case (vLLM: a hit is capped at one token less than
    the request)."""
    c = s.allocated[r, g]
    s.require("waits", (s.life[r] == WAITING) | (s.life[r] == PREEMPTED))
    s.require("nothing is being loaded", s.hit[r] == 0)
    s.require("has its name", s.named[b], s.name[b] == s.text[r], s.place_g[b] == g,
              s.place_c[b] == c)
    s.require("all before it were found", s.found[r, g] == c)
    s.require("a token is left to compute",
              c < whole_chunks(s.tokens[r] - 1, s.tokens_per_chunk[g]))
    s.table[r, g, c] = b
    if s.rules.holding.counts_finders:
        s.hold[b, r] = HOLDS
    s.allocated[r, g] = c + 1
    s.found[r, g] = c + 1


@part.action("request {r}, which waits, gives its blocks back")
def give_back(s: View, r: Request) -> None:
    """There is no room for the rest of them, or what was found in one group is of no use without
    the same tokens in another."""
    s.require("waits", (s.life[r] == WAITING) | (s.life[r] == PREEMPTED))
    s.require("nothing is being loaded", s.hit[r] == 0)
    s.require("has blocks", exists(GROUP, lambda g: s.allocated[r, g] > 0))
    free_blocks(s, r)
    lose_list(s, r)
    _found_nothing(s, r)


@part.extend("start")
def _with_what_was_found(s: View, r: Request, n: Tokens) -> None:
    s.require("computes on from what was found", forall(GROUP, lambda g: (
        chunks_touched(n, s.tokens_per_chunk[g]) <= s.found[r, g])
        & (s.found[r, g] <= whole_chunks(n, s.tokens_per_chunk[g]))))


@part.extend("allocate")
def _lose_name(s: View, r: Request, g: Group, b: Block) -> None:
    if s.rules.holding.forgets_name:
        s.named[b] = False
        s.name[b] = 0


def give_names(s: View, r: Term, n: Term) -> None:
    """The request's blocks of whole chunks among its first ``n`` tokens get their names."""
    def whole(b: Term) -> Term:
        g, c = s.place_g[b], s.place_c[b]
        done: Term = (s.hold[b, r] == HOLDS) & (s.table[r, g, c] == b) & (
            c < whole_chunks(n, s.tokens_per_chunk[g]))
        return done

    s.named.where(whole, True)
    s.name.where(whole, s.text[r])


@part.extend("compute")
def _name(s: View, r: Request, n: Tokens) -> None:
    give_names(s, r, n)


@part.extend("plan_load")
def _name_too_early(s: View, r: Request, n: Tokens) -> None:
    if not s.rules.holding.names_computed:
        give_names(s, r, n)


def _found_nothing(s: View, r: Term) -> None:
    s.found.where(lambda r2, g: r2 == r, 0)


@part.extend("preempt")
def _lose_what_was_found(s: View, r: Request) -> None:
    _found_nothing(s, r)


@part.extend("retire")
def _forget(s: View, r: Request) -> None:
    _found_nothing(s, r)
