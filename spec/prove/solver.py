"""Terms as Z3 formulas.

A state variable becomes an uninterpreted function of its indices, unbounded in all of
them; a read after an action is expanded through the action's updates, so that no array
or lambda is left for the solver.  Division by a scope's constant (tokens per chunk,
blocks per chunk) is non-linear where the constant is symbolic, so it too becomes an
uninterpreted function, about which the solver is told the facts of `division`, each of
which is proved on real division as an obligation of its own.

A quantifier over numbers that are only compared (no prefix longer than this one is to be had)
gives the solver nothing to look for.  What is quantified within it is given a name; wherever the
same is said elsewhere it has that name too, and the two meet without being taken apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import Any
from typing import Literal as OneOf

import z3

from kvoracle.model.machine import Action, Assign, Machine, Predicate
from kvoracle.model.terms import (
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    Variable,
    conjuncts,
    mentions,
)

from .shapes import Shape, free_in, gives_no_trigger, quantified_in, said_of

Formula = Any
Verdict = OneOf["proved", "refuted", "unknown"]
Reader = Callable[[Variable, Sequence[Formula]], Formula]
Values = Mapping[Term, Formula]

EFFORT = 300_000
"""Per query, in the solver's own units (``rlimit``), so that a verdict does not depend on how
busy the computer is: some 0.3 s.  What can be proved takes less than 20,000 of planning, mostly
less than 170,000 of the others; what takes much longer will not end."""


A_LITTLE = 50_000
"""What most obligations that can be proved take, of a solver that knows the hypotheses already."""


ALL_TRUE, ALL_RELEVANT = 1, 2
"""Where the solver looks for triggers."""


def _is_after(term: Term) -> bool:
    return isinstance(term, Read) and term.after


@dataclass(frozen=True)
class Answer:
    """What the solver said of one obligation, how long it took, and which hypotheses it needed
    for a proof, or were all that it was given, counted from 0."""

    verdict: Verdict
    seconds: float
    used: frozenset[int] = frozenset()


class Translator:
    """Turns terms of a machine into formulas over uninterpreted state functions."""

    def __init__(self, machine: Machine, real_division: bool = False) -> None:
        self._functions = {
            v.name: z3.Function(
                v.name, *([z3.IntSort()] * len(v.domain)),
                z3.BoolSort() if v.sort.is_bool else z3.IntSort(),
            )
            for v in machine.variables.values()
        }
        self._quotient = z3.Function("quotient", z3.IntSort(), z3.IntSort(), z3.IntSort())
        self._real_division = real_division
        self._fresh = 0
        self._named: dict[Shape, z3.FuncDeclRef] = {}
        self.definitions: list[Formula] = []

    # --- states ------------------------------------------------------------------

    def before(self, variable: Variable, index: Sequence[Formula]) -> Formula:
        """A variable's value in an arbitrary state."""
        return self._functions[variable.name](*index)

    def initially(self, variable: Variable, index: Sequence[Formula]) -> Formula:
        """A variable's value in the initial state."""
        if variable.rigid:
            return self.before(variable, index)
        return self._constant(variable, variable.initial)

    @staticmethod
    def _constant(variable: Variable, value: int) -> Formula:
        return z3.BoolVal(bool(value)) if variable.sort.is_bool else z3.IntVal(value)

    def behind(self, action: Action, values: Values) -> Reader:
        """Values after ``action`` with these parameter values, from the state before it."""

        def read(variable: Variable, index: Sequence[Formula]) -> Formula:
            value = self.before(variable, index)
            for update in action.updates:
                if update.variable.name != variable.name:
                    continue
                if isinstance(update, Assign):
                    inner = values
                    here = z3.And(*(
                        self.formula(i, values) == at for i, at in zip(update.index, index)))
                else:
                    inner = {**values, **dict(zip(update.bounds, index))}
                    here = self.formula(update.condition, inner)
                new = self.formula(update.value, inner)
                if variable.sort.is_bool and isinstance(new, int):
                    new = z3.BoolVal(bool(new))
                value = z3.If(here, new, value)
            return value

        return read

    # --- terms ---------------------------------------------------------------------

    def constant(self, bound: Bound) -> Formula:
        """A fresh constant for a parameter."""
        self._fresh += 1
        name = f"{bound.name}!{self._fresh}"
        return z3.Bool(name) if bound.sort.is_bool else z3.Int(name)

    @staticmethod
    def parameter(bound: Bound, of: str) -> Formula:
        """The constant for a parameter of an action or a property: always the same one."""
        name = f"{bound.name}!{of}"
        return z3.Bool(name) if bound.sort.is_bool else z3.Int(name)

    @staticmethod
    def typed(sort: Sort, value: Formula) -> Formula:
        """What the sort says of a value: numbers and indices start at 0, enumerations end."""
        if sort.is_bool:
            return z3.BoolVal(True)
        if sort.names:
            return z3.And(value >= 0, value < len(sort.names))
        return value >= 0

    def formula(self, term: Term, values: Values, before: Reader | None = None,
                after: Reader | None = None) -> Formula:
        """The term as a formula; ``before`` and ``after`` say how states are read."""
        read = before or self.before

        def go(t: Term, values: Values) -> Formula:
            if isinstance(t, Literal):
                return z3.BoolVal(t.value) if isinstance(t.value, bool) else z3.IntVal(t.value)
            if isinstance(t, Bound):
                return values[t]
            if isinstance(t, Read):
                index = [go(i, values) for i in t.index]
                if t.after and not t.variable.rigid:
                    assert after is not None
                    return after(t.variable, index)
                return read(t.variable, index)
            if isinstance(t, Quantified):
                plain = before is None and not mentions(t, _is_after)
                known = self._named.get(said_of(t)) if plain else None
                if known is not None:
                    return known(*(values[b] for b in free_in(t)))
                fresh = [self.constant(b) for b in t.bounds]
                inner: Values = {**values, **dict(zip(t.bounds, fresh))}
                for part in quantified_in(t.body) if plain and gives_no_trigger(t) else ():
                    self._define(part)
                body = go(t.body, inner)
                typed = z3.And(*(self.typed(b.sort, v) for b, v in zip(t.bounds, fresh)))
                return (z3.ForAll(fresh, z3.Implies(typed, body)) if t.every
                        else z3.Exists(fresh, z3.And(typed, body)))
            assert isinstance(t, Op)
            return self._operation(t.name, [go(a, values) for a in t.args])

        return go(term, values)

    def _define(self, term: Quantified) -> None:
        """Give the term a name, and define it where the name is met."""
        said, free = said_of(term), free_in(term)
        if said in self._named:
            return
        fresh = [self.constant(b) for b in free]
        body = self.formula(term, dict(zip(free, fresh)))
        sorts = [z3.BoolSort() if b.sort.is_bool else z3.IntSort() for b in free]
        name = z3.Function(f"said!{len(self._named)}", *sorts, z3.BoolSort())
        self._named[said] = name
        self.definitions.append(
            z3.ForAll(fresh, name(*fresh) == body, patterns=[name(*fresh)]) if fresh
            else name() == body)

    def _operation(self, name: str, args: list[Formula]) -> Formula:
        if name == "and":
            return z3.And(*args)
        if name == "or":
            return z3.Or(*args)
        if name in ("min", "max"):
            least = args[0]
            for other in args[1:]:
                least = z3.If(least <= other if name == "min" else least >= other, least, other)
            return least
        if name == "div":
            return args[0] / args[1] if self._real_division else self._quotient(*args)
        operations: dict[str, Callable[..., Formula]] = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "lt": lambda a, b: a < b,
            "le": lambda a, b: a <= b,
            "eq": _equal,
            "ne": lambda a, b: z3.Not(_equal(a, b)),
            "not": z3.Not,
            "implies": z3.Implies,
            "ite": z3.If,
        }
        return operations[name](*args)

    def hold_everywhere(self, predicate: Predicate, before: Reader | None = None) -> list[Formula]:
        """The conjuncts of the predicate, each for all values of the parameters that it speaks
        of, so that the solver need not think up the others."""
        return [self._everywhere(c, predicate.parameters, before)
                for c in conjuncts(predicate.term)]

    def _everywhere(self, term: Term, parameters: Iterable[Bound],
                    before: Reader | None) -> Formula:
        spoken_of = [p for p in parameters if mentions(term, partial(is_, p))]
        fresh = [self.constant(p) for p in spoken_of]
        body = self.formula(term, dict(zip(spoken_of, fresh)), before)
        typed = z3.And(*(self.typed(p.sort, v) for p, v in zip(spoken_of, fresh)))
        return z3.ForAll(fresh, z3.Implies(typed, body)) if fresh else body

    def well_typed(self, variable: Variable) -> Formula:
        """Every value of the variable lies in its sort; a constant is at least its default."""
        fresh = [z3.Int(f"{variable.name}!i{k}") for k in range(len(variable.domain))]
        value = self.before(variable, fresh)
        typed = self.typed(variable.sort, value)
        if variable.rigid and not variable.sort.is_bool:
            typed = value >= variable.initial
        return z3.ForAll(fresh, typed, patterns=[value]) if fresh else typed


