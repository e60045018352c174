"""The run reading: a machine without bounds, one step at a time, in microseconds.

State is kept sparsely, one dictionary a variable, so that requests, groups, chunks and
tokens may be as many as a real run has, and memory follows what is live.  Guards,
updates and predicates are compiled to Python once a machine.  This is the reading that
the oracle's judge and the machine as an engine of its own are built on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .machine import Action, Assign, Machine, Predicate, Requirement
from .source import Printer
from .terms import (
    Bound,
    Literal,
    NotationError,
    Op,
    Read,
    Sort,
    Term,
    Variable,
    children,
    conjunction,
    conjuncts,
    numbers,
    show,
)

Key = Any
"""An index: a number for one-dimensional variables, a tuple for others."""

Undo = dict[tuple[str, Key], int]
"""What a step changed, with the values before it."""


class Program:
    """A machine's guards, updates and predicates compiled to functions over sparse states."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.index_sorts = {s.name for v in machine.variables.values() for s in v.domain}
        self._printer = Printer(self._read, self._limit, capped=False)
        self.guards = {n: self._guard(a) for n, a in machine.actions.items()}
        self.updates = {n: self._update(a) for n, a in machine.actions.items()}

    def _limit(self, sort: Sort) -> str:
        if sort.names or sort.is_bool:
            return str(len(sort.names) or 2)
        if sort.name not in self.index_sorts:
            raise NotationError(f"{sort.name} has no end, and nothing limits a range over it")
        return f"Z[{sort.name!r}]"

    def _read(self, read: Read, index: Sequence[str]) -> str:
        variable = read.variable
        key = index[0] if len(index) == 1 else f"({', '.join(index)})"
        current = f"V[{variable.name!r}].get({key}, {variable.initial})"
        if read.after or variable.rigid:
            return current
        return f"B({variable.name!r}, {key})" if self._in_step else current

    _in_step = False

    def _compile(self, name: str, parameters: Sequence[Bound], body: list[str]) -> Any:
        arguments = ", ".join(["V", "Z", "B", *(f"p_{p.name}" for p in parameters)])
        source = "\n".join([f"def {name}({arguments}):", *body, ""])
        space: dict[str, Any] = {}
        exec(compile(source, f"<run {name}>", "exec"), space)  # our own generated source
        return space[name]

    @staticmethod
    def _names(parameters: Sequence[Bound]) -> dict[Term, str]:
        return {p: f"p_{p.name}" for p in parameters}

    def _guard(self, action: Action) -> Callable[..., int]:
        names = self._names(action.parameters)
        body = [
            f"    if not {self._printer.expression(r.term, names)}: return {i}"
            for i, r in enumerate(action.requirements)
        ]
        compiled: Callable[..., int] = self._compile(
            action.name, action.parameters, [*body, "    return -1"])
        return compiled

    def _update(self, action: Action) -> Callable[..., list[tuple[str, Key, int]]]:
        names = self._names(action.parameters)
        body = ["    W = []"]
        for update in action.updates:
            name = update.variable.name
            if isinstance(update, Assign):
                index = [self._printer.expression(i, names) for i in update.index]
                key = index[0] if len(index) == 1 else f"({', '.join(index)})"
                value = self._printer.expression(update.value, names)
                body.append(f"    W.append(({name!r}, {key}, int({value})))")
                continue
            clauses, inner, rest = self._printer.loops(update.bounds, update.condition, names)
            pad = "    "
            for clause in clauses:
                body.append(f"{pad}{clause}:")
                pad += "    "
            if rest:
                body.append(f"{pad}if {rest}:")
                pad += "    "
            at = [inner[b] for b in update.bounds]
            key = at[0] if len(at) == 1 else f"({', '.join(at)})"
            value = self._printer.expression(update.value, inner)
            body.append(f"{pad}W.append(({name!r}, {key}, int({value})))")
        compiled: Callable[..., list[tuple[str, Key, int]]] = self._compile(
            action.name, action.parameters, [*body, "    return W"])
        return compiled

    def predicate(self, predicate: Predicate, given: Sequence[str],
                  in_step: bool = False) -> Callable[..., tuple[int, ...] | None]:
        """Compile a search for values of the other parameters that *break* the predicate.

        The function takes the ``given`` parameters and returns the first breaking values of
        all parameters, or None.
        """
        if isinstance(predicate.term, Literal) and predicate.term.value:
            return lambda *arguments: None
        self._in_step = in_step
        try:
            fixed = [p for p in predicate.parameters if p.name in given]
            free = [p for p in predicate.parameters if p.name not in given]
            names = self._names(fixed)
            term, premise = predicate.term, conjunction(())
            if isinstance(term, Op) and term.name == "implies":
                premise, term = term.args
            clauses, inner, rest = self._printer.loops(free, premise, names)
            body, pad = [], "    "
            for clause in clauses:
                body.append(f"{pad}{clause}:")
                pad += "    "
            tests = [rest] if rest else []
            tests.append(f"not {self._printer.expression(term, inner)}")
            shown = "".join(inner[p] + ", " for p in predicate.parameters)
            body.append(f"{pad}if {' and '.join(tests)}: return ({shown})")
            compiled: Callable[..., tuple[int, ...] | None] = self._compile(
                "broken", fixed, [*body, "    return None"])
            return compiled
        finally:
            self._in_step = False


