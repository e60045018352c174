"""Do the proofs prove, and only what is so?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import pytest
import z3

from kvoracle.model.machine import Machine, Part, View
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import ALL_PARTS, SCOPES
from kvoracle.model.terms import BOOL, Sort, Term
from kvoracle.spec.properties import EVERYTHING, PROPERTIES, Property
from kvoracle.spec.prove import obligations as prover
from kvoracle.spec.prove.division import FACTS, Fact
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import Translator, decide
from kvoracle.spec.variants import PLANNERS, VARIANTS

LITTLE = 60_000
"""Solver effort: three times what any obligation that can be proved needs, so that the others
are given up soon."""

MACHINE = Machine(ALL_PARTS, REFERENCE)


@functools.cache
def _reference() -> tuple[Obligation, ...]:
    return tuple(Proof(MACHINE, effort=LITTLE).obligations())


def unproved(decided: tuple[Obligation, ...] | list[Obligation]) -> set[str]:
    return {str(o) for o in decided if o.answer.verdict != "proved"}


# --- the reference design ----------------------------------------------------------------


def test_everything_is_proved_for_all_sizes() -> None:
    assert unproved(_reference()) == set()


def test_every_property_meets_every_action() -> None:
    shown = {(o.property, o.action) for o in _reference()}
    assert len(shown) == len(_reference())
    for name, prop in ((n, p) for n, p in EVERYTHING.items() if p.applies(MACHINE)):
        moments = {"in any state"} if prop.derived else set(MACHINE.actions)
        if not prop.is_step and not prop.derived:
            moments.add("at first")
        assert {action for p, action in shown if p == name} == moments
    written = {(f"{u.variable.name} in range", a.name)
               for a in MACHINE.actions.values() for u in a.updates}
    assert {(p, a) for p, a in shown if p.endswith(" in range")} == written
    assert {a for p, a in shown if p == "Division"} == {fact.name for fact in FACTS}


def test_what_is_kept_because_nothing_it_reads_changes_is_so() -> None:
    by_frame = {str(o) for o in _reference() if o.by_frame}
    assert "KeysEqBlocks / compute" in by_frame  # writes no job
    assert "KeyedOnly / keys_arrive" not in by_frame
    assert "NoHole / preempt" not in by_frame


@pytest.mark.parametrize("action", MACHINE.actions)
def test_hypotheses_are_not_contradictory(action: str) -> None:
    """An action that nothing allows would keep anything."""
    hypotheses = Proof(MACHINE).hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), LITTLE).verdict != "proved"


def test_a_contradiction_would_be_noticed() -> None:
    x = z3.Int("x")
    assert decide([x > 0, x < 0], z3.BoolVal(False)).verdict == "proved"
    assert decide([x > 0], x > 1).verdict == "refuted"


@pytest.mark.parametrize("lemma", [n for n, p in EVERYTHING.items()
                                   if p.lemma and p.applies(MACHINE)])
def test_every_lemma_is_needed(lemma: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {n: p for n, p in EVERYTHING.items() if n != lemma}
    monkeypatch.setattr(prover, "EVERYTHING", fewer)
    supported = EVERYTHING[lemma].supports
    left = Proof(MACHINE, [PROPERTIES[supported]], LITTLE).settled()
    assert any(o.startswith(f"{supported} / ") for o in unproved(left))


def test_a_property_that_is_not_asked_for_is_not_assumed(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(s: View, r: Thing) -> None:
        s.level[r] = s.top[r] + 1 - s.top[r]

    def top_is_1(s: View, r: Thing) -> Term:
        return s.top[r] == 1

    below, other = _property(_below), replace(_property(top_is_1), name="Other", lemma=False)
    below = replace(below, lemma=False)
    monkeypatch.setattr(prover, "EVERYTHING", {"Kept": below, "Other": other})
    machine = _toy(act)
    assert unproved(list(Proof(machine, [below, other], LITTLE).obligations())) == {
        "Other / at first"}
    assert unproved(list(Proof(machine, [below], LITTLE).obligations())) == {"Kept / act"}
    assert unproved(Proof(machine, [below, other], LITTLE).settled()) == {
        "Other / at first", "Kept / act"}


def test_a_property_by_itself_is_proved() -> None:
    proof = Proof(MACHINE, [PROPERTIES["NoHole"]], LITTLE)
    decided = list(proof.obligations())
    assert unproved(decided) == set()
    names = {o.property for o in decided}
    assert names & set(PROPERTIES) == {"NoHole"}


# --- broken designs ------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANNERS)
def test_a_broken_property_stays_unproved(name: str) -> None:
    chosen = VARIANTS[name]
    machine = chosen.machine(SCOPES[chosen.scope])
    wanted = [PROPERTIES[p] for p in chosen.breaks]
    left = {o.partition(" / ")[0] for o in unproved(Proof(machine, wanted, LITTLE).settled())}
    assert left & set(PROPERTIES) == set(chosen.breaks)


def test_the_other_properties_stay_proved() -> None:
    chosen = VARIANTS["rewind-at-clear"]
    machine = Machine(ALL_PARTS, chosen.design, chosen.overrides)
    left = {o.partition(" / ")[0] for o in unproved(Proof(machine, effort=LITTLE).settled())}
    assert left & set(PROPERTIES) == set(chosen.breaks)


def test_nothing_is_proved_from_what_is_not() -> None:
    """In `no-exclusion` a volatile chunk is held, so the lemma TailNotHeld fails; from it
    NoVolatileStore would follow.  Deciding anew without it shows that it does not."""
    machine = Machine(ALL_PARTS, VARIANTS["no-exclusion"].design)
    wanted = [PROPERTIES["NoVolatileStore"]]
    assert unproved(list(Proof(machine, wanted, LITTLE).obligations())) == {
        "TailNotHeld / plan_store"}
    assert unproved(Proof(machine, wanted, LITTLE).settled()) == {
        "TailNotHeld / plan_store", "NoVolatileStore / reject"}


# --- division -------------------------------------------------------------------------------


def _verdict(fact: Fact) -> str:
    translator = Translator(MACHINE, real_division=True)
    numbers = {v: translator.constant(v) for v in fact.variables}
    natural = [n >= 0 for n in numbers.values()]
    return decide(natural, translator.formula(fact.statement, numbers)).verdict


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_fact_about_division_holds_of_numbers(fact: Fact) -> None:
    from kvoracle.model.simplify import simplify
    from kvoracle.model.terms import Literal

    for x in range(12):
        for y in range(1, 6):
            for z in range(12):
                values = dict(zip(fact.variables, map(Literal, (x, y, z))))
                held = simplify(fact.statement, values, None)
                assert isinstance(held, Literal) and held.value is True


FALSE_FACTS: list[Callable[[Term, Term, Term], Term]] = [
    lambda x, y, z: x // y < x,
    lambda x, y, z: x // y <= z // y,
    lambda x, y, z: z // y <= x // y + 1,
    lambda x, y, z: 1 <= x // y,
]


@pytest.mark.parametrize("wrong", FALSE_FACTS, ids=["shrinks", "grows", "one-more", "positive"])
def test_a_false_fact_about_division_is_not_proved(
    wrong: Callable[[Term, Term, Term], Term]
) -> None:
    variables = FACTS[1].variables
    false = Fact("false", variables, wrong(*variables), ())
    assert _verdict(false) != "proved"


def test_a_false_fact_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = FACTS[1].variables
    false = Fact("false", (x, y), x // y < x, (x // y,))
    monkeypatch.setattr(prover, "FACTS", (*FACTS, false))
    assert "Division / false" in unproved(list(Proof(MACHINE, [], LITTLE).obligations()))


# --- what the solver is told of a machine -----------------------------------------------------

THING, COUNT = Sort("Thing"), Sort("Count")
Thing = Annotated[Term, THING]
Count = Annotated[Term, COUNT]
Truth = Annotated[Term, BOOL]


def _toy(*actions: Callable[..., None]) -> Machine:
    part = Part("toy", "")
    part.variable("level", (THING,), COUNT, "")
    part.variable("top", (THING,), COUNT, "")
    part.variable("lit", (THING,), BOOL, "")
    for action in actions:
        part.action("{r}")(action)
    return Machine((part,), None)


def _property(function: Callable[..., Term]) -> Property:
    return replace(EVERYTHING["CountsInOrder"], name="Kept", function=function, parts=())


def _below(s: View, r: Thing) -> Term:
    return s.level[r] <= s.top[r]


def _left(machine: Machine, function: Callable[..., Term],
          monkeypatch: pytest.MonkeyPatch) -> set[str]:
    kept = _property(function)
    monkeypatch.setattr(prover, "EVERYTHING", {"Kept": kept})
    return unproved(list(Proof(machine, [kept], LITTLE).obligations()))


def test_of_two_writes_the_later_stands_and_reads_see_the_state_before(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(s: View, r: Thing) -> None:
        s.level[r] = 9
        s.require("x", s.top[r] == s.level[r])
        s.level[r] = s.top[r]
        s.top[r] = s.level[r]

    def bad(s: View, r: Thing) -> None:
        s.level[r] = s.top[r]
        s.level[r] = 9

    assert _left(_toy(swap, bad), _below, monkeypatch) == {"Kept / bad"}


def test_a_bulk_change_reaches_what_meets_the_condition_only(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def good(s: View, r: Thing) -> None:
        s.level.where(lambda t: (t == r) & (s.top[t] >= 5), 5)

    def bad(s: View, r: Thing) -> None:
        s.level.where(lambda t: (t == r) | (s.top[t] >= 5), 5)

    assert _left(_toy(good, bad), _below, monkeypatch) == {"Kept / bad"}


def test_a_count_below_0_is_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    def good(s: View, r: Thing) -> None:
        s.require("x", s.level[r] > 0)
        s.level[r] = s.level[r] - 1

    def bad(s: View, r: Thing) -> None:
        s.level[r] = s.level[r] - 1

    left = _left(_toy(good, bad), lambda s: s.level[0] >= 0, monkeypatch)  # type: ignore[no-any-return]
    assert left == {"level in range / bad"} or left == {"level in range / bad", "Kept / bad"}


def test_a_property_false_at_first_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(s: View, r: Thing) -> None: ...

    def positive(s: View, r: Thing) -> Term:
        return s.level[r] > 0

    assert _left(_toy(nothing), positive, monkeypatch) == {"Kept / at first"}


def test_truths_may_be_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(s: View, r: Thing, b: Truth) -> None:
        s.require("x", b | (s.top[r] == 0))
        s.lit[r] = b

    def unlit_is_low(s: View, r: Thing) -> Term:
        return (s.lit[r] == 1) | (s.level[r] == 0)

    assert _left(_toy(act), unlit_is_low, monkeypatch) == {"Kept / act"}
