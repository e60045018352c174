"""Does the judge permit what an engine may do, and name what it may not?

Histories are written by hand, in the order of ``docs/protocol.md``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvoracle.oracle import events as e
from kvoracle.oracle.events import (
    AnyObservation,
    Arrived,
    BadBytes,
    BlocksKnown,
    Checked,
    Chunks,
    Computed,
    Config,
    Cursor,
    Died,
    Finished,
    Group,
    Hello,
    KeysKnown,
    Loaded,
    NotAtRest,
    Planned,
    Preempted,
    Refused,
    Rejected,
    Retired,
    Started,
    Stored,
    TokensKnown,
    WasReset,
)
from kvoracle.oracle.judge import Finding, Judge
from kvoracle.spec.properties import PLANNING

PLAIN = Config((Group(4),))
DRAFT = Config((Group(4, draft=True),), draft_tokens=2)
TWO_SIZES = Config((Group(4), Group(2)), blocks_per_chunk=2)  # chunks of 8 and of 4 tokens
EAGER = Hello("test", eager=True)
Seen = Sequence[AnyObservation]


def judge(config: Config, *seen: AnyObservation) -> Finding | None:
    """What is found when all is seen in one answer, which must be what is found when the
    answers come one by one, as far as nothing has to be looked ahead for."""
    return Judge(config).judge(seen, 0)


def planned(*chunks: int, r: str = "a", g: int = 0, declined: Seen = (), **more: int) -> Planned:
    return Planned(r, (Chunks(g, chunks, tuple(declined)),), **more)  # type: ignore[arg-type]


def arrived(r: str = "a", prompt: int = 7, keys: int | None = None, blocks: int | None = None,
            computed: int | None = None) -> list[AnyObservation]:
    """A request in its first step, just before the planner works."""
    computed = prompt if computed is None else computed
    keys = prompt // 4 if keys is None else keys
    blocks = -(-computed // 4) if blocks is None else blocks
    seen: list[AnyObservation] = [Arrived(r, prompt), Started(r)]
    seen += [KeysKnown(r, 0, keys)] if keys else []
    seen += [BlocksKnown(r, 0, blocks)] if blocks else []
    return [*seen, Computed(r, computed)]


def stored_first_chunk(r: str = "a", prompt: int = 7) -> list[AnyObservation]:
    """The request's first step, all of it: chunk 0 is stored, a token sampled."""
    return [*arrived(r, prompt), planned(0, r=r), Cursor(r, 0, 1), TokensKnown(r, prompt + 1)]


# --- what an engine may do --------------------------------------------------------------------

