"""The proof: what must be shown so that every property holds for all sizes, and showing it.

Properties and lemmas together form an inductive invariant: they hold at first, and each
action keeps each of them, given all of them before.  Every pair is an *obligation*,
decided by itself for unboundedly many requests, groups and chunks of symbolic sizes.
A pair in which the action writes nothing that the property reads needs no solver, nor does
one that a smaller composition has already, with an action that does no less and nothing
assumed that is not assumed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import z3

from kvoracle.model.machine import Action, Assign, Machine, Predicate, Update
from kvoracle.model.scopes import nearest
from kvoracle.model.terms import Bound, Term, Variable, variables_read

from ..properties import EVERYTHING, Property
from .division import FACTS, Fact
from .shapes import Shape, changed, parts, required, said, shape_of
from .solver import (
    EFFORT,
    Answer,
    Formula,
    Reader,
    Standing,
    Translator,
    Values,
    decide,
    remembering,
)

NOTHING = shape_of("nothing")


@dataclass(frozen=True)
class Obligation:
    """One thing shown, or not.  ``action`` is "at first", "in any state", an action's name, or
    the name of a fact; ``as_in`` names the smaller composition that showed it."""

    property: str
    action: str
    answer: Answer
    by_frame: bool = False
    as_in: str = ""

    def __str__(self) -> str:
        return f"{self.property} / {self.action}"


@dataclass(frozen=True, eq=False)
class _Known:
    """What is assumed, by the name of the obligations that justify it, and what it says."""

    name: str
    formula: Formula
    says: Shape


class _Assumed:
    """What goals are decided under, and all that is asked of it again and again."""

    def __init__(self, known: Sequence[_Known]) -> None:
        self.known = known
        self.says = frozenset(k.says for k in known)
        self.standing = Standing([k.formula for k in known])


@dataclass(frozen=True)
class _Shown:
    """What the proof of an obligation took: the guard of the action, and of what is assumed the
    parts that were needed."""

    guard: frozenset[Shape]
    took: frozenset[Shape]


@dataclass(frozen=True)
class _Goal:
    """An obligation: what it says, when (``guard``), and how to ask the solver, namely for the
    goal's own hypotheses and its formula; without ``asked`` nothing that is read changes."""

    property: str
    action: str
    says: Shape
    guard: frozenset[Shape]
    asked: Callable[[], tuple[list[Formula], Formula]] | None


COMPARING = 5
"""The part of an obligation's effort that a comparison takes: what is the same is so for plain
reasons, or is not found to be."""


def _terms(update: Update) -> tuple[Term, ...]:
    """What an update is made of."""
    where = update.index if isinstance(update, Assign) else (update.condition,)
    return (*where, update.value)


def _differ(mine: Sequence[Term], theirs: Sequence[Term]) -> bool:
    """Whether they are not the very same terms."""
    return len(mine) != len(theirs) or any(a is not b for a, b in zip(mine, theirs))


