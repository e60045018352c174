"""Does the search in C see what the search in Python sees, and end, stop and go on as it should?"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from searched import told

from kvoracle.model.machine import Machine, Part, View
from kvoracle.model.scopes import CORE, LARGE, SCOPES, ImpossibleConfig, Scope
from kvoracle.model.terms import (
    BOOL,
    Sort,
    Term,
    enumeration,
    exists,
    forall,
    implies,
    ite,
    lift,
    maximum,
    minimum,
    not_,
)
from kvoracle.spec.explore import (
    COMPILED,
    CheckpointRefused,
    Exploration,
    Limits,
    NoCompiler,
    OutOfMemory,
    packed,
    search,
    toolchain,
)
from kvoracle.spec.explore.bits import BitLayout
from kvoracle.spec.explore.breadth_first import explore
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.explore.layout import Layout
from kvoracle.spec.explore.native import NativeSearch
from kvoracle.spec.explore.reference import NegativeValue
from kvoracle.spec.properties import EVERYTHING, PROPERTIES, Property, Witness
from kvoracle.spec.variants import PLANNERS, VARIANTS, Variant

pytestmark = pytest.mark.usefixtures("compiler")


def both(scope: Scope, variant: Variant | None = None, **how: Any) -> Exploration:
    """The search in C, once it is the same as the search in Python."""
    quick = search(scope, variant, COMPILED, **how)
    assert told(quick) == told(search(scope, variant, "python", **how))
    return quick


# --- the same as in Python --------------------------------------------------------------------


PYTHON_STATES = 30_000
"""Of each scope, as far as Python searches: some seconds. `test_explore` has the whole counts."""


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_is_searched_as_in_python(name: str) -> None:
    found = both(SCOPES[name], properties=list(EVERYTHING.values()), max_states=PYTHON_STATES)
    assert not found.violations
    assert found.complete or found.distinct >= PYTHON_STATES


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda v: v.name)
def test_the_first_violation_is_that_of_python(variant: Variant) -> None:
    found = both(SCOPES[variant.scope], variant)
    assert (found.violation is not None) == bool(variant.breaks)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda v: v.name)
def test_all_violations_are_those_of_python(variant: Variant) -> None:
    found = both(SCOPES[variant.scope], variant, find_all=True, max_states=8_000)
    if variant.name in PLANNERS:
        assert set(found.violations) == set(variant.breaks)
    else:  # the whole search is another test's
        assert set(found.violations) <= set(variant.breaks)


@pytest.mark.parametrize("most", [1, 2, 6, 7, 333, 5_074, 5_075, 5_076])
def test_a_search_stops_where_python_stops(most: int) -> None:
    found = both(SCOPES["seed"], VARIANTS["rewind-at-clear"], find_all=True, max_states=most)
    assert found.stopped == "max_states"


@pytest.mark.parametrize("most", range(50, 70))
def test_a_violation_and_the_limit_come_in_the_order_of_python(most: int) -> None:
    both(SCOPES["seed"], VARIANTS["rewind-at-clear"], max_states=most)


def test_threads_change_nothing() -> None:
    where = SCOPES["draft"]
    found = [
        told(search(where, VARIANTS["cursor-falls-back"], limits=Limits(threads=n)))
        for n in (1, 2, 3, 5)
    ]
    assert found[0]["violations"]
    assert found == found[:1] * 4


def test_states_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, weak = "return h ^ h >> 29;", "return h & ~(uint64_t)0xFFFFFFFF;"

    def weakened(source: str) -> ctypes.CDLL:
        assert plain in source
        return toolchain.library(source.replace(plain, weak))

    whole = search(SCOPES["groups"])
    monkeypatch.setattr("kvoracle.spec.explore.native.library", weakened)
    assert told(search(SCOPES["groups"])) == told(whole)


def test_the_compiled_search_is_the_default() -> None:
    assert search(SCOPES["seed"], max_states=10).backend == COMPILED


# --- toys: what the machines of the scopes do not do -------------------------------------------

THING = Sort("Thing", symmetric=True)
PLACE = Sort("Place")
COUNT = Sort("Count")
COLOUR = enumeration("Colour", "red", "green", "blue")
Thing = Annotated[Term, THING]
Place = Annotated[Term, PLACE]
Count = Annotated[Term, COUNT]
Colour = Annotated[Term, COLOUR]
Truth = Annotated[Term, BOOL]


def _toy_part() -> Part:
    part = Part("toy", "")
    part.variable("level", (THING,), COUNT, "")
    part.variable("at", (THING, PLACE), COUNT, "", initial=1)
    part.variable("clock", (), COUNT, "")
    part.variable("colour", (THING,), COLOUR, "")
    part.variable("lit", (PLACE,), BOOL, "")
    part.variable("shelf", (PLACE,), COUNT, "")
    part.constant("width", (PLACE,), COUNT, "", initial=1)
    return part


def _toy(actions: Iterable[Callable[..., None]], things: int = 2, count: int = 4,
         width: tuple[int, ...] = (2, 3, 9)) -> tuple[Machine, Scope]:
    part = _toy_part()
    for action in actions:
        part.action("{r}")(action)
    sizes = {"Thing": things, "Place": len(width), "Count": count}
    where = Scope("toy", "", (part,), sizes, {"width": width})
    return where.machine(), where


def _property(name: str, function: Callable[..., Any], is_step: bool = False,
              *witnesses: Witness) -> Property:
    return replace(EVERYTHING["CountsInOrder"], name=name, function=function, parts=(),
                   is_step=is_step, witnesses=witnesses)


def _never_negative(s: View, r: Thing) -> Term:
    return s.level[r] >= 0


ALWAYS = _property("Always", _never_negative)


def _searched(machine: Machine, where: Scope, *properties: Property, **how: Any) -> Exploration:
    chosen = properties or (ALWAYS,)
    quick = NativeSearch(machine, where, properties=chosen, **how).run()
    plain = explore(CompiledBackend(machine, where), machine, where, properties=chosen, **how)
    assert told(quick) == told(plain)
    return quick


def test_writes_outside_a_scope_are_cut() -> None:
    def count(s: View, n: Count) -> None:
        s.clock[()] = s.clock[()] + n + 1

    def shelve(s: View, p: Place, n: Count) -> None:
        s.shelf[p + n - 1] = n

    def widen(s: View, p: Place) -> None:
        s.shelf[p] = s.width[p]

    found = _searched(*_toy([count, shelve, widen]))
    assert found.cut > 0 and found.complete


def test_reads_outside_a_variable_are_harmless() -> None:
    def act(s: View, r: Thing, p: Place, n: Count) -> None:
        s.require("x", (s.shelf[p - 1] == 0) & (s.at[r, p + n] >= s.shelf[7]))
        s.require("y", s.width[n - 2] <= 3 + n)
        s.clock[()] = s.at[r, 5] + s.width[p + n] - 1
        s.shelf[p] = n

    assert _searched(*_toy([act], count=3)).distinct > 10


def test_an_index_equal_to_what_lies_outside_is_none() -> None:
    def act(s: View, p: Place, n: Count) -> None:
        s.require("x", s.shelf[p] < n)
        s.require("y", forall(PLACE, lambda q: implies(q == p + 1, s.shelf[q] == 0))
                  | exists(PLACE, lambda q: (q == p - 1) & (s.shelf[q] >= n)))
        s.shelf[p] = n
        s.lit.where(lambda q: q == p + 1, True)
        s.lit.where(lambda q: p - 1 == q, False)

    found = _searched(*_toy([act]))
    assert found.distinct > 50 and not found.cut


def test_of_two_writes_the_later_stands_and_reads_see_the_state_before() -> None:
    def act(s: View, r: Thing, p: Place, b: Truth, c: Colour) -> None:
        s.require("a truth", b | (s.lit[p] == 0))
        s.lit[p] = b
        s.colour.where(lambda t: s.colour[t] == c, lambda t: ite(t == r, 2, s.colour[t]))
        s.at.where(lambda t, q: (t == r) & (q <= p), lambda t, q: maximum(s.at[t, q] - 1, s.lit[q]))
        s.at[r, 0] = minimum(s.at[r, p], 1, maximum(s.level[r], s.shelf[p]))

    assert _searched(*_toy([act], count=2)).distinct > 100


def test_states_of_several_words() -> None:
    def act(s: View, r: Thing, p: Place, n: Count) -> None:
        s.require("grows", (s.at[r, p] < n) & forall(PLACE, lambda q: implies(
            q < p, s.at[r, q] == n)))
        s.at[r, p] = n

    machine, where = _toy([act], things=3, count=40, width=(1,) * 5)
    assert BitLayout(Layout(machine, where)).words == 3
    assert _searched(machine, where, max_states=3_000).distinct >= 3_000


class Terms:
    """Terms made at random, the same ones each time from the same name."""

    def __init__(self, name: str) -> None:
        self.chance = random.Random(name)

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def number(self, s: View, known: dict[Sort, list[Any]], depth: int) -> Any:
        kind = self.pick("constant", "bound", "read", *(
            ("add", "sub", "ite", "div", "min", "max") if depth else ()))
        if kind == "constant":
            return self.chance.randrange(4)
        if kind == "bound":
            return self.pick(0, *known[COUNT])
        if kind == "read":
            thing, place = self.pick(*known[THING]), self.pick(*known[PLACE])
            return self.pick(s.level[thing], s.at[thing, place], s.clock[()], s.width[place],
                             s.shelf[place], s.shelf[place + self.pick(-1, 1, *known[COUNT])])
        a, b = self.number(s, known, depth - 1), self.number(s, known, depth - 1)
        if kind == "ite":
            return ite(self.truth(s, known, depth - 1), a, b)
        if kind == "div":
            return lift(a - 2) // s.width[self.pick(*known[PLACE])]
        return {"add": lambda: a + b, "sub": lambda: a - b, "min": lambda: minimum(a, b, 3),
                "max": lambda: maximum(a, b)}[kind]()

    def truth(self, s: View, known: dict[Sort, list[Any]], depth: int) -> Any:
        kind = self.pick("compare", "read", *(
            ("not", "and", "or", "implies", "forall", "exists") if depth else ()))
        if kind == "read":
            return self.pick(s.lit[self.pick(*known[PLACE])] == 1,
                             s.colour[self.pick(*known[THING])] == self.chance.randrange(3))
        if kind == "compare":
            a, b = (lift(self.number(s, known, max(depth - 1, 0))) for _ in range(2))
            return self.pick(a < b, a <= b, a == b, a != b)
        if kind in ("forall", "exists"):
            sort = self.pick(THING, PLACE, COUNT)
            return (forall if kind == "forall" else exists)(sort, lambda v: self.truth(
                s, {**known, sort: [*known[sort], v]}, depth - 1))
        p, q = (lift(self.truth(s, known, depth - 1)) for _ in range(2))
        return {"not": lambda: not_(p), "and": lambda: p & q, "or": lambda: p | q,
                "implies": lambda: implies(p, q)}[kind]()


@pytest.mark.parametrize("seed", range(4))
def test_machines_made_at_random_are_searched_as_in_python(seed: int) -> None:
    """Every operator, quantifier and kind of update, among them what no scope's machine has."""

    def action(index: int) -> Callable[..., None]:
        def act(s: View, r: Thing, p: Place, n: Count) -> None:
            terms = Terms(f"{seed} action {index}")
            known: dict[Sort, list[Any]] = {THING: [r], PLACE: [p], COUNT: [n]}

            def value(known: dict[Sort, list[Any]], depth: int) -> Term:
                return lift(maximum(terms.number(s, known, depth), 0))

            s.require("first", terms.truth(s, known, 2))
            s.require("second", terms.truth(s, known, 1), s.level[r] <= n)
            s.level[r] = value(known, 2)
            s.shelf[p + terms.pick(0, 0, 1, -1)] = value(known, 1)
            s.at.where(lambda t, q: (t == r) & lift(terms.truth(s, {**known, PLACE: [p, q]}, 1)),
                       lambda t, q: value({**known, PLACE: [p, q]}, 2))
            s.lit[p] = terms.truth(s, known, 1)
            s.colour[r] = minimum(value(known, 1), 2)

        act.__name__ = f"act{index}"
        return act

    def over_states(index: int) -> Callable[..., Any]:
        def holds(s: View, r: Thing, p: Place) -> Any:
            return Terms(f"{seed} state {index}").truth(
                s, {THING: [r], PLACE: [p], COUNT: []}, 3)
        return holds

    def over_steps(index: int) -> Callable[..., Any]:
        def holds(s: View, t: View, action: str, r: Thing, p: Place) -> Any:
            terms = Terms(f"{seed} step {index}")
            known: dict[Sort, list[Any]] = {THING: [r], PLACE: [p], COUNT: []}
            return implies(lift(terms.truth(s, known, 1)), lift(terms.truth(t, known, 1)))
        return holds

    properties = [
        *(_property(f"State{i}", over_states(i), False, Witness("one", over_states(10 + i)),
                    Witness("other", over_states(20 + i))) for i in range(8)),
        *(_property(f"Step{i}", over_steps(i), True) for i in range(8)),
    ]
    machine, where = _toy([action(i) for i in range(12)])
    found = _searched(machine, where, *properties, find_all=True, max_states=1_000)
    assert found.distinct > 200 and found.violations and found.cut