GOOD: dict[str, tuple[Config, list[AnyObservation]]] = {
    "a whole life": (PLAIN, [
        EAGER, *arrived(), planned(0, job=0), Cursor("a", 0, 1), TokensKnown("a", 8),
        KeysKnown("a", 0, 2), Computed("a", 8), planned(1, job=1), Cursor("a", 0, 2),
        Stored(0), TokensKnown("a", 9), Finished("a"), Stored(1), Retired("a"),
        Checked(8, 0)]),
    "the key is late": (PLAIN, [
        EAGER, *arrived(), planned(0), TokensKnown("a", 8),
        Computed("a", 8), TokensKnown("a", 9),
        KeysKnown("a", 0, 2), Computed("a", 9), planned(1), TokensKnown("a", 10)]),
    "the key comes after the end": (PLAIN, [
        *arrived(prompt=3, keys=0), TokensKnown("a", 4), Computed("a", 4), TokensKnown("a", 5),
        Finished("a"), KeysKnown("a", 0, 1), planned(0), Retired("a")]),
    "a prompt in pieces": (PLAIN, [
        EAGER, *arrived(prompt=7, computed=3, blocks=1),
        BlocksKnown("a", 0, 2), Computed("a", 6), planned(0),
        Computed("a", 7), TokensKnown("a", 8)]),
    "declined, being present": (PLAIN, [
        EAGER, *arrived(prompt=9), planned(0, 1, declined=[0]), Cursor("a", 0, 2),
        TokensKnown("a", 10)]),
    "all declined": (PLAIN, [
        EAGER, *arrived(prompt=9), planned(0, 1, declined=[0, 1]), Cursor("a", 0, 2),
        TokensKnown("a", 10)]),
    "the last declined": (PLAIN, [
        *arrived(prompt=9), planned(0, 1, declined=[1]), Cursor("a", 0, 2)]),
    "less offered than could be, by a planner that may": (PLAIN, [
        *arrived(prompt=9), planned(0), Cursor("a", 0, 1), TokensKnown("a", 10)]),
    "refused, and offered again": (PLAIN, [
        EAGER, *arrived(), Refused("a", (Chunks(0, (0,)),)), TokensKnown("a", 8),
        Computed("a", 8), planned(0), TokensKnown("a", 9)]),
    "one group taken, one refused": (TWO_SIZES, [
        EAGER, Arrived("a", 9), Started("a"), KeysKnown("a", 0, 1), KeysKnown("a", 1, 2),
        BlocksKnown("a", 0, 3), BlocksKnown("a", 1, 5), Computed("a", 9),
        planned(0, g=0), Refused("a", (Chunks(1, (0, 1)),)), TokensKnown("a", 10)]),
    "refused last, forgotten with chunks left": (PLAIN, [
        *arrived(), TokensKnown("a", 8), Refused("a"), Finished("a"), Retired("a")]),
    "groups with chunks of different sizes": (TWO_SIZES, [
        EAGER, Arrived("a", 9), Started("a"), KeysKnown("a", 0, 1), KeysKnown("a", 1, 2),
        BlocksKnown("a", 0, 3), BlocksKnown("a", 1, 5), Computed("a", 9),
        Planned("a", (Chunks(0, (0,), blocks=2), Chunks(1, (0, 1), blocks=4)), job=7),
        Cursor("a", 0, 1), Cursor("a", 1, 2), TokensKnown("a", 10), Stored(7)]),
    "preempted and resumed": (PLAIN, [
        EAGER, *stored_first_chunk(), Preempted("a"), Started("a"), BlocksKnown("a", 0, 2),
        KeysKnown("a", 0, 2), Computed("a", 8), planned(1), TokensKnown("a", 9)]),
    "a preempted request's old blocks": (PLAIN, [
        *stored_first_chunk(), Preempted("a"), BlocksKnown("a", 0, 0), BlocksKnown("a", 0, 2),
        Started("a"), BlocksKnown("a", 0, 1), Computed("a", 4), BlocksKnown("a", 0, 2),
        Computed("a", 8), TokensKnown("a", 9)]),
    "gone back while it waits (vLLM 0.33)": (PLAIN, [
        *stored_first_chunk(prompt=8), Preempted("a"), BlocksKnown("a", 0, 0), Cursor("a", 0, 0),
        Started("a"), BlocksKnown("a", 0, 1), Computed("a", 4), planned(0), Cursor("a", 0, 1),
        Computed("a", 9), TokensKnown("a", 10)]),
    "gone back, told in the step that admits it again": (PLAIN, [
        *arrived(prompt=12), planned(0, 1, 2), Cursor("a", 0, 3), TokensKnown("a", 13),
        Preempted("a"), Started("a"), BlocksKnown("a", 0, 1), Computed("a", 4),
        Cursor("a", 0, 0), planned(0), Cursor("a", 0, 1)]),
    "gone back, seen by what is offered again": (PLAIN, [
        EAGER, *arrived(prompt=12), planned(0, 1, 2), Cursor("a", 0, 3), TokensKnown("a", 13),
        Preempted("a"), Started("a"), BlocksKnown("a", 0, 2), Computed("a", 8),
        planned(0, 1), Cursor("a", 0, 2), BlocksKnown("a", 0, 4), Computed("a", 13),
        planned(2), TokensKnown("a", 14)]),
    "loaded": (PLAIN, [
        EAGER, Arrived("a", 9), Started("a"), Loaded("a", 8, 3), KeysKnown("a", 0, 2),
        BlocksKnown("a", 0, 3), Computed("a", 9), Cursor("a", 0, 2), TokensKnown("a", 10)]),
    "loaded, told before it starts": (PLAIN, [
        EAGER, Arrived("a", 9), Loaded("a", 8, 3), KeysKnown("a", 0, 2), Started("a"),
        BlocksKnown("a", 0, 3), Computed("a", 9), TokensKnown("a", 10)]),
    "loaded over steps, computed later": (PLAIN, [
        *stored_first_chunk("b"), Arrived("a", 9), Started("a"), Loaded("a", 8, 3),
        KeysKnown("a", 0, 2), BlocksKnown("a", 0, 2), Computed("b", 8), TokensKnown("b", 9),
        BlocksKnown("a", 0, 3), Computed("b", 9), Computed("a", 9), TokensKnown("b", 10),
        TokensKnown("a", 10)]),
    "started again within the answer, then loaded": (PLAIN, [
        *stored_first_chunk(prompt=8), Computed("a", 9), TokensKnown("a", 10), Preempted("a"),
        Started("a"), Loaded("a", 8, 5), KeysKnown("a", 0, 2), BlocksKnown("a", 0, 3),
        Computed("a", 10), TokensKnown("a", 11)]),
    "a hit that ends inside a larger chunk": (TWO_SIZES, [
        EAGER, Arrived("a", 17), Started("a"), Loaded("a", 12, 0), KeysKnown("a", 0, 2),
        KeysKnown("a", 1, 4), BlocksKnown("a", 0, 5), BlocksKnown("a", 1, 9),
        Computed("a", 17), Cursor("a", 0, 2), Cursor("a", 1, 3), planned(3, g=1),
        TokensKnown("a", 18)]),
    "what a load set back need not be offered again": (PLAIN, [
        EAGER, *arrived(prompt=12), planned(0, 1, 2), Cursor("a", 0, 3), TokensKnown("a", 13),
        Preempted("a"), Started("a"), Loaded("a", 8, 1), BlocksKnown("a", 0, 4),
        Computed("a", 13), TokensKnown("a", 14), Computed("a", 14), TokensKnown("a", 15),
        Finished("a"), Retired("a")]),
    "cached on the GPU": (PLAIN, [
        Arrived("a", 9), Started("a", cached=8), KeysKnown("a", 0, 2), BlocksKnown("a", 0, 3),
        Computed("a", 9), planned(0, 1), Cursor("a", 0, 2), TokensKnown("a", 10)]),
    "reset": (PLAIN, [
        EAGER, *stored_first_chunk(), WasReset(), Cursor("a", 0, 0), KeysKnown("a", 0, 2),
        Computed("a", 8), planned(0, 1), Cursor("a", 0, 2), TokensKnown("a", 9)]),
    "a store reported after a reset": (PLAIN, [
        *arrived(), planned(0, job=4), TokensKnown("a", 8), WasReset(), Stored(4)]),
    "reset with an ended request": (PLAIN, [
        *arrived(), TokensKnown("a", 8), Finished("a"), WasReset(), Retired("a")]),
    "aborted while it waits, its keys there": (PLAIN, [
        Arrived("a", 8), Finished("a", aborted=True), KeysKnown("a", 0, 2), Retired("a")]),
    "aborted while preempted": (PLAIN, [
        *stored_first_chunk(), Preempted("a"), Finished("a", aborted=True), Retired("a")]),
    "aborted while it runs": (PLAIN, [
        *stored_first_chunk(), Finished("a", aborted=True), Retired("a")]),
    "a name used again": (PLAIN, [
        *stored_first_chunk(), Finished("a"), Retired("a"),
        EAGER, *stored_first_chunk(), Finished("a"), Retired("a")]),
    "a name used again while another lives": (PLAIN, [
        *stored_first_chunk(), *stored_first_chunk("b"), Finished("a"), Retired("a"),
        *stored_first_chunk("c"), *stored_first_chunk("a"), Computed("b", 8),
        TokensKnown("b", 9), Computed("c", 8), TokensKnown("c", 9)]),
    "the volatile chunk is left out": (DRAFT, [
        EAGER, *arrived(prompt=3), TokensKnown("a", 4), Rejected("a", 2),
        KeysKnown("a", 0, 1), Computed("a", 4), TokensKnown("a", 5), Rejected("a", 2),
        BlocksKnown("a", 0, 2), Computed("a", 5), TokensKnown("a", 6), Rejected("a", 2)]),
    "drafts accepted": (DRAFT, [
        EAGER, *arrived(prompt=3), TokensKnown("a", 4), KeysKnown("a", 0, 1),
        BlocksKnown("a", 0, 2), Computed("a", 4), TokensKnown("a", 7),
        Computed("a", 7), TokensKnown("a", 9), Rejected("a", 1), KeysKnown("a", 0, 2),
        BlocksKnown("a", 0, 3), Computed("a", 9), planned(0), TokensKnown("a", 10)]),
    "drafts told to be rejected before the token": (DRAFT, [
        *stored_first_chunk(prompt=4), BlocksKnown("a", 0, 2), Computed("a", 5),
        Rejected("a", 2), TokensKnown("a", 6), Computed("a", 6), Rejected("a", 1),
        TokensKnown("a", 8)]),
    "drafts rejected in another step of the same answer": (DRAFT, [
        # The token of the first step comes without a rejection; the chunk is final by then.
        *stored_first_chunk(prompt=4), BlocksKnown("a", 0, 2), Computed("a", 5),
        TokensKnown("a", 6), Computed("a", 6), Rejected("a", 2), TokensKnown("a", 7)]),
    "a prefill's last chunk in a draft group, padding rejected": (DRAFT, [
        EAGER, *arrived(prompt=4), planned(0), TokensKnown("a", 5), Rejected("a", 2)]),
    "the end lifts the exclusion": (DRAFT, [
        *arrived(prompt=3), TokensKnown("a", 4), KeysKnown("a", 0, 1), Computed("a", 4),
        TokensKnown("a", 5), Finished("a"), planned(0), Retired("a")]),
    "only prompts are offloaded": (Config((Group(4),), prompt_only=True), [
        EAGER, *arrived(), planned(0), TokensKnown("a", 8), KeysKnown("a", 0, 2),
        Computed("a", 8), TokensKnown("a", 9), Finished("a"), Retired("a")]),
    "names that mean something elsewhere": (PLAIN, [
        o for r in ("{r}", "0", "a b", "%s", "é\n\"", "__class__", "-1")
        for o in stored_first_chunk(r)]),
    "nothing but its name": (PLAIN, [Hello("test", "1.0", ("keys",))]),
}