class Unmet(Exception):
    """An action was run whose guard does not hold; names the requirement and its values."""

    def __init__(self, action: str, requirement: str, detail: str) -> None:
        super().__init__(f"{action}: not met: {requirement} ({detail})")
        self.action, self.requirement, self.detail = action, requirement, detail


class Run:
    """A state of a program, moved by actions.

    ``constants`` gives the scope's constants, a value an index.  Sizes of index sorts grow
    with what is written; ``sizes`` gives those that quantifiers must know from the start and
    that no constant tells (``{"Request": 2}``).
    """

    def __init__(self, program: Program, constants: Mapping[str, Sequence[int | bool]],
                 sizes: Mapping[str, int]) -> None:
        self.program, self.machine = program, program.machine
        self.values: dict[str, dict[Key, int]] = {n: {} for n in self.machine.variables}
        self.sizes = dict.fromkeys(sorted(program.index_sorts), 0)
        for name, given in constants.items():
            if name in self.machine.variables:
                self.values[name] = {i: int(v) for i, v in enumerate(given)}
                sort = self.machine.variables[name].domain[0].name
                self.sizes[sort] = max(self.sizes[sort], len(given))
        self.sizes |= sizes
        self._undone: Undo = {}
        self._initial = {v.name: v.initial for v in self.machine.variables.values()}
        self._domains = {v.name: [s.name for s in v.domain]
                         for v in self.machine.variables.values()}

    def get(self, variable: str, *index: int) -> int:
        """The variable's value now."""
        key = index[0] if len(index) == 1 else index
        return self.values[variable].get(key, self._initial[variable])

    def before(self, variable: str, *index: int) -> int:
        """The variable's value before the last action."""
        return self._before(variable, index[0] if len(index) == 1 else index)

    def _before(self, name: str, key: Key) -> int:
        undone = self._undone.get((name, key))
        return self.values[name].get(key, self._initial[name]) if undone is None else undone

    def unmet(self, action: str, **values: int) -> Requirement | None:
        """The first requirement of the action that does not hold, if any."""
        traced = self.machine.actions[action]
        at = self.program.guards[action](
            self.values, self.sizes, self._before, *(values[p.name] for p in traced.parameters))
        return None if at < 0 else traced.requirements[at]

    def apply(self, action: str, **values: int) -> Undo:
        """Make the action's changes, whether or not its guard holds; returns the way back."""
        traced = self.machine.actions[action]
        writes = self.program.updates[action](
            self.values, self.sizes, self._before, *(values[p.name] for p in traced.parameters))
        undo: Undo = {}
        for name, key, value in writes:
            place = self.values[name]
            initial = self._initial[name]
            undo.setdefault((name, key), place.get(key, initial))
            if value == initial:
                place.pop(key, None)
            else:
                place[key] = value
                for sort, i in zip(self._domains[name], key if isinstance(key, tuple) else (key,)):
                    if i >= self.sizes[sort]:
                        self.sizes[sort] = i + 1
        self._undone = undo
        return undo

    def undo(self, undo: Undo) -> None:
        """Take a step back."""
        for (name, key), value in undo.items():
            if value == self._initial[name]:
                self.values[name].pop(key, None)
            else:
                self.values[name][key] = value
        self._undone = {}

    def step(self, action: str, **values: int) -> Undo:
        """The action, if its guard holds; raises `Unmet` otherwise."""
        unmet = self.unmet(action, **values)
        if unmet is not None:
            raise Unmet(action, unmet.name, self.explain(unmet.term, action, values))
        return self.apply(action, **values)

    def broken(self, check: Callable[..., tuple[int, ...] | None],
               *given: int) -> tuple[int, ...] | None:
        """Run a compiled predicate (`Program.predicate`) on the state (a step: the last one)."""
        return check(self.values, self.sizes, self._before, *given)

    def explain(self, term: Term, action: str, values: Mapping[str, int]) -> str:
        """The term with the values of everything it reads filled in, for a report."""
        bound: dict[Term, Term] = {
            p: Literal(values[p.name]) for p in self.machine.actions[action].parameters
        }
        parts = []
        for part in conjuncts(term):
            seen = self._seen(part, bound)
            where = ", ".join(f"{k} = {v}" for k, v in seen.items())
            parts.append(f"{show(part)} where {where}" if where else show(part))
        return "; ".join(parts)

    def _seen(self, term: Term, bound: Mapping[Term, Term]) -> dict[str, str]:
        """What the term reads at known places, in words, in the order of reading."""
        seen: dict[str, str] = {}
        if isinstance(term, Bound) and term in bound:
            seen[term.name] = show(bound[term])
        if isinstance(term, Read):
            index = numbers([bound.get(i, i) for i in term.index])
            if index is not None:
                shown = f"{term.variable.name}[{', '.join(map(str, index))}]"
                seen[shown] = term.variable.sort.show(self.get(term.variable.name, *index))
        for child in children(term):
            seen |= self._seen(child, bound)
        return seen


def variable_key(variable: Variable, index: tuple[int, ...]) -> Key:
    """The key of an index in a sparse state."""
    return index[0] if len(variable.domain) == 1 else index