def test_a_negative_value_is_a_fault_of_the_machine() -> None:
    def rise(s: View, r: Thing) -> None:
        s.level[r] = s.level[r] + 1

    def fall(s: View, r: Thing) -> None:
        s.require("high", s.level[r] == 2)
        s.level[r] = s.level[r] - 3

    machine, where = _toy([rise, fall])
    with pytest.raises(NegativeValue, match=r"fall: level\[0\] would be -1"):
        NativeSearch(machine, where, properties=[ALWAYS]).run()

    def low(s: View, r: Thing) -> Term:
        return s.level[r] < 2

    found = NativeSearch(machine, where, properties=[_property("Low", low)]).run()
    assert list(found.violations) == ["Low"], "met before the fault"


@pytest.mark.parametrize(("width", "faulty"), [((2, 3, 9), False), ((9, 3, 2), True)])
def test_of_a_fault_and_a_violation_the_first_counts(
    width: tuple[int, ...], faulty: bool
) -> None:
    def fill(s: View, p: Place) -> None:
        s.shelf[p] = s.shelf[p] + 1

    def fall(s: View, p: Place) -> None:
        s.require("filled", (s.shelf[p] == 1) & (s.width[p] == 9))
        s.clock[()] = s.clock[()] - 1

    def fine(s: View, p: Place) -> Term:
        return (s.shelf[p] < 2) | (s.width[p] != 2)

    machine, where = _toy([fill, fall], width=width)
    if faulty:
        with pytest.raises(NegativeValue, match="fall: clock"):
            NativeSearch(machine, where, properties=[_property("Fine", fine)]).run()
    else:
        assert _searched(machine, where, _property("Fine", fine)).violation is not None


