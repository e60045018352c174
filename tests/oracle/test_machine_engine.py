"""Is the machine, run as an engine, without fault, and each broken design caught?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvoracle.oracle.engines.machine import machine_engine
from kvoracle.oracle.events import AnyStimulus, Config, Group, Hello, Planned, Step
from kvoracle.oracle.observed import OBSERVED
from kvoracle.oracle.session import Outcome, play
from kvoracle.spec.properties import PLANNING
from kvoracle.spec.variants import PLANNERS

RandomRun = Callable[..., tuple[Config, list[AnyStimulus]]]

RUNS = 24
WITHIN = 12
"""Random runs of 150 stimuli within which each broken design is caught."""


def test_the_reference_is_without_fault(random_run: RandomRun) -> None:
    engine = machine_engine()
    evaluated = dict.fromkeys(PLANNING, 0)
    planned = stored = read = 0
    for seed in range(RUNS):
        outcome = play(engine, *random_run(seed, draft=seed % 2 == 0))
        assert outcome.finding is None, (seed, outcome.finding)
        judge = outcome.judge
        assert judge is not None
        for name in PLANNING:
            evaluated[name] += judge.evaluated[name]
        planned += sum(isinstance(o, Planned) for _, seen in outcome.log for o in seen)
        stored, read = stored + judge.stored, read + judge.read
    # A run in which nothing happens is without fault too.
    assert min(evaluated.values()) > 1_000
    assert planned > 1_000
    assert stored > 5_000
    assert read > 100_000


@pytest.mark.parametrize("name", PLANNERS)
def test_each_broken_design_is_caught(name: str, random_run: RandomRun) -> None:
    engine = machine_engine(PLANNERS[name])
    found = [o.finding for seed in range(WITHIN)
             if (o := play(engine, *random_run(seed))).finding is not None]
    assert len(found) >= 2
    caught = {f.property for f in found if f.kind != "departure"}
    assert caught & set(PLANNERS[name].breaks)
    assert caught <= set(PLANNERS[name].breaks)


def test_what_is_caught_has_a_statement() -> None:
    for variant in PLANNERS.values():
        assert set(variant.breaks) <= set(PLANNING) | set(OBSERVED)


@pytest.mark.parametrize("name", [None, "no-key-bound", "cursor-falls-back"])
def test_the_same_stimuli_give_the_same_answers(name: str | None, random_run: RandomRun) -> None:
    def run() -> Outcome:
        return play(machine_engine(PLANNERS[name] if name else None), *random_run(5))

    one, two = run(), run()
    assert one.log == two.log
    assert one.finding == two.finding


def test_an_engine_that_served_a_run_serves_the_next_as_if_it_were_new(
    random_run: RandomRun
) -> None:
    used = machine_engine()
    for seed in range(3):
        play(used, *random_run(seed))
    assert play(used, *random_run(7)).log == play(machine_engine(), *random_run(7)).log


def test_it_names_itself_and_its_variant() -> None:
    config = Config((Group(4),))
    assert machine_engine().start(config) == [Hello("model", eager=True)]
    assert machine_engine(PLANNERS["no-exclusion"]).start(config) \
        == [Hello("model:no-exclusion", eager=True)]


def test_how_steps_are_told_makes_no_difference(random_run: RandomRun) -> None:
    """A step of ``n`` is ``n`` steps."""
    engine = machine_engine()
    config, run = random_run(3)
    split: list[AnyStimulus] = []
    for s in run:
        if isinstance(s, Step):
            split += [Step(1, s.done, s.newest, s.accept)] * (s.n - 1)
            split.append(Step(1, s.done, s.newest, s.accept, s.stop))
        else:
            split.append(s)
    whole, parts = play(engine, config, run), play(engine, config, split)
    assert [o for _, seen in whole.log for o in seen] == [o for _, seen in parts.log for o in seen]
