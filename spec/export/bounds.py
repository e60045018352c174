"""Between which numbers a term lies in a scope, and what an action must not exceed there.

A step that would write outside a variable's range is cut: not taken.  An exported model says
so with a guard, but only where the numbers allow it to happen, so that it stays readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvoracle.model.machine import Action, Assign
from kvoracle.model.scopes import Scope
from kvoracle.model.terms import (
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    Variable,
    conjunction,
    implies,
    lift,
)

Interval = tuple[float, float]


@dataclass(frozen=True)
class Bounds:
    """Intervals of terms in a scope; ``named`` are the bodies of definitions by their names."""

    scope: Scope
    named: Mapping[str, Term]

    def of(self, term: Term) -> Interval:
        """Numbers between which the term's value lies; truths count as 0 and 1."""
        if isinstance(term, Literal):
            return int(term.value), int(term.value)
        if isinstance(term, Bound):
            return 0, self.scope.size(term.sort) - 1
        if isinstance(term, Read):
            return self._read(term.variable)
        if isinstance(term, Quantified):
            return 0, 1
        assert isinstance(term, Op)
        lows, highs = zip(*map(self.of, term.args))
        if term.name == "add":
            return sum(lows), sum(highs)
        if term.name == "sub":
            return lows[0] - highs[1], highs[0] - lows[1]
        if term.name == "ite":
            return min(lows[1:]), max(highs[1:])
        if term.name in ("min", "max"):
            choose = min if term.name == "min" else max
            return choose(lows), choose(highs)
        if term.name == "div":
            return min(lows[0], lows[0] // lows[1]), max(0, highs[0] // lows[1])
        return 0, 1

    def _read(self, variable: Variable) -> Interval:
        if variable.name in self.named:
            return self.of(self.named[variable.name])
        if not variable.rigid:
            return 0, self.scope.size(variable.sort) - 1
        values = [int(v) for v in constant_values(self.scope, variable)]
        default = int(self.scope.constant(variable, (-1,)))
        return min(*values, default), max(*values, default)

    def inside(self, term: Term, sort: Sort) -> bool:
        """Whether the term's value is a member of the sort, whatever the state."""
        low, high = self.of(term)
        return 0 <= low and high < self.scope.size(sort)

    def widest(self, term: Term) -> float:
        """The greatest distance from 0 that the term or any part of it can have."""
        parts: tuple[Term, ...] = ()
        if isinstance(term, Op):
            parts = term.args
        elif isinstance(term, Read):
            parts = term.index
        elif isinstance(term, Quantified):
            parts = (term.body,)
        return max(*map(abs, self.of(term)), *map(self.widest, parts), 0)


def constant_values(scope: Scope, variable: Variable) -> tuple[int, ...]:
    """A constant's value for each member of the sort that indexes it."""
    return tuple(scope.constant(variable, (i,)) for i in range(scope.size(variable.domain[0])))


@dataclass(frozen=True)
class Within:
    """``term`` must be a member of ``sort`` for all values of the bounds that meet the
    condition: else the scope cuts the step."""

    bounds: tuple[Bound, ...]
    condition: Term
    term: Term
    sort: Sort
    place: bool

    def as_term(self, scope: Scope) -> Term:
        """The same as a term.  No value is below 0 in a right machine; a place may be."""
        last = self.term <= scope.size(self.sort) - 1
        member = conjunction((0 <= self.term, last)) if self.place else last
        if not self.bounds:
            return member
        return Quantified(True, self.bounds, lift(implies(self.condition, member)))


def cuts(action: Action, bounds: Bounds) -> list[Within]:
    """What the scope demands of a step by the action, beside its guard."""
    found: list[Within] = []
    for update in action.updates:
        sort = update.variable.sort
        if isinstance(update, Assign):
            found += [
                Within((), lift(True), term, of, True)
                for term, of in zip(update.index, update.variable.domain)
                if not bounds.inside(term, of)
            ]
            where: tuple[tuple[Bound, ...], Term] = ((), lift(True))
        else:
            where = (update.bounds, update.condition)
        if bounds.of(update.value)[1] >= bounds.scope.size(sort):
            found.append(Within(*where, update.value, sort, False))
    return found