def test_a_violation_at_first_has_an_empty_run() -> None:
    def act(s: View, r: Thing) -> None:
        s.level[r] = 1

    def never(s: View, r: Thing) -> Term:
        return s.level[r] == 1

    def good(s: View, r: Thing) -> Term:
        return s.level[r] == 0

    found = _searched(*_toy([act]), _property("Never", never))
    assert found.violation is not None and found.violation.run == () and found.distinct == 1
    found = _searched(*_toy([act]), _property("Never", never), _property("Good", good),
                      find_all=True)
    assert list(found.violations) == ["Never", "Good"]


def test_what_breaks_together_is_told_from_what_breaks_later() -> None:
    """Two steps lead to one new state, which breaks a property; the second breaks another."""

    def rise(s: View, r: Thing) -> None:
        s.level[r] = 1

    def jump(s: View, r: Thing) -> None:
        s.level[r] = 1

    def low(s: View, r: Thing) -> Term:
        return s.level[r] == 0

    def walks(s: View, t: View, action: str, r: Thing) -> Any:
        return t.level[r] <= s.level[r] if action == "jump" else True

    def calm(s: View, t: View, action: str, r: Thing) -> Term:
        return t.level[r] <= s.level[r]

    found = _searched(*_toy([rise, jump]), _property("Low", low), _property("Walks", walks, True),
                      _property("Calm", calm, True), find_all=True)
    assert {n: v.also for n, v in found.violations.items()} == {
        "Low": ("Calm",), "Calm": ("Low",), "Walks": ("Calm",)}


