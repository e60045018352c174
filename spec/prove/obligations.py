"""The proof: what must be shown so that every property holds for all sizes, and showing it.

Properties and lemmas together form an inductive invariant: they hold at first, and each
action keeps each of them, given all of them before.  Every pair is an *obligation*,
decided by itself for unboundedly many requests, groups and chunks of symbolic sizes.
A pair in which the action writes nothing that the property reads needs no solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import z3

from kvoracle.model.machine import Action, Machine, Predicate
from kvoracle.model.terms import Read, Term, Variable, children

from ..properties import EVERYTHING, Property
from .division import FACTS
from .solver import EFFORT, Answer, Formula, Reader, Translator, Values, decide


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
    """All obligations of a machine, each decided on demand.

    With ``properties`` given, these are proved and the lemmas; nothing else is assumed.
    """

    def __init__(self, machine: Machine, properties: Iterable[Property] | None = None,
                 effort: int = EFFORT) -> None:
        self.machine = machine
        self.effort = effort
        everything = [p for p in EVERYTHING.values() if p.applies(machine)]
        wanted = list(properties) if properties is not None else everything
        self._wanted = [p for p in everything if p in wanted or p.lemma]
        self._translator = Translator(machine)
        self._facts = list(self._typing()) + list(self._division())
        self._invariants = [
            (p.name, self._translator.holds_everywhere(p.over_states(machine)))
            for p in self._wanted if not p.is_step and not p.derived
        ]
        self._unproved: dict[str, Obligation] = {}
        self._fallen: set[str] = set()

    def obligations(self) -> Iterator[Obligation]:
        """Decide every obligation, in a fixed order.

        Together they are a proof only if all are proved: each assumes all the invariants.
        """
        yield from self._real_division()
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
            for name in sorted(_writes(action)):
                yield self._typed(self.machine.variables[name], action)

    def settled(self) -> list[Obligation]:
        """The obligations, decided anew until nothing is assumed that is not itself proved.

        What this says of a broken design holds: a property all of whose obligations are proved
        here is kept by that design, whichever others it breaks.
        """
        while True:
            decided = list(self.obligations())
            self._unproved = {str(o): o for o in decided if o.answer.verdict != "proved"}
            fallen = {o.property for o in self._unproved.values()} - self._fallen
            self._fallen |= fallen
            if not fallen & {name for name, _ in (*self._facts, *self._invariants)}:
                return decided

    def hypotheses(self, action: Action) -> list[Formula]:
        """All that an obligation of the action assumes, its guard included."""
        return [*self._known(), *self._enabled(action)[1]]

    def _known(self, goal: str = "", at_first: bool = False) -> list[Formula]:
        """What is assumed when ``goal`` is to be shown: what stands, and before an action the
        goal itself.  Only sorts and division are known before anything has happened."""
        return [formula for name, formula in (*self._facts, *(() if at_first else self._invariants))
                if name == goal or name not in self._fallen]

    # --- what is assumed, by the name of the obligations that justify it ------------------

    def _typing(self) -> Iterator[tuple[str, Formula]]:
        for variable in self.machine.variables.values():
            yield f"{variable.name} in range", self._translator.well_typed(variable)

    def _division(self) -> Iterator[tuple[str, Formula]]:
        t = self._translator
        for fact in FACTS:
            numbers = [t.constant(v) for v in fact.variables]
            values: Values = dict(zip(fact.variables, numbers))
            natural = z3.And(*(n >= 0 for n in numbers))
            body = z3.Implies(natural, t.formula(fact.statement, values))
            pattern = z3.MultiPattern(*(t.formula(q, values) for q in fact.quotients))
            yield "Division", z3.ForAll(numbers, body, patterns=[pattern])

    # --- what is to be shown --------------------------------------------------------------

    def _decide(self, name: str, action: str, hypotheses: Iterable[Formula],
                goal: Formula) -> Obligation:
        found = Obligation(name, action, Answer("proved", 0.0))
        if str(found) in self._unproved:  # by more hypotheses than now
            return self._unproved[str(found)]
        return replace(found, answer=decide(hypotheses, goal, self.effort))

    def _real_division(self) -> Iterator[Obligation]:
        real = Translator(self.machine, real_division=True)
        for fact in FACTS:
            numbers: Values = {v: real.constant(v) for v in fact.variables}
            natural = [n >= 0 for n in numbers.values()]
            yield self._decide(
                "Division", fact.name, natural, real.formula(fact.statement, numbers))

    def _parameters(self, predicate: Predicate) -> tuple[dict[Term, Formula], list[Formula]]:
        t = self._translator
        values: dict[Term, Formula] = {p: t.constant(p) for p in predicate.parameters}
        return values, [t.typed(p.sort, values[p]) for p in predicate.parameters]

    def _at_first(self, name: str, predicate: Predicate) -> Obligation:
        values, typed = self._parameters(predicate)
        goal = self._translator.formula(predicate.term, values, self._translator.initially)
        return self._decide(name, "at first", [*self._known(name, at_first=True), *typed], goal)

    def _anywhere(self, wanted: Property) -> Obligation:
        predicate = wanted.over_states(self.machine)
        values, typed = self._parameters(predicate)
        goal = self._translator.formula(predicate.term, values)
        return self._decide(wanted.name, "in any state", [*self._known(), *typed], goal)

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
        return self._decide(
            wanted.name, action.name, [*self._known(wanted.name), *enabled, *typed], goal)

    def _typed(self, variable: Variable, action: Action) -> Obligation:
        t = self._translator
        chosen, enabled = self._enabled(action)
        index = [z3.Int(f"at!{k}") for k in range(len(variable.domain))]
        behind = t.behind(action, chosen)(variable, index)
        goal = t.typed(variable.sort, behind)
        name = f"{variable.name} in range"
        return self._decide(
            name, action.name, [*self._known(name), *enabled, *(i >= 0 for i in index)], goal)


def _constants_aside(translator: Translator, behind: Reader) -> Reader:
    """Constants of a scope read the same before and behind an action."""

    def read(variable: Variable, index: Sequence[Formula]) -> Formula:
        return (translator.before if variable.rigid else behind)(variable, index)

    return read
