"""Does a solver of other people agree with Z3 on every obligation of the proof?"""

from __future__ import annotations

from collections import Counter

import pytest

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import ALL_PARTS
from kvoracle.spec.export.smt2 import Script, smt2
from kvoracle.spec.properties import PROPERTIES
from kvoracle.spec.prove.obligations import Proof
from kvoracle.spec.variants import VARIANTS

needs_cvc5 = pytest.mark.tool("cvc5")

EFFORT = 200_000
"""What cvc5 may spend on one script, in its own units, so that a verdict does not depend on how
busy the computer is; an obligation of the reference takes a fraction of it."""


def _cvc5(script: Script) -> str:
    """The solver's answer: unsat, sat or unknown."""
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("rlimit-per", str(EFFORT))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script.text, script.name)
    symbols = parser.getSymbolManager()
    said: list[str] = []
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(solver, symbols).split()
    return said[0]


@needs_cvc5
def test_cvc5_proves_every_obligation_of_the_reference_design() -> None:
    answers = Counter({s.name: _cvc5(s) == "unsat" for s in smt2()})
    assert len(answers) > 100
    assert [name for name, proved in answers.items() if not proved] == []


@needs_cvc5
@pytest.mark.parametrize(("name", "obligation"), [
    ("no-key-bound", "KeysEqBlocks-plan_store"), ("cursor-falls-back", "MonotoneProgress-settle"),
])
def test_cvc5_does_not_prove_what_is_not_so(name: str, obligation: str) -> None:
    (script,) = (s for s in smt2(VARIANTS[name]) if s.name == obligation)
    assert _cvc5(script) in ("sat", "unknown")


def test_there_is_a_script_for_every_obligation_that_takes_a_solver() -> None:
    scripts = list(smt2())
    names = [s.name for s in scripts]
    assert len(set(names)) == len(names)
    questions = [q for q in Proof(Machine(ALL_PARTS, REFERENCE)).questions() if q.goal is not None]
    assert len(questions) == len(scripts)
    decided = [o for o in Proof(Machine(ALL_PARTS, REFERENCE)).obligations() if not o.by_frame]
    assert [(q.property, q.action) for q in questions] == [(o.property, o.action) for o in decided]


def test_a_script_says_what_it_asks() -> None:
    (script,) = (s for s in smt2() if s.name == "KeyedOnly-plan_store")
    assert f"; KeyedOnly: {PROPERTIES['KeyedOnly'].statement}." in script.text
    assert script.text.count("(check-sat)") == 1 and "(set-logic UFNIA)" in script.text
    assert script.text.count("(") == script.text.count(")")
