"""Are lookups proved, by what is needed, and do the mistaken designs stay unproved?"""

from __future__ import annotations

import functools

import pytest
import z3

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run, Unmet
from kvoracle.model.scopes import LOOKUP_PARTS, SCOPES
from kvoracle.spec.properties.looking import LOOKING, LOOKING_LEMMAS
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import VARIANTS
from kvoracle.spec.variants.lookups import MISTAKEN

ENOUGH = 400_000
"""Solver effort: more than twice what any obligation of lookups needs."""

MACHINE = Machine(LOOKUP_PARTS, REFERENCE)
PROOF = Proof(MACHINE, effort=ENOUGH)


@functools.cache
def _reference() -> tuple[Obligation, ...]:
    return tuple(PROOF.obligations())


def test_lookups_are_proved_for_all_sizes() -> None:
    assert {str(o) for o in _reference() if o.answer.verdict != "proved"} == set()
    assert len(_reference()) == 198
    assert {p.name for p in LOOKING} < {o.property for o in _reference()}


@pytest.mark.parametrize("action", MACHINE.actions)
def test_hypotheses_about_lookups_are_not_contradictory(action: str) -> None:
    hypotheses = PROOF.hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 30_000).verdict != "proved"


NEEDED_FOR = {
    "PromiseIsWithin": "HitSound / in any state",
    "PromiseEnds": "HitSound / in any state",
    "PromiseIsKept": "HitSound / in any state",
    "VerdictIsOfNow": "HitMaximal / start",
}


def test_every_lemma_of_lookups_is_said_to_be_needed_for_something() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in LOOKING_LEMMAS}


@pytest.mark.parametrize("lemma", NEEDED_FOR)
def test_without_the_lemma_something_is_not_proved(lemma: str) -> None:
    assert PROOF.decide_one(NEEDED_FOR[lemma]).answer.verdict == "proved"
    assert PROOF.decide_one(NEEDED_FOR[lemma], without=lemma).answer.verdict != "proved"


UNPROVED_AT = {
    "minimum-of-groups": "PromiseIsKept / look_up",
    "group-ignored": "PromiseIsKept / look_up",
    "finer-than-span": "PromiseEnds / look_up",
    "all-marked-draft": "HitMaximal / look_up",
    "draft-asks-no-more": "ProvenTail / look_up",
    "tail-popped-late": "HitMaximal / look_up_nothing",
    "window-rounded-down": "PromiseIsKept / look_up",
    "window-taken-as-aligned": "PromiseIsKept / look_up",
    "hit-of-all-tokens": "PromiseIsWithin / look_up",
    "verdict-kept": "VerdictIsOfNow / preempt",
    "retry-for-ever": "EventuallyAnswered / in any state",
}


def test_every_mistaken_design_is_among_them() -> None:
    assert UNPROVED_AT.keys() == {v.name for v in MISTAKEN}


@pytest.mark.parametrize("name", UNPROVED_AT)
def test_a_mistaken_design_is_not_proved_where_its_rule_is_missing(name: str) -> None:
    proof = Proof(VARIANTS[name].whole(), effort=ENOUGH)
    assert proof.decide_one(UNPROVED_AT[name]).answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def _run(scope: str, variant: str | None = None) -> Run:
    chosen = SCOPES[scope]
    machine = VARIANTS[variant].machine(chosen) if variant else chosen.machine()
    program = Program(machine)
    return Run(program, chosen.constants, {
        k: v for k, v in chosen.sizes.items() if k in program.index_sorts})


def _stored(run: Run, *chunks: tuple[int, int]) -> Run:
    """A request of five tokens with all its keys, and these chunks (by group) in the pool."""
    run.step("arrive", r=0, t=0, p=5)
    for g in range(2):
        run.step("keys_arrive", r=0, g=g, n=2)
    for g, c in chunks:
        run.step("fill", t=0, g=g, c=c)
        run.step("filled", t=0, g=g, c=c)
    return run


def test_the_minimum_of_hits_is_no_common_position() -> None:
    """Attention holds chunk 0, the recurrent group the state behind chunk 1: nothing in common."""
    run = _stored(_run("lookups"), (0, 0), (1, 1))
    for n in range(1, 5):
        unmet = run.unmet("look_up", r=0, n=n)
        assert unmet is not None and unmet.name == "every group can go on there"
    run.step("look_up_nothing", r=0)
    wrong = _stored(_run("lookups", "minimum-of-groups"), (0, 0), (1, 1))
    wrong.step("look_up", r=0, n=2)


def test_a_later_state_serves_where_an_earlier_one_is_gone() -> None:
    run = _stored(_run("lookups"), (0, 0), (0, 1), (1, 1))
    run.step("look_up", r=0, n=4)


def test_the_longest_common_prefix_is_promised() -> None:
    run = _stored(_run("lookups"), (0, 0), (0, 1), (1, 0), (1, 1))
    with pytest.raises(Unmet, match="look_up: not met: nowhere further"):
        run.step("look_up", r=0, n=2)
    run.step("look_up", r=0, n=4)


def test_what_was_promised_is_not_evicted_until_it_is_taken_back() -> None:
    run = _stored(_run("lookups"), (0, 0), (0, 1), (1, 0), (1, 1))
    run.step("look_up", r=0, n=4)
    with pytest.raises(Unmet, match="drop: not met: may go"):
        run.step("drop", t=0, g=1, c=1)
    run.step("drop", t=0, g=1, c=0)  # the state before is not needed
    run.step("withdraw", r=0)
    run.step("drop", t=0, g=1, c=1)


def test_a_lookup_waits_for_what_is_being_stored() -> None:
    run = _stored(_run("lookups"))
    with pytest.raises(Unmet, match="something is on its way"):
        run.step("look_up_pending", r=0)
    run.step("fill", t=0, g=0, c=0)
    run.step("look_up_pending", r=0)
    run.step("look_up_pending", r=0)  # and again


def test_a_prefix_that_must_not_be_read_is_not_promised() -> None:
    run = _run("verdicts")
    run.step("arrive", r=0, t=0, p=3, m=0)
    run.step("keys_arrive", r=0, g=0, n=2)
    for c in range(2):
        run.step("fill", t=0, g=0, c=c)
        run.step("filled", t=0, g=0, c=c)
    unmet = run.unmet("look_up", r=0, n=1)
    assert unmet is not None and unmet.name == "every group can go on there"
    run.step("look_up_nothing", r=0)
    run.step("start", r=0, n=0)
