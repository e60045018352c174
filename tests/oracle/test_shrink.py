"""Is the smallest run really small, always the same, and still the same failure?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvoracle.oracle.engines.machine import machine_engine
from kvoracle.oracle.events import (
    Abort,
    AnyStimulus,
    Arrive,
    Config,
    Died,
    Drain,
    Group,
    Keys,
    Refuse,
    Reset,
    Step,
    encode,
)
from kvoracle.oracle.judge import Finding
from kvoracle.oracle.session import Outcome, play
from kvoracle.oracle.shrink import (
    FailureKey,
    NotRepeatable,
    Shrunk,
    failure_key,
    find_integer,
    shrink,
    size,
)
from kvoracle.spec.variants import PLANNERS

RandomRun = Callable[..., tuple[Config, list[AnyStimulus]]]

PLAIN = '{"groups":[{"tokens_per_block":4}]}'
DRAFT = '{"groups":[{"tokens_per_block":4,"draft":true}]}'


def lines(shrunk: Shrunk | Outcome) -> list[str]:
    outcome = shrunk.outcome if isinstance(shrunk, Shrunk) else shrunk
    return [encode(outcome.config), *map(encode, outcome.stimuli)]


# --- the broken designs -----------------------------------------------------------------

LATE_KEY = [
    PLAIN,
    '{"do":"arrive","r":"a","prompt":[[0,3]]}',
    '{"do":"keys","r":"a","upto":0}',
    '{"do":"step","n":2}',
]
SECOND_STEP = [DRAFT, '{"do":"arrive","r":"a","prompt":[[0,3]]}', '{"do":"step","n":2}']

SMALLEST = {
    "no-key-bound": LATE_KEY,
    "no-block-bound": [
        PLAIN,
        '{"do":"arrive","r":"a","prompt":[[0,4]]}',
        '{"do":"abort","r":"a"}',
        '{"do":"step"}',
    ],
    "rewind-at-clear": LATE_KEY,
    "no-token-bound": SECOND_STEP,
    "counts-last-token": [
        PLAIN, '{"do":"arrive","r":"a","prompt":[[0,3]],"output":1}', '{"do":"step","n":2}'],
    "cursor-keeps-tail": SECOND_STEP,
    "cursor-ignores-keys": LATE_KEY,
    "cursor-falls-back": [
        DRAFT, '{"do":"arrive","r":"a","prompt":[[0,4]]}', '{"do":"step","n":2}'],
    "advance-on-refusal": [
        PLAIN,
        '{"do":"arrive","r":"a","prompt":[[0,4]]}',
        '{"do":"refuse"}',
        '{"do":"step"}',
    ],
    "no-exclusion": SECOND_STEP,
    "prefill-tail-excluded": [
        DRAFT, '{"do":"arrive","r":"a","prompt":[[0,4]]}', '{"do":"step"}'],
    "exclusion-never-lifted": [
        DRAFT, '{"do":"arrive","r":"a","prompt":[[0,3]],"output":2}', '{"do":"step","n":3}'],
}

ACCEPTANCE_ONLY = ("no-token-bound", "no-exclusion")
"""Designs whose pinned run costs acceptance of drafts only."""


@pytest.mark.parametrize("name", SMALLEST)
def test_whatever_run_showed_a_broken_design_the_smallest_is_exactly_this(
    name: str, random_run: RandomRun
) -> None:
    engine = machine_engine(PLANNERS[name])
    wanted = (PLANNERS[name].breaks[0], name in ACCEPTANCE_ONLY)
    found = 0
    for seed in range(1, 12):
        outcome = play(engine, *random_run(seed))
        finding = outcome.finding
        if finding is None or (finding.property, finding.acceptance) != wanted:
            continue
        shrunk = shrink(engine, outcome)
        assert lines(shrunk) == SMALLEST[name], f"seed {seed}"
        assert not shrunk.exhausted
        assert shrunk.outcome.finding is not None
        assert failure_key(shrunk.outcome.finding) == failure_key(finding)
        found += 1
        if found == 3:
            return
    pytest.fail(f"only {found} runs show {wanted}")


def test_every_broken_design_has_its_smallest_run() -> None:
    assert set(SMALLEST) == set(PLANNERS)


def test_a_long_run_before_the_failing_request_costs_one_attempt() -> None:
    """An attempt takes as long as its run does, so what does not matter is left at once."""
    engine = machine_engine(PLANNERS["no-key-bound"])
    run: list[AnyStimulus] = []
    for i in range(150):
        run += [Arrive(f"before {i}", ((i, 9),), 4), Step(), Step(done=0), Step(newest=True)]
    run += [Arrive("late", ((200, 7),)), Keys("late", 0), Step(3)]
    outcome = play(engine, Config((Group(4),)), run)
    seen: list[int] = []
    shrunk = shrink(engine, outcome, progress=lambda attempts, stimuli: seen.append(stimuli))
    assert seen[0] == 3
    assert lines(shrunk) == LATE_KEY
    assert shrunk.attempts_used < 40


# --- synthetic failures: the smallest run with this property is exactly this ------------------

Given = Sequence[AnyStimulus]


def count(kind: type, given: Given) -> int:
    return sum(isinstance(s, kind) for s in given)


def steps(given: Given) -> int:
    return sum(s.n for s in given if isinstance(s, Step))


def first_prompt(given: Given) -> int:
    return next((sum(n for _, n in s.prompt) for s in given if isinstance(s, Arrive)), 0)


def aborted_after_ten_steps(config: Config, given: Given) -> bool:
    return any(
        isinstance(s, Abort) and steps(given[:i]) >= 10
        and any(isinstance(a, Arrive) and a.r == s.r for a in given[:i])
        for i, s in enumerate(given))


def two_share_a_prompt(config: Config, given: Given) -> bool:
    first = [s.prompt[0] for s in given if isinstance(s, Arrive)]
    return any(a[0] == b[0] and min(a[1], b[1]) >= 4
               for i, a in enumerate(first) for b in first[:i])


def reset_after_refusal(config: Config, given: Given) -> bool:
    at = [i for i, s in enumerate(given) if isinstance(s, Refuse)]
    return bool(at) and any(isinstance(s, Reset) for s in given[at[0]:])


def no_reset_without_abort(config: Config, given: Given) -> bool:
    """Neither can be left out alone."""
    return count(Reset, given) == count(Abort, given) and count(Arrive, given) >= 1


A, B, C = (f'{{"do":"arrive","r":"{r}","prompt":[[0,1]]}}' for r in "abc")

SYNTHETIC: dict[str, tuple[Callable[[Config, Given], bool], list[str]]] = {
    "three arrivals": (lambda config, given: count(Arrive, given) == 3, [PLAIN, A, B, C]),
    "twenty steps": (
        lambda config, given: steps(given) >= 20, [PLAIN, '{"do":"step","n":20}']),
    "a prompt of eleven": (
        lambda config, given: first_prompt(given) >= 11,
        [PLAIN, '{"do":"arrive","r":"a","prompt":[[0,11]]}']),
    "a slow transfer": (
        lambda config, given: any(isinstance(s, Step) and s.done is not None for s in given),
        [PLAIN, '{"do":"step","done":0}']),
    "two options of one step": (
        lambda config, given: any(
            isinstance(s, Step) and s.accept >= 1 and s.newest for s in given),
        [PLAIN, '{"do":"step","newest":true,"accept":1}']),
    "a drain": (
        lambda config, given: any(isinstance(s, Drain) for s in given),
        [PLAIN, '{"do":"drain"}']),
    "an abort after ten steps": (
        aborted_after_ten_steps,
        [PLAIN, A, '{"do":"step","n":10}', '{"do":"abort","r":"a"}']),
    "a shared prompt": (
        two_share_a_prompt,
        [PLAIN, '{"do":"arrive","r":"a","prompt":[[0,4]]}',
         '{"do":"arrive","r":"b","prompt":[[0,4]]}']),
    "a reset after a refusal": (
        reset_after_refusal, [PLAIN, '{"do":"refuse"}', '{"do":"reset"}']),
    "as many resets as aborts": (no_reset_without_abort, [PLAIN, A]),
    "two groups": (
        lambda config, given: len(config.groups) > 1 and count(Arrive, given) > 0,
        [PLAIN.replace("]", ',{"tokens_per_block":4}]'), A]),
    "drafts": (
        lambda config, given: config.draft_tokens > 0 and count(Arrive, given) > 0,
        [PLAIN[:-1] + ',"draft_tokens":1}', A]),
    "a small budget": (
        lambda config, given: config.tokens_per_step < 50 and count(Arrive, given) > 0,
        [PLAIN[:-1] + ',"tokens_per_step":1}', A]),
}


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_smallest_run_with(
    name: str, fake_engine: type[Any], random_run: RandomRun
) -> None:
    predicate, smallest = SYNTHETIC[name]
    found = 0
    for seed in range(8):
        engine = fake_engine(predicate)
        outcome = play(engine, *random_run(seed, 300))
        if outcome.finding is None:
            continue
        shrunk = shrink(engine, outcome)
        assert lines(shrunk) == smallest, f"seed {seed}"
        assert shrunk.attempts_used < 200
        found += 1
    assert found >= 3


def test_a_failure_of_the_start_needs_no_stimuli(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: True)
    engine.start = lambda config: [Died("Broken", at="here")]
    shrunk = shrink(engine, play(engine, Config((Group(16), Group(8, True)), 3), [Step()]))
    assert lines(shrunk) == [PLAIN]


def test_how_steps_are_split_is_kept_where_it_matters(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: count(Step, given) == 5)
    shrunk = shrink(engine, play(engine, Config((Group(4),)), [Step()] * 100))
    assert lines(shrunk) == [PLAIN, *['{"do":"step"}'] * 5]


def test_what_a_prompt_repeats_of_a_deleted_request_is_written_out(fake_engine: type[Any]) -> None:
    def same_tokens(config: Config, given: Given) -> bool:
        """What the second prompt says, by name or written out."""
        prompts = [s.prompt for s in given if isinstance(s, Arrive)]
        return (("first", 7), (9, 1)) in prompts or ((7, 5), (8, 2), (9, 1)) in prompts

    engine = fake_engine(same_tokens)
    run = [Arrive("first", ((7, 5), (8, 4))), Step(), Arrive("second", (("first", 7), (9, 1)))]
    assert lines(shrink(engine, play(engine, Config((Group(4),)), run))) == [
        PLAIN, '{"do":"arrive","r":"a","prompt":[[7,5],[8,2],[9,1]]}']


def test_no_proposal_speaks_of_requests_that_never_arrive(
    fake_engine: type[Any], random_run: RandomRun
) -> None:
    """vLLM's child takes that for bad input (``docs/protocol.md``)."""
    bad: list[AnyStimulus] = []

    def watches(config: Config, given: Given) -> bool:
        s, named = given[-1], set()
        if isinstance(s, (Keys, Abort)):
            named = {s.r}
        elif isinstance(s, Step):
            named = set(s.stop)
        elif isinstance(s, Arrive):
            named = {source for source, _ in s.prompt if isinstance(source, str)}
        if not named <= {s.r for s in given if isinstance(s, Arrive)}:
            bad.append(s)
        return steps(given) >= 30 and count(Arrive, given) >= 4 and count(Abort, given) >= 1

    engine = fake_engine(watches)
    for seed in range(6):
        shrink(engine, play(engine, *random_run(seed, 200)))
    assert bad == []


