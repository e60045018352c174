"""What another solver, cvc5, says of an exported obligation."""

from __future__ import annotations

from typing import Any

from .external import ToolMissing
from .smt2 import Script

EFFORT = 200_000
"""What cvc5 may spend on one script, in its own units, so that a verdict does not depend on how
busy the computer is; an obligation of the reference takes a fraction of it."""


def cvc5_says(script: Script, effort: int = EFFORT) -> str:
    """Its answer: unsat (the obligation is proved), sat or unknown; raises `ToolMissing`."""
    cvc5 = _cvc5()
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("rlimit-per", str(effort))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script.text, script.name)
    symbols = parser.getSymbolManager()
    said: list[str] = []
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(solver, symbols).split()
    return said[0]


def _cvc5() -> Any:
    try:
        import cvc5
    except ImportError:
        raise ToolMissing("cvc5 is not installed (pip install cvc5)") from None
    return cvc5