def remembering(read: Reader) -> Reader:
    """The reader, asked but once for one place."""
    seen: dict[tuple[str, tuple[int, ...]], tuple[Sequence[Formula], Formula]] = {}

    def reading(variable: Variable, index: Sequence[Formula]) -> Formula:
        place = variable.name, tuple(i.get_id() for i in index)
        if place not in seen:
            seen[place] = index, read(variable, index)  # an id is another's once the term is gone
        return seen[place][1]

    return reading


def _equal(a: Formula, b: Formula) -> Formula:
    # A Boolean variable compared with a number reads as the number's truth.
    if z3.is_bool(a) and not z3.is_bool(b):
        b = b != 0
    elif z3.is_bool(b) and not z3.is_bool(a):
        a = a != 0
    return a == b


class Standing:
    """Hypotheses under which many goals are to be shown, told to the solver once."""

    def __init__(self, hypotheses: Sequence[Formula]) -> None:
        self._hypotheses = list(hypotheses)
        self._solver = _solver()
        self._solver.set("unsat_core", True)
        for i, hypothesis in enumerate(self._hypotheses):
            self._solver.assert_and_track(hypothesis, z3.Bool(f"hypothesis!{i}"))

    def decide(self, own: Sequence[Formula], goal: Formula, effort: int = EFFORT,
               few: Sequence[int] = ()) -> Answer:
        """Whether the goal follows from them and from hypotheses of its ``own``, which are counted
        behind them; ``few`` are those of them that most likely suffice.

        What is not shown with a little of the effort is asked of a solver that knows nothing
        else, with all of it.  That one sees the hypotheses as they are, without a name before
        each by which it could say which of them were needed, and finds more.
        """
        behind = len(self._hypotheses)
        self._solver.push()
        try:
            self._solver.set("rlimit", min(effort, A_LITTLE))
            self._solver.add(z3.Not(goal), *own)
            answer = _asked(self._solver)
            if answer.verdict == "proved":
                return replace(answer, used=frozenset(
                    int(name.decl().name().partition("!")[2])
                    for name in self._solver.unsat_core()))
        finally:
            self._solver.pop()
        everything = [*self._hypotheses, *own]
        alone = decide(everything, goal, effort, [*few, *range(behind, len(everything))])
        return replace(alone, seconds=alone.seconds + answer.seconds)


