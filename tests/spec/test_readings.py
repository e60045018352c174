"""Does a term mean the same in every reading?

Random terms over a small machine, reads outside of bounds and negative numbers included, are
held against the plainest reading.  They are drawn from numbered seeds: terms of this size are
drawn ten times faster so than by Hypothesis, and what fails is named by its seed and shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Annotated

from kvoracle.model.machine import Machine, Part, Predicate
from kvoracle.model.run import Program, Run
from kvoracle.model.scopes import Scope
from kvoracle.model.simplify import OPERATIONS, simplify
from kvoracle.model.source import Printer
from kvoracle.model.terms import (
    BOOL,
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    Variable,
    conjunction,
    disjunction,
    enumeration,
    implies,
    ite,
    lift,
    maximum,
    minimum,
    not_,
    show,
)
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.explore.reference import ReferenceBackend

THING = Sort("Thing")
PLACE = Sort("Place")
COUNT = Sort("Count")
COLOUR = enumeration("Colour", "red", "green", "blue")
Thing = Annotated[Term, THING]

PART = Part("toy", "one variable of every kind")
PART.variable("level", (THING,), COUNT, "a number a thing", initial=1)
PART.variable("at", (THING, PLACE), COUNT, "a number a thing and place")
PART.variable("clock", (), COUNT, "a number")
PART.variable("lit", (PLACE,), BOOL, "a truth")
PART.variable("colour", (THING,), COLOUR, "an enumeration", initial=2)
PART.constant("width", (PLACE,), COUNT, "a constant", initial=1)
PART.constant("broad", (PLACE,), BOOL, "a constant")

SIZES = {"Thing": 3, "Place": 2, "Count": 5}
CONSTANTS = {"width": (2, 3), "broad": (True, False)}
MACHINE = Machine((PART,), None)
SCOPE = Scope("toy", "", (PART,), SIZES, CONSTANTS)
REFERENCE = ReferenceBackend(MACHINE, SCOPE)
COMPILED = CompiledBackend(MACHINE, SCOPE)
PROGRAM = Program(MACHINE)
SORTS = (THING, PLACE, COUNT, COLOUR, BOOL)

Bounds = tuple[Bound, ...]
SEEDS = range(200)


class Writer:
    """Draws well-sorted terms and states.

    ``closed`` ranges are those that end by themselves within the scope, as a reading without
    sizes needs them.
    """

    def __init__(self, seed: int, closed: bool = False, in_step: bool = False) -> None:
        self.random, self.closed, self.in_step = Random(seed), closed, in_step

    def read(self, variable: Variable, bounds: Bounds) -> Term:
        index = tuple(self.index(bounds) for _ in variable.domain)
        return Read(variable, index, self.in_step and self.random.random() < 0.5)

    def index(self, bounds: Bounds) -> Term:
        """A number that is often a place, and often just outside."""
        base = self.leaf(bounds) if self.random.random() < 0.7 else self.number(bounds, 1)
        offset = self.random.choice((0, 0, 0, 0, 1, -1, -3))
        return base + offset if offset > 0 else base - -offset if offset else base

    def leaf(self, bounds: Bounds) -> Term:
        numbers = [b for b in bounds if not b.sort.is_bool]
        kind = self.random.random()
        if numbers and kind < 0.5:
            return self.random.choice(numbers)
        if kind < 0.8:
            return lift(self.random.randint(-2, 6))
        return Read(MACHINE.variables["clock"], (), self.in_step and kind < 0.9)

    def number(self, bounds: Bounds, depth: int) -> Term:
        if not depth or self.random.random() < 0.2:
            return self.leaf(bounds)
        kind = self.random.choice(("read", "read", "add", "sub", "div", "ite", "min", "max"))
        if kind == "read":
            variable = self.random.choice(("level", "at", "clock", "colour", "width"))
            return self.read(MACHINE.variables[variable], bounds)
        a, b = self.number(bounds, depth - 1), self.number(bounds, depth - 1)
        if kind == "add":
            return a + b
        if kind == "sub":
            return a - b
        if kind == "div":
            width = Read(MACHINE.variables["width"], (self.index(bounds),))
            return a // self.random.choice((lift(1), lift(3), width))
        if kind == "ite":
            chosen: Term = ite(self.condition(bounds, depth - 1), a, b)
            return chosen
        least: Term = (minimum if kind == "min" else maximum)(a, b)
        return least

    def comparison(self, bounds: Bounds, depth: int) -> Term:
        a, b = self.number(bounds, depth), self.number(bounds, depth)
        return self.random.choice((a < b, a <= b, a == b, a != b))

    def condition(self, bounds: Bounds, depth: int) -> Term:
        if not depth:
            truths = [b for b in bounds if b.sort.is_bool]
            if truths and self.random.random() < 0.5:
                return self.random.choice(truths)
            return lift(self.random.random() < 0.5) if self.random.random() < 0.2 \
                else self.comparison(bounds, 0)
        kind = self.random.choice(
            ("read", "compare", "compare", "and", "or", "not", "implies", "ite", "quantified"))
        if kind == "read":
            return self.read(MACHINE.variables[self.random.choice(("lit", "broad"))], bounds)
        if kind == "compare":
            return self.comparison(bounds, depth - 1)
        if kind == "quantified":
            return self.quantified(bounds, depth - 1)
        a, b = self.condition(bounds, depth - 1), self.condition(bounds, depth - 1)
        made: Term
        if kind == "not":
            made = not_(a)
        elif kind == "implies":
            made = implies(a, b)
        elif kind == "ite":
            made = ite(a, b, self.condition(bounds, depth - 1))
        else:
            made = (conjunction if kind == "and" else disjunction)((a, b))
        return made

    def quantified(self, bounds: Bounds, depth: int) -> Term:
        sorts = self.random.choices(SORTS, k=self.random.randint(1, 2))
        own = tuple(Bound(f"v{len(bounds) + i}", s) for i, s in enumerate(sorts))
        every = self.random.random() < 0.5
        body = self.condition((*bounds, *own), depth)
        limits: list[Term] = []
        for k, bound in enumerate(own):
            if bound.sort.is_bool:
                continue
            known = (*bounds, *own[:k])
            if self.closed:
                limits.append(bound < minimum(self.number(known, 0), SCOPE.size(bound.sort)))
            for _ in range(self.random.randint(0, 2)):
                other = self.number((*known, *own) if self.random.random() < 0.2 else known, 1)
                limits.append(self.random.choice((
                    bound < other, bound <= other, other < bound, other <= bound,
                    bound == other, other == bound, bound != other,
                )))
        if not limits:
            return Quantified(every, own, body)
        joined = conjunction(limits)
        return Quantified(every, own, implies(joined, body) if every else joined & body)

    def state(self) -> bytes:
        return bytes(
            self.random.randrange(SCOPE.size(v.sort))
            for v in MACHINE.state for _ in REFERENCE.layout.indices(v.domain)
        )


def conditions(closed: bool = False, in_step: bool = True) -> Iterator[tuple[str, Writer, Term]]:
    """For each seed a condition, every other one quantified outermost, and what names it."""
    for seed in SEEDS:
        writer = Writer(seed, closed, in_step)
        term = writer.quantified((), 2) if seed % 2 else writer.condition((), 3)
        yield f"seed {seed}: {show(term)}", writer, term


def open_terms() -> Iterator[tuple[str, Writer, Bounds, Term]]:
    """For each seed a number that depends on a condition, both over two bound variables."""
    bounds = (Bound("p", THING), Bound("q", COUNT))
    for seed in SEEDS:
        writer = Writer(seed, in_step=True)
        condition = writer.quantified(bounds, 2) if seed % 2 else writer.condition(bounds, 3)
        term: Term = ite(condition, writer.number(bounds, 3), -7)
        yield f"seed {seed}: {show(term)}", writer, bounds, term


def test_folding_changes_no_value() -> None:
    for name, writer, (p, q), term in open_terms():
        before, after = writer.state(), writer.state()
        for at_p, at_q in itertools.product(range(3), (0, 2, 4)):
            plain = REFERENCE.value(term, {p: at_p, q: at_q}, before, after)
            whole = simplify(term, {p: Literal(at_p), q: Literal(at_q)}, SCOPE.constant)
            assert REFERENCE.value(whole, {}, before, after) == plain, name
            half = simplify(term, {p: Literal(at_p)}, None)
            assert REFERENCE.value(half, {q: at_q}, before, after) == plain, name


def test_printed_terms_have_the_value_of_the_terms() -> None:
    def read(r: Read, index: Sequence[str]) -> str:
        return f"READ[{r.variable.name!r}, {r.after}]({', '.join(index)})"

    def reader(variable: Variable, state: bytes) -> Callable[..., int]:
        return lambda *index: REFERENCE.value(
            Read(variable, tuple(map(lift, index))), {}, state)

    printer = Printer(read, lambda sort: str(SCOPE.size(sort)))
    for name, writer, (p, q), term in open_terms():
        states = {False: writer.state(), True: writer.state()}
        readers = {(v.name, behind): reader(v, state)
                   for v in MACHINE.variables.values() for behind, state in states.items()}
        source = compile(printer.expression(term, {p: "p", q: "q"}), "", "eval")
        for at_p, at_q in itertools.product(range(3), (0, 4)):
            assert eval(source, {"READ": readers, "p": at_p, "q": at_q}) == \
                REFERENCE.value(term, {p: at_p, q: at_q}, *states.values()), name


def test_compiled_checks_agree_with_the_plain_reading() -> None:
    for name, writer, term in conditions():
        check = COMPILED.check(Predicate("p", (), term), every=True)
        for _ in range(5):
            before, after = writer.state(), writer.state()
            assert bool(check(before, after)) == bool(
                REFERENCE.value(term, {}, before, after)), name


def test_compiled_checks_with_parameters_agree() -> None:
    parameters = (Bound("p", THING), Bound("q", COUNT), Bound("b", BOOL))
    for seed in SEEDS:
        writer = Writer(seed)
        predicate = Predicate("p", parameters, writer.condition(parameters, 3))
        for every in (True, False):
            compiled, plain = (r.check(predicate, every) for r in (COMPILED, REFERENCE))
            state = writer.state()
            assert bool(compiled(state, None)) == plain(state, None), show(predicate.term)


def sparse(state: bytes) -> Run:
    """The state in the run reading."""
    run = Run(PROGRAM, CONSTANTS, SIZES)
    for name, values in REFERENCE.layout.unpack(state).items():
        variable = MACHINE.variables[name]
        for index, value in values.items():
            if value != variable.initial:
                run.values[name][index[0] if len(index) == 1 else index] = value
    return run


def test_the_run_reading_agrees_without_knowing_sizes() -> None:
    for name, writer, term in conditions(closed=True, in_step=False):
        check = PROGRAM.predicate(Predicate("p", (), term), ())
        for _ in range(5):
            state = writer.state()
            broken = sparse(state).broken(check)
            assert (broken is None) == bool(REFERENCE.value(term, {}, state)), name


def test_the_run_reading_finds_the_first_values_that_break() -> None:
    parameters = (Bound("p", THING), Bound("q", PLACE), Bound("c", COLOUR))
    ends = [p < SCOPE.size(p.sort) for p in parameters]
    for seed in SEEDS:
        writer = Writer(seed, closed=True)
        premise = conjunction((*ends, writer.condition(parameters, 1)))
        term = implies(premise, writer.condition(parameters, 2))
        check = PROGRAM.predicate(Predicate("p", parameters, term), ("p",))
        state, p = writer.state(), seed % 3
        breaking = (
            chosen for chosen in itertools.product((p,), range(2), range(3))
            if not REFERENCE.value(term, dict(zip(parameters, chosen)), state)
        )
        assert sparse(state).broken(check, p) == next(breaking, None), f"{seed}: {show(term)}"


def test_every_operator_is_drawn_and_terms_are_true_and_false() -> None:
    """The tests above are worth what the terms they draw are worth."""
    seen: set[str] = set()
    true = 0
    for _, writer, term in conditions():
        seen |= _kinds(term)
        true += bool(REFERENCE.value(term, {}, writer.state(), writer.state()))
    assert seen == set(OPERATIONS) | {"forall", "exists", "read"}
    assert len(SEEDS) // 4 < true < 3 * len(SEEDS) // 4


def _kinds(term: Term) -> set[str]:
    if isinstance(term, Op):
        return {term.name}.union(*map(_kinds, term.args))
    if isinstance(term, Quantified):
        return {"forall" if term.every else "exists"} | _kinds(term.body)
    return {"read"}.union(*map(_kinds, term.index)) if isinstance(term, Read) else set()
