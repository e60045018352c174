"""What an exported model says, before a language says it: actions, cuts, definitions, properties.

Here a machine meets a scope: constants are folded in where the language wants numbers,
terms are shortened by definitions, and what the scope cuts becomes a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvoracle.model.machine import (
    Action,
    Assign,
    Machine,
    Predicate,
    Requirement,
    Update,
    invariant,
)
from kvoracle.model.scopes import Scope
from kvoracle.model.simplify import simplify
from kvoracle.model.terms import (
    TRUE,
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    children,
    substitute,
)

from ..properties import PROPERTIES, Property, Witness
from ..variants import Variant
from .bounds import Bounds, Within, constant_values, cuts
from .definitions import Definition, definitions, expanded, named, same, shortened, used


@dataclass(frozen=True)
class PreparedAction:
    """An action in a scope: its guard and what it writes, shortened; and what would be cut."""

    action: Action
    requirements: tuple[Requirement, ...]
    cuts: tuple[Within, ...]
    updates: tuple[Update, ...]

    @property
    def label(self) -> str:
        """The step in words, parameters by their names."""
        names = {p.name: p.name for p in self.action.parameters}
        label = self.action.label
        return label(names) if callable(label) else label.format(**names)

    @property
    def writes(self) -> frozenset[str]:
        """The names of the variables that it changes."""
        return frozenset(u.variable.name for u in self.updates)


@dataclass(frozen=True)
class Step:
    """What a property over two states says of a step by each action of which it says anything."""

    property: Property
    by_action: dict[str, Predicate]


class Prepared:
    """A machine in a scope under a design, ready to be written down."""

    def __init__(self, scope: Scope, variant: Variant | None = None,
                 properties: Iterable[Property] | None = None, *,
                 fold_constants: bool = True) -> None:
        self.scope, self.variant = scope, variant
        self.machine: Machine = variant.machine(scope) if variant else scope.machine()
        self._fold_constants = fold_constants
        self._all = definitions(self.machine, self.fold)
        self._known = {d.name: d for d in self._all}
        self.bounds = Bounds(scope, self.expanded)
        self.actions = tuple(map(self._action, self.machine.actions.values()))
        chosen = [p for p in (PROPERTIES.values() if properties is None else properties)
                  if p.applies(self.machine)]
        self.invariants: list[tuple[Property, Predicate]] = [
            (p, self._predicate(p.over_states(self.machine))) for p in chosen if not p.is_step]
        self.steps = [self._step(p) for p in chosen if p.is_step]
        here = {part.name for part in self.machine.parts}
        self.witnesses: list[tuple[Property, Witness, Predicate]] = [
            (p, w, self._predicate(invariant(self.machine, w.name, w.function)))
            for p in chosen for w in p.witnesses if set(w.parts) <= here
        ]

    @property
    def design(self) -> str:
        """The design in a few words."""
        return f"variant {self.variant.name}" if self.variant else "the reference design"

    @property
    def command(self) -> str:
        """The arguments that name scope and variant."""
        variant = f" --variant {self.variant.name}" if self.variant else ""
        return f"--scope {self.scope.name}{variant}"

    def definitions(self, terms: Iterable[Term]) -> tuple[Definition, ...]:
        """The definitions that the terms need, bodies shortened and folded, callees first."""
        short = tuple(replace(d, body=self.fold(d.body)) for d in shortened(self._all))
        return used(list(terms), short)

    def fold(self, term: Term) -> Term:
        """The term with what the scope fixes folded in."""

        def constant(t: Term) -> Term | None:
            if not isinstance(t, Read) or not t.variable.rigid:
                return None
            values = constant_values(self.scope, t.variable)
            index, sort = t.index[0], t.variable.domain[0]
            member = index.sort if isinstance(index, Bound) else \
                index.variable.sort if isinstance(index, Read) else None
            alike = len(set(values)) == 1 and member == sort
            return Literal(self.scope.constant(t.variable, (0,))) if alike else None

        if not self._fold_constants:
            return simplify(term, {}, None)
        return simplify(substitute(term, constant), {}, self.scope.constant)

    def expanded(self, term: Term) -> Term:
        """The term without definitions."""
        return self.fold(expanded(term, self._known))

    def reads(self, term: Term) -> frozenset[str]:
        """The state variables that the term's value depends on."""
        found: set[str] = set()
        if isinstance(term, Read):
            if term.variable.name in self._known:
                found |= self.reads(self._known[term.variable.name].body)
            elif not term.variable.rigid:
                found.add(term.variable.name)
        for child in children(term):
            found |= self.reads(child)
        return frozenset(found)

    def sorts(self, terms: Iterable[Term]) -> list[Sort]:
        """Every sort that a variable, a parameter or a quantifier of the terms ranges over, and
        the enumerations that constants are members of."""
        seen = {s.name: s for v in self.machine.state for s in (*v.domain, v.sort)}
        for action in self.actions:
            seen |= {p.sort.name: p.sort for p in action.action.parameters}

        def note(term: Term) -> None:
            if isinstance(term, Quantified):
                seen.update((b.sort.name, b.sort) for b in term.bounds)
            elif isinstance(term, Read) and term.variable.sort.names:
                seen[term.variable.sort.name] = term.variable.sort
            for child in children(term):
                note(child)

        for term in terms:
            note(term)
        return list(seen.values())

    # --- parts -------------------------------------------------------------------------------

    def _short(self, term: Term) -> Term:
        return self.fold(named(term, self._all))

    def _action(self, action: Action) -> PreparedAction:
        folded = [self._update(u, self.fold) for u in action.updates]
        return PreparedAction(
            action,
            tuple(Requirement(r.name, self._short(r.term)) for r in action.requirements
                  if not _is_true(self.fold(r.term))),
            tuple(replace(c, term=self._short(c.term), condition=self._short(c.condition))
                  for c in cuts(replace(action, updates=tuple(folded)), self.bounds)),
            tuple(self._update(u, self._short) for u in action.updates),
        )

    @staticmethod
    def _update(update: Update, change: Callable[[Term], Term]) -> Update:
        if isinstance(update, Assign):
            return replace(update, index=tuple(map(change, update.index)),
                           value=change(update.value))
        return replace(update, condition=change(update.condition), value=change(update.value))

    def _predicate(self, predicate: Predicate) -> Predicate:
        return replace(predicate, term=self._short(predicate.term))

    def _step(self, wanted: Property) -> Step:
        found: dict[str, Predicate] = {}
        for action in self.actions:
            predicate = wanted.over_steps(self.machine, action.action.name)
            term = _settled(self.fold(self._unchanged(predicate.term, action)))
            if not _is_true(term):
                found[action.action.name] = replace(predicate, term=named(term, self._all))
        return Step(wanted, found)

    @staticmethod
    def _unchanged(term: Term, action: PreparedAction) -> Term:
        """The term with reads after the action of what it does not change as reads before it."""

        def read(t: Term) -> Term | None:
            if not isinstance(t, Read) or not t.after or t.variable.name in action.writes:
                return None
            return Read(t.variable, tuple(substitute(i, read) for i in t.index))

        return substitute(term, read)


def _settled(term: Term) -> Term:
    """True, if the term compares something with itself; else the term."""
    if isinstance(term, Op) and term.name in ("le", "eq") and same(*term.args):
        return TRUE
    return term


def _is_true(term: Term) -> bool:
    return isinstance(term, Literal) and bool(term.value)
