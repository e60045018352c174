"""Do the exploring readings see the same machine, all of it, in the same order?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import pytest

from kvoracle.model.machine import Machine, Part, View, invariant
from kvoracle.model.scopes import (
    ALL_PARTS,
    SCOPES,
    ImpossibleConfig,
    Scope,
    UnknownName,
    scope,
)
from kvoracle.model.terms import BOOL, Sort, Term, enumeration
from kvoracle.spec.explore import BACKENDS, Exploration, search
from kvoracle.spec.explore.breadth_first import explore
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.explore.layout import Layout
from kvoracle.spec.explore.reference import NegativeValue, ReferenceBackend
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.variants import VARIANTS, Variant

COUNTS = {  # distinct, generated, cut, depth
    "seed": (5_075, 29_130, 270, 18),
    "draft": (30_869, 211_004, 2_797, 16),
    "limits": (7_689, 42_051, 1_128, 13),
    "groups": (36_354, 260_281, 4_116, 25),
    "pair": (126_736, 1_044_504, 21_360, 26),
    "reuse": (90_121, 348_520, 0, 28),
    "fences": (17_449, 69_972, 0, 26),
    "loads": (31_685, 151_160, 14_576, 30),
    "pieces": (21_009, 85_972, 0, 30),
    "two-groups": (44_727, 226_955, 18_344, 35),
    "slots": (129_377, 630_032, 60_640, 36),
    "resets": (194_225, 1_125_061, 90_328, 33),
    "ranks": (2_375, 9_679, 0, 21),
    "workers": (11_823, 69_055, 0, 33),
    "tiers": (11_916, 52_781, 0, 30),
    "promotions": (300_705, 1_508_982, 0, 44),
    "last-slot": (131, 351, 0, 19),
    "queue": (15_187, 40_668, 0, 28),
    "borrowed": (40_401, 158_352, 0, 27),
    "sent": (9_745, 34_042, 0, 22),
    "sharing": (56_019, 219_890, 8_504, 26),
    "found-loads": (240_930, 1_380_012, 0, 29),
    "residue": (5_881, 20_952, 0, 20),
    "lag": (48_187, 177_886, 4_272, 28),
    "tail": (2_284, 6_254, 1_806, 28),
    "tails": (39_638, 179_488, 0, 29),
    "slides": (3_029, 8_842, 466, 21),
    "window-loads": (25_260, 107_890, 3_432, 28),
    "streams": (23_352, 211_308, 0, 20),
    "overwrites": (137_036, 1_264_264, 0, 16),
    "one-slot": (12_848, 99_288, 0, 19),
    "copies": (34_888, 299_032, 0, 20),
    "late": (26_268, 47_396, 0, 9),
    "tables": (17_168, 156_224, 0, 14),
    "lookups": (7_860, 53_110, 0, 19),
    "windows": (8_739, 58_147, 0, 17),
    "draft-lookups": (63_504, 590_655, 0, 25),
    "spans": (67_959, 627_042, 0, 23),
    "verdicts": (29_400, 180_810, 1_458, 20),
}


# --- counts -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNTS)
def test_a_scope_has_this_many_states(
    name: str, reference_search: Callable[[str], Exploration]
) -> None:
    seen = reference_search(name)
    assert (seen.distinct, seen.generated, seen.cut, seen.depth) == COUNTS[name]
    assert seen.complete and not seen.violations


def test_every_scope_is_pinned() -> None:
    assert COUNTS.keys() == SCOPES.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_every_property_is_evaluated_in_every_state_or_step(
    name: str, reference_search: Callable[[str], Exploration]
) -> None:
    seen, sizes = reference_search(name), SCOPES[name].sizes
    machine = SCOPES[name].machine()
    assert seen.evaluated
    for prop, times in seen.evaluated.items():
        known = EVERYTHING[prop]
        predicate = known.over_steps(machine, "preempt") if known.is_step \
            else known.over_states(machine)
        each = 1
        for parameter in predicate.parameters:
            each *= sizes[parameter.sort.name]
        assert times == each * (seen.generated if known.is_step else seen.distinct) > 0


# --- the same in both readings ----------------------------------------------------------

PLACES = [(name, None) for name in SCOPES] + [(v.scope, v) for v in VARIANTS.values()]
IDS = [name if v is None else v.name for name, v in PLACES]


def _sample(backend: CompiledBackend, breadth: int, wanted: int) -> list[bytes]:
    """States spread evenly over the first ``breadth`` in breadth-first order."""
    seen, order = {backend.initial}, [backend.initial]
    for state in order:
        if len(order) >= breadth:
            break
        for _, _, after in backend.successors(state)[0]:
            if after not in seen:
                seen.add(after)
                order.append(after)
    return order[::max(1, len(order) // wanted)]


@pytest.mark.parametrize(("name", "variant"), PLACES, ids=IDS)
def test_successors_and_verdicts_agree_far_from_the_start(
    name: str, variant: Variant | None
) -> None:
    where = SCOPES[name]
    machine = variant.machine(where) if variant else where.machine()
    compiled, plain = CompiledBackend(machine, where), ReferenceBackend(machine, where)
    properties = [p for p in EVERYTHING.values() if p.applies(machine)]
    over_states = [p.over_states(machine) for p in properties if not p.is_step]
    witnesses = [invariant(machine, w.name, w.function) for p in properties for w in p.witnesses
                 if set(w.parts) <= {part.name for part in machine.parts}]
    checks = [(c, compiled.check(c, every), plain.check(c, every))
              for every, group in ((True, over_states), (False, witnesses)) for c in group]
    for state in _sample(compiled, 5_000, 15):
        successors, cut = compiled.successors(state)
        assert (successors, cut) == plain.successors(state)
        for predicate, quick, slow in checks:
            assert bool(quick(state, None)) == slow(state, None), predicate.name


@pytest.mark.parametrize(("name", "variant"), PLACES[:7], ids=IDS[:7])
def test_searches_agree_up_to_a_number_of_states(name: str, variant: Variant | None) -> None:
    found = [
        asdict(search(SCOPES[name], variant, backend, find_all=True, max_states=120))
        for backend in BACKENDS
    ]
    for each in found:
        del each["backend"], each["seconds"]
    assert found[0] == found[1]
    assert 120 <= found[0]["distinct"] and not found[0]["complete"]


TINY = Scope("tiny", "", SCOPES["seed"].parts,
             SCOPES["seed"].sizes | {"Tokens": 3, "Chunk": 1, "Chunks": 2, "Blocks": 2},
             {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)})


def test_whole_searches_agree() -> None:
    found = [asdict(search(TINY, None, backend)) for backend in BACKENDS]
    assert all(each["complete"] for each in found)
    for each in found:
        del each["backend"], each["seconds"]
    assert found[0] == found[1]


def test_a_violation_is_the_same_in_both_readings() -> None:
    found = [asdict(search(SCOPES["seed"], VARIANTS["no-key-bound"], backend))
             for backend in BACKENDS]
    assert found[0]["violations"] == found[1]["violations"] != {}


# --- the edges of a scope -----------------------------------------------------------------

THING = Sort("Thing")
PLACE = Sort("Place")
COUNT = Sort("Count")
COLOUR = enumeration("Colour", "red", "green")
Thing = Annotated[Term, THING]
Place = Annotated[Term, PLACE]
Count = Annotated[Term, COUNT]
Truth = Annotated[Term, BOOL]


def _toy(*actions: Callable[..., None]) -> tuple[CompiledBackend, ReferenceBackend]:
    part = Part("toy", "")
    part.variable("level", (THING,), COUNT, "")
    part.variable("at", (THING, PLACE), COUNT, "", initial=1)
    part.variable("clock", (), COUNT, "")
    part.variable("colour", (THING,), COLOUR, "")
    part.variable("lit", (PLACE,), BOOL, "")
    part.constant("width", (PLACE,), COUNT, "", initial=1)
    for action in actions:
        part.action("{r}")(action)
    machine = Machine((part,), None)
    sizes = {"Thing": 2, "Place": 3, "Count": 4}
    where = Scope("toy", "", (part,), sizes, {"width": (2, 3, 9)})
    return CompiledBackend(machine, where), ReferenceBackend(machine, where)


def _steps(*actions: Callable[..., None]) -> tuple[Any, int]:
    """Successors at first, both readings agreeing, as what each changed."""
    compiled, plain = _toy(*actions)
    successors, cut = compiled.successors(compiled.initial)
    assert plain.successors(plain.initial) == (successors, cut)
    before = plain.layout.unpack(plain.initial)
    return [
        (name, values, {
            f"{variable}{list(index)}": value
            for variable, cells in plain.layout.unpack(state).items()
            for index, value in cells.items() if value != before[variable][index]
        })
        for name, values, state in successors
    ], cut


def test_counting_beyond_the_scope_is_cut() -> None:
    def act(s: View, n: Count) -> None:
        s.clock[()] = s.clock[()] + n + 2

    assert _steps(act) == (
        [("act", (0,), {"clock[]": 2}), ("act", (1,), {"clock[]": 3})], 2)


def test_writing_outside_a_variable_is_cut() -> None:
    def above(s: View, r: Thing) -> None:
        s.level[r + 1] = 1

    def below(s: View, r: Thing) -> None:
        s.level[r - 1] = 1

    assert _steps(above, below) == (
        [("above", (0,), {"level[1]": 1}), ("below", (1,), {"level[0]": 1})], 2)


def test_writing_where_a_number_says_is_cut_outside_alike() -> None:
    def above(s: View, n: Count) -> None:
        s.level[n] = 1

    def below(s: View, n: Count) -> None:
        s.level[n - 2] = 1

    steps, cut = _steps(above, below)
    assert [(name, values, list(change)) for name, values, change in steps] == [
        ("above", (0,), ["level[0]"]), ("above", (1,), ["level[1]"]),
        ("below", (2,), ["level[0]"]), ("below", (3,), ["level[1]"]),
    ]
    assert cut == 4


def test_of_two_indices_one_may_be_a_number() -> None:
    def act(s: View, r: Thing, n: Count) -> None:
        s.at[r, n] = 2

    assert _steps(act) == (
        [("act", (r, n), {f"at[{r}, {n}]": 2}) for r in range(2) for n in range(3)], 2)


def test_a_difference_of_differences_may_count_too_far() -> None:
    def act(s: View, n: Count) -> None:
        s.clock[()] = 2 - (0 - n)

    assert _steps(act) == ([("act", (0,), {"clock[]": 2}), ("act", (1,), {"clock[]": 3})], 2)


def test_a_constant_may_be_beyond_what_counts() -> None:
    def known(s: View, p: Place) -> None:
        s.clock[()] = s.width[p]

    def chosen(s: View, n: Count) -> None:
        s.clock[()] = s.width[n]

    assert _steps(known, chosen) == ([
        ("known", (0,), {"clock[]": 2}), ("known", (1,), {"clock[]": 3}),
        ("chosen", (0,), {"clock[]": 2}), ("chosen", (1,), {"clock[]": 3}),
        ("chosen", (3,), {"clock[]": 1}),
    ], 2)


def test_a_write_that_the_condition_excludes_is_not_cut() -> None:
    def act(s: View, r: Thing) -> None:
        s.level.where(lambda t: t == r, lambda t: 3)
        s.level.where(lambda t: s.level[t] == 1, lambda t: 100)

    assert _steps(act) == (
        [("act", (0,), {"level[0]": 3}), ("act", (1,), {"level[1]": 3})], 0)


def test_every_read_sees_the_state_before_the_action() -> None:
    def act(s: View, r: Thing) -> None:
        s.level[r] = 2
        s.clock[()] = s.level[r]
        s.at.where(lambda t, p: s.level[t] == 0, lambda t, p: s.level[t] + 3)

    everywhere = {f"at[{t}, {p}]": 3 for t in range(2) for p in range(3)}
    assert _steps(act)[0][0] == ("act", (0,), {"level[0]": 2} | everywhere)


def test_of_two_writes_the_later_stands() -> None:
    def act(s: View, r: Thing) -> None:
        s.level[r] = 2
        s.level.where(lambda t: t == r, 3)
        s.at.where(lambda t, p: t == r, 3)
        s.at[r, 0] = 2

    assert _steps(act)[0][0] == (
        "act", (0,), {"level[0]": 3, "at[0, 0]": 2, "at[0, 1]": 3, "at[0, 2]": 3})


def test_reads_outside_of_bounds_are_harmless() -> None:
    def act(s: View, r: Thing, n: Count) -> None:
        s.require("x", (s.level[r - 1] == 0) & (s.at[r + n, n] == 1) & (s.width[n] < 3 + n))
        s.clock[()] = s.at[7, 0] + s.width[0 - 1] + s.level[n + 9]

    steps, cut = _steps(act)
    assert cut == 0
    assert steps == [("act", (r, n), {"clock[]": 2}) for r in range(2) for n in (0, 1, 3)]


def test_a_parameter_may_be_a_truth_or_of_an_enumeration() -> None:
    def act(s: View, p: Place, b: Truth) -> None:
        s.require("x", b | (p == 1))
        s.lit[p] = b

    def paint(s: View, r: Thing, c: Annotated[Term, COLOUR]) -> None:
        s.colour[r] = c

    steps, _ = _steps(act)
    assert steps == [
        ("act", (0, 1), {"lit[0]": 1}), ("act", (1, 0), {}), ("act", (1, 1), {"lit[1]": 1}),
        ("act", (2, 1), {"lit[2]": 1}),
    ]


@pytest.mark.parametrize("backend", [0, 1], ids=["compiled", "reference"])
def test_a_negative_value_is_a_fault_of_the_machine(backend: int) -> None:
    def act(s: View, r: Thing) -> None:
        s.level[r] = s.level[r] - 1

    chosen = _toy(act)[backend]
    with pytest.raises(NegativeValue, match=r"act: level\[0\] would be -1"):
        chosen.successors(chosen.initial)


def test_a_value_over_a_byte_is_impossible() -> None:
    sizes = SCOPES["seed"].sizes
    most = Scope("most", "", SCOPES["seed"].parts, sizes | {"Tokens": 256},
                 SCOPES["seed"].constants)
    assert Layout(most.machine(), most).limit["tokens"] == 256
    wide = Scope("wide", "", SCOPES["seed"].parts, sizes | {"Tokens": 257},
                 SCOPES["seed"].constants)
    with pytest.raises(ImpossibleConfig, match="scope wide: prompt counts to 256, more than a by"):
        search(wide)


def test_a_sort_without_size_is_impossible() -> None:
    sizes = {k: v for k, v in SCOPES["seed"].sizes.items() if k != "Chunk"}
    bare = Scope("bare", "", SCOPES["seed"].parts, sizes, SCOPES["seed"].constants)
    with pytest.raises(ImpossibleConfig, match="scope bare: no size is given for Chunk"):
        search(bare)


# --- the search ---------------------------------------------------------------------------


def test_a_search_stops_at_the_first_violation(
    variant_search: Callable[[str], Exploration]
) -> None:
    first = search(SCOPES["seed"], VARIANTS["rewind-at-clear"])
    every = variant_search("rewind-at-clear")
    assert first.violation is not None and not first.complete
    shortest = min(len(v.run) for v in every.violations.values())
    assert len(first.violation.run) == shortest
    assert first.distinct < every.distinct


def test_properties_are_named_that_break_together(
    variant_search: Callable[[str], Exploration]
) -> None:
    found = variant_search("no-key-bound").violations["KeyedOnly"]
    assert (found.property, found.also) == ("KeyedOnly", ("KeysEqBlocks",))


def test_only_the_properties_asked_for_are_checked() -> None:
    asked = [EVERYTHING["MonotoneProgress"]]
    found = search(SCOPES["seed"], VARIANTS["rewind-at-clear"], properties=asked)
    assert list(found.violations) == list(found.evaluated) == ["MonotoneProgress"]


def test_a_violation_at_first_has_an_empty_run() -> None:
    part = Part("p", "")
    part.variable("x", (THING,), COUNT, "")
    where = Scope("at-once", "", (part,), {"Thing": 1, "Count": 2}, {})

    def never(s: View, r: Thing) -> Term:
        return s.x[r] == 1

    bad = replace(EVERYTHING["CountsInOrder"], name="Never", function=never, parts=())
    machine = where.machine()
    found = explore(ReferenceBackend(machine, where), machine, where, properties=[bad])
    assert found.violation is not None and found.violation.run == () and found.distinct == 1


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvoracle.spec.explore.breadth_first.PROGRESS_SECONDS", 0.0)
    seen: list[tuple[int, int]] = []
    search(TINY, progress=lambda result, frontier: seen.append((result.distinct, frontier)))
    assert seen and seen == sorted(seen, key=lambda s: s[0])
    assert max(distinct for distinct, _ in seen) == search(TINY).distinct


def test_two_searches_give_identical_results() -> None:
    def once() -> dict[str, Any]:
        found = asdict(search(SCOPES["draft"], VARIANTS["no-exclusion"]))
        del found["seconds"]
        return found

    assert once() == once()


SCRIPT = """

from dataclasses import replace
from kvoracle.model.scopes import SCOPES
from kvoracle.spec.explore import search
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.variants import VARIANTS
found = search(SCOPES["seed"], VARIANTS["advance-on-refusal"], find_all=True, max_states=2000)
print(replace(found, seconds=0.0))
print(CompiledBackend(SCOPES["groups"].machine(), SCOPES["groups"]).source)
"""


def test_results_do_not_depend_on_how_the_process_hashes() -> None:
    outputs = {
        subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True,
                       env=os.environ | {"PYTHONHASHSEED": seed}).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1 and "NoHole" in next(iter(outputs))


# --- names ---------------------------------------------------------------------------------


def test_an_unknown_backend_or_scope_names_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="no backend 'pyton'; did you mean python"):
        search(SCOPES["seed"], backend="pyton")
    with pytest.raises(UnknownName, match="no scope 'drafts'; did you mean draft"):
        scope("drafts")


def test_the_order_of_actions_is_that_of_declaration() -> None:
    """Counts and counterexamples hang on it."""
    declared: Sequence[str] = [a for p in ALL_PARTS for a in p.actions]
    machine = SCOPES["groups"].machine()
    assert list(machine.actions) == [a for a in declared if a in machine.actions]
