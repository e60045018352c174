"""Does ``impl`` hold what it promises when a scheduler drives it, and would we see it if not?"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from kvoracle.impl import OffloadConfig, Offloader, StoreOffer, StorePlanner
from kvoracle.impl.planner import Chunk, RequestState
from kvoracle.oracle.engines.memory import ListMemory
from kvoracle.oracle.engines.planner import Job, Move, Offer
from kvoracle.oracle.engines.protocol import Engine
from kvoracle.oracle.engines.simulator import BadStimulus, SimulatedEngine
from kvoracle.oracle.events import (
    Abort,
    AnyObservation,
    AnyStimulus,
    Arrive,
    BadBytes,
    BlocksKnown,
    Checked,
    Computed,
    Config,
    Cursor,
    Died,
    Drain,
    Finished,
    Group,
    Keys,
    KeysKnown,
    Loaded,
    NotAtRest,
    Planned,
    Preempted,
    Refuse,
    Refused,
    Reset,
    Retired,
    Step,
    Stored,
    TokensKnown,
    WasReset,
)

pytest.importorskip("torch")
from kvoracle.oracle.engines.impl import (
    OffloaderPlanner,
    TensorMemory,
    impl_engine,
)


def drive(engine: Engine, config: Config, stimuli: Sequence[AnyStimulus]) -> list[AnyObservation]:
    """Everything seen, up to the engine's death if it dies."""
    seen = engine.start(config)
    for stimulus in stimuli:
        if isinstance(seen[-1], Died):
            break
        try:
            seen += engine.send(stimulus)
        except BadStimulus:
            continue
    return seen


