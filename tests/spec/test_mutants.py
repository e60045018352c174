"""Mutants: each is what it says, all of them compiled into one search behave as they do alone."""

from __future__ import annotations

import pytest

from kvoracle.model.machine import Action, Where
from kvoracle.model.scopes import SCOPES, scope
from kvoracle.model.terms import show
from kvoracle.spec.explore.breadth_first import explore
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.mutants.alike import proved_same
from kvoracle.spec.mutants.kill import Fate, Outcome, kill_table
from kvoracle.spec.mutants.operators import folded, mutants
from kvoracle.spec.mutants.reasons import LESS, SAME, Reason, explain
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.prove.obligations import Comparison, Proof


@pytest.fixture(scope="module")
def seed() -> dict[str, Outcome]:
    return {o.name: o for o in kill_table(["seed"], jobs=1)}


@pytest.mark.parametrize("name", SCOPES)
def test_every_mutant_has_a_name_of_its_own_and_changes_one_place(name: str) -> None:
    machine = folded(scope(name).machine())
    made = mutants(machine)
    assert len({m.name for m in made}) == len(made)
    for m in made:
        before, after = machine.actions[m.action], m.of(machine).actions[m.action]
        assert len(_differences(before, after)) == 1, m.name
        others = {n: a for n, a in m.of(machine).actions.items() if n != m.action}
        assert others == {n: a for n, a in machine.actions.items() if n != m.action}


def _differences(before: Action, after: Action) -> list[str]:
    """The guards and changes that read otherwise."""
    def read(action: Action) -> list[str]:
        texts = [show(r.term) for r in action.requirements]
        for u in action.updates:
            where = show(u.condition) if isinstance(u, Where) else ""
            texts.append(f"{show(u.value)} if {where}")
        return texts

    return [b for b, a in zip(read(before), read(after), strict=True) if b != a]


def test_compiled_into_one_search_mutants_behave_as_they_do_alone(
        seed: dict[str, Outcome]) -> None:
    where = scope("seed")
    machine = folded(where.machine())
    for m in mutants(machine)[::9]:
        alone = explore(
            CompiledBackend(m.of(machine), where), m.of(machine), where,
            properties=[p for p in EVERYTHING.values() if p.applies(machine)])
        verdict = seed[m.name].trials[0].verdict
        assert set(verdict.broken) == set(alone.violations), m.name
        if not verdict.broken:
            counts = verdict.distinct, verdict.generated
            assert counts == (alone.distinct, alone.generated), m.name


@pytest.mark.parametrize(("mutant", "killer"), [
    ("plan_store: 'storable': not required", "KeyedOnly"),
    ("plan_store: 'planned for': without life[r] = finished", "EventuallyStored"),
    ("plan_store: job_blocks: not changed", "KeysEqBlocks"),
    ("retire: cursor: not changed", "NoHole"),
])
def test_what_the_seed_is_about_is_noticed(
        seed: dict[str, Outcome], mutant: str, killer: str) -> None:
    assert killer in seed[mutant].killers


def test_a_mutant_that_takes_a_way_to_end_loses_a_situation(seed: dict[str, Outcome]) -> None:
    lost = [o for o in seed.values() if o.fate == "witness"]
    assert any(o.action == "finish" for o in lost)
    assert all(o.killers for o in lost)


def _survivor(name: str, fate: Fate) -> Outcome:
    class Survivor(Outcome):
        @property
        def fate(self) -> Fate:
            return fate

    return Survivor(name, name.split(":")[0], "drop")


def test_survivors_are_sorted_by_the_first_reason_that_fits() -> None:
    one, other, less = (_survivor("finish: 'runs': not required", "other"),
                        _survivor("start: text[r]: not changed", "same"),
                        _survivor("abort: 'lives': without x", "less"))
    known = Reason("why", ("finish: *",))
    stale = Reason("gone", ("nothing: *",))
    same = _survivor("start: life: not changed", "same")
    explained = explain([one, other, less, same], [known, stale], lambda o: o is same)
    assert explained.groups == [("why", [one]), (LESS, [less]), (SAME, [same])]
    assert explained.unexplained == [other]
    assert explained.stale == [stale]


def test_what_is_proved_the_same_changes_nothing_in_a_search(seed: dict[str, Outcome]) -> None:
    outcome = seed["keys_arrive: 'known': not required"]
    assert proved_same(outcome) and outcome.fate == "same"
    assert not proved_same(seed["finish: 'runs': not required"])


def test_brackets_in_a_reason_are_brackets() -> None:
    reason = Reason("why", ("start: text[r]: *",))
    assert reason.fits(_survivor("start: text[r]: not changed", "same"))
    assert not reason.fits(_survivor("start: textr: not changed", "same"))


def test_a_mutant_is_proved_to_be_the_machine_written_otherwise() -> None:
    machine = folded(scope("seed").machine())
    proof = Proof(machine)
    by_name = {m.name: m for m in mutants(machine)}

    def compared(name: str) -> Comparison:
        m = by_name[name]
        return proof.compare(m.of(machine).actions[m.action])

    assert compared("keys_arrive: 'known': not required").same
    assert not compared("finish: 'runs': not required").no_more
    assert compared("finish: 'runs': not required").no_less
    assert not compared("abort: 'lives': without life[r] = waiting").no_less
    assert compared("compute: computed: not changed").differing == ("computed",)
