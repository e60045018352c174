"""Part *store*: planning what to offload, and the cursor that remembers how far it got.

The planner offers the chunks from the cursor up to some bound to the host pool,
which takes them, declines those it already holds, or refuses the whole offer.
Jobs complete at once here; that they do not is another part.

``mark`` is the history that properties speak of: what became of each chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .keys import CHUNK, CHUNKS, Chunks
from .limits import offloadable
from .machine import Part, View
from .requests import ABORTED, ABSENT, FINISHED, GROUP, REQUEST, RUNNING, Group, Request, ended
from .rules import Claim, Design, whole_chunks
from .terms import BOOL, Term, enumeration, exists, forall, ite, minimum

MARK = enumeration("Mark", "never offered", "covered", "held", "spoiled")
NEVER, COVERED, HELD, SPOILED = range(4)

part = Part("store", "store: offers, refusals, the cursor")
part.variable("cursor", (REQUEST, GROUP), CHUNKS, "the next chunk to consider for storing")
part.variable("excused", (REQUEST,), BOOL,
              "the pool refused the last offer, or was reset: chunks left over are not owed")
part.ghost("mark", (REQUEST, GROUP, CHUNK), MARK,
           "covered: declined, or part of a hit; held: stored with its final KV; "
           "spoiled: stored, but the KV was not computed, or was rewritten later")
part.ghost("job_keys", (REQUEST, GROUP), CHUNKS, "keys that the last planned job named")
part.ghost("job_blocks", (REQUEST, GROUP), CHUNKS, "chunks' worth of blocks that it named")


def claim(s: View, r: Term, g: Term, rules: Design | None = None) -> Claim:
    """What the planner knows of a request in a group, by the design or by other ``rules``."""
    tokens = (rules or s.rules).tokens_counted(
        s.computed[r], s.tokens[r], s.life[r] == FINISHED, s.life[r] == ABORTED)
    return Claim(
        tokens=offloadable(s, r, tokens) if s.has("limits") else tokens,
        prompt=s.prompt[r],
        finished=ended(s, r),
        draft=s.draft[g] if s.has("drafts") else False,
        blocks=s.blocks[r, g],
        keys=s.keys[r, g],
        tokens_per_chunk=s.tokens_per_chunk[g],
        blocks_per_chunk=s.blocks_per_chunk[g],
    )


def planned_for(s: View, r: Term) -> Term:
    """Whether the planner looks at the request: it runs, or has ended and is not forgotten."""
    return (s.life[r] == RUNNING) | ended(s, r)


def _named(known: Term, start: Term, end: Term) -> Any:
    """How many entries the slice ``[start:end]`` of a list of ``known`` entries has."""
    return minimum(known, end) - minimum(known, start)


def _offer(v: Mapping[str, str]) -> str:
    taken = f"the planner offers request {v['r']}'s chunks below {v['n']} in group {v['g']}"
    return f"{taken}: all taken" if v["d"] == v["n"] else f"{taken}: chunk {v['d']} declined"


@part.action(_offer)
def plan_store(s: View, r: Request, g: Group, n: Chunks, d: Chunks) -> None:
    """The pool takes the chunks from the cursor to ``n``, but for chunk ``d`` which it holds
    already (``d`` = ``n``: it declines none).  The job names the keys and the blocks of those
    chunks, each cut out of its own list."""
    at, known = s.cursor[r, g], claim(s, r, g)
    s.require("planned for", planned_for(s, r))
    s.require("beyond the cursor", at < n)
    s.require("storable", n <= s.rules.storable(known))
    s.require("declines an offered chunk or none", (at <= d) & (d <= n))
    final = whole_chunks(s.computed[r], s.tokens_per_chunk[g])
    s.mark.where(
        lambda r2, g2, c: (r2 == r) & (g2 == g) & (at <= c) & (c < n),
        lambda r2, g2, c: ite(
            c == d,
            ite(s.mark[r2, g2, c] == NEVER, COVERED, s.mark[r2, g2, c]),
            ite(c < final, HELD, SPOILED),
        ),
    )
    s.job_keys[r, g] = _named(s.keys[r, g], at, n)
    s.job_blocks[r, g] = _named(s.blocks[r, g] // s.blocks_per_chunk[g], at, n)
    s.cursor[r, g] = s.rules.cursor_after_offer(at, n, known)
    s.excused[r] = False


@part.action("the host pool refuses the offer of request {r}")
def refuse(s: View, r: Request) -> None:
    """No room: nothing is stored.  The offer is made again while the request is tracked."""
    s.require("planned for", planned_for(s, r))
    s.require("something to offer", _something_left(s, r))
    s.excused[r] = True
    s.cursor.where(
        lambda r2, g: r2 == r,
        lambda r2, g: s.rules.cursor_after_refusal(
            s.cursor[r2, g], s.rules.storable(claim(s, r2, g)), claim(s, r2, g)),
    )


@part.action("the planner passes over request {r} in group {g}")
def settle(s: View, r: Request, g: Group) -> None:
    """Nothing new to offer; the cursor is derived again all the same."""
    known = claim(s, r, g)
    bound = s.rules.storable(known)
    s.require("planned for", planned_for(s, r))
    s.require("nothing to offer", bound <= s.cursor[r, g])
    s.cursor[r, g] = s.rules.cursor_in_passing(s.cursor[r, g], bound, known)


@part.action("the host pool is reset", external=True)
def reset(s: View) -> None:
    """The host holds nothing any more, so everything is considered again; what had already
    ended is owed nothing (vLLM: ``reset_cache`` drops finished requests)."""
    s.cursor.where(lambda r, g: True, 0)
    s.mark.where(lambda r, g, c: True, NEVER)
    s.job_keys.where(lambda r, g: True, 0)
    s.job_blocks.where(lambda r, g: True, 0)
    s.excused.where(lambda r: s.life[r] != ABSENT, lambda r: ended(s, r))


@part.extend("preempt")
def _clear(s: View, r: Request) -> None:
    s.cursor.where(
        lambda r2, g: r2 == r, lambda r2, g: s.rules.cursor_after_clearing(s.cursor[r2, g])
    )


@part.extend("retire")
def _forget(s: View, r: Request) -> None:
    s.require("nothing storable is left, or not owed", s.excused[r] | _nothing_left(s, r))
    s.cursor.where(lambda r2, g: r2 == r, 0)
    s.excused[r] = False
    s.mark.where(lambda r2, g, c: r2 == r, NEVER)
    s.job_keys.where(lambda r2, g: r2 == r, 0)
    s.job_blocks.where(lambda r2, g: r2 == r, 0)


def _nothing_left(s: View, r: Term) -> Term:
    return forall(GROUP, lambda g: s.rules.storable(claim(s, r, g)) <= s.cursor[r, g])


def _something_left(s: View, r: Term) -> Term:
    return exists(GROUP, lambda g: s.cursor[r, g] < s.rules.storable(claim(s, r, g)))