def test_a_machine_that_goes_nowhere() -> None:
    def act(s: View, r: Thing) -> None:
        s.require("never", s.level[r] == 1)
        s.level[r] = 1

    found = _searched(*_toy([act]))
    assert (found.distinct, found.generated, found.depth, found.complete) == (1, 0, 0, True)


def test_cells_lie_apart_and_come_back_as_they_were() -> None:
    for where in (*SCOPES.values(), *LARGE.values()):
        bits = BitLayout(Layout(where.machine(), where))
        taken = [0] * bits.words
        for field in bits.fields:
            assert not taken[field.word] >> field.shift & field.mask
            taken[field.word] |= field.mask << field.shift
            assert field.mask << field.shift < 2**64
        state = bytes(limit - 1 for limit in bits.limits)
        assert bits.unpack(bits.pack(state)) == state


# --- symmetry ----------------------------------------------------------------------------------

TRIO = Scope("trio", "", CORE, {**SCOPES["pair"].sizes, "Request": 3, "Tokens": 3, "Blocks": 1},
             {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,)})


def test_requests_are_interchangeable() -> None:
    """Of states that differ in which request is which, one is searched: n (n + 1) / 2 of n * n."""
    whole, reduced = (search(SCOPES["pair"], limits=limits)
                      for limits in (None, Limits(symmetry=True)))
    assert (reduced.distinct, reduced.generated, reduced.cut) == (63_546, 523_719, 10_710)
    assert reduced.distinct == 356 * 357 // 2 and whole.distinct == 356**2
    assert reduced.depth == whole.depth and reduced.complete and not reduced.violations
    assert reduced.witnesses == whole.witnesses


