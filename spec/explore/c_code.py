"""The machine of one scope as C: what the compiled search calls for each state.

Loops stay loops, so that the source grows with the machine and not with its sizes; the
constants of a scope are tables.  Ranges are read off conditions, and conditions tested in
the outermost loop that knows their variables, as in the Python reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from kvoracle.model.machine import Action, Assign, Machine, Predicate, Update
from kvoracle.model.scopes import Scope
from kvoracle.model.simplify import simplify
from kvoracle.model.source import Names, Printer
from kvoracle.model.terms import (
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Term,
    Variable,
    conjuncts,
    mentions,
    numbers,
    substitute,
)

from .bits import BitLayout
from .intervals import interval
from .symmetry import Renamings

_SIGNS = {"add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}


@dataclass(frozen=True)
class Judged:
    """What a search can be asked to judge, each by its number: predicates over states, over
    steps by action, and situations."""

    over_states: Mapping[int, Predicate]
    over_steps: Mapping[int, Mapping[str, Predicate]]
    situations: Mapping[int, Predicate]


@dataclass(frozen=True)
class CPrinter(Printer):
    """Prints terms as C expressions; conditions are 0 or 1."""

    scope: Scope | None = None

    def expression(self, term: Term, names: Names) -> str:
        """One C expression, in parentheses unless it is a single word or call."""
        if isinstance(term, Literal):
            return str(int(term.value))
        if not isinstance(term, Op):
            return super().expression(term, names)
        parts = [self.expression(a, names) for a in term.args]
        if term.name in ("eq", "le") and parts[0] == parts[1]:
            return "1"
        if term.name in _SIGNS:
            return f"({parts[0]} {_SIGNS[term.name]} {parts[1]})"
        if term.name in ("and", "or"):
            return "(" + (" && " if term.name == "and" else " || ").join(parts) + ")"
        if term.name == "not":
            return f"!{parts[0]}"
        if term.name == "implies":
            return "1" if parts[1] == "1" else f"(!{parts[0]} || {parts[1]})"
        if term.name == "ite":
            return f"({parts[0]} ? {parts[1]} : {parts[2]})"
        if term.name == "div":
            return f"quotient({parts[0]}, {parts[1]})"
        return _nested(term.name, parts)

    def _quantified(self, term: Quantified, names: Names) -> str:
        body, given = term.body, list(conjuncts(term.body))
        holds = "0"
        if term.every:
            premise = isinstance(body, Op) and body.name == "implies"
            given = list(conjuncts(body.args[0])) if premise and isinstance(body, Op) else []
            conclusion = body.args[1] if premise and isinstance(body, Op) else body
        loops, inner, rest = self.ranges(term.bounds, given, names)
        if term.every:
            holds = self.expression(conclusion, inner)
            if holds == "1":
                return "1"
        start, end = ("1", "0") if term.every else ("0", "1")
        goes_on = "y" if term.every else "!y"
        # An indented name of its own in each block: an inner one hides it, as it should.
        heads = [f"for (int {n} = {low}, {n}e = {high}; {goes_on} && {n} < {n}e; {n}++) "
                 for n, low, high in loops]
        tests = [f"if ({rest}) "] if rest else []
        tests += [f"if (!{holds}) "] if holds != "0" else []
        return f"VALUE(int y = {start}; {''.join(heads + tests)}y = {end};)"

    def ranges(self, bounds: Sequence[Bound], given: list[Term], names: Names,
               ) -> tuple[list[tuple[str, str, str]], dict[Term, str], str]:
        """Name, first value and end of a loop for each bound, so that together they visit all
        values that meet the conditions; the names with theirs added; what is still to be tested."""
        inner = dict(names)
        loops: list[tuple[str, str, str]] = []
        for bound in bounds:
            same = self._same(bound, given, inner)
            if same is not None:
                inner[bound] = self.expression(same.args[same.args[0] is bound], inner)
                given = [t for t in given if t is not same]
                continue
            lows, highs, kept = ["0"], [self.limit(bound.sort)], []
            for term in given:
                found = self._limits(bound, term, inner)
                if found is None:
                    kept.append(term)
                else:
                    lows += [found[0]] if found[0] else []
                    highs += [found[1]] if found[1] else []
            name = f"i{len(inner)}"
            loops.append((name, _nested("max", lows), _nested("min", highs)))
            inner[bound] = name
            given = kept
        rest = [self.expression(t, inner) for t in given]
        return loops, inner, " && ".join(r for r in rest if r != "1")

    def _same(self, bound: Bound, given: list[Term], names: Names) -> Op | None:
        """The condition that leaves the bound one value, if that is surely one of its sort."""
        assert self.scope is not None
        for term in given:
            if not isinstance(term, Op) or term.name != "eq":
                continue
            a, b = term.args
            other = b if a is bound else a if b is bound else None
            if other is None or not self._known(other, names):
                continue
            low, high = interval(other, self.scope)
            if low >= 0 and high < self.scope.size(bound.sort):
                return term
        return None


def _nested(name: str, parts: Sequence[str]) -> str:
    text = parts[-1]
    for part in reversed(parts[:-1]):
        text = f"{name}2({part}, {text})"
    return text


class MachineCode:
    """A machine's source for one scope, as C and as CUDA C++ alike.

    `tables` and `functions` use a few words that the language's prelude defines: ``TABLE``
    and ``FUNCTION`` begin a definition, ``STEPS`` that of the function over all steps;
    ``VALUE`` of statements is the expression whose value is ``y`` after them.
    """

    on_step, on_cut = "emit(k, t, breaks)", "k->cut++"
    """What is done with a step, and with one that leaves the scope."""

    def __init__(self, machine: Machine, scope: Scope, bits: BitLayout, judged: Judged,
                 renamings: Renamings | None = None, chosen: Bound | None = None) -> None:
        """``chosen``: a variable of the machine that ``kv_choose`` gives its value."""
        self.given: Names = {} if chosen is None else {chosen: "chosen"}
        self.machine, self.scope, self.bits, self.layout = machine, scope, bits, bits.layout
        self.judged = judged
        self.printer = CPrinter(
            self._read, lambda sort: str(scope.size(sort)), scope=scope)
        self.tables = "\n".join(self._tables())
        self.functions = "\n".join([
            *self._unpack(), *self._canonical(renamings), *self._successors(),
            *self._predicates("broken", judged.over_states, every=True),
            *self._predicates("seen", judged.situations, every=False),
        ])

    @property
    def digest(self) -> str:
        """Names the machine, the scope and the layout of states, whatever runs it."""
        return hashlib.sha256((self.tables + self.functions).encode()).hexdigest()

    def put_into(self, search: str) -> str:
        """The whole source: one of the package's searches around the machine."""
        text = resources.files(__package__).joinpath(search).read_text("utf-8")
        return text.replace("\nTABLES\n", f"\n{self.tables}\n") \
            .replace("\nMACHINE\n", f"\n{self.functions}\n")

    # --- tables -------------------------------------------------------------------

    def _tables(self) -> list[str]:
        fields = self.bits.fields
        lines = [
            f"/* Scope {self.scope.name}. */",
            f"#define W {self.bits.words}",
            f"#define CELLS {len(fields)}",
            *(line for n in self.given.values() for line in (
                f"static int {n};",
                "__attribute__((visibility(\"default\")))",
                f"void kv_choose(int value) {{ {n} = value; }}")),
            _table("uint16_t", "WORD", [f.word for f in fields]),
            _table("uint8_t", "SHIFT", [f.shift for f in fields]),
            _table("uint16_t", "LIMIT", self.bits.limits),
        ]
        for variable in self.machine.constants:
            values = self._values(variable)
            lines.append(_table("int", f"K_{variable.name}", values))
        return lines

    def _unpack(self) -> list[str]:
        fields = self.bits.fields
        unpacked = (f"    s[{c}] = p[{f.word}] >> {f.shift} & {f.mask};"
                    for c, f in enumerate(fields) if f.mask)
        zeros = (f"    s[{c}] = 0;" for c, f in enumerate(fields) if not f.mask)
        return ["FUNCTION void unpack(const word *p, uint8_t *restrict s)", "{",
                *unpacked, *zeros, "}"]

    def _values(self, variable: Variable) -> list[int]:
        size = self.scope.size(variable.domain[0])
        return [int(self.scope.constant(variable, (i,))) for i in range(size)]

    def _canonical(self, renamings: Renamings | None) -> list[str]:
        """Renames the things of symmetric sorts so that the words are least."""
        head = "FUNCTION void canonical(word *p)"
        if not renamings:
            return [head, "{", "    (void)p;", "}"]
        cells, largest = len(self.bits.fields), max(map(len, renamings.members[0])) - 1
        lines = [_rows("uint16_t", f"RENAMED[][{cells}]", renamings.cells)]
        value = "s[RENAMED[n][c]]"
        if any(renamings.kinds):
            flat = [[m for sort in members for m in (*sort, *([0] * (largest + 1 - len(sort))))]
                    for members in renamings.members]
            lines += [_table("uint8_t", "KIND", renamings.kinds),
                      _rows("uint8_t", f"MEMBER[][{len(flat[0])}]", flat)]
            value = f"KIND[c] ? MEMBER[n][(KIND[c] - 1) * {largest + 1} + {value}] : {value}"
        return [
            *lines, head, "{",
            "    uint8_t s[CELLS + 1];",
            "    word best[W];",
            "    unpack(p, s);",
            "    for (int i = 0; i < W; i++)",
            "        best[i] = p[i];",
            f"    for (int n = 0; n < {len(renamings)}; n++) {{",
            "        word t[W] = {0};",
            "        int i = 0;",
            "        for (int c = 0; c < CELLS; c++)",
            f"            t[WORD[c]] |= (word)({value}) << SHIFT[c];",
            "        while (i < W && t[i] == best[i])",
            "            i++;",
            "        if (i < W && t[i] < best[i])",
            "            for (i = 0; i < W; i++)",
            "                best[i] = t[i];",
            "    }",
            "    for (int i = 0; i < W; i++)",
            "        p[i] = best[i];",
            "}",
        ]

    # --- places ---------------------------------------------------------------------

    def _place(self, variable: Variable, index: Sequence[Term],
               printed: Sequence[str]) -> tuple[str, list[str]]:
        """The cell as an expression, and what must hold for it to be one of the variable's."""
        known = numbers(index)
        if known is not None:
            cell = self.layout.cell(variable, known)
            return str(cell), ["0"] if cell is None else []
        at, tests = "0", []
        for text, term, size, sort in zip(
            printed, index, self.layout.shape[variable.name], variable.domain
        ):
            at = text if at == "0" else f"({at}) * {size} + {text}"
            low, high = interval(term, self.scope)
            if low < 0 or high >= size:
                tests.append(f"{text} >= 0 && {text} < {size}")
            del sort
        return f"{self.layout.offset[variable.name]} + {at}", tests

    def _read(self, read: Read, index: Sequence[str]) -> str:
        variable = read.variable
        if variable.rigid:
            values = self._values(variable)
            default = int(self.scope.constant(variable, (-1,)))
            low, high = interval(read.index[0], self.scope)
            if low >= 0 and high < len(values):
                same = len(set(values)) == 1
                return str(values[0]) if same else f"K_{variable.name}[{index[0]}]"
            return (f"({index[0]} >= 0 && {index[0]} < {len(values)} "
                    f"? K_{variable.name}[{index[0]}] : {default})")
        cell, tests = self._place(variable, read.index, index)
        if tests == ["0"]:
            return str(variable.initial)
        mask = self._mask(variable)
        value = f"(int)part(t, {cell}, {mask})" if read.after else f"s[{cell}]"
        return f"({' && '.join(tests)} ? {value} : {variable.initial})" if tests else value

    def _mask(self, variable: Variable) -> int:
        return self.bits.fields[self.layout.offset[variable.name]].mask

    def _fold(self, term: Term) -> Term:
        return simplify(term, {}, self.scope.constant)

    # --- successors -------------------------------------------------------------------

    def _successors(self) -> list[str]:
        lines = ["STEPS void successors(const uint8_t *restrict s, const word *restrict p, "
                 "Task *k)", "{"]
        for action in self.machine.actions.values():
            lines += self._action(action)
        return [*lines, "}"]

    def _action(self, action: Action) -> list[str]:
        guard = self._fold(action.guard)
        if isinstance(guard, Literal) and not guard.value:
            return []
        lines = [f"    /* {action.name} */", "    do {"]
        pad, depth = "        ", 0
        names: dict[Term, str] = dict(self.given)
        waiting = [t for t in conjuncts(guard) if not isinstance(t, Literal)]
        parameters = list(action.parameters)

        def ready(term: Term, also: Bound | None = None) -> bool:
            return not any(mentions(term, lambda t, p=p: t is p)  # type: ignore[misc]
                           for p in parameters if p not in names and p is not also)

        def test(condition: str) -> None:
            if condition and condition != "1":
                lines.append(f"{pad}if (!({condition}))")
                lines.append(f"{pad}    continue;")

        test(" && ".join(self.printer.expression(t, names) for t in waiting if ready(t)))
        waiting = [t for t in waiting if not ready(t)]
        for parameter in parameters:
            usable = [t for t in waiting if ready(t, parameter)]
            waiting = [t for t in waiting if not ready(t, parameter)]
            loops, names, rest = self.printer.ranges([parameter], usable, names)
            for name, low, high in loops:
                lines.append(f"{pad}for (int {name} = {low}, {name}e = {high}; "
                             f"{name} < {name}e; {name}++) {{")
                depth += 1
                pad += "    "
            test(rest)
        lines += [pad + line for line in self._step(action, names)]
        for _ in range(depth):
            pad = pad[:-4]
            lines.append(f"{pad}}}")
        return [*lines, "    } while (0);"]

    def _step(self, action: Action, names: dict[Term, str]) -> list[str]:
        writes = [line for u in action.updates for line in self._update(u, names)]
        lines = ["word t[W];", "memcpy(t, p, sizeof t);"]
        ends = ""
        for flag, meaning in (("cut", self.on_cut), ("negative", "k->negative = 1")):
            if any(f"{flag} = 1;" in line for line in writes):
                lines.insert(1, f"int {flag} = 0;")
                ends += f"if ({flag}) {meaning}; else "
        lines += [*writes, f"{ends}{{", "    uint64_t breaks = 0;"]
        for number, by_action in self.judged.over_steps.items():
            test = self._over_step(by_action[action.name], action, names)
            if test != "1":
                lines += [f"    if (k->chosen >> {number} & 1 && !{test})",
                          f"        breaks |= (uint64_t)1 << {number};"]
        return [*lines, f"    {self.on_step};", "}"]

    def _over_step(self, predicate: Predicate, action: Action, names: Names) -> str:
        """What the action does not write is after it as it was before."""
        written = action.written

        def before(term: Term) -> Term | None:
            if isinstance(term, Read) and term.after and term.variable.name not in written:
                return Read(term.variable, tuple(substitute(i, before) for i in term.index))
            return None

        return self._holds(substitute(predicate.term, before), predicate.parameters, True, names)

    def _update(self, update: Update, names: dict[Term, str]) -> list[str]:
        variable, value = update.variable, self._fold(update.value)
        lines: list[str] = []
        pad = ""
        if isinstance(update, Assign):
            index = [self._fold(i) for i in update.index]
            inner = names
            printed = [self.printer.expression(i, names) for i in index]
            cell, tests = self._place(variable, index, printed)
            if tests == ["0"]:
                return ["cut = 1;"]
        else:
            condition = self._fold(update.condition)
            if isinstance(condition, Literal) and not condition.value:
                return []
            given = [t for t in conjuncts(condition) if not isinstance(t, Literal)]
            loops, inner, rest = self.printer.ranges(update.bounds, given, names)
            for name, low, high in loops:
                lines.append(f"{pad}for (int {name} = {low}, {name}e = {high}; "
                             f"{name} < {name}e; {name}++)")
                pad += "    "
            if rest:
                lines.append(f"{pad}if ({rest})")
                pad += "    "
            cell, tests = self._place(
                variable, update.bounds, [inner[b] for b in update.bounds])
        text = self.printer.expression(value, inner)
        least, most = interval(value, self.scope)
        wrong = [f"!({' && '.join(tests)})"] if tests else []
        wrong += [f"v >= {self.layout.limit[variable.name]}"] \
            if most >= self.layout.limit[variable.name] else []
        if not wrong and least >= 0:
            return [*lines, f"{pad}put(t, {cell}, {self._mask(variable)}, {text});"]
        lines.append(f"{pad}{{")
        lines.append(f"{pad}    int v = {text};")
        if wrong:
            lines.append(f"{pad}    if ({' || '.join(wrong)}) cut = 1; else")
        if least < 0:
            lines.append(f"{pad}    if (v < 0) negative = 1; else")
        lines.append(f"{pad}        put(t, {cell}, {self._mask(variable)}, v);")
        lines.append(f"{pad}}}")
        return lines

    # --- predicates -----------------------------------------------------------------------

    def _holds(self, term: Term, parameters: tuple[Bound, ...], every: bool,
               names: Names) -> str:
        whole = Quantified(every, parameters, term) if parameters else term
        folded = self._fold(whole)
        return self.printer.expression(folded, names)

    def _predicates(self, function: str, predicates: Mapping[int, Predicate],
                    every: bool) -> list[str]:
        """A function that gives the numbers of those that are broken, or that are seen."""
        lines = [f"FUNCTION uint64_t {function}(const uint8_t *restrict s, uint64_t asked)", "{",
                 "    uint64_t found = 0;", "    (void)s;"]
        for number, predicate in predicates.items():
            holds = self._holds(predicate.term, predicate.parameters, every, self.given)
            lines += [f"    /* {predicate.name} */",
                      f"    if (asked >> {number} & 1 && {'!' if every else ''}{holds})",
                      f"        found |= (uint64_t)1 << {number};"]
        return [*lines, "    return found;", "}"]


def _table(kind: str, name: str, values: Sequence[int]) -> str:
    return f"TABLE {kind} {name}[] = {{{', '.join(map(str, values)) or '0'}}};"


def _rows(kind: str, name: str, rows: Sequence[Sequence[int]]) -> str:
    lines = ("    {" + ", ".join(map(str, row)) + "}," for row in rows)
    return "\n".join([f"TABLE {kind} {name} = {{", *lines, "};"])

