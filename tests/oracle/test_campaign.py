"""Campaigns: what is found is repeated, counted and told apart, and what does not repeat is never
called a finding."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvoracle.oracle import campaign as module
from kvoracle.oracle import cli, exits, fleet
from kvoracle.oracle.campaign import Campaign, Runner, Stopped
from kvoracle.oracle.commands import fuzz
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.events import (
    AnyObservation,
    AnyStimulus,
    Arrive,
    Arrived,
    Config,
    Died,
    Drain,
    Hello,
    Reset,
    Step,
)
from kvoracle.oracle.scenario import parse, read, shipped
from kvoracle.oracle.workload import PROFILES
from kvoracle.spec.properties import PLANNING

STORING = PROFILES["storing"]
EXPECTING = parse(
    '{"kvoracle": 1, "name": "expecting", "config": {"groups": [{"tokens_per_block": 4}]}}\n'
    '{"do": "arrive", "r": "a", "prompt": [[0, 4]]}\n{"do": "step"}\n'
    '{"expect": {"r": "a", "jobs": 5}}\n{"do": "drain"}\n', "expecting.jsonl")


class Sometimes:
    """Dies of the first step, if ``dies`` says so when it is started."""

    def __init__(self, dies: Callable[[int], bool]) -> None:
        self.dies, self.starts = dies, 0

    def start(self, config: Config) -> list[AnyObservation]:
        self.starts += 1
        self._now = self.dies(self.starts)
        return [Hello("sometimes")]

    def send(self, stimulus: AnyStimulus) -> list[AnyObservation]:
        if isinstance(stimulus, Arrive):
            return [Arrived(stimulus.r, sum(n for _, n in stimulus.prompt))]
        if self._now and isinstance(stimulus, (Step, Drain)):
            return [Died("Unlucky", "it happens", "luck.py:1 in roll")]
        return []

    def send_all(self, stimuli: Iterable[AnyStimulus]) -> list[list[AnyObservation]]:
        answers: list[list[AnyObservation]] = []
        for stimulus in stimuli:
            answers.append(self.send(stimulus))
            if answers[-1] and isinstance(answers[-1][-1], Died):
                break
        return answers

    def close(self) -> None:
        pass


def _campaign(engine: Any, runs: int = 6, out: Path | None = None, name: str = "it",
              **more: Any) -> Campaign:
    runner = Runner(name, engine, out)
    runner.generated([STORING], 0, runs, **more)
    return runner.campaign


# --- what is found ---------------------------------------------------------------------


def test_one_mistake_is_one_finding_however_often_it_is_met(tmp_path: Path) -> None:
    engine = open_engine("model:cursor-falls-back")
    campaign = _campaign(engine, 12, tmp_path)
    (found,) = campaign.reported
    assert found.times > 2
    assert campaign.runs == 12 and campaign.steps == 12 * STORING.steps
    assert found.file is not None
    assert [p.name for p in tmp_path.iterdir()] == [found.file.name]
    assert len(read(found.file).stimuli) == len(found.explanation.rows)
    assert found.explanation.replay == f"kvoracle replay {found.file} --engine it"
    assert fuzz.code(campaign) == exits.VIOLATION


def test_two_mistakes_are_two_findings(fake_engine: Any) -> None:
    resets = fake_engine(lambda config, stimuli: Reset() in stimuli, "Reset")
    steps = fake_engine(lambda config, stimuli: sum(
        isinstance(s, Step) for s in stimuli) > 100, "Late")

    class Both(Sometimes):
        def start(self, config: Config) -> list[AnyObservation]:
            steps.start(config)
            answer: list[AnyObservation] = resets.start(config)
            return answer

        def send(self, stimulus: AnyStimulus) -> list[AnyObservation]:
            answer: list[AnyObservation] = resets.send(stimulus) or steps.send(stimulus)
            return answer

    runner = Runner("it", Both(lambda starts: False))
    runner.generated([PROFILES["resets"], STORING], 0, 6)
    assert {f.explanation.error for f in runner.campaign.reported} == {"Reset", "Late"}
    assert sum(f.times for f in runner.campaign.reported) == 6


def test_a_finding_is_as_small_as_it_can_be(fake_engine: Any) -> None:
    engine = fake_engine(lambda config, stimuli: any(isinstance(s, Step) for s in stimuli))
    (found,) = _campaign(engine).reported
    assert len(found.explanation.rows) == 1
    assert found.explanation.minimal.startswith("shrunk from ")
    assert found.explanation.minimal.endswith("found in profile storing, seed 0, run 0")


def test_names_of_long_paths_fit_into_a_scenario(fake_engine: Any, tmp_path: Path) -> None:
    engine = fake_engine(lambda config, stimuli: True)
    (found,) = _campaign(engine, 1, tmp_path, name=f"vllm@/{'long/' * 40}path").reported
    assert found.file is not None
    assert read(found.file).header.found is not None


def test_sound_engines_are_counted() -> None:
    campaign = _campaign(open_engine("model"), 3)
    assert campaign.reported == [] and campaign.unstable == []
    assert (campaign.runs, campaign.rested, campaign.steps) == (3, 3, 3 * STORING.steps)
    assert campaign.judged > 100 and campaign.stored > 0 and campaign.read > 0
    assert all(campaign.evaluated[name] for name in PLANNING)
    assert fuzz.code(campaign) == exits.HOLDS


def test_an_expectation_that_is_not_met_is_reported_by_the_scenarios_name(
        tmp_path: Path) -> None:
    runner = Runner("model", open_engine("model"), tmp_path)
    runner.scenarios([EXPECTING])
    (found,) = runner.campaign.reported
    assert found.explanation.replay == "kvoracle replay expecting --engine model"
    assert "the scenario expects 5" in found.explanation.because
    assert len(found.explanation.rows) == 2
    assert list(tmp_path.iterdir()) == []


# --- what does not repeat ------------------------------------------------------------------


@pytest.mark.parametrize("every", [2, 3, 5])
def test_what_does_not_repeat_is_no_finding(every: int, tmp_path: Path) -> None:
    engine = Sometimes(lambda starts: starts % every == 0)
    campaign = _campaign(engine, 10, tmp_path)
    assert campaign.reported == []
    assert campaign.unstable
    assert "NoCrash because the engine died: Unlucky: it happens" in campaign.unstable[0].what
    assert fuzz.code(campaign) == exits.UNJUDGED
    # What happened is kept all the same.
    file = campaign.unstable[0].replay.split()[2]
    assert "unstable" in file and read(Path(file)).header.found is not None


@pytest.mark.parametrize("seed", range(8))
def test_luck_is_no_finding_however_often_it_repeats(seed: int) -> None:
    rng = random.Random(seed)
    campaign = _campaign(Sometimes(lambda starts: rng.random() < 0.5), 10)
    assert campaign.reported == []
    assert campaign.unstable


@pytest.mark.parametrize("times", [2, 3, 4])
def test_a_failure_that_is_gone_after_some_repetitions_is_no_finding(times: int) -> None:
    campaign = _campaign(Sometimes(lambda starts: starts <= times), 1)
    assert campaign.reported == []
    assert len(campaign.unstable) == 1


def test_what_fails_always_is_a_finding() -> None:
    campaign = _campaign(Sometimes(lambda starts: True), 4)
    assert [f.times for f in campaign.reported] == [4]
    assert campaign.unstable == []


def test_a_finding_beside_what_does_not_repeat_is_a_violation(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for dies, code in ((lambda starts: starts % 2 == 1, exits.UNJUDGED),
                       (lambda starts: starts % 2 == 1 or starts > 22, exits.VIOLATION)):
        for place in (fuzz, fleet):
            monkeypatch.setattr(place, "open_engine", lambda name, dies=dies: Sometimes(dies))
        assert cli.main(["fuzz", "--engine", "it", "--steps", "2400"]) == code
        said = " ".join(capsys.readouterr().out.split())
        assert "not judged, a failure that did not repeat in profile storing, seed 0, run 0: " \
               "NoCrash because the engine died: Unlucky: it happens; to play it again: " \
               "kvoracle replay kvoracle-findings/it-unstable-" in said
        assert ("breaks NoCrash" in said) == (code == exits.VIOLATION)


# --- what is not judged -------------------------------------------------------------------------


def test_runs_that_the_engine_refuses_are_counted_as_not_judged(fake_engine: Any) -> None:
    def refuses(config: Config, stimuli: Sequence[AnyStimulus]) -> bool:
        return any(isinstance(s, Reset) for s in stimuli)

    engine = fake_engine(lambda config, stimuli: False, refuses=refuses)
    campaign = _campaign(engine, 20)
    refused = campaign.not_judged["not to be had"]
    assert 0 < refused < 20
    assert campaign.runs == 20 - refused
    assert fuzz.code(campaign) == exits.HOLDS


def test_a_campaign_of_refused_runs_ends_and_judges_nothing(fake_engine: Any) -> None:
    engine = fake_engine(lambda config, stimuli: False, refuses=lambda config, stimuli: True)
    campaign = _campaign(engine, None, steps=5 * STORING.steps)  # type: ignore[arg-type]
    assert campaign.not_judged == {"not to be had": 5}
    assert campaign.runs == 0
    assert fuzz.code(campaign) == exits.UNJUDGED


def test_a_refusal_that_comes_with_the_repetition_does_not_repeat(fake_engine: Any) -> None:
    engine = fake_engine(lambda config, stimuli: True,
                         refuses=lambda config, stimuli: engine.starts > 1)
    campaign = _campaign(engine, 1)
    assert campaign.reported == [] and len(campaign.unstable) == 1


def test_steps_are_what_is_asked_for() -> None:
    campaign = _campaign(open_engine("model"), None, steps=1)  # type: ignore[arg-type]
    assert campaign.runs == 1


# --- ending early ---------------------------------------------------------------------------------


def test_a_campaign_ends_when_somebody_wants_it_to() -> None:
    stop = threading.Event()
    runner = Runner("it", open_engine("model"), None,
                    lambda what, i, n, found: stop.set() if i == 2 else None, stop)
    with pytest.raises(Stopped):
        runner.generated([STORING], 0, 10)
    assert runner.campaign.runs == 2


def test_shrinking_ends_when_somebody_wants_it_to(fake_engine: Any) -> None:
    stop = threading.Event()
    engine = fake_engine(lambda config, stimuli: len(stimuli) > 20)
    runner = Runner("it", engine, None,
                    lambda what, i, n, found: stop.set() if "shrinking" in what else None, stop)
    with pytest.raises(Stopped):
        runner.generated([STORING], 0, 10)
    assert engine.starts == 2


def test_engines_that_do_not_start_are_given_up() -> None:
    class Silent(Sometimes):
        def start(self, config: Config) -> list[AnyObservation]:
            self.starts += 1
            return [Died("ImportError", "no module", "serve.py:1 in main")]

    engine = Silent(lambda starts: True)
    runner = Runner("it", engine)
    runner.scenarios(shipped().values())
    runner.generated([STORING], 0, 10)
    campaign = runner.campaign
    assert campaign.runs == module.MOST_LOST
    assert campaign.stopped == "given up after 3 runs in which the engine hung or did not start"
    (found,) = campaign.reported
    assert found.explanation.engine == "it"
    assert found.explanation.rows == ()


def test_no_seconds_no_runs() -> None:
    assert _campaign(open_engine("model"), None,  # type: ignore[arg-type]
                     seconds=0.0).runs == 0
