"""Is the run reading the machine that is proved and searched?"""

from __future__ import annotations

import itertools
from random import Random

import pytest

from kvoracle.model.machine import Machine, Part, View
from kvoracle.model.requests import REQUEST, TOKENS, Request
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run, Unmet, variable_key
from kvoracle.model.scopes import ALL_PARTS, SCOPES, Scope
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.explore.layout import Layout
from kvoracle.spec.explore.reference import ReferenceBackend
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.variants import VARIANTS, Variant

WALKS = [(name, None) for name in SCOPES] + [(v.scope, v) for v in VARIANTS.values()]
IDS = [name if v is None else v.name for name, v in WALKS]


def fresh(program: Program, scope: Scope) -> Run:
    return Run(program, scope.constants, {k: v for k, v in scope.sizes.items()
                                          if k in program.index_sorts})


def place(run: Run, layout: Layout, state: bytes) -> None:
    """Put the run into a packed state."""
    for name, cells in layout.unpack(state).items():
        variable = run.machine.variables[name]
        run.values[name] = {
            variable_key(variable, index): value
            for index, value in cells.items() if value != variable.initial
        }


def packed(run: Run, layout: Layout) -> bytes:
    return bytes(
        run.get(variable.name, *index)
        for variable in run.machine.state for index in layout.indices(variable.domain)
    )


def walk(backend: CompiledBackend, steps: int, keep: int) -> list[bytes]:
    """States on a random way through the scope, started anew where it ends."""
    random, state, met = Random(1), backend.initial, [backend.initial]
    for _ in range(steps):
        successors, _ = backend.successors(state)
        state = random.choice(successors)[2] if successors and random.random() < 0.97 \
            else backend.initial
        met.append(state)
    return random.sample(sorted(set(met)), keep)


@pytest.mark.parametrize(("name", "variant"), WALKS, ids=IDS)
def test_guards_and_changes_are_those_of_the_plain_reading(
    name: str, variant: Variant | None
) -> None:
    scope = SCOPES[name]
    machine = variant.machine(scope) if variant else scope.machine()
    compiled, plain = CompiledBackend(machine, scope), ReferenceBackend(machine, scope)
    run, layout = fresh(Program(machine), scope), plain.layout
    checks = []
    for p in (p for p in EVERYTHING.values() if p.is_step and p.applies(machine)):
        for action in machine.actions:
            predicate = p.over_steps(machine, action)
            checks.append((action, plain.check(predicate, every=True),
                           run.program.predicate(predicate, (), in_step=True)))
    for state in walk(compiled, 600, 25):
        place(run, layout, state)
        before = {variable: dict(values) for variable, values in run.values.items()}
        after = {(a, values): s for a, values, s in plain.successors(state)[0]}
        for action in machine.actions.values():
            for chosen in itertools.product(*(range(scope.size(p.sort))
                                              for p in action.parameters)):
                named = dict(zip((p.name for p in action.parameters), chosen))
                unmet = run.unmet(action.name, **named)
                guard = plain.value(action.guard, dict(zip(action.parameters, chosen)), state)
                assert (unmet is None) == bool(guard), (action.name, named)
                if unmet is not None:
                    assert not plain.value(
                        unmet.term, dict(zip(action.parameters, chosen)), state)
                if unmet is not None or (action.name, chosen) not in after:
                    continue
                undo = run.apply(action.name, **named)
                reached = packed(run, layout)
                assert reached == after[action.name, chosen], (action.name, named)
                for changed, slow, quick in checks:
                    if changed == action.name:
                        assert (run.broken(quick) is None) == slow(state, reached)
                run.undo(undo)
                assert run.values == before


@pytest.mark.parametrize("name", SCOPES)
def test_state_properties_have_the_verdicts_of_the_plain_reading(name: str) -> None:
    scope = SCOPES[name]
    variant = next(v for v in VARIANTS.values() if v.name == "rewind-at-clear")
    machine = variant.machine(scope)  # a design that breaks some of them
    compiled, plain = CompiledBackend(machine, scope), ReferenceBackend(machine, scope)
    run = fresh(Program(machine), scope)
    predicates = [p.over_states(machine) for p in EVERYTHING.values()
                  if p.applies(machine) and not p.is_step]
    checks = [(p, plain.check(p, every=True), run.program.predicate(p, ())) for p in predicates]
    for state in walk(compiled, 400, 25):
        place(run, plain.layout, state)
        for predicate, slow, quick in checks:
            breaking = run.broken(quick)
            assert (breaking is None) == slow(state, None), predicate.name
            if breaking is not None:
                values = dict(zip(predicate.parameters, breaking))
                assert not plain.value(predicate.term, values, state)


