"""The proof: what must be shown so that every property holds for all sizes, and showing it.

Properties and lemmas together form an inductive invariant: they hold at first, and each
action keeps each of them, given all of them before.  Every pair is an *obligation*,
decided by itself for unboundedly many requests, groups and chunks of symbolic sizes.
A pair in which the action writes nothing that the property reads needs no solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import z3

from kvoracle.model.machine import Action, Machine, Predicate
from kvoracle.model.terms import Read, Term, Variable, children

from ..properties import EVERYTHING, Property
from .division import FACTS
from .solver import Answer, Formula, Reader, Translator, Values, decide


@dataclass(frozen=True)
class Obligation:
    """One thing shown, or not.  ``action`` is "at first", "in any state", an action's name, or
    the name of a fact."""

    property: str
    action: str
    answer: Answer
    by_frame: bool = False

    def __str__(self) -> str:
        return f"{self.property} / {self.action}"


def _reads(term: Term) -> set[str]:
    own = {term.variable.name} if isinstance(term, Read) else set()
    return own.union(*(_reads(c) for c in children(term))) if children(term) else own


def _writes(action: Action) -> set[str]:
    return {u.variable.name for u in action.updates}


class Proof:
    """All obligations of a machine, each decided on demand."""

    def __init__(self, machine: Machine, properties: Iterable[Property] | None = None) -> None:
        self.machine = machine
        everything = [p for p in EVERYTHING.values() if p.applies(machine)]
        wanted = list(properties) if properties is not None else everything
        self._wanted = [p for p in everything if p in wanted or p.lemma]
        self._translator = Translator(machine)
        self._invariants = [
            (p, p.over_states(machine)) for p in everything if not p.is_step and not p.derived
        ]
        self._known = self._facts()

    def _facts(self) -> list[Formula]:
        """What every obligation may use: sorts, division, the invariants before the action."""
        t = self._translator
        facts = [t.well_typed(v) for v in self.machine.variables.values()]
        for fact in FACTS:
            numbers = [t.constant(v) for v in fact.variables]
            values: Values = dict(zip(fact.variables, numbers))
            natural = z3.And(*(n >= 0 for n in numbers))
            body = z3.Implies(natural, t.formula(fact.statement, values))
            pattern = z3.MultiPattern(*(t.formula(q, values) for q in fact.quotients))
            facts.append(z3.ForAll(numbers, body, patterns=[pattern]))
        return facts + [t.holds_everywhere(p) for _, p in self._invariants]

    def obligations(self) -> Iterator[Obligation]:
        """Decide every obligation, in a fixed order."""
        yield from self._division()
        for wanted in self._wanted:
            if wanted.derived:
                yield self._anywhere(wanted)
            elif wanted.is_step:
                for action in self.machine.actions.values():
                    yield self._kept(wanted, wanted.over_steps(self.machine, action.name), action)
            else:
                predicate = wanted.over_states(self.machine)
                yield self._at_first(wanted.name, predicate)
                for action in self.machine.actions.values():
                    yield self._kept(wanted, predicate, action)
        for action in self.machine.actions.values():
            written = sorted(_writes(action))
            for name in written:
                yield self._typed(self.machine.variables[name], action)

    def _division(self) -> Iterator[Obligation]:
        real = Translator(self.machine, real_division=True)
        for fact in FACTS:
            numbers: Values = {v: real.constant(v) for v in fact.variables}
            natural = [n >= 0 for n in numbers.values()]
            yield Obligation("Division", fact.name,
                             decide(natural, real.formula(fact.statement, numbers)))

    def _parameters(self, predicate: Predicate) -> tuple[dict[Term, Formula], list[Formula]]:
        t = self._translator
        values: dict[Term, Formula] = {p: t.constant(p) for p in predicate.parameters}
        return values, [t.typed(p.sort, values[p]) for p in predicate.parameters]

    def _at_first(self, name: str, predicate: Predicate) -> Obligation:
        values, typed = self._parameters(predicate)
        goal = self._translator.formula(predicate.term, values, self._translator.initially)
        # Only sorts and division are known before anything has happened.
        facts = self._known[: len(self._known) - len(self._invariants)]
        return Obligation(name, "at first", decide([*facts, *typed], goal))

    def _anywhere(self, wanted: Property) -> Obligation:
        predicate = wanted.over_states(self.machine)
        values, typed = self._parameters(predicate)
        goal = self._translator.formula(predicate.term, values)
        return Obligation(wanted.name, "in any state", decide([*self._known, *typed], goal))

    def _enabled(self, action: Action) -> tuple[dict[Term, Formula], list[Formula]]:
        t = self._translator
        values: dict[Term, Formula] = {p: t.constant(p) for p in action.parameters}
        typed = [t.typed(p.sort, values[p]) for p in action.parameters]
        return values, [*typed, t.formula(action.guard, values)]

    def _kept(self, wanted: Property, predicate: Predicate, action: Action) -> Obligation:
        if not wanted.is_step and not _reads(predicate.term) & _writes(action):
            return Obligation(wanted.name, action.name, Answer("proved", 0.0), by_frame=True)
        t = self._translator
        chosen, enabled = self._enabled(action)
        behind = t.behind(action, chosen)
        values, typed = self._parameters(predicate)
        if wanted.is_step:
            goal = t.formula(predicate.term, values, after=behind)
        else:
            goal = t.formula(predicate.term, values, before=_constants_aside(t, behind))
        return Obligation(
            wanted.name, action.name, decide([*self._known, *enabled, *typed], goal))

    def _typed(self, variable: Variable, action: Action) -> Obligation:
        t = self._translator
        chosen, enabled = self._enabled(action)
        index = [z3.Int(f"at!{k}") for k in range(len(variable.domain))]
        behind = t.behind(action, chosen)(variable, index)
        goal = t.typed(variable.sort, behind)
        return Obligation(f"{variable.name} in range", action.name,
                          decide([*self._known, *enabled, *(i >= 0 for i in index)], goal))


def _constants_aside(translator: Translator, behind: Reader) -> Reader:
    """Constants of a scope read the same before and behind an action."""

    def read(variable: Variable, index: Sequence[Formula]) -> Formula:
        return (translator.before if variable.rigid else behind)(variable, index)

    return read