def test_a_failure_without_any_sense_comes_down_to_a_run_that_fails(
    fake_engine: type[Any], random_run: RandomRun
) -> None:
    """A hash of what was given decides: whatever a pass believes of failures is wrong here."""
    tried = 0
    for seed in range(16):
        rng = random.Random(seed)
        salt, modulus = rng.randrange(1 << 30), rng.choice([3, 17, 60])

        def fails(config: Config, given: Given, salt: int = salt, modulus: int = modulus) -> bool:
            text = "".join(map(encode, given[-3:])) + encode(config)
            return len(given) > 3 and (sum(text.encode()) * 31 + salt) % modulus == 0

        engine = fake_engine(fails)
        outcome = play(engine, *random_run(seed, 80))
        if outcome.finding is None:
            continue
        shrunk = shrink(engine, outcome, attempts=200).outcome
        again = play(engine, shrunk.config, shrunk.stimuli)
        assert (again.finding, again.stimuli) == (shrunk.finding, shrunk.stimuli)
        assert size(shrunk.config, shrunk.stimuli) <= size(outcome.config, outcome.stimuli)
        tried += 1
    assert tried > 8


# --- how it is done ---------------------------------------------------------------------------


def test_the_same_failure_shrinks_to_the_same_run_in_the_same_number_of_attempts(
    random_run: RandomRun
) -> None:
    engine = machine_engine(PLANNERS["cursor-ignores-keys"])
    outcome = play(engine, *random_run(1))
    one, two = shrink(engine, outcome), shrink(engine, outcome)
    assert lines(one) == lines(two)
    assert one.attempts_used == two.attempts_used