# --- by itself ---------------------------------------------------------------------------

PROGRAM = Program(Machine(ALL_PARTS, REFERENCE))


def run_of(groups: int = 1) -> Run:
    return Run(PROGRAM, {"tokens_per_chunk": (2,) * groups, "blocks_per_chunk": (1,) * groups,
                         "draft": (False,) * groups}, {})


def test_a_step_whose_guard_fails_says_what_was_not_met_and_why() -> None:
    run = run_of()
    run.step("arrive", r=7, p=4)
    with pytest.raises(Unmet) as caught:
        run.step("compute", r=7, n=2)
    assert str(caught.value) == (
        "compute: not met: runs (life[r] = running where life[7] = waiting, r = 7)")
    assert (caught.value.action, caught.value.requirement) == ("compute", "runs")
    run.step("start", r=7, n=0)
    run.step("compute", r=7, n=4)
    with pytest.raises(Unmet, match=r"storable \(n <= .*keys\[7, 0\] = 0"):
        run.step("plan_store", r=7, g=0, n=1, d=1)


def test_an_unmet_step_changes_nothing() -> None:
    run = run_of()
    run.step("arrive", r=0, p=4)
    before = {name: dict(values) for name, values in run.values.items()}
    with pytest.raises(Unmet):
        run.step("arrive", r=0, p=2)
    assert run.values == before


def test_undo_takes_back_several_steps_in_turn() -> None:
    run = run_of()
    steps = (("arrive", {"r": 3, "p": 5}), ("start", {"r": 3, "n": 0}),
             ("compute", {"r": 3, "n": 5}), ("keys_arrive", {"r": 3, "g": 0, "n": 2}),
             ("blocks_told", {"r": 3, "g": 0, "n": 2}),
             ("plan_store", {"r": 3, "g": 0, "n": 2, "d": 1}), ("reset", {}))
    seen, undos = [], []
    for action, values in steps:
        seen.append({name: dict(held) for name, held in run.values.items()})
        undos.append(run.step(action, **values))
    for before, undo in zip(reversed(seen), reversed(undos)):
        run.undo(undo)
        assert run.values == before


def test_nothing_is_held_of_a_request_that_is_forgotten() -> None:
    run = run_of(2)
    empty = {name: dict(values) for name, values in run.values.items()}
    for action, values in (
        ("arrive", {"r": 9, "p": 2}), ("set_limit", {"r": 9, "n": 2}),
        ("start", {"r": 9, "n": 0}), ("compute", {"r": 9, "n": 2}),
        ("keys_arrive", {"r": 9, "g": 0, "n": 1}), ("blocks_told", {"r": 9, "g": 0, "n": 1}),
        ("plan_store", {"r": 9, "g": 0, "n": 1, "d": 1}), ("sample", {"r": 9, "a": 0}),
        ("abort", {"r": 9}), ("retire", {"r": 9}),
    ):
        run.step(action, **values)
    assert run.values == empty


def test_groups_are_known_from_the_constants() -> None:
    """A guard over all groups must see those of which nothing was written yet."""
    run = run_of(2)
    run.step("arrive", r=0, p=2)
    run.step("keys_arrive", r=0, g=0, n=1)
    with pytest.raises(Unmet, match="every chunk of the hit has its key"):
        run.step("load", r=0, n=2)
    run.step("keys_arrive", r=0, g=1, n=1)
    run.step("load", r=0, n=2)


def test_undo_of_a_place_written_twice() -> None:
    part = Part("toy", "")
    part.variable("level", (REQUEST,), TOKENS, "", initial=5)

    @part.action("{r}")
    def act(s: View, r: Request) -> None:
        s.level[r] = 7
        s.level.where(lambda r2: r2 == r, lambda r2: s.level[r2] + 1)

    run = Run(Program(Machine((part,), None)), {}, {"Request": 1})
    undo = run.step("act", r=0)
    assert run.get("level", 0) == 6
    run.undo(undo)
    assert run.get("level", 0) == 5 and run.values == {"level": {}}


def test_numbers_have_no_end() -> None:
    run = run_of()
    for action, values in (
        ("arrive", {"r": 10**6, "p": 10**6}), ("start", {"r": 10**6, "n": 0}),
        ("compute", {"r": 10**6, "n": 10**6}), ("keys_arrive", {"r": 10**6, "g": 0, "n": 500_000}),
        ("blocks_told", {"r": 10**6, "g": 0, "n": 500_000}),
        ("plan_store", {"r": 10**6, "g": 0, "n": 3, "d": 3}),
    ):
        run.step(action, **values)
    assert run.get("cursor", 10**6, 0) == 3 and len(run.values["mark"]) == 3
