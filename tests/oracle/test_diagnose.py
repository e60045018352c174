"""Is a dead engine told what it seems to lack, and nothing where nothing fits?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kvoracle.oracle.engines.machine import machine_engine
from kvoracle.oracle.events import (
    Abort,
    AnyObservation,
    AnyStimulus,
    Arrive,
    Arrived,
    BlocksKnown,
    Computed,
    Config,
    Died,
    Finished,
    Group,
    Hello,
    Keys,
    KeysKnown,
    Loaded,
    Reset,
    Started,
    Step,
    TokensKnown,
)
from kvoracle.oracle.judge import Judge
from kvoracle.oracle.session import Outcome, play
from kvoracle.spec.properties import PROPERTIES
from kvoracle.spec.variants import PLANNERS

RandomRun = Callable[..., tuple[Config, list[AnyStimulus]]]

PLAIN = Config((Group(4),))
FATAL = [name for name, v in PLANNERS.items() if any(PROPERTIES[p].fatal for p in v.breaks)]


class Recorded:
    """An engine that shows a history, all of it in answer to the first stimulus."""

    def __init__(self, seen: list[AnyObservation]) -> None:
        self.seen = seen

    def start(self, config: Config) -> list[AnyObservation]:
        return [Hello("recorded")]

    def send(self, stimulus: AnyStimulus) -> list[AnyObservation]:
        return self.seen

    def send_all(self, stimuli: Iterable[AnyStimulus]) -> list[list[AnyObservation]]:
        return [self.seen]

    def close(self) -> None:
        pass


def died(*seen: AnyObservation, config: Config = PLAIN, at: AnyStimulus | None = None) -> Outcome:
    """What is made of an engine that showed this and died."""
    return play(Recorded([*seen, Died("AssertionError", "as it was")]), config, [at or Step()])


def test_there_are_fatal_designs() -> None:
    assert FATAL == ["no-key-bound", "no-block-bound", "rewind-at-clear"]


@pytest.mark.parametrize("name", FATAL)
def test_a_fatal_design_dies_and_is_named(name: str, random_run: RandomRun) -> None:
    engine = machine_engine(PLANNERS[name])
    deaths = [o for seed in range(8) if (o := play(engine, *random_run(seed))).finding is not None
              and o.finding.kind == "crash"]
    assert len(deaths) >= 3
    for outcome in deaths:
        finding = outcome.finding
        assert finding is not None
        assert finding.died is not None
        assert name in [d.variant for d in outcome.diagnoses]
        assert finding.property == "KeysEqBlocks"
        assert finding.like == outcome.diagnoses[0].variant
        assert finding.r == outcome.diagnoses[0].r != ""


def test_the_seed_is_told_in_numbers() -> None:
    engine = machine_engine(PLANNERS["no-key-bound"])
    outcome = play(engine, PLAIN, [Arrive("a", ((0, 7),)), Keys("a", 4), Step(2)])
    finding = outcome.finding
    assert finding is not None
    assert [d.variant for d in outcome.diagnoses] == ["no-key-bound", "rewind-at-clear"]
    assert finding.because.startswith(
        "request a has 2 chunks by tokens, 2 by blocks and 1 by keys, and its cursor is at 1; a "
        "planner that lacks the bound by keys that have arrived takes chunk 1 and pairs 0 keys "
        "with the blocks of 1 chunk (the engine died: AssertionError")
    assert finding.at == 2


def test_an_aborted_queued_request_is_told_by_its_blocks() -> None:
    engine = machine_engine(PLANNERS["no-block-bound"])
    outcome = play(engine, PLAIN, [Arrive("a", ((0, 8),)), Abort("a"), Step()])
    assert [d.variant for d in outcome.diagnoses] == ["no-block-bound"]
    assert outcome.finding is not None
    assert "0 by blocks and 2 by keys" in outcome.finding.because


def test_the_group_is_named_where_there_are_several() -> None:
    engine = machine_engine(PLANNERS["no-key-bound"])
    config = Config((Group(16), Group(4)))
    outcome = play(engine, config, [Arrive("a", ((0, 7),)), Keys("a", 4), Step(2)])
    assert outcome.finding is not None
    assert outcome.finding.because.startswith("request a in group 1 has 2 chunks")


def running(*more: AnyObservation, keys: int = 1) -> list[AnyObservation]:
    """A request of seven tokens within its first step."""
    known: list[AnyObservation] = [KeysKnown("a", 0, keys)] if keys else []
    return [Arrived("a", 7), Started("a"), *known, BlocksKnown("a", 0, 2), Computed("a", 7), *more]


def test_a_death_that_nothing_explains_is_a_crash_and_no_more() -> None:
    outcome = died(*running())
    finding = outcome.finding
    assert finding is not None
    assert (finding.kind, finding.property, finding.like) == ("crash", "NoCrash", "")
    assert finding.because == "the engine died: AssertionError: as it was"
    assert outcome.diagnoses == []


def test_a_death_before_anything_happened_is_not_explained() -> None:
    assert died().diagnoses == []


def test_two_designs_together_are_named_where_none_explains_it_alone() -> None:
    """vLLM 0.26: counts a finished request's last token, and does not ask for its key."""
    outcome = died(
        Arrived("a", 3), Started("a"), BlocksKnown("a", 0, 1), Computed("a", 3),
        TokensKnown("a", 4), Finished("a"))
    assert [d.variant for d in outcome.diagnoses][:1] == ["no-key-bound + counts-last-token"]
    assert outcome.finding is not None
    assert outcome.finding.property == "KeysEqBlocks"


def test_only_steps_plan() -> None:
    """A planning rule that is not kept is not why a reset fails."""
    late_key = running(keys=0)
    assert died(*late_key).diagnoses
    assert died(*late_key, at=Reset()).diagnoses == []


def test_a_request_that_only_waits_for_its_load_is_not_what_an_engine_died_of() -> None:
    """It has no block yet, and its planner does not look at it."""
    outcome = died(Arrived("a", 9), KeysKnown("a", 0, 2), Started("a"), Loaded("a", 8, 0))
    assert outcome.diagnoses == []


def test_a_violation_is_not_diagnosed() -> None:
    engine = machine_engine(PLANNERS["cursor-ignores-keys"])
    outcome = play(engine, PLAIN, [Arrive("a", ((0, 3),)), Keys("a", 0), Step(2)])
    assert outcome.finding is not None
    assert (outcome.finding.kind, outcome.finding.like) == ("violation", "")
    assert outcome.diagnoses == []


def test_a_diagnosis_leaves_the_judge_as_it_was() -> None:
    engine = machine_engine(PLANNERS["no-key-bound"])
    outcome = play(engine, PLAIN, [Arrive("a", ((0, 3),)), Keys("a", 0), Step(2)])
    again: Any = Judge(PLAIN)
    for at, (_, seen) in enumerate(outcome.log):
        again.judge(seen, at)
    assert outcome.judge is not None
    assert again.run.values == outcome.judge.run.values