def test_ten_thousand_stimuli_take_few_attempts(fake_engine: type[Any]) -> None:
    class Counting(fake_engine):  # type: ignore[misc,valid-type]
        """The predicate is asked once a stimulus: kept cheap by counting."""

        def start(self, config: Config) -> list[Any]:
            self.steps = self.aborts = 0
            seen: list[Any] = super().start(config)
            return seen

    def fails(config: Config, given: Given) -> bool:
        s = given[-1]
        engine.steps += s.n if isinstance(s, Step) else 0
        engine.aborts += isinstance(s, Abort)
        return isinstance(s, Reset) and engine.aborts > 0 and engine.steps >= 9_000

    engine = Counting(fails)
    rng = random.Random(1)
    run: list[AnyStimulus] = [Arrive("x", ((3, 40),)), Abort("x")]
    run += [Step(done=rng.choice([0, None])) for _ in range(9_998)]
    outcome = play(engine, Config((Group(8),)), [*run, Reset()])
    shrunk = shrink(engine, outcome)
    assert lines(shrunk) == [
        PLAIN, A, '{"do":"abort","r":"a"}', '{"do":"step","n":9000}', '{"do":"reset"}']
    assert shrunk.attempts_used < 100


def test_no_attempt_is_made_twice(fake_engine: type[Any]) -> None:
    played: list[str] = []

    class Noting(fake_engine):  # type: ignore[misc,valid-type]
        def send_all(self, stimuli: Given) -> list[list[Any]]:
            played.append(encode(self.config) + "".join(map(encode, stimuli)))
            answers: list[list[Any]] = super().send_all(stimuli)
            return answers

    engine = Noting(lambda config, given: steps(given) >= 7 and count(Arrive, given) > 1)
    run = [Arrive("x", ((0, 9),)), Step(3), Arrive("y", (("x", 4),)), Step(9), Step(9)]
    outcome = play(engine, Config((Group(4),)), run)
    played.clear()
    shrunk = shrink(engine, outcome)
    # The run as it was is played once more, to see whether it repeats.
    assert len(played) == len(set(played)) == shrunk.attempts_used + 1


