"""The machine compiled to Python source for one scope: the quick exploring reading.

Constants are folded in, parameters that index variables are unrolled, conditions are
tested in the outermost loop that knows their variables, and ranges are read off the
conditions.  Same states, same counts as `reference`; a test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvoracle.model.machine import Action, Assign, Machine, Predicate
from kvoracle.model.scopes import Scope
from kvoracle.model.simplify import simplify
from kvoracle.model.source import Printer
from kvoracle.model.terms import (
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Term,
    conjunction,
    conjuncts,
    mentions,
)

from .layout import Layout
from .search import Successor

Values = Mapping[Term, Term]


class CompiledBackend:
    """Successors and verdicts of packed states by generated Python."""

    name = "python"

    def __init__(self, machine: Machine, scope: Scope) -> None:
        self.machine, self.scope = machine, scope
        self.layout = Layout(machine, scope)
        self.initial = self.layout.initial
        self._indexing = {s.name for v in machine.variables.values() for s in v.domain}
        self._printer = Printer(self._read, lambda sort: str(scope.size(sort)))
        self._predicates: dict[tuple[int, bool], Callable[..., bool]] = {}
        self._kept: list[Predicate] = []
        self.source = self._successor_source()
        self._successors: Callable[[bytes], tuple[list[Successor], int]] = _load(
            self.source, "successors")

    def successors(self, state: bytes) -> tuple[list[Successor], int]:
        """All steps out of ``state``, in a fixed order, and how many the scope cut."""
        return self._successors(state)

    def holds(self, predicate: Predicate, before: bytes, after: bytes | None = None) -> bool:
        """Whether the predicate holds for all values of its parameters."""
        return self._predicate(predicate, every=True)(before, after)

    def happens(self, predicate: Predicate, state: bytes) -> bool:
        """Whether the predicate holds for some values of its parameters."""
        return self._predicate(predicate, every=False)(state, None)

    def _predicate(self, predicate: Predicate, every: bool) -> Callable[..., bool]:
        key = (id(predicate), every)
        if key not in self._predicates:
            quantified = Quantified(every, predicate.parameters, predicate.term)
            term = _unrolled(self, quantified, {})
            source = f"def predicate(s, t):\n    return {self._printer.expression(term, {})}\n"
            self._predicates[key] = _load(source, "predicate")
            self._kept.append(predicate)  # its id must stay its own
        return self._predicates[key]

    # --- printing -------------------------------------------------------------

    def _read(self, read: Read, index: Sequence[str]) -> str:
        variable, state = read.variable, "t" if read.after else "s"
        if variable.rigid:
            size = self.scope.size(variable.domain[0])
            values = tuple(self.scope.constant(variable, (i,)) for i in range(size))
            default = self.scope.constant(variable, (-1,))
            return f"({values!r}[{index[0]}] if 0 <= {index[0]} < {size} else {default!r})"
        if all(isinstance(i, Literal) for i in read.index):
            cell = self.layout.cell(
                variable, tuple(int(i.value) for i in read.index))  # type: ignore[attr-defined]
            return repr(variable.initial) if cell is None else f"{state}[{cell}]"
        at, tests = "0", []
        for part, term, size, sort in zip(
            index, read.index, self.layout.shape[variable.name], variable.domain
        ):
            at = part if at == "0" else f"({at}) * {size} + {part}"
            if not (isinstance(term, Bound) and term.sort.name == sort.name):
                tests.append(f"0 <= {part} < {size}")
        value = f"{state}[{self.layout.offset[variable.name]} + {at}]"
        return f"({value} if {' and '.join(tests)} else {variable.initial})" if tests else value

    def fold(self, term: Term, values: Values) -> Term:
        """The term with what the scope fixes folded in."""
        return simplify(term, values, self.scope.constant)

    # --- successors -----------------------------------------------------------

    def _successor_source(self) -> str:
        lines = ["def successors(s):", "    out = []", "    cut = 0"]
        for action in self.machine.actions.values():
            unrolled = [p for p in action.parameters if p.sort.name in self._indexing]
            looped = [p for p in action.parameters if p.sort.name not in self._indexing]
            for chosen in self.layout.indices(tuple(p.sort for p in unrolled)):
                values = {p: Literal(v) for p, v in zip(unrolled, chosen)}
                lines += self._instance(action, values, looped)
        return "\n".join([*lines, "    return out, cut", ""])

    def _instance(self, action: Action, values: dict[Bound, Literal],
                  looped: list[Bound]) -> list[str]:
        fixed: dict[Term, Term] = dict(values)
        guard = self.fold(_unrolled(self, action.guard, fixed), {})
        if isinstance(guard, Literal) and not guard.value:
            return []
        waiting = list(conjuncts(guard))
        names: dict[Term, str] = {}
        lines: list[str] = []
        pad = "    "

        def test(ready: list[Term]) -> None:
            nonlocal pad
            if ready:
                lines.append(f"{pad}if {self._printer.expression(conjunction(ready), names)}:")
                pad += "    "

        def known(term: Term) -> bool:
            return not any(_mentions(term, p) for p in looped if p not in names)

        ready = [t for t in waiting if known(t) and not isinstance(t, Literal)]
        test(ready)
        waiting = [t for t in waiting if not known(t)]
        for parameter in looped:
            usable = [t for t in waiting
                      if not any(_mentions(t, p) for p in looped
                                 if p not in names and p is not parameter)]
            waiting = [t for t in waiting if not _in(t, usable)]
            clauses, inner, rest = self._printer.loops([parameter], conjunction(usable), names)
            name = f"p_{parameter.name}"
            lines.append(f"{pad}{clauses[0].replace(inner[parameter], name, 1)}:")
            pad += "    "
            names[parameter] = name
            if rest:
                lines.append(f"{pad}if {_rename(rest, inner[parameter], name)}:")
                pad += "    "
        return lines + self._updates(action, fixed, names, pad)

    def _updates(self, action: Action, fixed: Values, names: dict[Term, str],
                 pad: str) -> list[str]:
        writes: list[tuple[Term, int | None, Term]] = []
        limits: list[str] = []
        lines: list[str] = []
        for update in action.updates:
            shape = tuple(update.variable.domain)
            if isinstance(update, Assign):
                index = [self.fold(i, fixed) for i in update.index]
                if not all(isinstance(i, Literal) for i in index):
                    # A place that depends on a number: every cell it may be, guarded.
                    for at in self.layout.indices(shape):
                        here = conjunction(i == v for i, v in zip(index, at))
                        writes.append((self.fold(here, fixed),
                                       self.layout.cell(update.variable, at),
                                       self.fold(_unrolled(self, update.value, fixed), {})))
                    for i, sort in zip(index, shape):
                        if not isinstance(i, Literal):
                            limits.append(f"{self._printer.expression(i, names)} >= "
                                          f"{self.scope.size(sort)}")
                    continue
                places = [(tuple(int(i.value) for i in index), fixed)]  # type: ignore[attr-defined]
                condition: Term = Literal(True)
            else:
                places = [
                    (at, {**fixed, **{b: Literal(v) for b, v in zip(update.bounds, at)}})
                    for at in self.layout.indices(shape)
                ]
                condition = update.condition
            for at, inner in places:
                holds = self.fold(_unrolled(self, condition, inner), {})
                if isinstance(holds, Literal) and not holds.value:
                    continue
                value = self.fold(_unrolled(self, update.value, inner), {})
                writes.append((holds, self.layout.cell(update.variable, at), value))
        sets: list[str] = []
        for k, (holds, cell, value) in enumerate(writes):
            assert cell is not None
            text = self._printer.expression(value, names)
            always = isinstance(holds, Literal)
            limit = self._limit_of(cell)
            if self._upper(value) >= limit:
                lines.append(f"{pad}v{k} = {text}" if always else
                             f"{pad}v{k} = {text} if {self._printer.expression(holds, names)} "
                             f"else 0")
                limits.append(f"v{k} >= {limit}")
                text = f"v{k}"
            set_cell = f"t[{cell}] = {text}"
            sets.append(set_cell if always
                        else f"if {self._printer.expression(holds, names)}: {set_cell}")
        if limits:
            lines.append(f"{pad}if {' or '.join(limits)}:")
            lines.append(f"{pad}    cut += 1")
            lines.append(f"{pad}else:")
            pad += "    "
        lines.append(f"{pad}t = bytearray(s)")
        lines += [pad + text for text in sets]
        shown = ", ".join(
            str(fixed[p].value) if p in fixed else names[p]  # type: ignore[attr-defined]
            for p in action.parameters
        )
        values = f"({shown},)" if shown else "()"
        lines.append(f"{pad}out.append(({action.name!r}, {values}, bytes(t)))")
        return lines

    def _limit_of(self, cell: int) -> int:
        for variable in reversed(self.machine.state):
            if self.layout.offset[variable.name] <= cell:
                return self.layout.limit[variable.name]
        raise AssertionError(cell)

    def _upper(self, term: Term) -> int:
        """An upper bound of the term's value in this scope."""
        if isinstance(term, Literal):
            return int(term.value)
        if isinstance(term, Bound):
            return self.scope.size(term.sort) - 1
        if isinstance(term, Read):
            return self.scope.size(term.variable.sort) - 1
        if isinstance(term, Op):
            if term.name == "add":
                return sum(map(self._upper, term.args))
            if term.name in ("sub", "div"):
                return self._upper(term.args[0])
            if term.name == "ite":
                return max(map(self._upper, term.args[1:]))
            if term.name in ("min", "max"):
                return (min if term.name == "min" else max)(map(self._upper, term.args))
        return 1


