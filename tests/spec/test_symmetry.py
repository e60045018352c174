"""Are renamed states alike, and is one of them enough?"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Annotated, Any

import pytest

from kvoracle.model.machine import Machine, Part, View
from kvoracle.model.scopes import SCOPES, ImpossibleConfig, Scope
from kvoracle.model.terms import Sort, Term
from kvoracle.spec.explore import Limits, NoCompiler, search, toolchain
from kvoracle.spec.explore.bits import BitLayout
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.explore.layout import Layout
from kvoracle.spec.explore.native import NativeSearch
from kvoracle.spec.explore.symmetry import Renamings, with_none
from kvoracle.spec.properties import EVERYTHING, PROPERTIES, Property
from kvoracle.spec.variants import VARIANTS, Variant

SYMMETRY = Limits(symmetry=True)

POINTING = [n for n, where in SCOPES.items()
            if any(v.sort.symmetric for v in where.machine().state)
            and any(s.symmetric and where.size(s) > 1 for s in where.machine().sorts)]
"""The scopes in which variables point at requests, blocks, texts or workers, more than one."""

SMALL = ["fences", "ranks"]


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    try:
        toolchain.compiler()
    except NoCompiler as error:
        pytest.skip(str(error))


def _reached(backend: CompiledBackend) -> list[bytes]:
    seen, order = {backend.initial}, [backend.initial]
    for state in order:
        for _, _, after in backend.successors(state)[0]:
            if after not in seen:
                seen.add(after)
                order.append(after)
    return order


@functools.cache
def _whole(name: str) -> tuple[Machine, Scope, list[bytes]]:
    """The machine with none, and all that it reaches in the scope, by the Python reading."""
    where = SCOPES[name]
    machine = with_none(where.machine(), where)
    return machine, where, _reached(CompiledBackend(machine, where))


@pytest.mark.parametrize("name", SMALL)
def test_a_renamed_state_is_reached_too_and_one_of_each_is_searched(name: str) -> None:
    machine, where, reached = _whole(name)
    layout = Layout(machine, where)
    renamings, order = Renamings(layout), BitLayout(layout).order
    known = set(reached)
    stand = set()
    for state in reached:
        images = list(renamings.images(state))
        assert known.issuperset(images)
        stand.add(min((state, *images), key=order))
    reduced = search(where, limits=SYMMETRY)
    assert reduced.complete and reduced.distinct == len(stand) < len(reached)


@pytest.mark.parametrize("name", POINTING)
def test_what_points_at_none_is_never_looked_at(name: str) -> None:
    """The machine as it is written takes the same steps, along walks and where they might go."""
    where = SCOPES[name]
    machine = with_none(where.machine(), where)
    renamings = Renamings(Layout(machine, where))
    other, plain = CompiledBackend(machine, where), CompiledBackend(where.machine(), where)
    chance = random.Random(name)
    for _ in range(8):
        state = other.initial
        for _ in range(60):
            steps, cut = other.successors(state)
            named = [(action, values, renamings.named(after)) for action, values, after in steps]
            assert (named, cut) == plain.successors(renamings.named(state))
            if not steps:
                break
            state = chance.choice(steps)[2]


@pytest.mark.parametrize("name", POINTING)
def test_verdicts_and_situations_do_not_depend_on_symmetry(name: str) -> None:
    where = SCOPES[name]
    asked = list(EVERYTHING.values())
    whole, reduced = (search(where, properties=asked, limits=limits)
                      for limits in (None, SYMMETRY))
    assert reduced.complete and not reduced.violations and not whole.violations
    assert reduced.witnesses == whole.witnesses
    # What points at none is told from what points at 0, so it may take longer to see all of it.
    assert reduced.depth >= whole.depth and reduced.distinct < whole.distinct


CARELESS = {v.scope: v for v in reversed(VARIANTS.values())
            if v.scope in ("reuse", "loads", "pieces", "slots")}
"""A broken design for each of these scopes: each is compiled twice."""


@pytest.mark.parametrize("variant", CARELESS.values(), ids=lambda v: v.name)
def test_a_shortest_run_is_as_short_and_one_of_the_machine(variant: Variant) -> None:
    where, machine = SCOPES[variant.scope], variant.machine(SCOPES[variant.scope])
    asked = [PROPERTIES[n] for n in variant.breaks]
    whole, reduced = (search(where, variant, properties=asked, find_all=True, limits=limits)
                      for limits in (None, SYMMETRY))
    assert set(whole.violations) == set(reduced.violations) == set(variant.breaks)
    plain = CompiledBackend(machine, where)
    for name, violation in reduced.violations.items():
        assert len(violation.run) == len(whole.violations[name].run)
        before = state = plain.initial
        for step in violation.run:
            before, state = state, step.state
            assert (step.action, tuple(step.values.values()), state) \
                in plain.successors(before)[0]
        known = PROPERTIES[name]
        predicate = known.over_steps(machine, violation.run[-1].action) if known.is_step \
            else known.over_states(machine)
        pair = (before, state) if known.is_step else (state, None)
        assert not plain.check(predicate, every=True)(*pair)


THING = Sort("Thing", symmetric=True)
COUNT = Sort("Count")
Thing = Annotated[Term, THING]


def _toy() -> tuple[Machine, Scope]:
    part = Part("toy", "")
    part.variable("friend", (THING,), THING, "")
    part.variable("level", (THING,), COUNT, "")

    @part.action("{r}")
    def visit(s: View, r: Thing) -> None:
        s.require("low", s.level[s.friend[r]] == 0)
        s.level[s.friend[r]] = 1

    @part.action("{r} {q}")
    def befriend(s: View, r: Thing, q: Thing) -> None:
        s.friend[r] = q

    where = Scope("toy", "", (part,), {"Thing": 3, "Count": 2}, {})
    return where.machine(), where


def _property(name: str, function: Any) -> Property:
    return replace(EVERYTHING["CountsInOrder"], name=name, function=function, parts=())


def test_a_property_that_looks_at_what_means_nothing_is_refused() -> None:
    """At first nobody has a friend: that member 0 is everybody's is an accident of numbering."""
    def friends(s: View, r: Thing, q: Thing) -> Any:
        return (s.friend[r] != q) | (r == q) | (s.level[q] == 0)

    def strangers(s: View, r: Thing) -> Any:
        return s.friend[r] == s.friend[r]

    machine, where = _toy()
    fine = NativeSearch(machine, where, properties=[_property("Strangers", strangers)],
                        limits=SYMMETRY).run()
    assert fine.complete and fine.cut > 0, "whom nobody points at nobody visits"
    found = NativeSearch(machine, where, properties=[_property("Friends", friends)],
                         limits=SYMMETRY).run().violations["Friends"]
    assert [s.action for s in found.run] == ["befriend", "visit"]


def test_a_step_that_only_none_allows_is_refused() -> None:
    part = Part("toy", "")
    part.variable("friend", (THING,), THING, "")
    part.variable("level", (THING,), COUNT, "")

    @part.action("{r} {q}")
    def rise(s: View, r: Thing, q: Thing) -> None:
        s.require("a stranger", (s.friend[r] != r) & (s.friend[r] != q))
        s.level[r] = 1

    def low(s: View, r: Thing) -> Any:
        return s.level[r] == 0

    where = Scope("toy", "", (part,), {"Thing": 2, "Count": 2}, {})
    with pytest.raises(ImpossibleConfig, match="rise looks at what points at no member"):
        NativeSearch(where.machine(), where, properties=[_property("Low", low)],
                     limits=SYMMETRY).run()