@pytest.mark.parametrize("name", GOOD)
def test_permitted(name: str) -> None:
    config, seen = GOOD[name]
    assert judge(config, *seen) is None


@pytest.mark.parametrize("name", [
    name for name, (_, seen) in GOOD.items()
    if not any(isinstance(o, (Loaded, Rejected)) for o in seen)
])
def test_permitted_however_the_answers_are_cut(name: str) -> None:
    """A step is never cut in two; but nothing here depends on what comes later."""
    config, seen = GOOD[name]
    one_by_one = Judge(config)
    for at, observation in enumerate(seen):
        assert one_by_one.judge([observation], at) is None


# --- what it may not do -----------------------------------------------------------------------


BROKEN: dict[str, tuple[Config, list[AnyObservation], str, str]] = {
    "stored before its key": (
        PLAIN, [*arrived(keys=0), planned(0)],
        "KeysEqBlocks", "request a names 0 keys"),
    "stored without a block": (
        PLAIN, [*arrived(prompt=8, blocks=1), planned(0, 1)],
        "KeysEqBlocks", "names 2 keys"),
    "neither key nor block": (
        PLAIN, [*arrived(prompt=8, keys=1, blocks=1), planned(0, 1)],
        "KeyedOnly", "chunk 1 of request a is stored"),
    "fewer blocks named than chunks": (
        PLAIN, [*arrived(), Planned("a", (Chunks(0, (0,), blocks=0),), 0)],
        "KeysEqBlocks", "names 0 blocks of group 0 for 1 chunks"),
    "blocks named for a declined chunk": (
        PLAIN, [*arrived(prompt=8), Planned("a", (Chunks(0, (0, 1), (0,), blocks=2),), 0)],
        "KeysEqBlocks", "names 2 blocks of group 0 for 1 chunks"),
    "half a chunk's blocks": (
        TWO_SIZES, [Arrived("a", 9), Started("a"), KeysKnown("a", 0, 1), BlocksKnown("a", 0, 3),
                    Computed("a", 9), Planned("a", (Chunks(0, (0,), blocks=1),), 0)],
        "KeysEqBlocks", "names 1 blocks of group 0 for 1 chunks of 2 blocks each"),
    "a chunk passed over by the offer": (
        PLAIN, [*arrived(prompt=12), planned(0, 2)],
        "NoHole", "chunk 1 of request a in group 0 is passed over: chunk 2 is offered"),
    "a chunk passed over by the cursor": (
        PLAIN, [*arrived(prompt=12), planned(0), Cursor("a", 0, 2)],
        "NoHole", "chunk 1 of request a in group 0 is behind the cursor 2"),
    "the cursor moves though the pool refused": (
        PLAIN, [*arrived(), Refused("a"), Cursor("a", 0, 1)],
        "NoHole", "chunk 0 of request a"),
    "a hole in the second group": (
        TWO_SIZES, [Arrived("a", 9), Started("a"), KeysKnown("a", 1, 2), BlocksKnown("a", 1, 5),
                    Computed("a", 9), Cursor("a", 1, 1)],
        "NoHole", "in group 1"),
    "not computed": (
        PLAIN, [*arrived(prompt=8, computed=4, blocks=2), planned(0, 1)],
        "NoVolatileStore", "chunk 1 of request a is stored"),
    "not computed, in a request that was aborted": (
        PLAIN, [*arrived(prompt=8, computed=3, blocks=2), Finished("a", aborted=True), planned(0)],
        "NoVolatileStore", "wholly computed"),
    "the last token, never computed": (
        PLAIN, [*arrived(prompt=3), TokensKnown("a", 4), Finished("a"), KeysKnown("a", 0, 1),
                planned(0)],
        "NoVolatileStore", "chunk 0 of request a is stored"),
    "the cursor falls back": (
        PLAIN, [*arrived(prompt=9), planned(0, 1), Cursor("a", 0, 2), TokensKnown("a", 10),
                Computed("a", 10), Cursor("a", 0, 1)],
        "MonotoneProgress", "moves back from 2 to 1"),
    "the cursor falls back two steps after its return": (
        PLAIN, [*stored_first_chunk(prompt=8), Preempted("a"), Started("a"),
                BlocksKnown("a", 0, 2), Computed("a", 4), Computed("a", 8), Cursor("a", 0, 0)],
        "MonotoneProgress", "moves back from 1 to 0"),
    "forgotten with a storable chunk": (
        PLAIN, [*arrived(), TokensKnown("a", 8), Finished("a"), Retired("a")],
        "EventuallyStored", "request a is forgotten with chunk 0 of group 0 never offered"),
    "the exclusion is never lifted": (
        DRAFT, [*arrived(prompt=3), TokensKnown("a", 4), KeysKnown("a", 0, 1), Computed("a", 4),
                TokensKnown("a", 5), Finished("a"), Retired("a")],
        "EventuallyStored", "chunk 0 of group 0 never offered"),
    "refused, taken, and then forgotten with more": (
        PLAIN, [*arrived(prompt=9), Refused("a"), TokensKnown("a", 10), Computed("a", 10),
                planned(0), TokensKnown("a", 11), Finished("a"), Retired("a")],
        "EventuallyStored", "chunk 1"),
    "an eager planner passes over a request": (
        PLAIN, [EAGER, *arrived(), TokensKnown("a", 8)],
        "EventuallyStored", "the step passed over request a and left chunk 0"),
    "an eager planner offers one group only": (
        TWO_SIZES, [EAGER, Arrived("a", 9), Started("a"), KeysKnown("a", 0, 1),
                    KeysKnown("a", 1, 2), BlocksKnown("a", 0, 3), BlocksKnown("a", 1, 5),
                    Computed("a", 9), planned(0, g=0), TokensKnown("a", 10)],
        "EventuallyStored", "left chunk 0 of group 1"),
    "an eager planner passes over a piece of prefill": (
        PLAIN, [EAGER, *arrived(prompt=9, computed=5), BlocksKnown("a", 0, 3)],
        "EventuallyStored", "left chunk 0"),
    "an eager planner forgets a refusal": (
        PLAIN, [EAGER, *arrived(), Refused("a"), TokensKnown("a", 8), Computed("a", 8),
                TokensKnown("a", 9)],
        "EventuallyStored", "left chunk 0"),
    "an eager planner stops short after a reset": (
        PLAIN, [EAGER, *stored_first_chunk(), WasReset(), Computed("a", 8), TokensKnown("a", 9)],
        "EventuallyStored", "left chunk 0"),
    "an eager planner, aborted after its step": (
        PLAIN, [EAGER, *arrived(computed=6), Finished("a", aborted=True)],
        "EventuallyStored", "left chunk 0"),
    "wrong bytes stored": (
        PLAIN, [*stored_first_chunk(), BadBytes("store", "a", 0, "this", "that", chunk=0)],
        "TrueBytes", "chunk 0 of request a in group 0 was stored with that instead of this"),
    "wrong bytes loaded": (
        PLAIN, [BadBytes("load", "a", 0, "this", "that", position=3)],
        "LoadedBytes", "position 3 of request a in group 0 was loaded with that"),
    "wrong bytes loaded, told by chunk": (
        PLAIN, [BadBytes("load", "a", 0, "this", "that", chunk=2)],
        "LoadedBytes", "chunk 2 of request a in group 0 was loaded with that"),
    "wrong bytes read": (
        PLAIN, [BadBytes("read", "a", 0, "this", "that", position=3)],
        "LoadedBytes", "attention of request a reads position 3 of group 0, which holds that"),
    "work left at rest": (
        PLAIN, [NotAtRest("job 3: in flight")], "NoLeak", "still held: job 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_violation(name: str) -> None:
    config, seen, prop, because = BROKEN[name]
    # The answer before the last observation is in order.
    assert judge(config, *seen[:-1]) is None
    finding = judge(config, *seen)
    assert finding is not None
    assert (finding.kind, finding.property) == ("violation", prop)
    assert because in finding.because
    assert finding.r == ("" if prop == "NoLeak" else "a")
    assert not finding.acceptance
    assert finding.rule == ""


def test_each_property_is_broken_by_a_history() -> None:
    broken = {prop for _, _, prop, _ in BROKEN.values()}
    assert broken >= set(PLANNING) | {"TrueBytes", "LoadedBytes", "NoLeak"}


DEPARTURES: dict[str, tuple[Config, list[AnyObservation], str]] = {
    "a request that never arrived": (PLAIN, [Computed("ghost", 4)], "unknown request"),
    "a request that is forgotten": (
        PLAIN, [*stored_first_chunk(), Finished("a"), Retired("a"), Cursor("a", 0, 1)],
        "unknown request"),
    "a request that arrives twice": (
        PLAIN, [*stored_first_chunk(), Arrived("a", 3)], "arrives twice"),
    "a group that is not there": (PLAIN, [Arrived("a", 9), KeysKnown("a", 1, 1)], "unknown group"),
    "blocks of a group that is not there": (
        PLAIN, [*arrived(), BlocksKnown("a", 1, 1)], "unknown group"),
    "an offer to a group that is not there": (
        PLAIN, [*arrived(), planned(0, g=1)], "unknown group"),
    "a cursor of a group that is not there": (
        PLAIN, [*arrived(), Cursor("a", 1, 0)], "unknown group"),
    "computed before it starts": (PLAIN, [Arrived("a", 9), Computed("a", 9)], "compute: runs"),
    "computed after the end": (
        PLAIN, [*stored_first_chunk(), Finished("a"), Computed("a", 8)], "compute: runs"),
    "computed less than before": (
        PLAIN, [*arrived(), Computed("a", 6)], "compute: further than before"),
    "computed beyond what is known": (
        PLAIN, [*arrived()[:-1], Computed("a", 8)], "compute: known tokens only"),
    "started twice": (PLAIN, [*arrived(), Started("a")], "start: waits"),
    "all tokens cached": (
        PLAIN, [Arrived("a", 8), Started("a", cached=8)], "start: one token is left to compute"),
    "keys taken back": (PLAIN, [*arrived(), KeysKnown("a", 0, 0)], "keys_arrive: more than before"),
    "a key for tokens not known": (
        PLAIN, [Arrived("a", 7), KeysKnown("a", 0, 2)], "keys_arrive: a key names known tokens"),
    "blocks lost while it runs": (
        PLAIN, [*arrived(), BlocksKnown("a", 0, 1)], "blocks_told: more than before"),
    "a token sampled before all is computed": (
        PLAIN, [*arrived(computed=4), TokensKnown("a", 8)],
        "sample: everything known is computed"),
    "preempted while it waits": (PLAIN, [Arrived("a", 7), Preempted("a")], "preempt: runs"),
    "preempted within a step": (PLAIN, [*arrived(), Preempted("a")], "preempt: between steps"),
    "finished before it samples": (
        PLAIN, [*arrived(computed=6), Finished("a")], "finish: has sampled"),
    "aborted after the end": (
        PLAIN, [*stored_first_chunk(), Finished("a"), Finished("a", aborted=True)],
        "abort: lives"),
    "forgotten while it lives": (PLAIN, [*stored_first_chunk(), Retired("a")], "retire: ended"),
    "loaded without keys": (
        PLAIN, [Arrived("a", 9), Started("a"), Loaded("a", 8, 0), KeysKnown("a", 0, 1),
                Computed("a", 9)], "load: every chunk of the hit has its key"),
    "loaded beyond the request": (
        PLAIN, [Arrived("a", 7), KeysKnown("a", 0, 1), Loaded("a", 8, 0)],
        "load: within the request"),
    "loaded while it runs": (PLAIN, [*stored_first_chunk(), Loaded("a", 4, 0)], "load: waits"),
    "more stored than is set": (
        Config((Group(4),), prompt_only=True),
        [*arrived(), planned(0), TokensKnown("a", 8), KeysKnown("a", 0, 2), Computed("a", 8),
         planned(1)], "plan_store: storable"),
    "drafts rejected in a request that ended": (
        DRAFT, [*stored_first_chunk(prompt=4), Finished("a"), Rejected("a", 1)], "reject: runs"),
    "a store that was never planned": (PLAIN, [*stored_first_chunk(), Stored(3)], "unknown job"),
    "a store that completes twice": (
        PLAIN, [*arrived(), planned(0, job=3), Stored(3), Stored(3)], "unknown job"),
}


@pytest.mark.parametrize("name", DEPARTURES)
def test_departure(name: str) -> None:
    config, seen, rule = DEPARTURES[name]
    finding = judge(config, *seen)
    assert finding is not None
    assert (finding.kind, finding.property, finding.rule) == ("departure", "", rule)
    assert finding.r in ("a", "ghost", "")


def test_a_departure_says_what_is_not_met_by_the_name_of_the_request() -> None:
    finding = judge(PLAIN, *stored_first_chunk("first"), Arrived("second", 9),
                    Computed("second", 9))
    assert finding is not None
    assert "request second is computed" in finding.because
    assert "'runs' is not met" in finding.because


# --- the class of findings that cost acceptance only ------------------------------------------


def test_a_volatile_chunk_stored_costs_acceptance_only() -> None:
    finding = judge(DRAFT, *arrived(prompt=3), TokensKnown("a", 4), KeysKnown("a", 0, 1),
                    Computed("a", 4), planned(0))
    assert finding is not None
    assert (finding.property, finding.acceptance) == ("NoVolatileStore", True)
    assert "last position may still be rewritten" in finding.because


def test_what_was_never_computed_is_wrong_output_in_a_draft_group_too() -> None:
    finding = judge(DRAFT, *arrived(prompt=8, computed=4, blocks=2), planned(0, 1))
    assert finding is not None
    assert (finding.property, finding.acceptance) == ("NoVolatileStore", False)


def test_a_full_attention_group_has_no_volatile_chunk() -> None:
    config = Config((Group(4), Group(4, draft=True)))
    life = [Arrived("a", 3), Started("a"), BlocksKnown("a", 0, 1), BlocksKnown("a", 1, 1),
            Computed("a", 3), TokensKnown("a", 4), KeysKnown("a", 0, 1), KeysKnown("a", 1, 1),
            Computed("a", 4)]
    assert judge(config, *life, planned(0, g=0)) is None
    finding = judge(config, *life, planned(0, g=1))
    assert finding is not None
    assert finding.acceptance
    assert "in group 1" in finding.because


# --- deaths, counts, reports ------------------------------------------------------------------


def test_a_death_is_a_crash_with_its_evidence() -> None:
    died = Died("AssertionError", "3 != 4", "scheduler.py:7", "Traceback ...")
    finding = judge(PLAIN, *arrived(), died)
    assert finding == Finding("crash", "NoCrash", "the engine died: AssertionError: 3 != 4", 0,
                              died=died)


def test_what_was_seen_before_a_death_is_judged_first() -> None:
    finding = judge(PLAIN, *arrived(keys=0), planned(0), Died("AssertionError"))
    assert finding is not None
    assert (finding.kind, finding.property) == ("violation", "KeysEqBlocks")


def test_a_finding_says_which_stimulus_led_to_it() -> None:
    watching = Judge(PLAIN)
    assert watching.judge(arrived(), 0) is None
    assert watching.judge([], 1) is None
    finding = watching.judge([Cursor("a", 0, 1)], 2)
    assert finding is not None
    assert finding.at == 2


def test_each_property_is_counted_as_often_as_it_is_evaluated() -> None:
    watching = Judge(PLAIN)
    assert set(watching.evaluated) >= set(PLANNING)
    watching.judge([EAGER, *stored_first_chunk(), Finished("a"), Retired("a"), Checked(8, 3)], 0)
    assert all(watching.evaluated[name] > 0 for name in PLANNING)
    assert (watching.stored, watching.read) == (8, 3)
    assert watching.judged == 12


def test_what_an_engine_cannot_see_is_kept() -> None:
    watching = Judge(PLAIN)
    watching.judge([Hello("test", unseen=("cursor",))], -1)
    assert watching.unseen == {"cursor"}


def test_memory_is_that_of_the_requests_that_live() -> None:
    watching = Judge(PLAIN)
    for i in range(50):
        name = f"r{i}"
        assert watching.judge([*stored_first_chunk(name), Finished(name), Retired(name)], i) is None
    assert watching.tracked == {}
    assert watching.run.sizes["Request"] == 1
    assert not watching.run.values["cursor"]
    assert not watching.run.values["mark"]


# --- what an engine cannot show ----------------------------------------------------------


def _blind(*unseen: str) -> Judge:
    judge = Judge(e.Config(groups=(e.Group(4),)))
    assert judge.judge([e.Hello("blind", unseen=unseen)], -1) is None
    return judge


def test_what_is_unseen_is_not_judged_and_raises_no_alarm() -> None:
    judge = _blind("keys", "blocks")
    seen = [
        e.Arrived("a", 8), e.Started("a"), e.Computed("a", 8),
        e.Planned("a", (e.Chunks(0, (0, 1)),), 0), e.TokensKnown("a", 9),
    ]
    assert judge.judge(seen, 0) is None
    assert judge.not_judged == {"KeysEqBlocks", "KeyedOnly", "EventuallyStored"}
    assert judge.evaluated["KeyedOnly"] == 0 < judge.evaluated["NoVolatileStore"]


def test_what_is_seen_is_judged_although_something_else_is_not() -> None:
    judge = _blind("keys", "blocks")
    seen = [
        e.Arrived("a", 8), e.Started("a"), e.Computed("a", 4),
        e.Planned("a", (e.Chunks(0, (0, 1)),), 0),
    ]
    finding = judge.judge(seen, 0)
    assert finding is not None and finding.property == "NoVolatileStore"


def test_an_engine_that_hides_what_it_computes_cannot_be_followed() -> None:
    finding = Judge(e.Config(groups=(e.Group(4),))).judge(
        [e.Hello("blind", unseen=("computed",))], -1)
    assert finding is not None and "cannot show computed" in finding.because


def test_a_planner_finer_than_the_rule_is_no_alarm() -> None:
    """In a draft group a chunk is final once a token beyond it is accepted; the rule waits for a
    whole chunk more.  Storing it at once breaks nothing."""
    judge = Judge(e.Config(groups=(e.Group(4, draft=True),), draft_tokens=1))
    seen = [
        e.Arrived("a", 3), e.Started("a"), e.BlocksKnown("a", 0, 2), e.Computed("a", 3),
        e.TokensKnown("a", 4), e.KeysKnown("a", 0, 1), e.Computed("a", 4), e.TokensKnown("a", 5),
        e.Computed("a", 5), e.Planned("a", (e.Chunks(0, (0,)),), 0),
    ]
    assert judge.judge(seen, 0) is None
    assert judge.earlier == 1


# --- what is seen directly ------------------------------------------------------------------

_SHOWN = e.Hello("it", shows=("looked_up", "overwritten", "unready", "pins"))


@pytest.mark.parametrize(("seen", "broken", "says"), [
    (e.Overwritten("block", "a", "a load"), "ReuseFence", "a load writes a GPU block"),
    (e.Overwritten("slot", "a", "a store of request b"), "ReuseFence", "host slot"),
    (e.Unready("a"), "LoadReady", "a store has still to fill"),
    (e.Pins(pinned=2), "RefExact", "2 of its chunks are pinned by more or fewer loads"),
    (e.Pins(pending=1), "RefExact", "1 wait for a store"),
    (e.LookedUp("a", 8, ("RR",), 0, 4), "HitMaximal", "beyond 0, and the host pool holds 8"),
    (e.LookedUp("a", 8, ("R.",), 0, 8), "HitSound", "chunk 1 of group 0"),
    (e.NotAtRest("2 requests: a, b", ("a", "b")), "NoStall", "requests a, b wait for ever"),
    (e.NotAtRest("1 transfer job: 3"), "NoLeak", "still held: 1 transfer job"),
])
def test_what_is_seen_directly_names_its_property(
        seen: e.AnyObservation, broken: str, says: str) -> None:
    judge = Judge(e.Config((e.Group(4),)))
    finding = judge.judge([_SHOWN, e.Arrived("a", 8), seen], 0)
    assert finding is not None and finding.kind == "violation"
    assert finding.property == broken and says in finding.because


@pytest.mark.parametrize("seen", [
    e.LookedUp("a", 8, ("RR",), 0, 8), e.LookedUp("a", 8, ("PP",), 0, None),
    e.LookedUp("a", 8, ("R.",), 4, 0),
])
def test_a_right_lookup_is_no_finding(seen: e.AnyObservation) -> None:
    judge = Judge(e.Config((e.Group(4),)))
    assert judge.judge([_SHOWN, e.Arrived("a", 8), seen], 0) is None


def test_a_load_beside_a_store_of_the_same_request_is_found() -> None:
    judge = Judge(e.Config((e.Group(4),)))
    finding = judge.judge([
        _SHOWN, e.Arrived("a", 8), e.Started("a"), e.KeysKnown("a", 0, 2), e.BlocksKnown("a", 0, 2),
        e.Computed("a", 8), e.Planned("a", (e.Chunks(0, (0, 1)),), 7), e.TokensKnown("a", 9),
        e.Preempted("a"),
        e.Started("a"), e.Loaded("a", 8, 8)], 0)
    assert finding is not None and finding.property == "JobExclusive"
    assert "store job 7" in finding.because
