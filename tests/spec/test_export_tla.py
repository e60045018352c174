"""Is an exported module TLA+, does it mean what the machine means, and is TLC's answer understood?

TLC is in no package registry, so tests do not run it.  Instead: another project's parser reads
the modules, a small evaluator (`tla_reading`) takes their steps and judges their properties,
which must be those of the machine; and what TLC prints is read from outputs of TLC on these
modules, kept in `golden/` with paths, times and the computer's numbers replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from export_cases import EDGES, EDGES_PROPERTIES, NAMES, PLACES
from tla_reading import TlaReading

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import SCOPES, Scope
from kvoracle.spec.explore import Exploration
from kvoracle.spec.explore.layout import Layout
from kvoracle.spec.explore.reference import ReferenceBackend
from kvoracle.spec.export import tlc
from kvoracle.spec.export.external import Disagreement, ToolFailed, ToolMissing, replayed
from kvoracle.spec.export.prepared import Prepared
from kvoracle.spec.export.tla import Module, tla
from kvoracle.spec.properties import EVERYTHING, Property
from kvoracle.spec.variants import VARIANTS, Variant

GOLDEN = Path(__file__).parent / "golden"


def _reading(scope: Scope, variant: Variant | None = None,
             properties: tuple[Property, ...] | None = None) -> TlaReading:
    made = tla(scope, variant, properties)
    return TlaReading(made.module, made.configuration)


def _module(scope: Scope, variant: Variant | None = None,
            properties: tuple[Property, ...] | None = None) -> Module:
    return Module(Prepared(scope, variant, properties, fold_constants=False))


def _shown(module: Module, layout: Layout, state: bytes) -> Mapping[str, Any]:
    """A packed state as the module has it."""
    shown: dict[str, Any] = {}
    for variable in module.machine.state:
        cells = {}
        for at, value in layout.unpack(state)[variable.name].items():
            index = tuple(s.names[i] if s.names else i for s, i in zip(variable.domain, at))
            each: Any = bool(value) if variable.sort.is_bool else value
            cells[index if len(index) > 1 else index[0] if index else ()] = \
                variable.sort.names[value] if variable.sort.names else each
        shown[module.names[variable.name]] = cells if variable.domain else cells[()]
    return shown


def _some(backend: ReferenceBackend, breadth: int, wanted: int) -> list[bytes]:
    """States spread over the first ``breadth`` in breadth-first order."""
    seen, order = {backend.initial}, [backend.initial]
    for state in order:
        if len(order) >= breadth:
            break
        for _, _, after in backend.successors(state)[0]:
            if after not in seen:
                seen.add(after)
                order.append(after)
    return order[::max(1, len(order) // wanted)]


def _agree(scope: Scope, variant: Variant | None, properties: tuple[Property, ...] | None,
           breadth: int, wanted: int) -> None:
    """Steps and verdicts of the exported module are those of the machine, in some states."""
    module, reading = _module(scope, variant, properties), _reading(scope, variant, properties)
    machine: Machine = module.machine
    plain = ReferenceBackend(machine, scope)
    assert reading.initial() == _shown(module, plain.layout, plain.initial)
    over_states = {p.name: plain.check(p.over_states(machine), True)
                   for p, _ in module.prepared.invariants}
    over_steps = {s.property.name: {a: plain.check(s.property.over_steps(machine, a), True)
                                    for a in machine.actions} for s in module.prepared.steps}
    assert reading.listed("INVARIANTS") == ["TypeOK", *over_states]
    assert reading.listed("PROPERTIES") == list(over_steps)
    names = {module.names[a]: a for a in machine.actions}
    for state in _some(plain, breadth, wanted):
        before = _shown(module, plain.layout, state)
        assert reading.holds("TypeOK", before)
        for name, holds in over_states.items():
            assert reading.holds(name, before) is bool(holds(state, None)), name
        ours = {}
        for action, values, after in plain.successors(state)[0]:
            parameters = machine.actions[action].parameters
            shown = tuple(p.sort.names[v] if p.sort.names else bool(v) if p.sort.is_bool else v
                          for p, v in zip(parameters, values))
            ours[action, shown] = after
        theirs = {(names[a], values): after for a, values, after in reading.steps(before)}
        assert theirs.keys() == ours.keys()
        for (action, values), after in theirs.items():
            packed = ours[action, values]
            assert after == _shown(module, plain.layout, packed), action
            for name, by_action in over_steps.items():
                # Two actions may take the same step: the formula speaks of both.
                alike = [a for (a, _), t in ours.items() if t == packed]
                holds_for_all = all(by_action[a](state, packed) for a in alike)
                assert reading.holds(name, before, after) is (
                    state == packed or holds_for_all), name


@pytest.mark.parametrize(("scope", "variant"), PLACES)
def test_the_module_takes_the_steps_of_the_machine(
    scope: Scope, variant: Variant | None
) -> None:
    _agree(scope, variant, None, breadth=600, wanted=8)


def test_the_module_takes_the_steps_of_the_machine_at_the_edges_of_the_notation() -> None:
    _agree(EDGES, None, EDGES_PROPERTIES, breadth=300, wanted=60)


@pytest.mark.parametrize("name", NAMES)
def test_a_property_is_broken_in_the_module_where_the_machine_breaks_it(
    name: str, variant_search: Callable[[str], Exploration]
) -> None:
    variant = VARIANTS[name]
    scope = SCOPES[variant.scope]
    module, reading = _module(scope, variant), _reading(scope, variant)
    layout = Layout(module.machine, scope)
    for broken, violation in variant_search(name).violations.items():
        states = [layout.initial, *(s.state for s in violation.run)]
        shown = [_shown(module, layout, s) for s in states]
        pairs = pairwise(shown) if EVERYTHING[broken].is_step else ((s, None) for s in shown)
        verdicts = [reading.holds(broken, *pair) for pair in pairs]
        assert verdicts == [True] * (len(verdicts) - 1) + [False]


@pytest.mark.parametrize(("scope", "variant"), PLACES)
def test_every_name_is_defined_and_none_is_hidden(scope: Scope, variant: Variant | None) -> None:
    made = tla(scope, variant)
    text = re.sub(r"\(\*.*?\*\)|\\\*[^\n]*|\"[^\"]*\"", "", made.module, flags=re.S)
    reading = TlaReading(made.module, made.configuration)
    known = {*reading.variables, *reading.declared, *reading.definitions, made.name}
    bound = set(re.findall(r"(\w+) \\in", text)) - {"prompt", *reading.variables}
    bound |= {n for names, _ in reading.definitions.values() for n in names}
    assert not bound & known
    words = set(re.findall(r"(?<![\\\w])[A-Za-z]\w*", text))
    language = {"MODULE", "EXTENDS", "Integers", "CONSTANTS", "VARIABLES", "IF", "THEN", "ELSE",
                "CASE", "EXCEPT", "UNCHANGED", "TRUE", "FALSE", "BOOLEAN"}
    assert words <= known | bound | language
    assert set(reading.constants) == set(reading.declared)
    listed = {*reading.listed("INVARIANTS"), *reading.listed("PROPERTIES")}
    assert listed <= reading.definitions.keys()


@pytest.mark.parametrize(("right", "wrong"), [
    ("IF a <= b THEN a ELSE b", "IF a <= b THEN a"),
    ("vars == <<", "vars == <"),
    ("[r \\in Request |-> \"absent\"]", "[r \\in Request |-> \"absent\""),
    ("planned_for(r) ==", "planned_for(r) ="),
])
def test_the_parser_would_notice(right: str, wrong: str) -> None:
    made = tla(SCOPES["seed"])
    assert right in made.module
    with pytest.raises(ValueError, match="parsing"):
        TlaReading(made.module.replace(right, wrong, 1), made.configuration)


def test_the_text_has_the_words_of_the_machine() -> None:
    made = tla(SCOPES["groups"])
    for action in SCOPES["groups"].machine().actions.values():
        assert re.search(rf"^{action.name}(\(.*\))? ==$", made.module, re.M)
        for requirement in action.requirements:
            assert f"\\* {requirement.name}\n" in made.module


def test_the_export_of_the_scope_seed_is_as_kept(golden: Callable[[str, str], None]) -> None:
    made = tla(SCOPES["seed"])
    golden(f"{made.name}.tla", made.module)
    golden(f"{made.name}.cfg", made.configuration)


# --- TLC -----------------------------------------------------------------------------------


def _kept(name: str) -> str:
    return (GOLDEN / f"tlc-{name}.txt").read_text("utf-8")


def test_a_complete_search_is_understood() -> None:
    found = tlc.read(_module(SCOPES["seed"]), _kept("complete"))
    assert (found.distinct, found.generated, found.depth) == (5_075, 29_688, 18)
    assert found.complete and found.broken is None and not found.run


@pytest.mark.parametrize(("text", "name", "broken"), [
    ("invariant", "no-key-bound", "KeysEqBlocks"),
    ("action-property", "cursor-falls-back", "MonotoneProgress"),
])
def test_a_violation_is_understood_and_a_run_of_the_machine(
    text: str, name: str, broken: str, variant_search: Callable[[str], Exploration]
) -> None:
    variant = VARIANTS[name]
    scope = SCOPES[variant.scope]
    module = _module(scope, variant)
    found = tlc.read(module, _kept(text))
    assert found.broken == broken and not found.complete
    run = replayed(module.machine, scope, "TLC", found.run)
    ours = variant_search(name).violations[broken].run
    assert len(run) == len(ours) == found.depth
    assert run[-1].action == ours[-1].action


def test_a_trace_without_parameters_is_understood_alike() -> None:
    """Older releases of TLC name an action without the values of its parameters."""
    variant = VARIANTS["no-key-bound"]
    module = _module(SCOPES["seed"], variant)
    text = _kept("invariant")
    older = re.sub(r"<(\w+)\([\d,]+\) line", r"<\1 line", text)
    assert older != text
    assert tlc.read(module, older) == tlc.read(module, text)


def test_a_changed_trace_is_a_disagreement() -> None:
    variant = VARIANTS["no-key-bound"]
    module = _module(SCOPES["seed"], variant)
    head, mark, tail = _kept("invariant").rpartition("STARTMSG 2217")
    forged = head + mark + tail.replace("computed = (0 :> 2)", "computed = (0 :> 3)")
    found = tlc.read(module, forged)
    with pytest.raises(Disagreement, match="TLC's step 4, plan_store, is no step of the machine"):
        replayed(module.machine, SCOPES["seed"], "TLC", found.run)


def test_a_violation_of_the_initial_state_is_understood() -> None:
    module = _module(EDGES, None, EDGES_PROPERTIES)
    state = "/\\ level = (0 :> 1 @@ 1 :> 1)\n/\\ Init2 = 0\n"
    text = ("@!@!@STARTMSG 2107:1 @!@!@\nInvariant NeverFull is violated by the initial state:\n"
            f"{state}\n@!@!@ENDMSG 2107 @!@!@\n@!@!@STARTMSG 2199:0 @!@!@\n"
            "1 states generated, 1 distinct states found, 1 states left on queue.\n"
            "@!@!@ENDMSG 2199 @!@!@\n")
    found = tlc.read(module, text)
    assert found.broken == "NeverFull" and found.distinct == 1
    (seen,) = found.run
    assert seen.state == {("level", (0,)): 1, ("level", (1,)): 1, ("Init", ()): 0}


@pytest.mark.parametrize(("text", "said"), [
    ("", "ended without saying how many states"),
    ("@!@!@STARTMSG 2171:1 @!@!@\nTLC threw an unexpected\nexception.\n@!@!@ENDMSG 2171 @!@!@\n",
     "TLC stopped: TLC threw an unexpected exception."),
    ("@!@!@STARTMSG 2110:1 @!@!@\nInvariant TypeOK is violated.\n@!@!@ENDMSG 2110 @!@!@\n",
     "the exported model is wrong, not the design"),
])
def test_what_is_no_answer_is_said_to_be_none(text: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        tlc.read(_module(SCOPES["seed"]), text)


@pytest.mark.parametrize(("text", "value"), [
    ("3", 3), ("-1", -1), ("TRUE", True), ('"never offered"', "never offered"),
    ("<<>>", ()), ("<<1, <<2, 3>>>>", (1, (2, 3))),
    ("(0 :> FALSE)", {0: False}),
    ('( <<0, 0>> :> "held" @@\n  <<0, 1>> :> "covered" )', {(0, 0): "held", (0, 1): "covered"}),
])
def test_values_are_read_as_tlc_prints_them(text: str, value: object) -> None:
    assert tlc.parse(text) == value


@pytest.mark.parametrize("text", ["", "[a |-> 1]", "<<1", "(0 -> 1)", "1 2"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(ToolFailed):
        tlc.parse(text)


def test_what_is_missing_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(ToolMissing, match=r"^no file .*none\.jar: --tla2tools names"):
        tlc.check(SCOPES["seed"], None, tmp_path / "none.jar")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ToolMissing, match=r"^java is not installed"):
        tlc.check(SCOPES["seed"], None, tmp_path / "none.jar")
