"""What must happen in the end: promises about runs that go on for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvoracle.model.fencing import MISSING, PENDING
from kvoracle.model.hits import chunks_touched
from kvoracle.model.keys import CHUNK, Chunk
from kvoracle.model.lookup import ASK_AGAIN, waits
from kvoracle.model.machine import Machine, Predicate, View, invariant
from kvoracle.model.pool import HOLDS, Block, Text, lives
from kvoracle.model.requests import GROUP, REQUEST, Group, Request, ended
from kvoracle.model.rules import REFERENCE
from kvoracle.model.slots import SLOT, Slot, is_free
from kvoracle.model.store import claim, planned_for
from kvoracle.model.terms import exists, forall, implies

from .transferring import LOADS, STORES


@dataclass(frozen=True)
class Duty:
    """Something that may wait, but not for ever.

    ``waits`` is a predicate over a state, with parameters annotated by sorts; it is broken by a
    fair run from some point of which on it holds without a break.  A step by an action of
    ``until`` counts as an end of the waiting, even if ``waits`` holds before and after it.
    ``name`` says in words what waits, with parameters in braces.
    """

    name: str
    waits: Callable[..., Any]
    until: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def applies(self, machine: Machine) -> bool:
        """Whether the machine has the parts that the duty speaks of."""
        return set(self.parts) <= {p.name for p in machine.parts}

    def predicate(self, machine: Machine) -> Predicate:
        """``waits`` as a predicate over one state."""
        return invariant(machine, self.name, self.waits)


@dataclass(frozen=True)
class Liveness:
    """A promise about the future, under the fairness of `kvoracle.model.fairness`.

    It may bear the name of a property over states: both are parts of one promise.
    """

    name: str
    statement: str
    why: str
    source: str
    duties: tuple[Duty, ...]
    bugs: tuple[str, ...] = ()

    def of(self, machine: Machine) -> tuple[Duty, ...]:
        """Its duties that say something about the machine."""
        return tuple(d for d in self.duties if d.applies(machine))


# --- EventuallyStored --------------------------------------------------------------


def _storable(s: View, r: Request, g: Group, c: Chunk) -> Any:
    storable = REFERENCE.storable(claim(s, r, g, REFERENCE))
    left = planned_for(s, r) & (s.cursor[r, g] <= c) & (c < storable)
    return left & exists(SLOT, lambda h: is_free(s, h)) if s.has("slots") else left


def _under_way(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.flight[r, g, c]


EVENTUALLY_STORED = Liveness(
    name="EventuallyStored",
    statement="a chunk that stays storable while there is room is offered and taken or declined, "
              "and a store that is under way ends",
    why="An offer that is refused must be made again, and again from where it was refused: a "
        "planner that gives up, or that begins anew each time, never stores what comes last. "
        "Nothing crashes and nothing is wrong in any single state.",
    source="vLLM issue #54415, PR50069; issue #52735",
    duties=(
        Duty("chunk {c} of request {r} in group {g} is storable, and is not offered", _storable,
             parts=("store",)),
        Duty("the store of chunk {c} of request {r} in group {g} is under way", _under_way,
             parts=STORES),
    ),
    bugs=("vLLM#54415", "vLLM PR50069", "Dynamo#3730"),
)


# --- NoLeak ------------------------------------------------------------------------


def _held_by_the_ended(s: View, b: Block, r: Request) -> Any:
    return (s.hold[b, r] == HOLDS) & ended(s, r)


def _pending(s: View, t: Text, g: Group, c: Chunk) -> Any:
    return s.pooled[t, g, c] == PENDING


def _taken_by_no_key(s: View, h: Slot) -> Any:
    t, g, c = s.slot_text[h], s.slot_g[h], s.slot_c[h]
    return s.taken[h] & ((s.pooled[t, g, c] == MISSING) | (s.slot[t, g, c] != h))


def _pinned(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.pin[r, g, c]


NO_LEAK = Liveness(
    name="NoLeak",
    statement="what a request that ended or a transfer holds is given back in the end",
    why="A block, a pending key or a pin that nobody gives back is missing from the pool for "
        "ever; it shrinks until nothing fits. In each single state somebody might still be about "
        "to give it back.",
    source="Dynamo#3730; SGLang PR30053 and its kind; vLLM issue #46283",
    duties=(
        Duty("block {b} is held by request {r}, which has ended", _held_by_the_ended,
             parts=("pool",)),
        Duty("the key of chunk {c} of text {t} in group {g} is pending", _pending, parts=STORES),
        Duty("slot {h} is taken by no key", _taken_by_no_key, parts=STORES),
        Duty("the load of request {r} pins the key of chunk {c} in group {g}", _pinned,
             parts=LOADS),
    ),
    bugs=("Dynamo#3730", "SGLang PR30053", "vLLM#46283"),
)


# --- NoStall -----------------------------------------------------------------------


def _fits(s: View, r: Any, g: Any) -> Any:
    # Within a scope, a request has chunks for so many tokens; without bounds each request fits.
    return exists(CHUNK, lambda c: chunks_touched(s.tokens[r], s.tokens_per_chunk[g]) <= c + 1)


def _somebody_waits(s: View) -> Any:
    return exists(REQUEST, lambda r: lives(s, r)) & forall(
        REQUEST, GROUP, lambda r, g: implies(lives(s, r), _fits(s, r, g)))


def _loading(s: View, r: Request) -> Any:
    return s.hit[r] > 0


PROGRESS = ("start", "load", "load_hit", "report_load", "borrowed_over", "compute", "sample",
            "finish", "abort")
"""Actions by which a request comes further, or waits no more."""

NO_STALL = Liveness(
    name="NoStall",
    statement="while requests wait or run, each of which the pool could hold, one of them comes "
              "further in the end; and a load that is under way ends",
    why="Each waits for what another holds, or for a report that nobody will send: the engine "
        "lives, answers its health check, and serves nobody.",
    source="vLLM issues #45387, #53868; TensorRT-LLM#12542",
    duties=(
        Duty("requests wait or run, and none comes further", _somebody_waits, PROGRESS,
             ("store",)),
        Duty("the load of request {r} is under way", _loading, parts=LOADS),
    ),
    bugs=("vLLM#45387", "vLLM#53868", "TensorRT-LLM#12542"),
)

# --- EventuallyAnswered ------------------------------------------------------------


def _put_off(s: View, r: Request) -> Any:
    return waits(s, r) & (s.promise[r] == 0) & (s.verdict[r] == ASK_AGAIN)


EVENTUALLY_ANSWERED = Liveness(
    name="EventuallyAnswered",
    statement="a lookup that is put off is answered in the end, or something that it waited for "
              "has come",
    why="A request whose lookup says 'ask again' is passed over. If it says so in every step, "
        "though nothing comes that would change the answer, the request never runs.",
    source="vLLM issue #49176: a promotion that fails is started anew at each step; PR51840",
    duties=(
        Duty("the lookup for request {r} is put off", _put_off,
             ("look_up", "look_up_nothing", "start", "filled", "given_up", "tier_answers"),
             ("lookup",)),
    ),
    bugs=("vLLM#49176", "vLLM PR51840"),
)

LIVENESS: dict[str, Liveness] = {p.name: p for p in (
    EVENTUALLY_STORED, NO_LEAK, NO_STALL, EVENTUALLY_ANSWERED)}
"""The promises about the future, in the order in which reports list them."""
