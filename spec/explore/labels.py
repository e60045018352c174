"""The steps of a scope told apart as fairness needs it, and the duties it has to keep.

A step's *label* says which action it is an instance of and, if that one is fair, for which
choice of the parameters it is fair by itself: this is a *demand*.  All other instances of an
action share one label.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvoracle.model.fairness import CEASING, Fair, fair
from kvoracle.model.machine import Action, Machine, Predicate
from kvoracle.model.scopes import ImpossibleConfig, Scope
from kvoracle.model.simplify import simplify
from kvoracle.model.terms import Bound, Literal, Quantified, Term, disjunction

from ..properties import LIVENESS, Duty, Liveness

MOST_LABELS = 2**16
"""A label takes two bytes in a compiled graph."""


@dataclass(frozen=True)
class Demand:
    """A line of fairness at one choice of the parameters that it is fair by."""

    line: Fair
    values: tuple[int, ...]
    enabled: Predicate


@dataclass(frozen=True)
class Owed:
    """A duty at one choice of its parameters; what it waits for, as a predicate without any."""

    property: str
    duty: Duty
    values: Mapping[str, int]
    waits: Predicate

    def __str__(self) -> str:
        return self.duty.name.format(**self.values)


class Labels:
    """Labels, demands and duties of a machine in a scope.

    ``whole`` is the machine with the actions that the scope leaves out.  A fair one of these is
    never taken and may be demanded all the same: a run that owes it leaves the scope, as it does
    by counting further than the scope.
    """

    def __init__(self, machine: Machine, whole: Machine, scope: Scope,
                 properties: Iterable[Liveness] | None = None) -> None:
        self.machine, self.whole, self.scope = machine, whole, scope
        self._first: dict[str, int] = {}
        self.actions: list[str] = []
        """By label, the action."""
        self.demand_of: dict[int, int] = {}
        """By label, the number of the demand that a step with it meets, if any."""
        demanded: dict[tuple[Fair, tuple[int, ...]], list[Term]] = {}
        for action in whole.actions.values():
            line = fair(action.name)
            if action.name not in machine.actions and line is None:
                continue
            self._first[action.name] = len(self.actions)
            by = self.by(action)
            for chosen in self._choices(by):
                if line is not None:
                    possible = demanded.setdefault((line, chosen), [])
                    possible.append(self._possible(action, by, chosen))
                    self.demand_of[len(self.actions)] = list(demanded).index((line, chosen))
                self.actions.append(action.name)
        if len(self.actions) > MOST_LABELS:
            raise ImpossibleConfig(f"scope {scope.name}: more than {MOST_LABELS} kinds of steps")
        self.demands = [
            Demand(line, chosen, Predicate("demanded", (), disjunction(possible)))
            for (line, chosen), possible in demanded.items()
        ]
        self.owed = [
            self._owed(promise.name, duty, chosen, predicate)
            for promise in (LIVENESS.values() if properties is None else properties)
            for duty in promise.of(machine)
            for predicate in (duty.predicate(machine),)
            for chosen in self._choices(predicate.parameters)
        ]

    @property
    def all_demands(self) -> int:
        """Every demand, as bits."""
        return (1 << len(self.demands)) - 1

    def by(self, action: Action) -> tuple[Bound, ...]:
        """The parameters that tell the action's labels apart."""
        line = fair(action.name)
        return tuple(p for p in action.parameters if line is not None and p.name in line.by)

    def first(self, action: str) -> int:
        """The label of the action's first instance."""
        return self._first[action]

    def of(self, action: str, values: Sequence[int]) -> int:
        """The label of a step."""
        traced = self.machine.actions[action]
        by = {p.name for p in self.by(traced)}
        at = 0
        for parameter, value in zip(traced.parameters, values):
            if parameter.name in by:
                at = at * self.scope.size(parameter.sort) + value
        return self._first[action] + at

    def ending(self, duty: Duty) -> frozenset[int]:
        """Labels of steps that a run which breaks the duty does not take for ever: they end the
        waiting, or they cease."""
        return frozenset(i for i, name in enumerate(self.actions)
                         if name in duty.until or name in CEASING)

    def _choices(self, parameters: Sequence[Bound]) -> Iterable[tuple[int, ...]]:
        return itertools.product(*(range(self.scope.size(p.sort)) for p in parameters))

    def _at(self, term: Term, parameters: Sequence[Bound], chosen: Sequence[int]) -> Term:
        values: dict[Term, Term] = dict(zip(parameters, map(Literal, chosen)))
        return simplify(term, values, self.scope.constant)

    def _possible(self, action: Action, by: tuple[Bound, ...], chosen: tuple[int, ...]) -> Term:
        names = {p.name for p in by}
        others = tuple(p for p in action.parameters if p.name not in names)
        guard = self._at(action.guard, by, chosen)
        return Quantified(False, others, guard) if others else guard

    def _owed(self, promise: str, duty: Duty, chosen: tuple[int, ...],
              predicate: Predicate) -> Owed:
        term = self._at(predicate.term, predicate.parameters, chosen)
        values = dict(zip((p.name for p in predicate.parameters), chosen))
        return Owed(promise, duty, values, Predicate(predicate.name, (), term))