def random_config(rng: random.Random) -> Config:
    groups = [Group(rng.choice([2, 3, 4, 8])) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.5:
        groups.append(Group(rng.choice([2, 4]), draft=True))
    longest = 60
    fits = sum(-(-longest // g.tokens_per_block) for g in groups)
    return Config(
        groups=tuple(groups),
        blocks_per_chunk=rng.choice([1, 1, 2, 3]),
        gpu_blocks=fits + rng.randint(0, 10),
        host_chunks=rng.randint(2, 30),
        tokens_per_step=rng.choice([6, 16, 40]),
        max_running=rng.randint(2, 5),
        prompt_only=rng.random() < 0.2,
        draft_tokens=rng.choice([0, 0, 2]),
    )


def random_stimuli(rng: random.Random, length: int = 60) -> Iterator[AnyStimulus]:
    names: list[str] = []
    for _ in range(length):
        kind = rng.random()
        if kind < 0.3:
            segments: list[tuple[int | str, int]] = [(rng.randint(0, 1), rng.randint(1, 18))]
            if names and rng.random() < 0.3:
                segments = [(rng.choice(names), rng.randint(1, 20))]
            if rng.random() < 0.4:
                segments.append((rng.randint(2, 5), rng.randint(1, 20)))
            name = f"r{len(names)}"
            yield Arrive(name, tuple(segments), rng.randint(1, 12))
            names.append(name)
        elif not names:
            yield Step()
        elif kind < 0.35:
            yield Abort(rng.choice(names[-4:]))
        elif kind < 0.45:
            yield Keys(rng.choice(names[-4:]), rng.choice([None, rng.randint(0, 30)]))
        elif kind < 0.48:
            yield Refuse(rng.randint(1, 3))
        elif kind < 0.50:
            yield Reset()
        else:
            stop = (rng.choice(names),) if rng.random() < 0.1 else ()
            done = rng.choice([None, 0, 1, 2])
            yield Step(rng.randint(1, 4), done, rng.random() < 0.5, rng.randint(0, 2), stop)
    yield Drain()


def holes(config: Config, seen: Sequence[AnyObservation]) -> list[str]:
    """Whole keyed chunks that were never offered, told from the observations alone.

    Behind a cursor, every chunk was offered since the last reset or belongs to a hit.  A
    request is forgotten only when nothing storable is left, or its last offer was
    refused, or the pool was reset.
    """
    found: list[str] = []
    keys: dict[tuple[str, int], int] = {}
    blocks: dict[tuple[str, int], int] = {}
    cursor: dict[tuple[str, int], int] = {}
    offered: dict[tuple[str, int], set[int]] = {}
    prompt: dict[str, int] = {}
    tokens: dict[str, int] = {}
    computed: dict[str, int] = {}
    ended: dict[str, bool] = {}
    excused: dict[str, bool] = {}
    for event in seen:
        if isinstance(event, KeysKnown):
            keys[event.r, event.g] = event.n
        elif isinstance(event, BlocksKnown):
            blocks[event.r, event.g] = event.n
        elif isinstance(event, Computed):
            computed[event.r] = event.n
        elif isinstance(event, TokensKnown):
            prompt.setdefault(event.r, event.n - 1)
            tokens[event.r] = event.n
            computed[event.r] = event.n - 1
        elif isinstance(event, Preempted):
            computed[event.r] = 0
            for g in range(len(config.groups)):
                blocks[event.r, g] = 0
        elif isinstance(event, Loaded):
            for g in range(len(config.groups)):
                covered = range(-(-event.upto // config.tokens_per_chunk(g)))
                offered.setdefault((event.r, g), set()).update(covered)
        elif isinstance(event, Planned):
            excused[event.r] = False
            for chunks in event.groups:
                offered.setdefault((event.r, chunks.g), set()).update(chunks.offered)
        elif isinstance(event, Refused):
            excused[event.r] = True
        elif isinstance(event, Cursor):
            cursor[event.r, event.g] = event.n
            missing = set(range(event.n)) - offered.get((event.r, event.g), set())
            if missing:
                found.append(f"{event.r} group {event.g}: cursor {event.n} passed {missing}")
        elif isinstance(event, WasReset):
            offered.clear()
            excused.update(dict.fromkeys(ended, True))
        elif isinstance(event, Finished):
            ended[event.r] = True
            excused.setdefault(event.r, False)
        elif isinstance(event, Retired) and not excused[event.r]:
            counted = computed.get(event.r, 0)
            if config.prompt_only:
                counted = min(counted, prompt.get(event.r, counted))
            for g in range(len(config.groups)):
                at = event.r, g
                owed = min(
                    counted // config.tokens_per_chunk(g),
                    blocks.get(at, 0) // config.blocks_per_chunk,
                    keys.get(at, 0),
                )
                if cursor.get(at, 0) < owed:
                    found.append(f"{event.r} group {g}: {owed} owed, {cursor.get(at, 0)} offered")
    return found


def wrong(config: Config, seen: Sequence[AnyObservation]) -> list[str]:
    """What no correct run contains."""
    bad = [str(event) for event in seen if isinstance(event, BadBytes | Died | NotAtRest)]
    return bad + holes(config, seen)


# --- the seed ----------------------------------------------------------------------


SEED_CONFIG = Config(groups=(Group(4),))
SEED: list[AnyStimulus] = [Arrive("a", ((0, 7),)), Keys("a", 4), Step(), Step(), Keys("a"), Step()]


def test_chunk_whose_key_is_late_is_stored_when_the_key_comes() -> None:
    """The seed scenario (vLLM PR52923)."""
    engine = impl_engine()
    engine.start(SEED_CONFIG)
    steps = [engine.send(stimulus) for stimulus in SEED]
    first, second = [e for part in steps[:4] for e in part], steps[5]
    assert [e for e in first if isinstance(e, Planned)] == [first[5]]
    assert [e.n for e in first if isinstance(e, Cursor)] == [1]
    jobs = [e for e in second if isinstance(e, Planned)]
    (job,) = jobs
    assert (job.job, job.groups[0].offered, job.groups[0].blocks) == (1, (1,), 1)
    assert [e.n for e in second if isinstance(e, Cursor)] == [2]
    assert wrong(SEED_CONFIG, drive(engine, SEED_CONFIG, [*SEED, Drain()])) == []


def test_first_step_is_the_one_in_the_protocol() -> None:
    seen = drive(impl_engine(), SEED_CONFIG, [Arrive("a", ((0, 7),), 8), Step()])
    names = [type(event).__name__ for event in seen]
    assert names == [
        "Hello", "Arrived", "Started", "KeysKnown", "BlocksKnown", "Computed", "Planned",
        "Cursor", "TokensKnown",
    ]


# --- random runs ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_random_run_ends_at_rest_with_true_bytes_and_no_hole(seed: int) -> None:
    rng = random.Random(seed)
    config = random_config(rng)
    seen = drive(impl_engine(), config, list(random_stimuli(rng)))
    assert wrong(config, seen) == []
    checked = [event for event in seen if isinstance(event, Checked)]
    assert len(checked) == 1
    assert (checked[0].stored > 0) == any(isinstance(event, Stored) for event in seen)


def test_random_runs_meet_everything_they_are_meant_to() -> None:
    kinds: dict[str, int] = {}
    for seed in range(40):
        rng = random.Random(seed)
        config = random_config(rng)
        engine = SimulatedEngine("impl", OffloaderPlanner, ListMemory)
        for event in drive(engine, config, list(random_stimuli(rng))):
            name = type(event).__name__
            if isinstance(event, Finished) and event.aborted:
                name = "aborted"
            elif isinstance(event, Planned) and any(c.declined for c in event.groups):
                name = "declined"
            kinds[name] = kinds.get(name, 0) + 1
    for kind in ("Preempted", "Loaded", "Refused", "Rejected", "WasReset", "aborted", "declined"):
        assert kinds.get(kind, 0) >= 5, kind


def test_same_stimuli_give_the_same_observations() -> None:
    for seed in (1, 2, 3):
        rng = random.Random(seed)
        config, stimuli = random_config(rng), list(random_stimuli(rng))
        engine = impl_engine()
        first = drive(engine, config, stimuli)
        assert drive(engine, config, stimuli) == first
        plain = SimulatedEngine("impl", OffloaderPlanner, ListMemory)
        assert drive(plain, config, stimuli) == first, "tensors and lists must agree"


# --- each check can fail ------------------------------------------------------------


class NoKeyBound(StorePlanner):
    def storable(self, request: RequestState, group: int) -> int:
        return self.storable_at_most(request.name, group)


class NoBlockBound(StorePlanner):
    def storable(self, request: RequestState, group: int) -> int:
        return min(self.computed_chunks(request, group), len(request.groups[group].keys))

    def finish(self, name: str, computed: int) -> None:
        super().finish(name, self[name].tokens)


class NoTokenBound(StorePlanner):
    def computed_chunks(self, request: RequestState, group: int) -> int:
        return request.tokens // self.config.tokens_per_chunk(group)


class KeepsBlocksOfPreempted(StorePlanner):
    def preempt(self, name: str) -> None:
        """The list keeps the old blocks, so new ones are appended to it."""


class CursorPassesRefused(StorePlanner):
    def due(self, name: str) -> list[Chunk]:
        chunks = super().due(name)
        self.taken(name, chunks)
        return chunks


class ExclusionNeverEnds(StorePlanner):
    """vLLM issue #52735: the last chunk of a draft group is left out even at the end."""

    def computed_chunks(self, request: RequestState, group: int) -> int:
        running = dataclasses.replace(request, finished=False)
        return super().computed_chunks(running, group)


class NothingAfterTheEnd(StorePlanner):
    """vLLM PR48596: what becomes storable in the last step is dropped."""

    def storable_at_most(self, name: str, group: int) -> int:
        return 0 if self[name].finished else super().storable_at_most(name, group)

    def due(self, name: str) -> list[Chunk]:
        return [] if self[name].finished else super().due(name)


class Unfenced(Offloader):
    def take_fences(self) -> list[int]:
        super().take_fences()
        return []


class ReadyTooEarly(Offloader):
    def plan_store(self, request: str) -> StoreOffer | None:
        offer = super().plan_store(request)
        if offer is not None and offer.job is not None:
            self.pool.complete_store([move.key for move in offer.job.moves])
        return offer

    def complete(self, job_id: int, ok: bool = True) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.store:
            self.pool.complete_store = lambda keys, ok=True: None  # type: ignore[method-assign]
            super().complete(job_id, ok)
            del self.pool.complete_store
        else:
            super().complete(job_id, ok)


def with_offloader(kind: type[Offloader]) -> SimulatedEngine:
    def build(config: Config) -> OffloaderPlanner:
        planner = OffloaderPlanner(config)
        planner.offloader = kind(planner.offloader.config, planner.pool)
        return planner

    return SimulatedEngine("broken", build, ListMemory)


class WrongSlot(ListMemory):
    def store(self, job: Job) -> None:
        super().store(
            Job(job.id, tuple(m._replace(slot=(m.slot + 1) % len(self._host)) for m in job.moves))
        )


class SwapsPlaces(TensorMemory):
    def store(self, job: Job) -> None:
        super().store(Job(job.id, tuple(m._replace(blocks=m.blocks[::-1]) for m in job.moves)))


class ForgetsJobs(OffloaderPlanner):
    def done(self, job: int) -> None:
        if job % 5:
            super().done(job)


BROKEN: dict[str, tuple[Callable[[], SimulatedEngine], str]] = {
    "no key bound": (lambda: impl_engine(NoKeyBound), "KeysBlocksMismatch"),
    "no block bound": (lambda: impl_engine(NoBlockBound), "KeysBlocksMismatch"),
    "no token bound": (lambda: impl_engine(NoTokenBound), "where='store'"),
    "keeps blocks of a preempted request": (lambda: impl_engine(KeepsBlocksOfPreempted), "store"),
    "cursor passes what was refused": (lambda: impl_engine(CursorPassesRefused), "passed"),
    "draft exclusion never ends": (lambda: impl_engine(ExclusionNeverEnds), "owed"),
    "stores nothing after the end": (lambda: impl_engine(NothingAfterTheEnd), "owed"),
    "no fence": (lambda: with_offloader(Unfenced), "where='store'"),
    "ready before it is stored": (lambda: with_offloader(ReadyTooEarly), "where='load'"),
    "writes the wrong slot": (
        lambda: SimulatedEngine("broken", OffloaderPlanner, WrongSlot), "where='store'"),
    "swaps the blocks of a chunk": (
        lambda: SimulatedEngine("broken", OffloaderPlanner, SwapsPlaces), "where='store'"),
    "forgets that jobs are done": (
        lambda: SimulatedEngine("broken", ForgetsJobs, ListMemory), "NotAtRest"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_engine_is_seen(name: str) -> None:
    build, sign = BROKEN[name]
    for seed in range(150):
        rng = random.Random(seed)
        config = random_config(rng)
        bad = wrong(config, drive(build(), config, list(random_stimuli(rng))))
        if any(sign in text for text in bad):
            return
    pytest.fail(f"nothing like {sign!r} in 150 runs")


def test_death_names_the_place_and_keeps_what_was_seen_before() -> None:
    seen = drive(impl_engine(NoKeyBound), SEED_CONFIG, SEED)
    died = seen[-1]
    assert isinstance(died, Died)
    assert died.error == "KeysBlocksMismatch"
    assert died.message == "chunk 1 of 'a' in group 0 has 1 keys and 2 blocks known"
    assert died.at.startswith("planner.py:") and died.at.endswith(" in due")
    assert isinstance(seen[-2], Computed) and seen[-2].n == 8


# --- the adapter --------------------------------------------------------------------


def test_offer_larger_than_the_pool_is_planned_in_part_and_refused_in_part() -> None:
    planner = OffloaderPlanner(Config(groups=(Group(4),), host_chunks=2))
    planner.arrive("a", 12)
    planner.keys("a", 0, [b"x", b"y", b"z"])
    planner.blocks("a", 0, [1, 2, 3])
    offer = planner.plan("a", 12)
    assert isinstance(offer, Offer) and offer.job is not None
    assert offer.job.moves == (Move(0, 0, 0, (1,)), Move(0, 1, 1, (2,)))
    assert [c.offered for c in offer.taken] == [(0, 1)]
    assert [c.offered for c in offer.refused] == [(2,)]
    assert planner.known("a", 0).cursor == 2
    assert planner.held() == "1 jobs in flight, 2 chunks pending"


def test_every_config_of_the_vocabulary_is_taken_over() -> None:
    planner = OffloaderPlanner(
        Config(groups=(Group(4), Group(2, draft=True)), blocks_per_chunk=3, prompt_only=True)
    )
    config = planner.offloader.config
    assert isinstance(config, OffloadConfig)
    assert [config.tokens_per_chunk(g) for g in (0, 1)] == [12, 6]
    assert config.groups[1].draft and config.prompt_only and config.host_slots == 64
