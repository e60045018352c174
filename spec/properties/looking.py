"""What must hold of lookups: promises that can be kept, and no less than there is."""

from __future__ import annotations

from typing import Any

from kvoracle.model.fencing import READY
from kvoracle.model.kinds import can_go_on, goes_on_at, reads
from kvoracle.model.lookup import (
    ANSWERED,
    HIT,
    LAST,
    MISS,
    NO_VERDICT,
    NOT_SINCE,
    arrives,
    owed,
    waits,
)
from kvoracle.model.machine import View
from kvoracle.model.requests import ABSENT, PREEMPTED, RUNNING, Group, Request, Tokens
from kvoracle.model.rules import REFERENCE
from kvoracle.model.terms import implies, not_

from .property import Property, Seen, Witness

PARTS = ("kinds", "lookup")
LOOKUPS = "lookups"

ANSWERS = frozenset({"look_up", "look_up_nothing"})
"""The actions by which a lookup gives an answer."""


def _ready(s: View, r: Any, g: Any, p: Any) -> Any:
    """Whether the chunk that holds the position can be loaded."""
    c = p // s.tokens_per_chunk[g]
    return (c < s.keys[r, g]) & (s.pooled[s.text[r], g, c] == READY)


def _read_behind(s: View, r: Any, g: Any, p: Any) -> Any:
    """Whether the promised request, once it goes on, reads the position."""
    n = goes_on_at(s.tokens[r], s.promise[r])
    return reads(s.kind[g], s.reach[g], n, p)


# --- HitSound --------------------------------------------------------------------


def _hit_sound(s: View, r: Request, g: Group, p: Tokens) -> Any:
    n = goes_on_at(s.tokens[r], s.promise[r])
    ends = can_go_on(s.kind[g], s.undivided[g], s.tokens_per_chunk[g], n)
    return implies((s.promise[r] > 0) & (p < s.tokens[r]),
                   (n >= 1) & ends & implies(_read_behind(s, r, g, p), _ready(s, r, g, p)))


def _unsound(seen: Seen) -> str:
    r, g, p = (seen.where[k] for k in "rgp")
    size = seen.constant("tokens_per_chunk")
    promise, tokens = seen.of_request("promise"), seen.of_request("tokens")
    n = min(promise, tokens - 1)
    said = (f"request {seen.request} was promised {promise} of its {tokens} tokens and goes on "
            f"at position {n}")
    if n < 1 or not can_go_on(seen.constant("kind"), seen.constant("undivided"), size, n):
        return f"{said}, where{seen.group} no chunk of {size} tokens ends"
    known = p // size < seen.get("keys", r, g)
    lacks = "is not in the pool" if known else "has no key yet"
    return f"{said}; there it reads position {p}{seen.group}, and chunk {p // size} {lacks}"


