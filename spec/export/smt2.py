"""Each obligation of the proof as an SMT-LIB file: does another solver agree with Z3?

A file asks whether there is a state, and a step from it, that keeps all that is assumed
and breaks what is to be shown.  The answer of a proved obligation is ``unsat``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import COMPOSITIONS

from ..properties import EVERYTHING, Property
from ..prove.obligations import Proof, Question
from ..prove.solver import script
from ..variants import Variant
from .writer import comment

LOGIC = "UFNIA"
"""Quantifiers, uninterpreted functions, whole numbers, and division by what is no literal."""


@dataclass(frozen=True)
class Script:
    """One obligation of a composition, to be written as SMT-LIB; ``name`` is fit for a file."""

    composition: str
    design: str
    machine: Machine
    question: Question

    @property
    def name(self) -> str:
        return "-".join(re.sub(r"\W+", "_", part) for part in (
            self.composition, self.question.property, self.question.action))

    @functools.cached_property
    def text(self) -> str:
        """Written when asked for: there are many, and large."""
        return _text(self.question, self.machine, f"{self.design}, {self.composition}")


def smt2(variant: Variant | None = None,
         properties: Iterable[Property] | None = None) -> Iterator[Script]:
    """Every obligation that takes a solver, of each composition of parts, for all sizes.

    Left out are those that hold because the action writes nothing that the property reads; not
    those that a smaller composition has shown: another solver need not believe that.
    """
    design = f"variant {variant.name}" if variant else "the reference design"
    for name, machine in compositions(variant).items():
        for question in Proof(machine, properties).questions():
            if question.goal is not None:
                yield Script(name, design, machine, question)


def compositions(variant: Variant | None) -> dict[str, Machine]:
    """The machines that are proved, by name; of a variant the one that has its rule."""
    if variant is None:
        return {name: Machine(parts, REFERENCE) for name, parts in COMPOSITIONS.items()}
    name = next((n for n, parts in COMPOSITIONS.items() if parts == variant.parts), "machine")
    return {name: variant.whole()}


def _text(question: Question, machine: Machine, design: str) -> str:
    lines = [f"kvoracle: {question.property} / {question.action}, of {design}, for all sizes."]
    known = EVERYTHING.get(question.property)
    if known is not None:
        lines.append(f"{question.property}: {known.statement}.")
    action = machine.actions.get(question.action)
    if action is not None:
        lines.append(f"{action.name}: {action.doc}")
    lines.append("Assumed: the sorts' ranges, the facts about division, every property and lemma "
                 "before the step, and the action's guard.  Asked: can the property be broken "
                 "then?  unsat: no.")
    heading = [f"; {line}".rstrip() for paragraph in lines for line in comment(paragraph)]
    body = script(question.hypotheses, question.goal)
    body = "\n".join(line for line in body.splitlines() if line[:1] != ";"
                     and not line.startswith("(set-info"))
    return "\n".join([*heading, f"(set-logic {LOGIC})", body]) + "\n"


__all__ = ["LOGIC", "Script", "smt2"]
