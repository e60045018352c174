"""Does a solver of other people agree with Z3 on every obligation of the proof?"""

from __future__ import annotations

import functools
import random
import sys

import pytest

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import COMPOSITIONS
from kvoracle.spec.export.external import ToolMissing
from kvoracle.spec.export.second import cvc5_says
from kvoracle.spec.export.smt2 import Script, smt2
from kvoracle.spec.properties import PROPERTIES
from kvoracle.spec.prove.obligations import Proof
from kvoracle.spec.variants import VARIANTS

needs_cvc5 = pytest.mark.tool("cvc5")

SAMPLED = 40
"""Of the obligations of a composition that is not the smallest; `bench/solvers.py` asks all."""


BEYOND = frozenset({"planning-Division-a_chunk_s_tokens_more_make_at_most_one_chunk_more"})
"""A product of two unknowns: cvc5 gives up, and Z3 alone has proved it."""


@functools.cache
def _scripts() -> tuple[Script, ...]:
    return tuple(smt2())


@needs_cvc5
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_cvc5_proves_the_obligations_of_the_reference_design(composition: str) -> None:
    scripts = [s for s in _scripts() if s.composition == composition]
    assert len(scripts) > 100
    if composition != next(iter(COMPOSITIONS)):
        scripts = random.Random(composition).sample(scripts, SAMPLED)
    answers = {s.name: cvc5_says(s) for s in scripts}
    open_ones = {n: a for n, a in answers.items() if a != "unsat"}
    assert open_ones == dict.fromkeys(BEYOND & answers.keys(), "unknown")


@needs_cvc5
@pytest.mark.parametrize(("name", "obligation"), [
    ("no-key-bound", "planning-KeysEqBlocks-plan_store"),
    ("cursor-falls-back", "planning-MonotoneProgress-settle"),
    ("load-beside-stores", "transfers-JobExclusive-plan_load"),
])
def test_cvc5_does_not_prove_what_is_not_so(name: str, obligation: str) -> None:
    (script,) = (s for s in smt2(VARIANTS[name]) if s.name == obligation)
    assert cvc5_says(script, effort=20_000) in ("sat", "unknown")


def test_there_is_a_script_for_every_obligation_that_takes_a_solver() -> None:
    names = [s.name for s in _scripts()]
    assert len(set(names)) == len(names)
    assert {s.composition for s in _scripts()} == COMPOSITIONS.keys()
    planning = Proof(Machine(COMPOSITIONS["planning"], REFERENCE))
    decided = [o for o in planning.obligations() if not o.by_frame]
    assert [(s.question.property, s.question.action) for s in _scripts()
            if s.composition == "planning"] == [(o.property, o.action) for o in decided]


def test_a_script_says_what_it_asks() -> None:
    (script,) = (s for s in _scripts() if s.name == "planning-KeyedOnly-plan_store")
    assert "KeyedOnly / plan_store, of the reference design, planning, for all sizes." \
        in script.text.replace("\n; ", " ")
    assert f"; KeyedOnly: {PROPERTIES['KeyedOnly'].statement}." in script.text
    assert script.text.count("(check-sat)") == 1 and "(set-logic UFNIA)" in script.text
    assert script.text.count("(") == script.text.count(")")


def test_without_cvc5_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvc5", None)
    with pytest.raises(ToolMissing, match=r"cvc5 is not installed \(pip install cvc5\)"):
        cvc5_says(_scripts()[0])