def decide(hypotheses: Iterable[Formula], goal: Formula, effort: int = EFFORT,
           few: Sequence[int] = ()) -> Answer:
    """Whether the goal follows from the hypotheses, whatever the sizes.

    ``few`` are those of them, counted from 0, that most likely suffice: the others are often no
    more than something to get lost in, so these are tried first, with little effort.
    """
    assumed = list(hypotheses)
    everything = range(len(assumed))
    # Each finds what the other misses, and on which depends on nothing visible: triggers are
    # looked for in all that is true, or in what the solver thinks matters.
    attempts: list[tuple[Sequence[int], int, int]] = [
        (everything, effort, ALL_TRUE), (everything, effort, ALL_RELEVANT)]
    if 0 < len(few) < len(assumed):
        attempts.insert(0, (few, effort // 8, ALL_TRUE))
    seconds = 0.0
    for chosen, most, relevancy in attempts:
        # A place of its own in memory, so that nothing asked before changes the answer.
        alone = z3.Context()
        solver = _solver(alone)
        solver.set("rlimit", most)
        solver.set("relevancy", relevancy)
        solver.add(z3.Not(goal).translate(alone), *(assumed[i].translate(alone) for i in chosen))
        answer = _asked(solver)
        seconds += answer.seconds
        if answer.verdict == "proved":
            return replace(answer, seconds=seconds, used=frozenset(chosen))
        if answer.verdict == "refuted" and chosen is everything:
            break
    return replace(answer, seconds=seconds)


def _solver(context: z3.Context | None = None) -> z3.Solver:
    solver = z3.Solver(ctx=context)
    solver.set("random_seed", 0)
    # What follows is found from triggers alone, or not at all; looking for models of quantified
    # hypotheses is for what does not follow.
    solver.set("mbqi", False)
    solver.set("relevancy", ALL_TRUE)
    return solver


def _asked(solver: z3.Solver) -> Answer:
    started = time.perf_counter()
    result = solver.check()
    verdicts: dict[str, Verdict] = {"unsat": "proved", "sat": "refuted"}
    return Answer(verdicts.get(str(result), "unknown"), time.perf_counter() - started)


def script(hypotheses: Iterable[Formula], goal: Formula) -> str:
    """The question as SMT-LIB 2: unsatisfiable if and only if the goal follows."""
    solver = z3.Solver()
    solver.add(*hypotheses, z3.Not(goal))
    declared: str = solver.to_smt2()
    return declared
