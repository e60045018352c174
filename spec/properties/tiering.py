"""What must hold of a second tier: what was read is served, what was not is not counted on."""

from __future__ import annotations

from typing import Any

from kvoracle.model.fencing import PENDING, READY
from kvoracle.model.keys import Chunk
from kvoracle.model.machine import View
from kvoracle.model.pool import Text
from kvoracle.model.requests import Group, Request
from kvoracle.model.terms import implies, ite, not_
from kvoracle.model.tiering import ABSENT_BELOW

from .property import Property, Seen, Witness
from .transferring import TRANSFERS

TIERS = ("pool", "slots", "transfers", "tiers")


def _tier_verdict(s: View, t: View, action: str, r: Request, g: Group, c: Chunk) -> Any:
    if action == "reset":  # what is dropped was not read
        return True
    x = s.text[r]
    over = s.raising[x, g, c] & not_(t.raising[x, g, c])
    return implies(over, ite(s.unread[x, g, c], not_(t.told[r, g, c]), t.pooled[x, g, c] == READY))


def _wrong_verdict(seen: Seen) -> str:
    assert seen.before is not None
    g, c = seen.where["g"], seen.where["c"]
    x = seen.get("text", seen.where["r"])
    if seen.before("unread", x, g, c):
        return (f"chunk {c} of text {x}{seen.group} could not be read, and request {seen.request} "
                "still counts on the second tier for it")
    return f"chunk {c} of text {x}{seen.group} was read, and it is given up"


def _told_of_what_is_gone(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.told[r, g, c] & (s.lower[s.text[r], g, c] == ABSENT_BELOW)


def _one_of_two_fails(s: View, t: Text, g: Group, c: Chunk, d: Chunk) -> Any:
    return s.unread[t, g, c] & s.raising[t, g, d] & not_(s.unread[t, g, d])


TIER_VERDICT = Property(
    name="TierVerdict",
    statement="a key that was read from the second tier is served, and one that could not be read "
              "is counted on no longer",
    why="An answer that is remembered and not taken back sends the request to read the same "
        "missing file in every step, for ever. And one bad key of many read together is no "
        "reason to throw the others away: the hit is lost, and the reads were for nothing.",
    source="vLLM issue #49176, PR49328, PR50321",
    function=_tier_verdict,
    because=_wrong_verdict,
    is_step=True,
    witnesses=(
        Witness("a request counts on a key that is gone", _told_of_what_is_gone),
        Witness("one of two keys that are read together fails", _one_of_two_fails),
    ),
    bugs=("vLLM#49176", "vLLM PR50321"),
    parts=TIERS,
    family=TRANSFERS,
)


def _raised_is_pending(s: View, r: Request, t: Text, g: Group, c: Chunk) -> Any:
    return implies(s.raising[t, g, c], s.pooled[t, g, c] == PENDING) \
        & implies(s.unread[t, g, c], s.raising[t, g, c]) \
        & not_(s.flight[r, g, c] & s.raising[s.text[r], g, c])


RAISED_IS_PENDING = Property(
    name="RaisedIsPending",
    statement="a key that is read from the second tier is pending, and no store fills it",
    why="Two writers of one slot would each take the other's end for its own, as two stores of "
        "one key would.",
    source="the machine's own bookkeeping",
    function=_raised_is_pending,
    because=lambda seen: f"chunk {seen.where['c']} of text {seen.where['t']}{seen.group} is read "
                         "from the second tier, and its key is not its own to fill",
    lemma=True,
    supports="TrueBytes",
    parts=TIERS,
    family=TRANSFERS,
)

TIERING = (TIER_VERDICT,)
TIER_LEMMAS = (RAISED_IS_PENDING,)