def test_three_requests_are_interchangeable() -> None:
    whole, reduced = (search(TRIO, limits=limits) for limits in (None, Limits(symmetry=True)))
    single = round(whole.distinct ** (1 / 3))
    assert whole.distinct == single**3
    assert reduced.distinct == single * (single + 1) * (single + 2) // 6
    assert reduced.depth == whole.depth and reduced.witnesses == whole.witnesses


@pytest.mark.parametrize("name", ["no-key-bound", "rewind-at-clear", "cursor-ignores-keys"])
def test_verdicts_do_not_depend_on_symmetry(name: str) -> None:
    where = replace(SCOPES["seed"], name="seeds", sizes={
        **SCOPES["seed"].sizes, "Request": 2, "Tokens": 3, "Chunk": 1, "Chunks": 2, "Blocks": 2})
    whole, reduced = (
        search(where, VARIANTS[name], properties=list(EVERYTHING.values()), find_all=True,
               limits=limits) for limits in (None, Limits(symmetry=True)))
    assert whole.complete and reduced.complete and reduced.distinct < whole.distinct
    assert set(whole.violations) == set(reduced.violations) != set()
    machine = VARIANTS[name].machine(where)
    python = CompiledBackend(machine, where)
    for prop, violation in reduced.violations.items():
        assert len(violation.run) == len(whole.violations[prop].run)
        state = python.initial
        for step in violation.run:
            taken = (step.action, tuple(step.values.values()), step.state)
            assert taken in python.successors(state)[0]
            before, state = state, step.state
        known = EVERYTHING[prop]
        predicate = known.over_steps(machine, violation.run[-1].action) if known.is_step \
            else known.over_states(machine)
        pair = (before, state) if known.is_step else (state, None)
        assert not python.check(predicate, every=True)(*pair)


def test_a_run_keeps_to_one_naming() -> None:
    """The state stored for two things may be the other's mirror image; a run may not jump."""

    def rise(s: View, r: Thing, n: Count) -> None:
        s.require("new", s.level[r] == 0)
        s.level[r] = n

    def paint(s: View, r: Thing, c: Colour) -> None:
        s.require("risen", s.level[r] > 0)
        s.colour[r] = c

    def fine(s: View, r: Thing) -> Any:
        return not_((s.level[r] == 1) & (s.colour[r] == 2)
                    & exists(THING, lambda q: (s.level[q] == 3) & (s.colour[q] == 1)))

    machine, where = _toy([rise, paint])
    bad = _property("Fine", fine)
    whole, reduced = (NativeSearch(machine, where, properties=[bad], limits=Limits(symmetry=on)
                                   ).run().violations["Fine"].run for on in (False, True))
    assert len(reduced) == len(whole) == 4
    python = CompiledBackend(machine, where)
    state = python.initial
    for step in reduced:
        taken = (step.action, tuple(step.values.values()), step.state)
        assert taken in python.successors(state)[0]
        state = step.state
    assert not python.check(bad.over_states(machine), every=True)(state, None)


def test_things_told_apart_by_a_constant_are_not_interchangeable() -> None:
    part = Part("p", "")
    part.variable("x", (THING,), COUNT, "")
    part.constant("most", (THING,), COUNT, "", initial=1)

    @part.action("{r}")
    def act(s: View, r: Thing) -> None:
        s.require("room", s.x[r] < s.most[r])
        s.x[r] = s.x[r] + 1

    def fine(s: View, r: Thing) -> Term:
        return s.x[r] <= s.most[r]

    where = Scope("told-apart", "", (part,), {"Thing": 2, "Count": 3}, {"most": (1, 2)})
    with pytest.raises(ImpossibleConfig, match="most tells one Thing from another"):
        NativeSearch(where.machine(), where, properties=[_property("Fine", fine)],
                     limits=Limits(symmetry=True))


