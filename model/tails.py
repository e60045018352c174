"""Part *tails*: what lies in blocks and slots of a draft group while its last position is a guess.

A step that decodes writes the drafter's KV of the last known position from a draft, the token
that is guessed to come next.  When the step's output is known that position is written once
more, from the token that did come, be the draft rejected or not; until then its chunk is the
volatile tail.  A copy takes along whichever of the two lies there.

There is no fence for the second writing: what keeps stores away from it is that the tail is not
offered.  Accepted drafts get their KV with the output, in every group.
"""

from __future__ import annotations

from .keys import Chunk
from .machine import Part, View
from .pool import BLOCK, HOLDS, WORKER, Worker, has_blocks, write, written
from .requests import RUNNING, Accepted, Group, Request, Tokens
from .rules import whole_chunks
from .slots import SLOT, Slot
from .terms import BOOL, Term, ite, not_
from .transfers import fence

part = Part("tails", "tails: guesses in the blocks and slots of draft groups")
part.ghost("guessed", (BLOCK, WORKER), BOOL,
           "the last position of what a worker's block holds follows from a guess")
part.ghost("byte_guessed", (SLOT, WORKER), BOOL, "so does that of what lies in a worker's slot")


def unsettled(s: View, r: Term, g: Term, c: Term) -> Term:
    """Whether a step in flight has yet to say what follows on the last position of the request's
    chunk.  The token after the prompt is sampled, never a draft."""
    decodes = (s.life[r] == RUNNING) & (s.prompt[r] < s.tokens[r])
    last: Term = c == whole_chunks(s.tokens[r] - 1, s.tokens_per_chunk[g])
    return decodes & (s.computed[r] == s.tokens[r]) & s.draft[g] & last


@part.extend("compute")
def _guess(s: View, r: Request, n: Tokens) -> None:
    def from_a_draft(b: Term) -> Term:
        g = s.place_g[b]
        last: Term = s.place_c[b] == whole_chunks(n - 1, s.tokens_per_chunk[g])
        return s.draft[g] & (s.prompt[r] < n) & (n == s.tokens[r]) & last

    s.guessed.where(lambda b, w: written(s, b, r, n), lambda b, w: from_a_draft(b))


def _settle(s: View, r: Term) -> None:
    """The last known position, and what was accepted behind it, from the tokens that came."""
    s.guessed.where(
        lambda b, w: (s.hold[b, r] == HOLDS) & s.draft[s.place_g[b]] & (
            whole_chunks(s.tokens[r] - 1, s.tokens_per_chunk[s.place_g[b]]) <= s.place_c[b]),
        False)


@part.extend("reject")
def _rewrite(s: View, r: Request) -> None:
    _settle(s, r)


@part.extend("sample")
def _accept(s: View, r: Request, a: Accepted) -> None:
    n = s.tokens[r] + a
    s.require("a block for each accepted draft", has_blocks(s, r, n))
    fence(s, r, n)
    write(s, r, n)
    _settle(s, r)


@part.extend("submit")
def _held_back(s: View, r: Request, g: Group, c: Chunk) -> None:
    if s.rules.care.holds_tails:
        s.require("the step's output is known", not_(unsettled(s, r, g, c)))


@part.extend("copy_out")
def _copied(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    h = s.target[r, g, c]
    s.byte_guessed[h, w] = ite(s.short[h, w], False, s.guessed[s.source[r, g, c], w])


@part.extend("copy_out_fails")
def _not_copied(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    s.byte_guessed[s.target[r, g, c], w] = False


@part.extend("copy_late")
def _dropped(s: View, h: Slot, w: Worker) -> None:
    s.byte_guessed[h, w] = False


@part.extend("copy_in")
def _brought(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    s.guessed[s.table[r, g, c], w] = s.byte_guessed[s.origin[r, g, c], w]


@part.extend("copy_in_fails")
def _not_brought(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> None:
    s.guessed[s.table[r, g, c], w] = False
