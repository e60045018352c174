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
    numbers,
)

from .breadth_first import Check, Successor
from .intervals import interval
from .layout import Layout
from .reference import ReferenceBackend

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
        self.source = self._successor_source()
        self._successors: Callable[[bytes], tuple[list[Successor], int]] = _load(
            self.source, "successors")

    def successors(self, state: bytes) -> tuple[list[Successor], int]:
        """All steps out of ``state``, in a fixed order, and how many the scope cut."""
        try:
            return self._successors(state)
        except ValueError:  # no byte holds a negative value; the plain reading says which
            ReferenceBackend(self.machine, self.scope).successors(state)
            raise

    def check(self, predicate: Predicate, every: bool) -> Check:
        """A test of whether the predicate holds for all values of its parameters, or for some."""
        term = _unrolled(self, Quantified(every, predicate.parameters, predicate.term), {})
        source = f"def check(s, t):\n    return {self._printer.expression(term, {})}\n"
        compiled: Check = _load(source, "check")
        return compiled

    # --- printing -------------------------------------------------------------

    def _read(self, read: Read, index: Sequence[str]) -> str:
        variable, state = read.variable, "t" if read.after else "s"
        if variable.rigid:
            size = self.scope.size(variable.domain[0])
            values = tuple(self.scope.constant(variable, (i,)) for i in range(size))
            default = self.scope.constant(variable, (-1,))
            return f"({values!r}[{index[0]}] if 0 <= {index[0]} < {size} else {default!r})"
        known = numbers(read.index)
        if known is not None:
            cell = self.layout.cell(variable, known)
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
                values: Values = {p: Literal(v) for p, v in zip(unrolled, chosen)}
                lines += self._instance(action, values, looped)
        return "\n".join([*lines, "    return out, cut", ""])

    def _instance(self, action: Action, values: Values,
                  looped: list[Bound]) -> list[str]:
        fixed = dict(values)
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
                known = numbers(index)
                if known is None:
                    # A place that depends on a number: every cell it may be, guarded.
                    for at in self.layout.indices(shape):
                        here = self.fold(conjunction(i == v for i, v in zip(index, at)), fixed)
                        if isinstance(here, Literal) and not here.value:
                            continue
                        writes.append((here,
                                       self.layout.cell(update.variable, at),
                                       self.fold(_unrolled(self, update.value, fixed), {})))
                    for i, sort in zip(index, shape):
                        limits.append(f"not 0 <= {self._printer.expression(i, names)} < "
                                      f"{self.scope.size(sort)}")
                    continue
                if self.layout.cell(update.variable, known) is None:
                    limits.append("True")
                    continue
                places = [(known, fixed)]
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
            if interval(value, self.scope)[1] >= limit:
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
            self._printer.expression(fixed.get(p, p), names)
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
                inner: Values = {b: Literal(v) for b, v in zip(indexing, chosen)}
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
