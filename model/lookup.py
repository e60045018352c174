"""Parts *kinds*, *drafters*, *lookup*, *slow tier*, *load limits*: what a host pool promises.

Before a request is admitted its scheduler asks how much of it can be loaded.  The answer is a
number of tokens, nothing, or "ask again", when something under way may still change it; asking
again is always possible.  An answer is a promise: until the load is planned or the promise is
taken back (the scheduler finds no room, the client goes away), the chunks that it needs are not
evicted.  How that is seen to is up to the engine: pins, or, as vLLM does, asking and planning
the load within one step, under one lock, and asking anew in the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .fencing import PENDING, READY
from .keys import CHUNK, SIZE
from .kinds import KIND, Seeking, customary, goes_on_at, worth_it
from .machine import Part, View
from .requests import GROUP, PREEMPTED, REQUEST, TOKENS, WAITING, Request, Tokens
from .rules import Design
from .terms import (
    BOOL,
    Term,
    Value,
    conjunction,
    enumeration,
    exists,
    forall,
    implies,
    ite,
    minimum,
)

VERDICT = enumeration("Verdict", "none", "hit", "ask again", "miss")
NO_VERDICT, HIT, ASK_AGAIN, MISS = range(4)

ASKED = enumeration("Asked", "not since it waits", "since it waits", "last of all")
NOT_SINCE, SINCE, LAST = range(3)

TIER = enumeration("Tier", "not asked", "asked", "has answered")
NOT_ASKED, UNDER_WAY, ANSWERED = range(3)

kinds = Part("kinds", "kinds: full attention, sliding window, chunked local, recurrent")
kinds.constant("kind", (GROUP,), KIND, "what the group's layers read of what came before")
kinds.constant("reach", (GROUP,), SIZE,
               "positions that a window reads before its own; tokens of a local chunk", initial=1)
kinds.constant("undivided", (GROUP,), BOOL,
               "a chunk is loaded whole or not at all (its span is shared by ranks of a context)")

drafters = Part("drafters", "drafters: groups that are asked for one chunk more")
drafters.constant("drafter", (GROUP,), BOOL, "the group holds drafter layers (EAGLE, MTP)")


def is_drafter(s: View, g: Term) -> Value:
    """Whether the group holds drafter layers."""
    return s.drafter[g] if s.has("drafters") else False


def needed(s: View, g: Term, n: Term, c: Term) -> Any:
    """Whether a request that goes on at ``n`` needs the group's chunk."""
    return s.rules.seeking.needed(s.kind[g], s.reach[g], s.tokens_per_chunk[g], n, c)


part = Part("lookup", "lookup: what can be loaded, asked again and again; promises")
part.variable("promise", (REQUEST,), TOKENS, "tokens that a lookup has promised; 0: none")
part.variable("verdict", (REQUEST,), VERDICT, "what the last lookup said")
part.ghost("asked", (REQUEST,), ASKED, "when it was last looked up")


def waits(s: View, r: Term) -> Term:
    """Whether the request waits to be admitted, for the first time or after preemption."""
    return (s.life[r] == WAITING) | (s.life[r] == PREEMPTED)


def promised(s: View, r: Term, g: Term, c: Term) -> Term:
    """Whether a promise needs the request's chunk."""
    return conjunction((s.promise[r] > 0, needed(s, g, s.promise[r], c)))


def there(s: View, r: Term, g: Term, c: Term) -> Term:
    """Whether the chunk can be loaded for the request: its key is known, and ready."""
    return (c < s.keys[r, g]) & (s.pooled[s.text[r], g, c] == READY)


def _limited(s: View, r: Term) -> Value:
    """Whether not all of the request may be loaded."""
    return s.may_load[r] < s.tokens[r] if s.has("load limits") else False


def _agreed(s: View, r: Term, n: Term, rule: Seeking, chunks: Callable[..., Any]) -> Term:
    """Whether the groups agree on ``n``, by the chunks that each asks for."""
    most = rule.longest(s.tokens[r])
    if s.has("load limits"):
        most = minimum(most, s.may_load[r])

    def serves(g: Term, m: Any) -> Any:
        size = s.tokens_per_chunk[g]
        asked = forall(CHUNK, lambda c: implies(
            chunks(s.kind[g], s.reach[g], size, m, c), there(s, r, g, c)))
        behind = (m - 1) // size + 1
        one_more = implies(rule.asks_one_more(is_drafter(s, g)), there(s, r, g, behind))
        ends = rule.can_go_on(s.kind[g], s.undivided[g], size, m)
        return implies(rule.heeded(s.kind[g]), ends & asked & one_more)

    def tail(g: Term) -> Any:
        return ite(is_drafter(s, g), s.tokens_per_chunk[g], 0)

    return conjunction((n >= 1, n <= most, rule.agreed(serves, tail, n, most)))


def servable(s: View, r: Term, n: Term) -> Term:
    """Whether a lookup may promise ``n`` tokens, were it not for longer prefixes."""
    rule = s.rules.seeking
    return _agreed(s, r, n, rule, rule.needed)


