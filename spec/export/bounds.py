"""Between which numbers a term lies in a scope, and what an action must not exceed there.

A step that would write outside a variable's range is cut: not taken.  An exported model says
so with a guard, but only where the numbers allow it to happen, so that it stays readable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvoracle.model.machine import Action, Assign
from kvoracle.model.scopes import Scope
from kvoracle.model.terms import (
    Bound,
    Quantified,
    Sort,
    Term,
    Variable,
    children,
    conjunction,
    implies,
    lift,
)

from ..explore.intervals import interval


@dataclass(frozen=True)
class Bounds:
    """Intervals of terms in a scope; ``expand`` replaces definitions by what they stand for."""

    scope: Scope
    expand: Callable[[Term], Term]

    def of(self, term: Term) -> tuple[int, int]:
        """Numbers between which the term's value lies; truths count as 0 and 1."""
        return interval(self.expand(term), self.scope)

    def inside(self, term: Term, sort: Sort) -> bool:
        """Whether the term's value is a member of the sort, whatever the state."""
        low, high = self.of(term)
        return 0 <= low and high < self.scope.size(sort)

    def widest(self, term: Term) -> int:
        """The greatest distance from 0 that the term or any part of it can have."""
        return self._widest(self.expand(term))

    def _widest(self, term: Term) -> int:
        return max(*map(abs, interval(term, self.scope)), *map(self._widest, children(term)))


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