def test_a_failure_that_does_not_repeat_is_reported_and_not_shrunk(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: engine.starts == 1 and count(Step, given) > 2)
    outcome = play(engine, Config((Group(4),)), [Step()] * 5)
    with pytest.raises(NotRepeatable, match=r"does not repeat.*not at all") as caught:
        shrink(engine, outcome)
    assert caught.value.got is None
    assert caught.value.expected == FailureKey(
        "crash", "NoCrash", False, "Synthetic", "test.py:1 in rule")
    assert engine.starts == 2


def test_a_failure_that_repeats_in_another_way_is_not_shrunk(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: count(Step, given) > 2)
    outcome = play(engine, Config((Group(4),)), [Step()] * 5)
    engine.error = "Other"
    with pytest.raises(NotRepeatable, match=r"in another way .*Other"):
        shrink(engine, outcome)


def test_a_run_that_makes_no_sense_any_more_does_not_repeat(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: count(Step, given) > 2)
    outcome = play(engine, Config((Group(4),)), [Step()] * 5)
    engine.refuses = lambda config, given: True
    with pytest.raises(NotRepeatable, match="because of its stimuli"):
        shrink(engine, outcome)


def test_stimuli_that_make_no_sense_do_not_fail(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: steps(given) >= 3,
                         refuses=lambda config, given: first_prompt(given) < 5)
    outcome = play(engine, Config((Group(4),)), [Arrive("a", ((0, 30),)), Step(8)])
    assert lines(shrink(engine, outcome)) == [
        PLAIN, '{"do":"arrive","r":"a","prompt":[[0,5]]}', '{"do":"step","n":3}']


def test_a_run_that_did_not_fail_cannot_be_shrunk(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: False)
    with pytest.raises(ValueError, match="did not fail"):
        shrink(engine, play(engine, Config((Group(4),)), [Step()]))


