"""Which states differ only by a renaming of interchangeable things, and which one stands for them.

The members of a symmetric sort are told apart by nothing (`Machine` sees to it), but a
variable that points at one has to point somewhere even while it means nothing: at member 0,
and a renaming would move it.  So the machine is searched in a form in which such a variable
points at *none* then: at first, and after every change that sets it to a literal number.  None
is one past the last member.  It equals no member, and what it indexes is read as at first;
renamings leave it where it is, and every term treats two renamed states alike, by the way it is
built.  A machine that never looks at what means nothing behaves the same in both forms: a test
holds them together in every scope, and a counterexample is taken again step by step in the
machine as it is written.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import factorial, prod

from kvoracle.model.machine import Action, Assign, Machine, Requirement, Update, Where
from kvoracle.model.scopes import ImpossibleConfig, Scope
from kvoracle.model.terms import Literal, Op, Read, Term, Variable, substitute

from .layout import Layout

MOST_RENAMINGS = 720
"""Of a state, to choose the least from: six interchangeable things."""


def with_none(machine: Machine, scope: Scope) -> Machine:
    """The machine in which what points at no member of a symmetric sort points at none."""
    pointing = {v.name: replace(v, initial=scope.size(v.sort))
                for v in machine.state if v.sort.symmetric}
    if not pointing:
        return machine
    for name in pointing:
        if machine.variables[name].initial:
            raise ImpossibleConfig(
                f"no symmetry: {name} is a certain {pointing[name].sort.name} at first")

    def seen(term: Term) -> Term:
        def read(t: Term) -> Term | None:
            if isinstance(t, Read) and t.variable.name in pointing:
                return Read(pointing[t.variable.name], tuple(map(seen, t.index)), t.after)
            return None

        return substitute(term, read)

    def named(value: Term, variable: Variable) -> Term:
        if isinstance(value, Literal):
            return Literal(variable.initial)
        if isinstance(value, Op) and value.name == "ite":
            condition, then, otherwise = value.args
            return Op("ite", (condition, named(then, variable), named(otherwise, variable)))
        return value

    def changed(update: Update) -> Update:
        variable = pointing.get(update.variable.name, update.variable)
        value = seen(update.value)
        if variable.name in pointing:
            value = named(value, variable)
        if isinstance(update, Assign):
            return Assign(variable, tuple(map(seen, update.index)), value)
        return Where(variable, update.bounds, seen(update.condition), value)

    def taken(action: Action) -> Action:
        return replace(
            action,
            requirements=tuple(Requirement(r.name, seen(r.term)) for r in action.requirements),
            updates=tuple(map(changed, action.updates)))

    other = copy.copy(machine)
    other.variables = {**machine.variables, **pointing}
    other.actions = {name: taken(action) for name, action in machine.actions.items()}
    return other


class Renamings:
    """The renamings of a machine's symmetric sorts in a scope, but for the one that does nothing.

    ``cells``: for each renaming, the cell that each cell takes its value from.  ``kinds``: for
    each cell, 0 if its value is no member of a symmetric sort, else the sort's number from 1;
    ``members``: for each renaming, by that number, what becomes of each member, and of none.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.scope = layout, layout.scope
        self.sorts = [s for s in layout.machine.sorts if s.symmetric]
        for variable in layout.machine.constants:
            values = {layout.scope.constant(variable, (i,))
                      for i in range(layout.scope.size(variable.domain[0]))}
            if variable.sort.symmetric or (variable.domain[0].symmetric and len(values) > 1):
                raise ImpossibleConfig(
                    f"scope {self.scope.name}: {variable.name} tells one "
                    f"{(variable.sort if variable.sort.symmetric else variable.domain[0]).name} "
                    "from another, so they are not interchangeable")
        sizes = [self.scope.size(s) for s in self.sorts]
        if prod(map(factorial, sizes)) > MOST_RENAMINGS:
            raise ImpossibleConfig(
                f"scope {self.scope.name}: more than {MOST_RENAMINGS} renamings; without symmetry")
        number = {s.name: i + 1 for i, s in enumerate(self.sorts)}
        self.kinds = [number.get(v.sort.name, 0) for v in layout.machine.state
                      for _ in layout.indices(v.domain)]
        self.cells: list[list[int]] = []
        self.members: list[list[list[int]]] = []
        for choice in self._choices(sizes):
            to = {s.name: p for s, p in zip(self.sorts, choice)}
            back = {name: [p.index(i) for i in range(len(p))] for name, p in to.items()}
            self.cells.append(list(self._moved(back)))
            self.members.append([[*p, len(p)] for p in choice])

    @staticmethod
    def _choices(sizes: list[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
        choices = itertools.product(*(itertools.permutations(range(n)) for n in sizes))
        next(choices)  # the identity
        return choices

    def _moved(self, back: dict[str, list[int]]) -> Iterator[int]:
        for variable in self.layout.machine.state:
            for index in self.layout.indices(variable.domain):
                renamed = tuple(back[s.name][i] if s.name in back else i
                                for i, s in zip(index, variable.domain))
                cell = self.layout.cell(variable, renamed)
                assert cell is not None
                yield cell

    def __len__(self) -> int:
        return len(self.cells)

    def images(self, state: bytes) -> Iterator[bytes]:
        """The state under each renaming."""
        for cells, members in zip(self.cells, self.members):
            yield bytes(members[kind - 1][state[c]] if kind else state[c]
                        for c, kind in zip(cells, self.kinds))

    def least(self, state: bytes, order: Callable[[bytes], tuple[int, ...]]) -> bytes:
        """The one, of the state and its images, that stands for all of them."""
        return min((state, *self.images(state)), key=order)

    def named(self, state: bytes) -> bytes:
        """The state as the machine is written: what points at none points at member 0."""
        return bytes(
            0 if kind and value == self.scope.size(self.sorts[kind - 1]) else value
            for kind, value in zip(self.kinds, state))


__all__ = ["MOST_RENAMINGS", "Renamings", "with_none"]