# --- limits --------------------------------------------------------------------------------------

DEEP = LARGE["pair-deep"]
MIB = 2**20


def test_memory_is_bounded_and_what_fitted_is_said() -> None:
    found = search(DEEP, limits=Limits(memory=12 * MIB))
    assert found.stopped == "memory" and not found.complete
    assert 6 * MIB < found.memory <= 12 * MIB
    again = search(DEEP, limits=Limits(memory=12 * MIB, threads=1))
    assert told(found) == told(again)
    more = search(DEEP, limits=Limits(memory=24 * MIB))
    assert more.distinct > 2 * found.distinct and more.memory <= 24 * MIB


def test_too_little_memory_is_said_at_once() -> None:
    with pytest.raises(OutOfMemory, match=r"a search needs 5 MiB or more, not 1\.0"):
        search(SCOPES["seed"], limits=Limits(memory=MIB))


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvoracle.spec.explore.breadth_first.PROGRESS_SECONDS", 0.0)
    seen: list[tuple[int, int, int]] = []
    found = search(SCOPES["seed"], progress=lambda r, frontier: seen.append(
        (r.distinct, frontier, r.memory)))
    assert len(seen) >= found.depth and seen == sorted(seen, key=lambda s: s[0])
    assert all(memory > 0 for _, _, memory in seen)
    assert seen[-1][:2] == (found.distinct, 0)


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "most", "find_all"), [
    *(("rewind-at-clear", most, True) for most in (1, 60, 1_000, 5_000)),
    ("no-exclusion", 7_300, False),  # a little before the violation, in the same level
])
def test_a_search_that_goes_on_ends_as_one_that_never_stopped(
    tmp_path: Path, name: str, most: int, find_all: bool
) -> None:
    path, design = tmp_path / "kept", VARIANTS[name]
    where = SCOPES[design.scope]
    first = search(where, design, find_all=find_all, max_states=most,
                   limits=Limits(checkpoint=path))
    assert first.stopped == "max_states"
    went_on = search(where, design, find_all=find_all, limits=Limits(resume=path))
    assert told(went_on) == told(search(where, design, find_all=find_all))
    assert went_on.violations


def test_a_search_goes_on_with_more_memory(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    seen = [0]
    for memory in (8, 12, 20):
        found = search(DEEP, limits=Limits(
            memory=memory * MIB, checkpoint=path, resume=path if path.exists() else None))
        assert found.stopped == "memory"
        seen.append(found.distinct)
    assert seen == sorted(set(seen))
    most = seen[-1] + 1
    went_on = search(DEEP, max_states=most, limits=Limits(resume=path))
    assert told(went_on) == told(search(DEEP, max_states=most))


def test_a_search_goes_on_with_symmetry(tmp_path: Path) -> None:
    path, limits = tmp_path / "kept", Limits(symmetry=True)
    search(SCOPES["pair"], max_states=9_000, limits=replace(limits, checkpoint=path))
    found = search(SCOPES["pair"], limits=replace(limits, resume=path))
    assert told(found) == told(search(SCOPES["pair"], limits=limits))


def test_another_search_does_not_go_on_from_it(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    search(SCOPES["seed"], max_states=100, limits=Limits(checkpoint=path))
    resume = Limits(resume=path)
    for message, call in (
        ("it searches seed, not pair", lambda: search(SCOPES["pair"], limits=resume)),
        ("its design is the reference, not no-key-bound",
         lambda: search(SCOPES["seed"], VARIANTS["no-key-bound"], limits=resume)),
        ("it judges KeysEqBlocks, .*, not NoHole",
         lambda: search(SCOPES["seed"], properties=[EVERYTHING["NoHole"]], limits=resume)),
        ("it goes on to the first violation, not every",
         lambda: search(SCOPES["seed"], find_all=True, limits=resume)),
        ("it tells all states apart",
         lambda: search(SCOPES["seed"], limits=replace(resume, symmetry=True))),
        ("another machine or another version", lambda: search(
            replace(SCOPES["seed"], sizes={**SCOPES["seed"].sizes, "Tokens": 5}), limits=resume)),
    ):
        with pytest.raises(CheckpointRefused, match=message):
            call()


def test_a_damaged_checkpoint_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    search(SCOPES["seed"], max_states=300, limits=Limits(checkpoint=path))
    whole = path.read_bytes()
    chance = random.Random(1)
    lines = len(b"\n".join(whole.split(b"\n", 3)[:3])) + 1
    places = [0, 10, 30, lines - 2, lines, len(whole) - 1,
              *(chance.randrange(len(whole)) for _ in range(30))]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1:])
        with pytest.raises(CheckpointRefused):
            search(SCOPES["seed"], limits=Limits(resume=path))
    for text in (b"", whole[:20], whole[:lines], whole[:-1], whole + b"\0"):
        path.write_bytes(text)
        with pytest.raises(CheckpointRefused):
            search(SCOPES["seed"], limits=Limits(resume=path))
    path.write_bytes(whole)
    assert search(SCOPES["seed"], limits=Limits(resume=path)).complete


