"""Does the simulated scheduler behave like one, whatever planner is attached?"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import msgspec
import pytest

from kvoracle.oracle.engines.planner import Job, Known, Offer, Planner
from kvoracle.oracle.engines.protocol import Engine
from kvoracle.oracle.engines.simulator import (
    BadStimulus,
    SimulatedEngine,
    sampled_token,
    stream_token,
)
from kvoracle.oracle.events import (
    Abort,
    AnyObservation,
    AnyStimulus,
    Arrive,
    Arrived,
    BlocksKnown,
    Checked,
    Computed,
    Config,
    Died,
    Drain,
    Finished,
    Group,
    Hello,
    Keys,
    KeysKnown,
    NotAtRest,
    Preempted,
    Rejected,
    Retired,
    Started,
    Step,
    TokensKnown,
)


class Idle:
    """A planner that never stores or loads, and writes down what it is told."""

    def __init__(self, config: Config) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.told: dict[tuple[str, int], list[int]] = {}
        self.gone: list[str] = []

    def arrive(self, r: str, prompt: int) -> None:
        self.calls.append(("arrive", r, prompt))

    def keys(self, r: str, g: int, new: Sequence[bytes]) -> None:
        self.told.setdefault((r, g), [0, 0])[0] += len(new)

    def blocks(self, r: str, g: int, new: Sequence[int]) -> None:
        self.told.setdefault((r, g), [0, 0])[1] += len(new)

    def tokens(self, r: str, n: int) -> None:
        self.calls.append(("tokens", r, n))

    def known(self, r: str, g: int) -> Known:
        keys, blocks = self.told.get((r, g), [0, 0])
        return Known(keys, blocks, 0)

    def lookup(self, r: str) -> int:
        return 0

    def load(self, r: str, upto: int) -> Job:
        raise NotImplementedError

    def plan(self, r: str, computed: int) -> Offer | None:
        self.calls.append(("plan", r, computed))
        return None

    def fence(self) -> Sequence[int]:
        return ()

    def retire(self) -> Sequence[str]:
        gone, self.gone = self.gone, []
        return gone

    def done(self, job: int) -> None:
        raise NotImplementedError

    def preempt(self, r: str) -> None:
        for (name, _), counts in self.told.items():
            if name == r:
                counts[1] = 0

    def finish(self, r: str, computed: int, aborted: bool) -> None:
        self.calls.append(("finish", r, computed, aborted))
        self.gone.append(r)

    def refuse(self, n: int) -> None:
        self.calls.append(("refuse", n))

    def reset(self) -> None:
        self.calls.append(("reset",))

    def held(self) -> str:
        return ""


class Run:
    """An engine with an idle planner, started."""

    def __init__(self, planner: type[Idle] = Idle, **config: object) -> None:
        self.planner: Idle | None = None

        def attach(config: Config) -> Planner:
            self.planner = planner(config)
            return self.planner

        self.engine: Engine = SimulatedEngine("idle", attach)
        config.setdefault("groups", (Group(4),))
        self.seen = self.engine.start(Config(**config))  # type: ignore[arg-type]

    def __call__(self, *stimuli: AnyStimulus) -> list[AnyObservation]:
        """What was seen of these, the last one."""
        return [e for stimulus in stimuli for e in self.engine.send(stimulus)]


def arrive(r: str, n: int, output: int = 4) -> Arrive:
    return Arrive(r, ((0, n),), output)


def of(kind: type, seen: list[AnyObservation]) -> list[tuple[object, ...]]:
    """What was seen of a kind, without what the simulator never tells."""
    return [tuple(value for name, value in msgspec.structs.asdict(e).items()
                  if name not in ("late", "limit")) for e in seen if type(e) is kind]


def test_long_prompts_are_computed_in_pieces_and_the_budget_is_shared() -> None:
    run = Run(tokens_per_step=6)
    run(arrive("a", 10), arrive("b", 5))
    assert of(Computed, run(Step())) == [("a", 6)]
    assert of(Computed, run(Step())) == [("a", 10), ("b", 2)]
    seen = run(Step())
    assert of(Computed, seen) == [("a", 11), ("b", 5)]
    assert of(TokensKnown, seen) == [("a", 12), ("b", 6)]


def test_requests_are_admitted_in_order_up_to_the_limit() -> None:
    run = Run(max_running=2)
    run(arrive("a", 4, 2), arrive("b", 4, 9), arrive("c", 4))
    assert of(Started, run(Step())) == [("a", 0), ("b", 0)]
    assert of(Finished, run(Step())) == [("a", False)]
    assert of(Started, run(Step())) == [("c", 0)]


def test_newest_request_is_preempted_and_computes_again_from_the_start() -> None:
    run = Run(gpu_blocks=5)
    run(arrive("a", 7, 9), arrive("b", 7, 9), Step(2))
    seen = run(Step())
    assert of(Preempted, seen) == [("b",)]
    assert of(Computed, seen) == [("a", 9)]
    assert of(BlocksKnown, seen) == [("a", 0, 3)]
    later = run(Step(7))
    assert of(Finished, later) == [("a", False)]
    assert of(Started, later) == [("b", 0)]
    seen = run(Drain())
    assert of(Finished, later + seen)[1:] == [("b", False)]
    assert not of(NotAtRest, seen)


def test_preemption_releases_withheld_keys() -> None:
    run = Run(gpu_blocks=5, groups=(Group(4),))
    run(arrive("a", 7, 9), arrive("b", 7, 9), Keys("b", 7), Step(2))
    seen = run(Step())
    assert ("b", 0, 2) in of(KeysKnown, seen) and of(Preempted, seen) == [("b",)]


def test_keys_of_the_prompt_are_never_withheld() -> None:
    run = Run()
    assert of(KeysKnown, run(arrive("a", 9), Keys("a", 0), Step())) == [("a", 0, 2)]
    assert of(KeysKnown, run(Step(3))) == []
    assert of(KeysKnown, run(Keys("a"), Step())) == [("a", 0, 3)]


def test_accepted_drafts_become_tokens_and_the_others_are_rejected() -> None:
    run = Run(draft_tokens=3)
    run(arrive("a", 5, 20), Step())
    seen = run(Step(accept=2))
    assert of(Computed, seen) == [("a", 6)], "drafts are not known yet"
    assert of(TokensKnown, seen) == [("a", 9)] and of(Rejected, seen) == [("a", 1)]
    assert of(Computed, run(Step(accept=9))) == [("a", 9)]
    seen = run(Step())
    assert of(TokensKnown, seen) == [("a", 14)] and of(Rejected, seen) == [("a", 3)]


def test_output_never_exceeds_its_limit() -> None:
    run = Run(draft_tokens=3)
    seen = run(arrive("a", 5, 3), Step(), Step(accept=3))
    assert of(TokensKnown, seen)[-1] == ("a", 8) and of(Finished, seen) == [("a", False)]
    assert run.planner is not None and run.planner.calls[-1] == ("finish", "a", 7, False)


@pytest.mark.parametrize(("steps", "computed"), [(0, 0), (1, 3), (2, 6)])
def test_abort_in_any_state(steps: int, computed: int) -> None:
    run = Run(tokens_per_step=3)
    run(arrive("a", 8), *[Step()] * steps)
    seen = run(Abort("a"), Abort("a"))
    assert of(Finished, seen) == [("a", True)]
    assert run.planner is not None and run.planner.calls[-1] == ("finish", "a", computed, True)
    seen = run(Step(), Drain())
    assert of(Retired, seen) == [("a",)]
    assert ("plan", "a", computed) in run.planner.calls
    assert not of(NotAtRest, seen)


def test_stop_ends_a_request_with_the_last_of_the_steps() -> None:
    run = Run()
    seen = run(arrive("a", 4, 50), Step(3, stop=("a", "unknown")))
    assert of(TokensKnown, seen)[-1] == ("a", 7) and of(Finished, seen) == [("a", False)]


def test_prompts_repeat_streams_and_other_requests() -> None:
    run = Run()
    run(Arrive("a", ((3, 5),), 2), Drain())
    # Two tokens more than a has: what it would go on to sample.
    assert of(Arrived, run(Arrive("b", (("a", 9), (1, 2))))) == [("b", 11)]
    assert stream_token(3, 1) == 3 + (3 * 7919 + 104729) % 491
    assert sampled_token("a", 5) == 3 + (crc32(b"a") * 31 + 35) % 491


def test_drain_that_does_not_reach_rest_says_what_is_held() -> None:
    run = Run(max_running=1)
    seen = run(arrive("a", 4, 50), arrive("b", 4), Drain(limit=3))
    assert [held for held, *_ in of(NotAtRest, seen)] == ["b: waiting; a: running"]
    assert isinstance(seen[-2], Checked)


def test_unknown_names_are_ignored_so_that_a_shorter_run_makes_sense() -> None:
    assert Run()(Abort("x"), Keys("x"), Step(), Drain()) == [Checked(0, 0)]


@pytest.mark.parametrize(
    "stimulus",
    [arrive("a", 4), Arrive("b", (("nobody", 3),)), arrive("b", 200)],
    ids=["twice", "empty", "too long"],
)
def test_senseless_arrivals_are_refused_and_change_nothing(stimulus: Arrive) -> None:
    run = Run(gpu_blocks=8)
    run(arrive("a", 4))
    with pytest.raises(BadStimulus) as caught:
        run(stimulus)
    assert "\n" not in str(caught.value)
    assert of(Finished, run(Drain())) == [("a", False)]


def test_prefix_caching_is_not_simulated() -> None:
    with pytest.raises(BadStimulus, match="gpu_prefix_caching"):
        Run(gpu_prefix_caching=True)


def test_planner_that_raises_is_a_death_not_a_crash() -> None:
    class Raises(Idle):
        def plan(self, r: str, computed: int) -> Offer | None:
            raise ZeroDivisionError("planner fell over")

    run = Run(Raises)
    assert isinstance(run.seen[0], Hello)
    seen = run(arrive("a", 4), Step())
    died = seen[-1]
    assert isinstance(died, Died) and isinstance(seen[-2], Computed)
    assert (died.error, died.message) == ("ZeroDivisionError", "planner fell over")
    with pytest.raises(BadStimulus, match="start it first"):
        run(Step())
    run.engine.start(Config(groups=(Group(4),)))
    run(Step())
    run.engine.close()
    run.engine.close()


def test_planner_that_cannot_be_built_dies_at_the_start() -> None:
    class Unbuildable(Idle):
        def __init__(self, config: Config) -> None:
            raise MemoryError("no room")

    assert isinstance(Run(Unbuildable).seen[-1], Died)
