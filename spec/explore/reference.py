"""The plainest exploring reading: terms are walked, nothing is compiled or folded.

Slow, and short enough to be believed by reading it.  The compiled readings are held
against it: same distinct and generated states, same verdicts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from kvoracle.model.machine import Action, Assign, Machine, Predicate
from kvoracle.model.scopes import Scope
from kvoracle.model.simplify import OPERATIONS
from kvoracle.model.terms import Bound, Literal, Op, Quantified, Read, Sort, Term

from .breadth_first import Check, Successor
from .layout import Layout

Values = Mapping[Term, int]


class NegativeValue(Exception):
    """An action gives a variable a value below 0, which no sort has: the machine is wrong."""


class ReferenceBackend:
    """Successors and verdicts of packed states by walking terms."""

    name = "reference"

    def __init__(self, machine: Machine, scope: Scope) -> None:
        self.machine, self.scope = machine, scope
        self.layout = Layout(machine, scope)
        self.initial = self.layout.initial

    def _all(self, sorts: Iterable[Sort]) -> Iterable[tuple[int, ...]]:
        return itertools.product(*(range(self.scope.size(s)) for s in sorts))

    def value(self, term: Term, values: Values, before: bytes, after: bytes | None = None) -> int:
        """The term's value in a state (a step: in two)."""
        if isinstance(term, Literal):
            return term.value
        if isinstance(term, Bound):
            return values[term]
        if isinstance(term, Read):
            index = tuple(self.value(i, values, before, after) for i in term.index)
            if term.variable.rigid:
                return self.scope.constant(term.variable, index)
            cell = self.layout.cell(term.variable, index)
            if cell is None:
                return term.variable.initial
            state = after if term.after else before
            assert state is not None
            return state[cell]
        if isinstance(term, Quantified):
            each = (
                self.value(term.body, {**values, **dict(zip(term.bounds, chosen))}, before, after)
                for chosen in self._all(b.sort for b in term.bounds)
            )
            return all(each) if term.every else any(each)
        assert isinstance(term, Op)
        if term.name == "and":
            return all(self.value(a, values, before, after) for a in term.args)
        if term.name == "or":
            return any(self.value(a, values, before, after) for a in term.args)
        if term.name == "ite":
            condition, then, otherwise = term.args
            chosen_term = then if self.value(condition, values, before, after) else otherwise
            return self.value(chosen_term, values, before, after)
        return OPERATIONS[term.name](*(self.value(a, values, before, after) for a in term.args))

    def _apply(self, action: Action, values: Values, state: bytes) -> bytes | None:
        """The state after the action; None if it leaves the scope."""
        after = bytearray(state)
        for update in action.updates:
            limit = self.layout.limit[update.variable.name]
            if isinstance(update, Assign):
                places = [(tuple(self.value(i, values, state) for i in update.index), values)]
            else:
                places = [
                    (chosen, {**values, **dict(zip(update.bounds, chosen))})
                    for chosen in self._all(update.variable.domain)
                ]
            for index, inner in places:
                if not isinstance(update, Assign) \
                        and not self.value(update.condition, inner, state):
                    continue
                cell = self.layout.cell(update.variable, index)
                new = self.value(update.value, inner, state)
                if new < 0:
                    raise NegativeValue(
                        f"{action.name}: {update.variable.name}"
                        f"[{', '.join(map(str, index))}] would be {new}")
                if cell is None or new >= limit:
                    return None
                after[cell] = new
        return bytes(after)

    def successors(self, state: bytes) -> tuple[list[Successor], int]:
        """All steps out of ``state``, in a fixed order, and how many the scope cut."""
        found: list[Successor] = []
        cut = 0
        for action in self.machine.actions.values():
            for chosen in self._all(p.sort for p in action.parameters):
                values: Values = dict(zip(action.parameters, chosen))
                if not self.value(action.guard, values, state):
                    continue
                after = self._apply(action, values, state)
                if after is None:
                    cut += 1
                else:
                    found.append((action.name, chosen, after))
        return found, cut

    def check(self, predicate: Predicate, every: bool) -> Check:
        """A test of whether the predicate holds for all values of its parameters, or for some."""
        term = Quantified(every, predicate.parameters, predicate.term)
        return lambda before, after: bool(self.value(term, {}, before, after))

    def breaking(self, predicate: Predicate, before: bytes,
                 after: bytes | None = None) -> tuple[int, ...] | None:
        """The first values of the parameters for which the predicate does not hold."""
        for chosen in self._all(p.sort for p in predicate.parameters):
            values: Values = dict(zip(predicate.parameters, chosen))
            if not self.value(predicate.term, values, before, after):
                return chosen
        return None

    def get(self, state: bytes, name: str, *index: int) -> int:
        """A variable's value in a state, or a constant's."""
        variable = self.machine.variables[name]
        if variable.rigid:
            return int(self.scope.constant(variable, index))
        cell = self.layout.cell(variable, index)
        return variable.initial if cell is None else state[cell]