@dataclass(frozen=True)
class Comparison:
    """What is proved of an action beside another: that it permits no less, that it permits no
    more, and which variables are not proved to be the same after both."""

    no_less: bool
    no_more: bool
    differing: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the two are proved to do the same."""
        return self.no_less and self.no_more and not self.differing


@dataclass(frozen=True)
class Question:
    """An obligation written out: does the goal follow from the hypotheses?  Without a goal, the
    action writes nothing that the property reads."""

    property: str
    action: str
    hypotheses: list[Formula]
    goal: Formula | None


class Proof:
    """All obligations of a machine, each decided on demand.

    With ``properties`` given, these are proved, their families and the lemmas that belong to
    none; nothing else is assumed.  ``smaller`` are proofs of smaller compositions, by name,
    that were decided before.
    """

    def __init__(self, machine: Machine, properties: Iterable[Property] | None = None,
                 effort: int = EFFORT, smaller: Mapping[str, Proof] | None = None) -> None:
        self.machine = machine
        self.effort = effort
        self._smaller = dict(smaller or {})
        self._shown: dict[tuple[str, str, Shape], _Shown] = {}
        everything = [p for p in EVERYTHING.values() if p.applies(machine)]
        wanted = list(properties) if properties is not None else everything
        families = {p.family for p in wanted}
        self._wanted = [p for p in everything if p in wanted or (
            p.family in families if p.family else p.lemma)]
        self._translator = Translator(machine)
        self._facts = list(self._typing()) + list(self._division())
        assumed = [(p.name, p.over_states(machine))
                   for p in self._wanted if not p.is_step and not p.derived]
        self._invariants = [
            _Known(name, formula, part) for name, predicate in assumed
            for formula, part in zip(
                self._translator.hold_everywhere(predicate), parts(predicate))]
        self._under: dict[tuple[bool, str], _Assumed] = {}
        self._goals: list[_Goal] = []
        self._guards: dict[str, tuple[dict[Term, Formula], list[Formula]]] = {}
        self._behind: dict[str, Reader] = {}
        self._changed = cache(changed)
        self._required = cache(required)
        self._decided: dict[str, Obligation] = {}
        self._fallen: set[str] = set()

    def obligations(self) -> Iterator[Obligation]:
        """Decide every obligation, in a fixed order.

        Together they are a proof only if all are proved: each assumes all the invariants.
        """
        for goal in self._every_goal():
            yield self._decide(goal)

    def decide_one(self, obligation: str, without: str = "") -> Obligation:
        """Decide one obligation, "property / action"; ``without`` assuming this invariant."""
        for goal in self._goals or self._all_goals():
            if f"{goal.property} / {goal.action}" == obligation:
                known = [k for k in self._known(goal) if k.name != without]
                return self._decide(goal, _Assumed(known))
        raise nearest("obligation", obligation,
                      (f"{g.property} / {g.action}" for g in self._every_goal()))

    def questions(self) -> Iterator[Question]:
        """Every obligation written out, in the same order, for another solver to decide."""
        for goal in self._every_goal():
            own, formula = goal.asked() if goal.asked else ([], None)
            known = [k.formula for k in self._known(goal)]
            yield Question(goal.property, goal.action, [*known, *own], formula)

    def settled(self, first: Sequence[Obligation] = ()) -> list[Obligation]:
        """The obligations, decided anew until nothing is assumed that is not itself proved.

        What this says of a broken design holds: a property all of whose obligations are proved
        here is kept by that design, whichever others it breaks.  ``first`` is what
        `obligations` has given, if it was asked already.
        """
        decided = list(first) or list(self.obligations())
        while True:
            fallen = {o.property for o in decided if o.answer.verdict != "proved"} - self._fallen
            self._fallen |= fallen
            self._under.clear()
            if not fallen & {known.name for known in (*self._facts, *self._invariants)}:
                return decided
            decided = [self._again(goal) for goal in self._every_goal()]

    def hypotheses(self, action: Action) -> list[Formula]:
        """All that an obligation of the action assumes, its guard included."""
        enabled = self._enabled(action)[1]
        return [*self._always(), *self._translator.definitions, *enabled]

    def _always(self) -> list[Formula]:
        return [k.formula for k in (*self._facts, *self._invariants)
                if k.name not in self._fallen]

    def _known(self, goal: _Goal) -> list[_Known]:
        """What is assumed when the goal is to be shown: what stands, and before an action the
        goal itself.  Only sorts and division are known before anything has happened."""
        if goal.property == "Division":
            return []
        invariants = () if goal.action == "at first" else self._invariants
        return [known for known in (*self._facts, *invariants)
                if known.name == goal.property or known.name not in self._fallen]

    def compare(self, other: Action) -> Comparison:
        """How an action that is to stand for the machine's one of this name, with the same
        parameters, differs from it in states where the invariants hold."""
        action, t = self.machine.actions[other.name], self._translator
        known = self._always()
        values, enabled = self._enabled(action)
        less = more = True
        if _differ([r.term for r in action.requirements], [r.term for r in other.requirements]):
            also = t.formula(other.guard, values)
            less = self._follows([*known, *enabled], also)
            more = self._follows([*known, *enabled[:-1], also], enabled[-1])
            enabled = [*enabled, also]
        differing = []
        for name in sorted(action.written | other.written):
            mine, theirs = ([u for u in a.updates if u.variable.name == name]
                            for a in (action, other))
            if not _differ([t for u in mine for t in _terms(u)],
                           [t for u in theirs for t in _terms(u)]):
                continue
            variable = self.machine.variables[name]
            index = [z3.Int(f"at!{k}") for k in range(len(variable.domain))]
            pair = [t.behind(a, values)(variable, index) for a in (action, other)]
            if not self._follows([*known, *enabled, *(i >= 0 for i in index)], pair[0] == pair[1]):
                differing.append(name)
        return Comparison(less, more, tuple(differing))

    def _follows(self, known: list[Formula], wanted: Formula) -> bool:
        return decide(known, wanted, self.effort // COMPARING).verdict == "proved"

    # --- what is assumed, by the name of the obligations that justify it ------------------

    def _typing(self) -> Iterator[_Known]:
        for variable in self.machine.variables.values():
            in_range = self._translator.well_typed(variable)
            yield _Known(f"{variable.name} in range", in_range, shape_of(variable))

    def _division(self) -> Iterator[_Known]:
        t = self._translator
        for fact in FACTS:
            numbers = [t.constant(v) for v in fact.variables]
            values: Values = dict(zip(fact.variables, numbers))
            natural = z3.And(*(n >= 0 for n in numbers))
            body = z3.Implies(natural, t.formula(fact.statement, values))
            pattern = z3.MultiPattern(*(t.formula(q, values) for q in fact.quotients))
            yield _Known("Division", z3.ForAll(numbers, body, patterns=[pattern]),
                         shape_of(fact))

    # --- what is to be shown --------------------------------------------------------------

    def _all_goals(self) -> Iterator[_Goal]:
        yield from self._real_division()
        for wanted in self._wanted:
            if wanted.derived:
                yield self._anywhere(wanted)
            elif wanted.is_step:
                for action in self.machine.actions.values():
                    predicate = wanted.over_steps(self.machine, action.name)
                    yield self._kept(wanted, predicate, variables_read(predicate.term), action)
            else:
                predicate = wanted.over_states(self.machine)
                read = variables_read(predicate.term)
                yield self._at_first(wanted.name, predicate)
                for action in self.machine.actions.values():
                    yield self._kept(wanted, predicate, read, action)
        for action in self.machine.actions.values():
            for name in sorted(action.written):
                yield self._typed(self.machine.variables[name], action)

    def _every_goal(self) -> list[_Goal]:
        if not self._goals:
            self._goals = list(self._all_goals())
        return self._goals

    def _assumed(self, goal: _Goal) -> _Assumed:
        itself = goal.property if goal.property in self._fallen else ""
        which = goal.action == "at first", itself or "Division" * (goal.property == "Division")
        if which not in self._under:
            self._under[which] = _Assumed(self._known(goal))
        return self._under[which]

    def _decide(self, goal: _Goal, assumed: _Assumed | None = None) -> Obligation:
        decided, shown = self._shows(goal, assumed or self._assumed(goal))
        if assumed is None:
            self._decided[str(decided)] = decided
            self._shown.pop((goal.property, goal.action, goal.says), None)
            if shown is not None:
                self._shown[goal.property, goal.action, goal.says] = shown
        return decided

    def _again(self, goal: _Goal) -> Obligation:
        """Decide a goal anew, if what has fallen was needed for its proof."""
        before = self._decided[f"{goal.property} / {goal.action}"]
        if before.answer.verdict != "proved":  # by more hypotheses than now
            return before
        shown = self._shown.get((goal.property, goal.action, goal.says))
        if shown is None or shown.took <= self._assumed(goal).says:
            return before
        return self._decide(goal)

    def _shows(self, goal: _Goal, assumed: _Assumed) -> tuple[Obligation, _Shown | None]:
        by_itself = Obligation(goal.property, goal.action, Answer("proved", 0.0),
                               by_frame=goal.asked is None)
        if goal.asked is None:
            return by_itself, None
        for name, proof in self._smaller.items():
            shown = proof.shown(goal, assumed.says)
            if shown is not None:
                return replace(by_itself, as_in=name), shown
        own, formula = goal.asked()
        if z3.is_true(formula):
            return by_itself, None
        if goal.property != "Division":
            own = [*self._translator.definitions, *own]
        others = {k.name for k in self._invariants} - {goal.property}
        few = [i for i, k in enumerate(assumed.known) if k.name not in others]
        answer = assumed.standing.decide(own, formula, self.effort, few)
        took = frozenset(k.says for i, k in enumerate(assumed.known) if i in answer.used)
        return replace(by_itself, answer=answer), (
            _Shown(goal.guard, took) if answer.verdict == "proved" else None)

    def shown(self, goal: _Goal, assumed: frozenset[Shape]) -> _Shown | None:
        """What was shown here of a larger composition's goal, if that assumes what it took."""
        shown = self._shown.get((goal.property, goal.action, goal.says))
        return shown if shown and shown.guard <= goal.guard and shown.took <= assumed else None

    def _real_division(self) -> Iterator[_Goal]:
        real = Translator(self.machine, real_division=True)
        for fact in FACTS:
            def asked(fact: Fact = fact) -> tuple[list[Formula], Formula]:
                numbers: Values = {v: real.constant(v) for v in fact.variables}
                natural = [n >= 0 for n in numbers.values()]
                return natural, real.formula(fact.statement, numbers)

            yield _Goal("Division", fact.name, shape_of(fact), frozenset(), asked)

    def _parameters(self, bounds: Iterable[Bound], of: str = "property") -> tuple[
            dict[Term, Formula], list[Formula]]:
        """Arbitrary values, and that they are of their sorts."""
        t = self._translator
        values: dict[Term, Formula] = {b: t.parameter(b, of) for b in bounds}
        return values, [t.typed(b.sort, values[b]) for b in bounds]

    def _at_first(self, name: str, predicate: Predicate) -> _Goal:
        t = self._translator

        def asked() -> tuple[list[Formula], Formula]:
            values, typed = self._parameters(predicate.parameters)
            return typed, t.formula(predicate.term, values, t.initially)

        return _Goal(name, "at first", shape_of(said(predicate)), frozenset(), asked)

    def _anywhere(self, wanted: Property) -> _Goal:
        predicate = wanted.over_states(self.machine)

        def asked() -> tuple[list[Formula], Formula]:
            values, typed = self._parameters(predicate.parameters)
            return typed, self._translator.formula(predicate.term, values)

        says = shape_of(said(predicate))
        return _Goal(wanted.name, "in any state", says, frozenset(), asked)

    def _enabled(self, action: Action) -> tuple[dict[Term, Formula], list[Formula]]:
        if action.name not in self._guards:
            values, typed = self._parameters(action.parameters, "action")
            guard = self._translator.formula(action.guard, values)
            self._guards[action.name] = values, [*typed, guard]
        return self._guards[action.name]

    def _after(self, action: Action) -> Reader:
        """Values after the action; goals read much the same of it."""
        if action.name not in self._behind:
            self._behind[action.name] = remembering(
                self._translator.behind(action, self._enabled(action)[0]))
        return self._behind[action.name]

    def _kept(self, wanted: Property, predicate: Predicate, read: frozenset[str],
              action: Action) -> _Goal:
        if not wanted.is_step and not read & action.written:
            return _Goal(wanted.name, action.name, NOTHING, frozenset(), None)
        t = self._translator

        def asked() -> tuple[list[Formula], Formula]:
            behind = self._after(action)
            values, typed = self._parameters(predicate.parameters)
            if wanted.is_step:
                formula = t.formula(predicate.term, values, after=behind)
            else:
                formula = t.formula(predicate.term, values, before=constants_aside(t, behind))
            return [*self._enabled(action)[1], *typed], formula

        becomes = self._changed(action)
        says = shape_of((said(predicate), *(becomes.get(v) for v in sorted(read))))
        return _Goal(wanted.name, action.name, says, self._required(action), asked)

    def _typed(self, variable: Variable, action: Action) -> _Goal:
        t = self._translator

        def asked() -> tuple[list[Formula], Formula]:
            index = [z3.Int(f"at!{k}") for k in range(len(variable.domain))]
            behind = self._after(action)(variable, index)
            known = [*self._enabled(action)[1], *(i >= 0 for i in index)]
            return known, t.typed(variable.sort, behind)

        says = shape_of((variable, self._changed(action)[variable.name]))
        return _Goal(f"{variable.name} in range", action.name, says, self._required(action), asked)


def constants_aside(translator: Translator, behind: Reader) -> Reader:
    """Constants of a scope read the same before and behind an action."""

    def read(variable: Variable, index: Sequence[Formula]) -> Formula:
        return (translator.before if variable.rigid else behind)(variable, index)

    return read