def test_a_checkpoint_that_cannot_be_written_is_said_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match=r"cannot write .*No such file"):
        search(SCOPES["seed"], limits=Limits(checkpoint=tmp_path / "no" / "kept"))


def test_a_kept_search_is_not_overwritten(tmp_path: Path) -> None:
    path, other = tmp_path / "kept", tmp_path / "other"
    search(SCOPES["seed"], max_states=300, limits=Limits(checkpoint=path))
    whole = path.read_bytes()
    with pytest.raises(CheckpointRefused, match=r"kept exists: go on from it \(--resume\)"):
        search(SCOPES["seed"], limits=Limits(checkpoint=path))
    search(SCOPES["seed"], max_states=900, limits=Limits(resume=path, checkpoint=other))
    assert path.read_bytes() == whole != other.read_bytes()
    assert search(SCOPES["seed"], limits=Limits(resume=other)).complete


KEPT = """
import sys
from pathlib import Path
from kvoracle.model.scopes import LARGE
from kvoracle.spec.explore import Limits, breadth_first, packed, search
packed.CHECKPOINT_SECONDS, packed.CHECKPOINT_SHARE = float(sys.argv[2]), 1.0
breadth_first.PROGRESS_SECONDS = 0.0
search(LARGE["pair-deep"], limits=Limits(memory=100 * 2**20, checkpoint=Path(sys.argv[1])),
       progress=lambda r, frontier: print(r.distinct, flush=True))
"""


@pytest.mark.parametrize(("how", "every"), [(signal.SIGKILL, 0), (signal.SIGINT, 3600)])
def test_a_search_goes_on_after_it_was_killed(
    tmp_path: Path, how: signal.Signals, every: int
) -> None:
    """Killed, it has what was kept last; interrupted, all that it had seen."""
    path = tmp_path / "kept"
    with subprocess.Popen([sys.executable, "-c", KEPT, str(path), str(every)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) > 100_000:
                break
        process.send_signal(how)
        process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert path.stat().st_size > 400_000
    went_on = search(DEEP, max_states=600_000, limits=Limits(memory=110 * MIB, resume=path))
    assert told(went_on) == told(search(DEEP, max_states=600_000))


# --- the compiler ---------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterable[Path]:
    """A cache folder of its own, and a compiler looked for anew."""
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path / "cache"))
    toolchain.compiler.cache_clear()
    yield tmp_path / "cache" / "explore"
    toolchain.compiler.cache_clear()