def _promised_with_less_behind(s: View, r: Request, g: Group, p: Tokens) -> Any:
    return (s.promise[r] > 0) & (p < s.promise[r]) & (
        s.pooled[s.text[r], g, p // s.tokens_per_chunk[g]] != READY)


def _promised_again(s: View, r: Request) -> Any:
    return (s.promise[r] > 0) & (s.life[r] == PREEMPTED)


HIT_SOUND = Property(
    name="HitSound",
    statement="what lookup promises can be loaded, in every group, at one common position",
    why="The scheduler allocates for the promise, and counts its tokens as computed. If one "
        "group lacks a chunk that attention reads there, or keeps no state for that position, "
        "the engine dies in an assertion or computes on what was never loaded.",
    source="vLLM _lookup_complete_chunks; issues #46453, #51094, #52617, PR55168",
    function=_hit_sound,
    because=_unsound,
    witnesses=(
        Witness("chunks that a window does not reach are gone", _promised_with_less_behind),
        Witness("a preempted request is promised its prefix", _promised_again),
    ),
    bugs=("vLLM#46453", "vLLM#51094", "vLLM#52617", "vLLM PR51161", "vLLM PR55168",
          "SGLang#39830"),
    parts=PARTS,
    derived=True,
    family=LOOKUPS,
)


# --- HitMaximal ------------------------------------------------------------------


def _hit_maximal(s: View, t: View, action: str, r: Request, n: Tokens) -> Any:
    if action == "start":  # by a verdict, which may be too old
        goes_by = (t.life[r] != s.life[r]) & (s.asked[r] == NOT_SINCE)
    elif action in ANSWERS:
        goes_by = t.asked[r] == LAST
    else:
        return True
    return implies(goes_by & owed(s, r, n, REFERENCE), n <= t.promise[r])


def _too_little(seen: Seen) -> str:
    found = f"request {seen.request} could go on at position {seen.where['n']}, and"
    if seen.of_request("life") == RUNNING:
        return f"{found} starts without, by a verdict from before it was preempted"
    return f"{found} the lookup promises {seen.of_request('promise')} tokens"


def _some_is_missing(s: View, r: Request, g: Group) -> Any:
    return (s.promise[r] > 0) & (
        s.promise[r] // s.tokens_per_chunk[g] < s.tokens[r] // s.tokens_per_chunk[g])


def _nothing_there(s: View, r: Request, g: Group) -> Any:
    return (s.verdict[r] == MISS) & (s.pooled[s.text[r], g, 0] == READY)


HIT_MAXIMAL = Property(
    name="HitMaximal",
    statement="lookup promises no less than the documented rule yields",
    why="What is stored and never served costs host memory and the copy, and gives nothing. "
        "Nothing crashes; the hit rate is low, or 0 in a model with one group of a kind that "
        "nobody tried.",
    source="vLLM _lookup_complete_chunks; issues #52735, #51761; LMCache#1969",
    function=_hit_maximal,
    because=_too_little,
    is_step=True,
    witnesses=(
        Witness("a hit ends before the request's last whole chunk", _some_is_missing),
        Witness("a first chunk is ready and serves nothing", _nothing_there),
    ),
    bugs=("vLLM#52735", "vLLM#51761", "vLLM#53951", "vLLM#46971", "LMCache#1969"),
    parts=PARTS,
    family=LOOKUPS,
)


# --- EventuallyAnswered ----------------------------------------------------------


def _eventually_answered(s: View, r: Request) -> Any:
    put_off, rest = s.possible("look_up_pending", r=r), not_(arrives(s, r))
    if s.has("slow tier"):
        put_off = put_off | s.possible("look_up_elsewhere", r=r)
        rest = rest & (s.tier[r] == ANSWERED)
    return not_(put_off & rest)


def _for_nothing(seen: Seen) -> str:
    return (f"a lookup for request {seen.request} may be put off once more, and nothing is under "
            "way that would change its answer")


def _asked_while_stored(s: View, r: Request) -> Any:
    return arrives(s, r) & (s.verdict[r] != NO_VERDICT) & waits(s, r)


EVENTUALLY_ANSWERED = Property(
    name="EventuallyAnswered",
    statement="a lookup that is put off waits for something under way",
    why="A request whose lookup says 'ask again' is passed over in every step. If nothing is "
        "under way that would change the answer, it never runs, and its client waits for ever. "
        "That what is under way ends is fairness; that there is something is this.",
    source="vLLM LookupResult.HIT_PENDING and RETRY; PR51840, issue #49176",
    function=_eventually_answered,
    because=_for_nothing,
    derived=True,
    witnesses=(Witness("a chunk of the request is being stored when it is looked up",
                       _asked_while_stored),),
    bugs=("vLLM PR51840", "vLLM#49176"),
    parts=PARTS,
    family=LOOKUPS,
)


# --- ProvenTail ------------------------------------------------------------------


def _proven_tail(s: View, t: View, action: str, r: Request, g: Group, p: Tokens) -> Any:
    if action != "look_up":
        return True
    due = (t.asked[r] == LAST) & s.drafter[g] & _read_behind(t, r, g, p)
    return implies(due, _ready(s, r, g, p + 1))


def _guessed(seen: Seen) -> str:
    size = seen.constant("tokens_per_chunk")
    p = seen.where["p"]
    return (f"request {seen.request} was promised position {p}{seen.group}, whose drafter KV "
            f"depends on the token behind it, and chunk {(p + 1) // size}, whose key names that "
            "token, is not in the pool")


def _drafter_promised(s: View, r: Request, g: Group) -> Any:
    return (s.promise[r] > 0) & s.drafter[g]


PROVEN_TAIL = Property(
    name="ProvenTail",
    statement="the last position that is served of a draft group is one whose next token is known",
    why="A drafter computes its KV at a position from the next token too. The key of a chunk does "
        "not name the token behind it, so its last position may be another continuation's. That "
        "lowers how many drafts are accepted; it does not change the output.",
    source="vLLM _lookup_complete_chunks (one chunk more is asked for, and dropped); PR52771",
    function=_proven_tail,
    because=_guessed,
    is_step=True,
    witnesses=(Witness("a draft group is promised", _drafter_promised),),
    bugs=("vLLM#52735", "SGLang PR17338"),
    parts=(*PARTS, "drafters"),
    family=LOOKUPS,
)


# --- strengthening invariants ----------------------------------------------------


def _promise_is_within(s: View, r: Request) -> Any:
    return implies(s.promise[r] > 0, waits(s, r) & (s.promise[r] < s.tokens[r]))


PROMISE_IS_WITHIN = Property(
    name="PromiseIsWithin",
    statement="a promise is made to a request that waits, of fewer tokens than it has",
    why="Its tokens do not change while it waits, so where it goes on does not either; and a "
        "promise to a request that has ended would keep its chunks for ever.",
    source="vLLM get_num_new_matched_tokens; ROCm/ATOM PR2175",
    function=_promise_is_within,
    because=lambda seen: (
        f"request {seen.request} was promised {seen.of_request('promise')} of its "
        f"{seen.of_request('tokens')} tokens"),
    lemma=True,
    supports="HitSound",
    parts=PARTS,
    family=LOOKUPS,
)

def _promise_ends(s: View, r: Request, g: Group) -> Any:
    return implies(s.promise[r] > 0, can_go_on(
        s.kind[g], s.undivided[g], s.tokens_per_chunk[g], s.promise[r]))


PROMISE_ENDS = Property(
    name="PromiseEnds",
    statement="a promise ends where every group can go on",
    why="A recurrent group keeps states for the ends of chunks alone, and a chunk that cannot be "
        "divided is loaded to its end.",
    source="vLLM resolve_mamba_align_size; PR55168",
    function=_promise_ends,
    because=lambda seen: (
        f"request {seen.request} was promised {seen.of_request('promise')} tokens, where"
        f"{seen.group} no chunk ends"),
    lemma=True,
    supports="HitSound",
    parts=PARTS,
    family=LOOKUPS,
)


def _promise_is_kept(s: View, r: Request, g: Group, p: Tokens) -> Any:
    return implies(
        (s.promise[r] > 0) & reads(s.kind[g], s.reach[g], s.promise[r], p), _ready(s, r, g, p))


PROMISE_IS_KEPT = Property(
    name="PromiseIsKept",
    statement="what a promise needs stays in the pool until it is kept or taken back",
    why="Between the answer and the load others evict, reset and store. Nothing of that may touch "
        "a chunk that somebody was promised.",
    source="vLLM OffloadingManager.lock: a lookup's HIT and the prepare_load that pins it",
    function=_promise_is_kept,
    because=lambda seen: (
        f"request {seen.request} was promised {seen.of_request('promise')} tokens, and the chunk "
        f"of position {seen.where['p']}{seen.group} cannot be loaded any more"),
    lemma=True,
    supports="HitSound",
    parts=PARTS,
    family=LOOKUPS,
)


def _verdict_is_of_now(s: View, r: Request) -> Any:
    return (
        implies(s.promise[r] > 0, s.verdict[r] == HIT)
        & implies(waits(s, r) & (s.verdict[r] != NO_VERDICT), s.asked[r] != NOT_SINCE)
        & implies(s.life[r] == ABSENT, s.verdict[r] == NO_VERDICT)
    )


VERDICT_IS_OF_NOW = Property(
    name="VerdictIsOfNow",
    statement="a request that waits goes by a verdict that was given since it waits",
    why="What was loaded before a preemption is gone, and what was not there then may be there "
        "now; a verdict that outlives the wait it was given for is about another situation.",
    source="LMCache#1969; vLLM get_num_new_matched_tokens, asked at every admission",
    function=_verdict_is_of_now,
    because=lambda seen: (
        f"request {seen.request} waits and goes by a verdict from before it was preempted"),
    lemma=True,
    supports="HitMaximal",
    parts=PARTS,
    family=LOOKUPS,
)

LOOKING = (HIT_SOUND, HIT_MAXIMAL, EVENTUALLY_ANSWERED, PROVEN_TAIL)
LOOKING_LEMMAS = (PROMISE_IS_WITHIN, PROMISE_ENDS, PROMISE_IS_KEPT, VERDICT_IS_OF_NOW)
