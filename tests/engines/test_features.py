"""What releases are driven with beyond one group and one worker: each seen to happen, and to
be judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvoracle.oracle import events
from kvoracle.oracle.engines.machine import machine_engine
from kvoracle.oracle.engines.process import EngineProcess, EngineRefused
from kvoracle.oracle.engines.protocol import BadStimulus
from kvoracle.oracle.engines.vllm import engine_command
from kvoracle.oracle.events import Arrive, Config, Drain, Group, Reset, Step
from kvoracle.oracle.session import play
from kvoracle.oracle.workload import PROFILES, generate

ONE = (Group(4),)
NEWEST = "0.33.0"
pytestmark = pytest.mark.vllm(NEWEST)

Seen = list[events.AnyObservation]


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with EngineProcess(*engine_command(NEWEST)) as process:
        yield process


def said(engine: EngineProcess, config: Config, *stimuli: events.AnyStimulus) -> list[Seen]:
    assert isinstance(engine.start(config)[0], events.Hello)
    return [list(seen) for seen in engine.send_all(stimuli)]


def of(kind: type, answers: list[Seen]) -> list[events.AnyObservation]:
    return [event for seen in answers for event in seen if isinstance(event, kind)]


def clean(answers: list[Seen]) -> bool:
    return not any(of(kind, answers)
                   for kind in (events.Died, events.BadBytes, events.NotAtRest))


def test_with_async_scheduling_a_token_is_known_a_step_later(engine: EngineProcess) -> None:
    config = Config(groups=ONE, async_scheduling=True)
    answers = said(engine, config, Arrive(r="a", prompt=((0, 7),), output=3),
                   Step(), Step(), Drain())
    assert of(events.TokensKnown, answers[:2]) == []
    assert of(events.TokensKnown, answers[2:3]) == [events.TokensKnown(r="a", n=8)]
    # The second step computed the token that only then became known.
    assert events.Computed(r="a", n=8, late=True) in answers[2]
    assert clean(answers) and of(events.Finished, answers)


def test_a_store_is_complete_when_it_is_on_every_worker(engine: EngineProcess) -> None:
    config = Config(groups=ONE, workers=2)
    answers = said(engine, config, Arrive(r="a", prompt=((0, 9),)), Step(),
                   Step(n=3, slow=(1,)), Step(n=2))
    assert of(events.Planned, answers[1:2])
    # Job 0 is flushed by nobody: worker 0 reports it at once, worker 1 when it may again.
    assert of(events.Stored, answers[:3]) == []
    assert of(events.Stored, answers[3:]) == [
        events.Stored(job=1), events.Stored(job=0)]


def test_ranks_that_share_a_blocks_tokens_make_it_span_more(engine: EngineProcess) -> None:
    config = Config(groups=ONE, workers=2, context_parallel=2)
    answers = said(engine, config, Arrive(r="a", prompt=((0, 17),), output=1), Drain(),
                   Arrive(r="b", prompt=((0, 18),), output=1), Drain())
    plan = of(events.Planned, answers)[0]
    assert isinstance(plan, events.Planned)
    assert plan.groups == (events.Chunks(g=0, offered=(0, 1), blocks=2),)
    assert [e.upto for e in of(events.Loaded, answers) if isinstance(e, events.Loaded)] == [16]
    assert clean(answers)


WINDOW = Config(groups=(Group(4), Group(4, kind="window", reach=8)))


def test_of_a_window_only_what_can_be_read_is_stored_and_loaded(engine: EngineProcess) -> None:
    answers = said(engine, WINDOW, Arrive(r="a", prompt=((0, 41),), output=1), Drain(),
                   Arrive(r="b", prompt=((0, 40), (3, 4)), output=1), Drain())
    plan = of(events.Planned, answers)[0]
    assert isinstance(plan, events.Planned)
    whole, window = plan.groups
    assert whole.offered == tuple(range(10)) and window.offered == (8, 9)
    assert [e.upto for e in of(events.Loaded, answers) if isinstance(e, events.Loaded)] == [40]
    assert clean(answers)


def test_after_a_reset_a_windows_freed_blocks_are_stored(engine: EngineProcess) -> None:
    """docs/findings/vllm-reset-stores-freed-blocks.md: seen where the blocks are written again."""
    config = Config(groups=(Group(4, kind="window", reach=9),))
    outcome = play(engine, config, (
        Arrive(r="a", prompt=((0, 26),), output=16), Step(n=5), Reset(), Step(n=2)))
    assert outcome.finding is not None and outcome.finding.property == "ReuseFence"
    assert outcome.judge is not None and outcome.judge.unfollowed == [
        "planning and lookup of window groups"]


def test_bounded_requests_and_tenants_apart(engine: EngineProcess) -> None:
    prompt = ((0, 17),)
    answers = said(
        engine, Config(groups=ONE), Arrive(r="a", prompt=prompt, output=1, max_offload=9),
        Drain(), Arrive(r="b", prompt=prompt, output=1, max_load=4), Drain(),
        Arrive(r="c", prompt=prompt, output=1, salt="x"), Drain(),
        Arrive(r="d", prompt=prompt, output=1, adapter="x"), Drain(),
        Arrive(r="e", prompt=prompt, output=1, no_read=True), Drain())
    plan = of(events.Planned, answers)[0]
    assert isinstance(plan, events.Planned) and plan.groups[0].offered == (0, 1)
    assert [(e.r, e.upto) for e in of(events.Loaded, answers)
            if isinstance(e, events.Loaded)] == [("b", 4)]
    assert clean(answers)


def test_a_chunk_is_stored_once_it_was_asked_for_often(engine: EngineProcess) -> None:
    config = Config(groups=ONE, store_threshold=2, policy="arc")
    answers = said(engine, config, *(
        stimulus for r in "abc"
        for stimulus in (Arrive(r=r, prompt=((0, 9),), output=1), Drain())))
    loaded = [e.r for e in of(events.Loaded, answers) if isinstance(e, events.Loaded)]
    assert loaded == ["c"] and clean(answers)


@pytest.mark.parametrize("name", ["async", "workers", "windows", "pools"])
def test_random_runs_of_the_features_raise_no_alarm(name: str, engine: EngineProcess) -> None:
    hello = engine.start(Config(groups=ONE))[0]
    assert isinstance(hello, events.Hello)
    stored = 0
    for seed in range(4):
        run = generate(PROFILES[name], seed, hello.features)
        outcome = play(engine, run.config, run.stimuli)
        assert outcome.finding is None, f"seed {seed}"
        assert outcome.judge is not None
        stored += outcome.judge.stored
    assert stored > 1000


def test_what_is_not_driven_is_refused_in_words(engine: EngineProcess) -> None:
    for config, words in (
        (Config(groups=ONE, async_scheduling=True, draft_tokens=2), "drafts are not driven"),
        (Config(groups=(Group(4, kind="window"),)), "needs a reach"),
        (Config(groups=ONE, workers=3, context_parallel=2), "cannot share"),
    ):
        with pytest.raises(EngineRefused, match=words):
            engine.start(config)
    with pytest.raises(BadStimulus, match="no such thing as async"):
        machine_engine(None).start(Config(groups=ONE, async_scheduling=True))
