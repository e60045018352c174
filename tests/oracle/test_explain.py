"""What a report says, word for word.

The texts are in ``golden/``; after a change of wording they are written anew by

    KVORACLE_REGENERATE=1 python -m pytest tests/oracle/test_explain.py

and the difference is to be read.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from kvoracle.oracle import events as e
from kvoracle.oracle import words
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.explain import LINES_SEEN, Explanation, explain, text
from kvoracle.oracle.judge import Judge
from kvoracle.oracle.scenario import named, parse, perform
from kvoracle.oracle.session import Outcome, play
from kvoracle.spec.properties import EVERYTHING

GOLDEN = Path(__file__).parent / "golden"


def _explained(engine: str, scenario: str, replay: str) -> Explanation:
    outcome = perform(open_engine(engine), named(scenario))
    return explain(outcome, replay, f"scenario {scenario}", engine)


def _crash() -> Explanation:
    return _explained("model:no-key-bound", "seed",
                      "kvoracle replay seed --engine model:no-key-bound")


def _acceptance() -> Explanation:
    return _explained("model:no-exclusion", "volatile-tail",
                      "kvoracle replay volatile-tail --engine model:no-exclusion")


def _hole() -> Explanation:
    return _explained("model:cursor-keeps-tail", "prefill-pieces",
                      "kvoracle replay prefill-pieces --engine model:cursor-keeps-tail")


def _vanished() -> Explanation:
    """A process that is gone, after a stimulus with more observations than are shown."""
    config = e.Config((e.Group(4), e.Group(2, draft=True)), gpu_blocks=20, prompt_only=True)
    log = "\n".join(f"{n} of a long log, which goes on and on {'and on ' * 12}" for n in range(9))
    died = e.Died("vanished", "killed by SIGSEGV while answering {\"do\":\"drain\"}", stderr=log)

    class Engine:
        def start(self, config: e.Config) -> list[e.AnyObservation]:
            return [e.Hello("theirs", "3.1", ("cursor", "blocks"))]

        def send(self, stimulus: e.AnyStimulus) -> list[e.AnyObservation]:
            if isinstance(stimulus, e.Arrive):
                return [e.Arrived(stimulus.r, 9)]
            if isinstance(stimulus, e.Drain):
                return [*(e.Refused("a") for _ in range(15)), died]
            return []

        def send_all(self, stimuli: list[e.AnyStimulus]) -> list[list[e.AnyObservation]]:
            return [self.send(s) for s in stimuli]

        def close(self) -> None:
            pass

    stimuli = [e.Arrive("a", ((3, 4), (0, 5)), 2), e.Keys("a", 2), e.Keys("a"), e.Abort("a"),
               e.Refuse(2), e.Reset(), e.Step(3, done=1, newest=True, accept=1, stop=("a",)),
               e.Step(done=0), e.Step(done=2, stop=("a", "b")), e.Drain()]
    outcome = play(Engine(), config, stimuli)  # type: ignore[arg-type]
    return explain(outcome, "kvoracle replay it.jsonl --engine theirs", "found in run 1", "theirs")


CASES = {"crash": _crash, "acceptance": _acceptance, "hole": _hole, "vanished": _vanished}


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_golden_one(name: str) -> None:
    said = re.sub(r"(\w+\.py):\d+", r"\1:LINE", text(CASES[name]())) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("KVORACLE_REGENERATE"):
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(said, encoding="utf-8")
    assert said == file.read_text(encoding="utf-8")


def test_no_golden_text_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_text_fits_the_width_and_repeats_no_full_stop(name: str) -> None:
    for width in (60, 100):
        lines = text(CASES[name](), width).splitlines()
        wide = [line for line in lines if len(line) > width and not line.startswith("replay: ")]
        assert wide == []
        assert not [line for line in lines if ".." in line.rstrip() and "..." not in line]


@pytest.mark.parametrize("name", CASES)
def test_data_and_text_say_the_same(name: str) -> None:
    x = CASES[name]()
    data = json.loads(json.dumps(x.to_json()))
    said = " ".join(text(x).split())
    assert " ".join(data["because"].split()).rstrip(".") in said
    assert f"breaks {data['property']}" in said and data["statement"] in said
    assert f"replay: {data['replay']}" in said
    assert [row["number"] for row in data["rows"]] == list(range(1, len(x.rows) + 1))
    for row in data["rows"]:
        assert f"{row['number']} {row['done']}" in said
    for like in data["behaves_like"]:
        assert like["variant"] in said


def test_the_order_is_what_why_run_replay() -> None:
    said = text(_crash())
    parts = ["breaks KeysEqBlocks because", "It behaves like", "It died at", "KeysEqBlocks: ",
             "The run (", "config ", "    1  request a arrives", "\nreplay: "]
    assert [said.index(part) for part in parts] == sorted(said.index(part) for part in parts)
    assert EVERYTHING["KeysEqBlocks"].statement in " ".join(said.split())


def test_only_the_end_of_a_log_is_shown() -> None:
    said = text(_vanished())
    shown = [line for line in said.splitlines() if line.startswith("  | ")]
    assert len(shown) == LINES_SEEN
    assert shown[-1].startswith("  | 8 of a long log")


def test_a_log_beside_a_place_is_not_shown() -> None:
    """It names times and processes: no two reports would be the same."""
    judge = Judge(e.Config((e.Group(4),)))
    died = e.Died("AssertionError", "no", "scheduler.py:7 in plan", "12:00:01 pid 4711")
    outcome = Outcome(judge.config, finding=judge.judge([died], 0), judge=judge, engine="it")
    x = explain(outcome, "", "found", "it")
    assert "4711" not in text(x) and "4711" in x.stderr
    assert "replay" not in text(x)


def test_an_engine_that_named_itself_never_is_called_as_it_was_asked_for() -> None:
    judge = Judge(e.Config((e.Group(4),)))
    outcome = Outcome(judge.config, finding=judge.judge([e.Died("hung")], -1), judge=judge)
    assert text(explain(outcome, "", "found", "vllm@here")).startswith(
        "vllm@here breaks NoCrash because the engine died: hung.")


def test_what_the_scenario_expects_is_not_laid_at_the_machines_door() -> None:
    scenario = parse(
        '{"kvoracle": 1, "name": "x", "config": {"groups": [{"tokens_per_block": 4}]}}\n'
        '{"do": "arrive", "r": "a", "prompt": [[0, 4]]}\n{"do": "step"}\n'
        '{"expect": {"r": "a", "jobs": 0}}\n', "x.jsonl")
    said = text(explain(perform(open_engine("model"), scenario), "", "scenario x", "model"))
    assert said.startswith("model does not do what the scenario expects: 1 store job of request a")
    assert "machine" not in said


def test_the_run_is_told_up_to_what_failed() -> None:
    x = _hole()
    assert x.rows[-1].seen[-1] == "a: cursor 5 in group 1"


# --- words ------------------------------------------------------------------------------


@pytest.mark.parametrize(("stimulus", "says"), [
    (e.Arrive("b", (("a", 5), (2, 1)), 3),
     "request b arrives: 6 tokens (5 of request a + 1 of stream 2), to sample 3"),
    (e.Arrive("b", ((2, 1),)), "request b arrives: 1 token (1 of stream 2), to sample 16"),
    (e.Keys("a", 4), "keys of request a come late beyond token 4"),
    (e.Keys("a"), "all keys of request a arrive"),
    (e.Step(), "one step"),
    (e.Step(2, accept=1), "2 steps: 1 draft accepted"),
    (e.Step(done=0), "one step: no transfer completes"),
    (e.Step(done=1), "one step: the oldest transfer completes"),
    (e.Step(done=3, newest=True, stop=("a",)),
     "one step: the newest 3 transfers complete, a stops"),
    (e.Step(stop=("a", "b")), "one step: a, b stop"),
    (e.Abort("a"), "the client of request a goes away"),
    (e.Refuse(1), "the host pool will refuse 1 offer"),
    (e.Refuse(2), "the host pool will refuse 2 offers"),
    (e.Reset(), "the host pool is reset"),
    (e.Drain(), "steps until nothing is left"),
])
def test_stimuli_in_words(stimulus: e.AnyStimulus, says: str) -> None:
    assert words.stimulus(stimulus) == says


@pytest.mark.parametrize(("seen", "says"), [
    (e.Started("a", 8), "a starts with 8 cached tokens"),
    (e.Planned("a", (e.Chunks(0, (0, 1, 2, 5), (1,)), e.Chunks(1, (4,))), 0),
     "a: stores chunks 0-2,5 of group 0 (1 declined), chunk 4 of group 1"),
    (e.Planned("a", ()), "a: stores nothing"),
    (e.Finished("a", True), "a aborted"),
    (e.Loaded("a", 1, 0), "a: 1 token loaded from the host"),
    (e.Died("vanished"), "dies: vanished"),
    (e.NotAtRest("2 jobs"), "not at rest: 2 jobs"),
    (e.Hello("it"), ""),
])
def test_observations_in_words(seen: e.AnyObservation, says: str) -> None:
    assert words.observation(seen) == says
