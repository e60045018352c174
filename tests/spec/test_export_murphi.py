"""Does rumur, which shares no code with us, see the states that our searches see?

Properties are exported as things to count rather than to fail on, so that one run of rumur
gives the whole count of states, every verdict and every situation seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from export_cases import EDGES, EDGES_PROPERTIES, PLACES

from kvoracle.model.scopes import SCOPES, Scope
from kvoracle.spec.explore import Exploration, search
from kvoracle.spec.export import rumur
from kvoracle.spec.export.external import Disagreement, ToolFailed, ToolMissing
from kvoracle.spec.export.murphi import Program, murphi
from kvoracle.spec.export.prepared import Prepared
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.variants import VARIANTS, Variant

needs_rumur = pytest.mark.tool("rumur")


def _counted(scope: Scope, variant: Variant | None, folder: Path, **how: object) -> rumur.Answer:
    checker = rumur.build(scope, variant, folder, use="count", **how)  # type: ignore[arg-type]
    found = rumur.answer(checker)
    assert found.failure is None
    return found


@needs_rumur
@pytest.mark.parametrize(("scope", "variant"), PLACES)
def test_rumur_sees_the_same_states_and_verdicts(
    scope: Scope, variant: Variant | None, tmp_path: Path,
    reference_search: Callable[[str], Exploration],
    variant_search: Callable[[str], Exploration],
) -> None:
    ours = reference_search(scope.name) if variant is None else variant_search(variant.name)
    # What compiling with care takes pays only in the larger scopes.
    theirs = _counted(scope, variant, tmp_path, optimise="-O1" if ours.distinct > 10_000 else "-O0")
    broken = {name for name, times in theirs.counts.items() if times and ": " not in name}
    assert broken == set(ours.violations) == set(variant.breaks if variant else ())
    judged = {name for name in theirs.counts if ": " not in name}
    assert judged == set(ours.evaluated)
    if broken == judged:  # our search ends when nothing more can be broken
        return
    assert ours.complete
    assert (theirs.distinct, theirs.generated) == (ours.distinct, ours.generated)
    seen = {name: bool(times) for name, times in theirs.counts.items() if ": " in name}
    assert seen == {f"{p}: {w}": depth is not None
                    for p, ws in ours.witnesses.items() for w, depth in ws.items()}


@needs_rumur
def test_rumur_sees_the_same_at_the_edges_of_the_notation(tmp_path: Path) -> None:
    ours = search(EDGES, backend="python", properties=EDGES_PROPERTIES, find_all=True)
    assert ours.complete and ours.cut
    theirs = _counted(EDGES, None, tmp_path, properties=EDGES_PROPERTIES, optimise="-O1")
    assert (theirs.distinct, theirs.generated) == (ours.distinct, ours.generated)
    assert {n for n, times in theirs.counts.items() if times} == set(ours.violations) \
        == {"NeverFull", "NeverFalls"}


@needs_rumur
@pytest.mark.parametrize("name", ["no-key-bound", "cursor-falls-back"])
def test_a_run_of_rumur_is_a_run_of_the_machine_and_as_short_as_ours(
    name: str, variant_search: Callable[[str], Exploration]
) -> None:
    variant = VARIANTS[name]
    theirs = rumur.check(SCOPES[variant.scope], variant, optimise="-O0")
    ours = variant_search(name)
    assert theirs.broken in ours.violations and not theirs.complete
    assert len(theirs.run) == min(len(v.run) for v in ours.violations.values())


# --- without rumur -------------------------------------------------------------------------

XML = """<?xml version="1.0" encoding="utf-8"?>
<rumur_run>
<information state_size_bits="17" state_size_bytes="3" hash_table_slots="65536"/>
<error includes_trace="true">
<message>{message}</message>
<transition>Startstate 1</transition>
<state>{first}</state>
<transition>Rule &quot;{rule}&quot;<parameter name="r">0</parameter></transition>
<state>{second}</state>
</error>
<summary states="7" rules_fired="9" errors="1" duration_seconds="0"/>
</rumur_run>
"""


def _program() -> Program:
    return Program(Prepared(EDGES, None, EDGES_PROPERTIES), "assert")


def _shown(**values: str) -> str:
    first = {
        "level[0]": "1", "level[1]": "1", "rule2[0][0]": "0", "rule2[0][1]": "0",
        "rule2[1][0]": "0", "rule2[1][1]": "0", "Init": "0", "n[0]": "red", "n[1]": "red",
        "lit[0]": "false", "lit[1]": "false", "red2": "true",
    }
    return "".join(f'<state_component name="{n}" value="{v}"/>'
                   for n, v in (first | values).items())


def test_a_reported_run_is_read_with_the_names_of_the_machine() -> None:
    after = _shown(**{"n[0]": "dark_green"})
    text = XML.format(message="m", first=_shown(), rule="paint", second=after)
    found = rumur.read(_program(), text)
    assert (found.distinct, found.generated, found.state_bytes, found.failure) == (7, 9, 3, "m")
    assert [s.action for s in found.run] == [None, "paint"]
    changed = {k: v for k, v in found.run[1].state.items() if found.run[0].state[k] != v}
    assert changed == {("n", (0,)): 1}
    assert found.run[0].state["red", ()] == 1


def test_a_step_that_the_machine_cannot_take_is_a_disagreement(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    after = _shown(**{"level[0]": "2"})
    text = XML.format(message='invariant &quot;NeverFull&quot; failed', first=_shown(),
                      rule="paint", second=after)
    found = rumur.read(_program(), text)
    monkeypatch.setattr(rumur, "build",
                        lambda *_, **__: rumur.Checker(_program(), "", Path("none")))
    monkeypatch.setattr(rumur, "answer", lambda checker: found)
    with pytest.raises(Disagreement, match=r"rumur's step 1, paint, is no step of the machine"):
        rumur.check(EDGES)


def test_a_checker_that_ends_early_is_no_answer() -> None:
    with pytest.raises(ToolFailed, match="ended without a summary"):
        rumur.read(_program(), "<rumur_run><information")


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolMissing, match=r"^rumur is not installed \(Debian: apt-get install"):
        rumur.check(SCOPES["seed"])


def test_the_text_has_the_words_of_the_machine() -> None:
    machine = SCOPES["groups"].machine()
    text = murphi(SCOPES["groups"])
    for action in machine.actions.values():
        assert f'rule "{action.name}"' in text
        for requirement in action.requirements:
            assert f"-- {requirement.name}\n" in text
    for wanted in ("KeysEqBlocks", "MonotoneProgress"):
        assert f'"{wanted}"' in text
        assert f"-- {EVERYTHING['KeysEqBlocks'].statement}\n" in text


def test_names_are_given_once_and_are_no_words_of_murphi() -> None:
    program = _program()
    given = [*program.names.values(), *(m for ms in program.members.values() for m in ms)]
    assert len(set(given)) == len(given)
    assert program.names["rule"] == "rule2" and program.members["Colour"][2] == "end2"


def test_the_export_of_the_scope_seed_is_as_kept(golden: Callable[[str, str], None]) -> None:
    golden("kvoracle_seed.m", murphi(SCOPES["seed"]))