def test_the_best_run_so_far_is_kept_when_attempts_run_out(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: count(Arrive, given) >= 2 and steps(given) >= 50)
    run = [s for i in range(60) for s in (Arrive(f"r{i}", ((i, 9),)), Step())]
    outcome = play(engine, Config((Group(4),)), run)
    shrunk = shrink(engine, outcome, attempts=25)
    assert (shrunk.attempts_used, shrunk.exhausted) == (25, True)
    assert len(shrunk.outcome.stimuli) < len(outcome.stimuli)
    again = play(engine, shrunk.outcome.config, shrunk.outcome.stimuli)
    assert again.finding == shrunk.outcome.finding
    assert shrink(engine, outcome, attempts=0).outcome.stimuli == outcome.stimuli


def test_progress_is_told_after_each_attempt(fake_engine: type[Any]) -> None:
    engine = fake_engine(lambda config, given: steps(given) >= 5)
    told: list[tuple[int, int]] = []
    shrunk = shrink(engine, play(engine, Config((Group(4),)), [Step(2), Reset(), Step(9)]),
                    progress=lambda attempts, stimuli: told.append((attempts, stimuli)))
    assert [attempts for attempts, _ in told] == list(range(1, shrunk.attempts_used + 1))
    assert told[-1][1] == len(shrunk.outcome.stimuli)


# --- the definitions ------------------------------------------------------------------------------


def test_findings_are_the_same_failure_whoever_it_happened_to() -> None:
    one = Finding("violation", "NoHole", "chunk 3 of request x ...", 7, "x")
    assert failure_key(one) == failure_key(Finding("violation", "NoHole", "chunk 0 ...", 2, "y"))
    others = [
        Finding("violation", "KeyedOnly", "", 7),
        Finding("violation", "NoHole", "", 7, acceptance=True),
        Finding("departure", "", "", 7, rule="start: waits"),
        Finding("departure", "", "", 7, rule="start: one token is left to compute"),
        Finding("crash", "NoCrash", "", 7, died=Died("AssertionError", at="a.py:1")),
        Finding("crash", "NoCrash", "", 7, died=Died("AssertionError", at="a.py:2")),
        Finding("crash", "NoCrash", "", 7, died=Died("IndexError", at="a.py:1")),
        Finding("crash", "NoCrash", "", 7, died=Died("IndexError", at="a.py:1"), like="no-fence"),
    ]
    assert len({failure_key(f) for f in [one, *others]}) == len(others) + 1


def test_crashes_are_the_same_whatever_values_the_message_quotes() -> None:
    one = Finding("crash", "NoCrash", "", 1, died=Died("E", "3 != 4", "a.py:1", "pid 17"))
    two = Finding("crash", "NoCrash", "", 5, died=Died("E", "5 != 6", "a.py:1", "pid 18"))
    assert failure_key(one) == failure_key(two)


def test_simpler_is_fewer_stimuli_then_cheaper_ones_then_the_text() -> None:
    plain = Config((Group(4),))
    ascending: list[tuple[Config, list[AnyStimulus]]] = [
        (plain, []),
        (plain, [Reset()]),
        (plain, [Step()]),
        (plain, [Step(done=0)]),
        (plain, [Arrive("a", ((0, 7),))]),
        (plain, [Step(n=2)]),
        (plain, [Arrive("b", ((0, 7),))]),
        (plain, [Arrive("a", ((0, 7),), 1)]),
        (plain, [Arrive("a", ((0, 7),), 2)]),
        (plain, [Arrive("a", ((0, 5), (0, 2)))]),
        (Config((Group(16),)), [Step()]),
        (Config((Group(4), Group(4))), [Step()]),
        (plain, [Step(24)]),
        (plain, [Drain()]),
        (plain, [Step(26)]),
        (plain, [Keys("a", None), Reset()]),
        (plain, [Keys("a", 0), Reset()]),
        (plain, [Keys("a", 1), Reset()]),
    ]
    sizes = [size(config, run) for config, run in ascending]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 8, 100, 1000])
def test_find_integer_takes_logarithmically_many_calls(n: int) -> None:
    calls: list[int] = []

    def holds(i: int) -> bool:
        calls.append(i)
        return i <= n

    assert find_integer(holds) == n
    assert len(calls) <= 4 + 2 * n.bit_length()