def _in(term: Term, terms: list[Term]) -> bool:
    return any(t is term for t in terms)


def _mentions(term: Term, wanted: Term) -> bool:
    return mentions(term, lambda t: t is wanted)


def _rename(source: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new, source)


def _unrolled(backend: CompiledBackend, term: Term, values: Values) -> Term:
    """The term folded, its quantifiers over indexing sorts written out."""
    folded = backend.fold(term, values)

    def unroll(t: Term) -> Term:
        if isinstance(t, Quantified):
            indexing = [b for b in t.bounds if b.sort.name in backend._indexing]
            others = tuple(b for b in t.bounds if b.sort.name not in backend._indexing)
            parts = []
            for chosen in backend.layout.indices(tuple(b.sort for b in indexing)):
                inner = {b: Literal(v) for b, v in zip(indexing, chosen)}
                body = unroll(backend.fold(t.body, inner))
                parts.append(Quantified(t.every, others, body)
                             if others and not isinstance(body, Literal) else body)
            joined = Op("and" if t.every else "or", tuple(parts)) if len(parts) > 1 else parts[0]
            return backend.fold(joined, {})
        if isinstance(t, Op):
            return Op(t.name, tuple(map(unroll, t.args)))
        return t

    return backend.fold(unroll(folded), {})


def _load(source: str, name: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile(source, f"<compiled {name}>", "exec"), space)  # our own generated source
    return space[name]