def test_a_library_is_made_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "int kv_answer(void) { return 42; }"
    visible = "__attribute__((visibility(\"default\"))) "
    assert toolchain.library(visible + source).kv_answer() == 42
    made = [p.name for p in fresh.iterdir()]
    assert len(made) == 1

    def never(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(toolchain, "_compile", never)
    assert toolchain.library(visible + source).kv_answer() == 42


def test_a_broken_library_is_made_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "__attribute__((visibility(\"default\"))) int kv_one(void) { return 1; }"
    with monkeypatch.context() as patched:
        patched.setattr(toolchain, "_compile", lambda command, text, to: to.write_bytes(b"none"))
        with pytest.raises(NoCompiler, match="cannot use what"):
            toolchain.library(source)
    (made,) = fresh.iterdir()
    assert made.read_bytes() == b"none"
    assert toolchain.library(source).kv_one() == 1
    assert made.read_bytes() != b"none"


def test_a_library_not_used_for_long_is_removed(fresh: Path) -> None:
    fresh.mkdir(parents=True)
    old, new = fresh / "old.so", fresh / "new.so"
    for path, age in ((old, toolchain.KEPT_DAYS + 1), (new, 1)):
        path.touch()
        os.utime(path, (time.time() - age * 86_400,) * 2)
    toolchain.library("int x;")
    assert not old.exists() and new.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_nowhere_to_keep_libraries_is_no_obstacle(fresh: Path) -> None:
    fresh.parent.mkdir(mode=0o500)
    source = "__attribute__((visibility(\"default\"))) int kv_two(void) { return 2; }"
    assert toolchain.library(source).kv_two() == 2


def test_a_file_in_place_of_the_cache_is_no_obstacle(fresh: Path) -> None:
    fresh.parent.write_text("")
    source = "__attribute__((visibility(\"default\"))) int kv_two(void) { return 2; }"
    assert toolchain.library(source).kv_two() == 2


def test_without_a_compiler_python_searches(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert search(SCOPES["seed"], max_states=50).backend == "python"
    for how in ({"backend": COMPILED}, {"limits": Limits(symmetry=True)}):
        with pytest.raises(NoCompiler, match=r"no C compiler found \(CC=no-such-compiler\)"):
            search(SCOPES["seed"], max_states=50, **how)


def test_a_compiler_that_fails_is_none(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc --no-such-option")
    with pytest.raises(NoCompiler, match=r"cc --no-such-option failed: .*error"):
        search(SCOPES["seed"], backend=COMPILED, max_states=50)
    assert search(SCOPES["seed"], max_states=50).backend == "python"


def _command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvoracle.oracle.cli", "explore", *arguments], check=False,
        capture_output=True, text=True, env=os.environ | environment)


def test_the_output_names_the_backend_and_differs_in_nothing_else() -> None:
    asked = ("--scope", "seed", "--variant", "cursor-ignores-keys")
    quick, plain = _command(*asked), _command(*asked, CC="no-such-compiler")
    assert (quick.returncode, plain.returncode) == (1, 1), quick.stderr + plain.stderr
    assert "backend compiled" in quick.stdout and "no C compiler" not in quick.stderr
    assert plain.stdout == quick.stdout.replace("backend compiled", "backend python")
    assert "no C compiler: exploring in Python" in plain.stderr


def test_the_command_says_in_one_line_that_a_compiler_is_missing() -> None:
    found = _command("--backend", "compiled", CC="no-such-compiler")
    assert found.returncode == 3 and found.stdout == ""
    assert found.stderr == ("kvoracle: no C compiler found (CC=no-such-compiler): install one, or "
                            "use the backend python\n")


def test_the_command_says_how_to_go_on(tmp_path: Path) -> None:
    path = str(tmp_path / "kept search")
    found = _command("--scope", "pair", "--max-states", "9000", "--symmetry", "--checkpoint", path)
    assert found.returncode == 3
    assert f"the limit of 9,000 states was reached; kvoracle explore --resume '{path}' goes on" \
        in found.stdout
    went_on = _command("--resume", path)
    assert went_on.returncode == 0, went_on.stderr
    assert "scope pair, backend compiled, up to renaming:" in went_on.stdout
    assert "63,546 distinct states, 523,719 generated" in went_on.stdout
    other = _command("--resume", path, "--scope", "seed")
    assert (other.returncode, other.stdout) == (2, "")
    assert "is of another search: it searches pair, not seed" in other.stderr


@pytest.mark.parametrize(("asked", "line"), [
    (("--backend", "python", "--symmetry"),
     "--symmetry needs the backend compiled or torch, not python"),
    (("--scope", "all", "--checkpoint", "x"), "a checkpoint keeps the search of one scope"),
    (("--max-memory", "much"), "expected a size such as 500M or 4G, not 'much'"),
])
def test_what_makes_no_sense_is_refused(asked: tuple[str, ...], line: str) -> None:
    found = _command(*asked)
    assert (found.returncode, found.stdout) == (2, "")
    assert line in found.stderr and found.stderr.count("\n") == 1


def test_of_too_large_a_catalogue_only_what_is_asked_is_compiled(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = told(search(SCOPES["workers"]))
    asked = [p for p in PROPERTIES.values() if p.applies(SCOPES["workers"].machine())]
    monkeypatch.setattr(packed, "KINDS", max(len(asked), sum(len(p.witnesses) for p in asked)))
    assert told(search(SCOPES["workers"])) == plain
    monkeypatch.setattr(packed, "KINDS", 3)
    with pytest.raises(ImpossibleConfig, match=r"more than 3 properties.* name fewer"):
        search(SCOPES["workers"])
    few = [EVERYTHING["JobExclusive"]]
    assert search(SCOPES["workers"], properties=few, max_states=50).distinct >= 50