def owed(s: View, r: Term, n: Term, rules: Design | None = None) -> Term:
    """Whether a lookup must promise ``n`` tokens or more, by the design or by other ``rules``."""
    return conjunction((
        _agreed(s, r, n, (rules or s.rules).seeking, customary),
        forall(GROUP, lambda g: worth_it(s.tokens_per_chunk[g], _limited(s, r), n)),
    ))


def _no_further(s: View, r: Term, n: Any) -> Term:
    return forall(TOKENS, lambda m: implies(owed(s, r, m), m <= n))


def _ask(s: View, r: Term, verdict: int) -> None:
    s.require("waits", waits(s, r))
    s.require("nothing is promised yet", s.promise[r] == 0)
    s.verdict[r] = verdict
    s.asked.where(lambda q: True,
                  lambda q: ite(q == r, LAST, minimum(s.asked[q], SINCE)))


@part.action("a lookup promises request {r} tokens: {n}")
def look_up(s: View, r: Request, n: Tokens) -> None:
    """A position at which all groups can go on, and none further is to be had."""
    s.require("every group can go on there", servable(s, r, n))
    s.require("nowhere further", _no_further(s, r, n))
    _ask(s, r, HIT)
    s.promise[r] = n


@part.action("a lookup finds nothing for request {r}")
def look_up_nothing(s: View, r: Request) -> None:
    """Nothing worth a load."""
    s.require("there is nothing", _no_further(s, r, s.promise[r]))
    _ask(s, r, MISS)


@part.action("a lookup for request {r} waits for what is being stored")
def look_up_pending(s: View, r: Request) -> None:
    """A key is there and not readable yet; it will be."""
    s.require("something is on its way", arrives(s, r))
    _ask(s, r, ASK_AGAIN)


def arrives(s: View, r: Term) -> Term:
    """Whether a key of the request is pending."""
    return exists(GROUP, CHUNK, lambda g, c: (c < s.keys[r, g])
                  & (s.pooled[s.text[r], g, c] == PENDING))


@part.action("the promise to request {r} is taken back")
def withdraw(s: View, r: Request) -> None:
    """There is no room to load it; it will be looked up again."""
    s.require("promised", s.promise[r] > 0)
    s.promise[r] = 0
    s.verdict[r] = NO_VERDICT


def keep_promise(s: View, r: Term) -> None:
    """What was promised is loaded, and the request goes on behind it."""
    s.computed[r] = goes_on_at(s.tokens[r], s.promise[r])
    s.promise[r] = 0


@part.extend("start")
def _asked_before(s: View, r: Request, n: Tokens) -> None:
    s.require("nothing is to be loaded", s.verdict[r] == MISS)


@part.extend("preempt")
def _waits_anew(s: View, r: Request) -> None:
    s.verdict[r] = s.rules.seeking.forgotten(s.verdict[r])
    s.asked[r] = NOT_SINCE


@part.extend("abort")
def _promised_to_nobody(s: View, r: Request) -> None:
    s.promise[r] = 0


@part.extend("retire")
def _forget(s: View, r: Request) -> None:
    s.verdict[r] = NO_VERDICT
    s.asked[r] = NOT_SINCE


slow = Part("slow tier", "slow tier: one that takes its time to say what it has")
slow.variable("tier", (REQUEST,), TIER, "whether it was asked about the request")


@slow.action("a lookup for request {r} waits for the slow tier's answer")
def look_up_elsewhere(s: View, r: Request) -> None:
    """Nobody knows yet what there is."""
    s.require("may still say", s.rules.seeking.asks_again(s.tier[r] == ANSWERED))
    _ask(s, r, ASK_AGAIN)
    s.tier[r] = ite(s.tier[r] == NOT_ASKED, UNDER_WAY, s.tier[r])


@slow.action("the slow tier has answered for request {r}", external=True)
def tier_answers(s: View, r: Request) -> None:
    """What it has is being brought, or it has nothing."""
    s.require("was asked", s.tier[r] == UNDER_WAY)
    s.tier[r] = ANSWERED


@slow.extend("preempt")
def _ask_anew(s: View, r: Request) -> None:
    s.tier[r] = ite(s.tier[r] == ANSWERED, NOT_ASKED, s.tier[r])


@slow.extend("retire")
def _forget_tier(s: View, r: Request) -> None:
    s.tier[r] = NOT_ASKED


load_limits = Part("load limits", "load limits: only the first tokens of a request may be loaded")
load_limits.variable("may_load", (REQUEST,), TOKENS, "how many; none: its prefix is not read")


@load_limits.extend("arrive", ", may load tokens: {m}")
def _may_load(s: View, r: Request, p: Tokens, m: Tokens) -> None:
    """vLLM: ``max_load_tokens``, or ``skip_reading_prefix_cache``, which is a limit of 0."""
    s.may_load[r] = m
