"""Random runs for the tests of the oracle, and engines that fail by a rule of the test's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from kvoracle.oracle.engines.protocol import BadStimulus
from kvoracle.oracle.events import (
    Abort,
    AnyObservation,
    AnyStimulus,
    Arrive,
    Config,
    Died,
    Drain,
    Group,
    Hello,
    Keys,
    Refuse,
    Reset,
    Segment,
    Step,
)

Run = tuple[Config, list[AnyStimulus]]


def _config(rng: random.Random, draft: bool) -> Config:
    groups = [Group(rng.choice([2, 4, 8])), Group(rng.choice([4, 8]), draft=draft)]
    return Config(
        groups=tuple(groups[rng.randint(0, 1 - draft):]),
        blocks_per_chunk=rng.choice([1, 1, 2]),
        gpu_blocks=rng.choice([64, 80]),
        host_chunks=rng.choice([40, 64]),
        tokens_per_step=rng.choice([16, 40]),
        max_running=rng.randint(2, 6),
        draft_tokens=2 * draft,
    )


def _prompt(rng: random.Random, names: Sequence[str]) -> tuple[Segment, ...]:
    shared: Segment = (rng.randint(0, 2), rng.randint(4, 20))
    if names and rng.random() < 0.3:
        shared = (rng.choice(names[-6:]), rng.randint(4, 24))
    own: Segment = (rng.randint(3, 99), rng.randint(1, 20))
    return (shared, own) if rng.random() < 0.6 else (shared,)


def _step(rng: random.Random, names: Sequence[str]) -> Step:
    stop = (rng.choice(names[-4:]),) if names and rng.random() < 0.05 else ()
    return Step(rng.randint(1, 3), rng.choice([None, None, 0, 1]), rng.random() < 0.3,
                rng.randint(0, 2), stop)


def _random_run(seed: int, length: int = 150, draft: bool = True) -> Run:
    rng = random.Random(seed)
    config = _config(rng, draft)
    names: list[str] = []
    run: list[AnyStimulus] = []
    for _ in range(length):
        kind = rng.random()
        if not names or kind < 0.2:
            prompt = _prompt(rng, names)
            names.append(f"request {len(names)}")
            run.append(Arrive(names[-1], prompt, rng.randint(1, 14)))
        elif kind < 0.25:
            run.append(Abort(rng.choice(names[-4:])))
        elif kind < 0.35:
            run.append(Keys(rng.choice(names[-4:]), rng.choice([None, rng.randint(0, 40)])))
        elif kind < 0.38:
            run.append(Refuse(rng.randint(1, 3)))
        elif kind < 0.39:
            run.append(Reset())
        else:
            run.append(_step(rng, names))
    return config, [*run, Drain()]


@pytest.fixture
def random_run() -> Callable[..., Run]:
    """A run from a seed: ``random_run(seed, length=150, draft=True)``."""
    return _random_run


Predicate = Callable[[Config, Sequence[AnyStimulus]], bool]


class FakeEngine:
    """Dies of ``error`` with the first stimulus that makes the predicate true of those given
    since the start."""

    def __init__(self, predicate: Predicate, error: str = "Synthetic",
                 refuses: Predicate = lambda config, stimuli: False) -> None:
        self.predicate, self.error, self.refuses = predicate, error, refuses
        self.starts = 0
        self.config = Config((Group(4),))
        self.given: list[AnyStimulus] = []

    def start(self, config: Config) -> list[AnyObservation]:
        self.starts += 1
        self.config, self.given = config, []
        return [Hello("fake")]

    def send(self, stimulus: AnyStimulus) -> list[AnyObservation]:
        self.given.append(stimulus)
        if self.refuses(self.config, self.given):
            raise BadStimulus("not to be had")
        if self.predicate(self.config, self.given):
            return [Died(self.error, "as the test wants it", "test.py:1 in rule")]
        return []

    def send_all(self, stimuli: Iterable[AnyStimulus]) -> list[list[AnyObservation]]:
        answers: list[list[AnyObservation]] = []
        for stimulus in stimuli:
            answers.append(self.send(stimulus))
            if answers[-1]:
                break
        return answers

    def close(self) -> None:
        pass


@pytest.fixture
def fake_engine() -> type[FakeEngine]:
    """``fake_engine(predicate)`` is an engine that dies when the predicate says so."""
    return FakeEngine
