"""A scope as a Murphi program, for `rumur`: does an independent checker see the same states?

The program has the machine's names and words.  Types are ranges, so a step that would
leave one is kept out by a guard; constants of the scope are numbers; what a rule reads is
the state before it, kept aside where the rule writes it first.  A property over two
states is asserted at the end of each rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal as OneOf

from kvoracle.model.machine import Assign, Predicate, Update, Where
from kvoracle.model.scopes import Scope
from kvoracle.model.terms import (
    BOOL,
    TRUE,
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    Variable,
    children,
    conjunction,
    conjuncts,
    lift,
    mentions,
    not_,
    substitute,
)

from ..properties import Property
from ..variants import Variant
from .bounds import constant_values
from .definitions import NUMBER
from .prepared import Prepared, PreparedAction
from .writer import WIDTH, Block, Identifiers, Names, Writer, comment, hang, kind_of_sort

RESERVED = """
alias array assert assume begin boolean by case clear const cover do else elsif end endalias
endexists endfor endforall endfunction endif endprocedure endrecord endrule endruleset
endstartstate endswitch endwhile enum error exists false for forall from function if in
interleaved invariant ismember isundefined liveness multiset multisetadd multisetcount
multisetremove multisetremovepred of procedure process program property put real record return
rule ruleset scalarset startstate switch then to traceuntil true type undefine undefined union
var while
"""

SIGNS = {
    "add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "=", "ne": "!=", "and": "&", "or": "|",
    "implies": "->",
}

Use = OneOf["assert", "count"]
"""What to do with the properties: fail where one is broken, or count where and go on."""


def murphi(scope: Scope, variant: Variant | None = None,
           properties: Iterable[Property] | None = None, use: Use = "assert") -> str:
    """The scope as a Murphi program.

    With ``use="count"`` nothing fails: the checker counts the states or steps that break each
    property, under its name, and those that show each situation, under ``property: situation``.
    """
    return Program(Prepared(scope, variant, properties), use).text()


class _Writer(Writer):
    """Murphi's signs.  ``kept`` are the variables whose value before the rule is in a copy."""

    def __init__(self, program: Program, identifiers: Identifiers) -> None:
        super().__init__(identifiers)
        self.program = program
        self.kept: dict[str, str] = {}
        self.before_only = False

    def number(self, value: int) -> str:
        return str(value) if value >= 0 else f"(0 - {-value})"

    def truth(self, value: bool) -> str:
        return "true" if value else "false"

    def member(self, sort: Sort, value: int) -> str:
        return self.program.members[sort.name][value]

    def sign(self, name: str) -> str:
        return SIGNS[name]

    def read(self, read: Read, names: Names) -> str:
        variable = read.variable
        index = [self.flat(i, names, kind_of_sort(s)) for i, s in zip(read.index, variable.domain)]
        name = self.program.names[variable.name]
        if variable.name in self.kept and not read.after:
            name = self.kept[variable.name]
        function = variable.rigid or variable.name in self.program.defined
        text = f"{name}({', '.join(index)})" if function \
            else name + "".join(f"[{i}]" for i in index)
        limits = [
            f"0 <= {shown} & {shown} <= {self.program.scope.size(sort) - 1}"
            for term, shown, sort in zip(read.index, index, variable.domain)
            if not self.program.prepared.bounds.inside(term, sort)
        ]
        if not limits:
            return text
        default = self.literal(variable.initial, kind_of_sort(variable.sort))
        return f"(({' & '.join(limits)}) ? {text} : {default})"

    def negation(self, block: Block, whole: bool) -> Block:
        return hang("!", block) if whole else hang("!(", block, ")")

    def choice(self, condition: Block, then: Block, otherwise: Block) -> Block:
        parts = (condition, then, otherwise)
        if all(len(p) == 1 for p in parts) and sum(len(p[0]) for p in parts) < WIDTH - 10:
            return [f"{condition[0]} ? {then[0]} : {otherwise[0]}"]
        return [*condition, *hang("? ", then), *hang(": ", otherwise)]

    def quantifier(self, every: bool, bounds: Sequence[tuple[str, Sort]]) -> tuple[str, str]:
        word = "forall" if every else "exists"
        return (" ".join(f"{word} {name}: {self.program.type_of(sort)} do"
                         for name, sort in bounds), " end" * len(bounds))

    def floor(self, term: Op, names: Names, room: int) -> Block:
        over, by = (" ".join(self.block(a, names, NUMBER, 10**9, bare=False)) for a in term.args)
        if self.program.prepared.bounds.of(term.args[0])[0] >= 0:
            return [f"{over} / {by}"]
        # Division here rounds towards 0.
        return [f"{over} >= 0 ? {over} / {by} : ({over} + 1) / {by} - 1"]

    def extreme(self, name: str) -> str:
        self.program.extremes.add(name)
        return self.program.names[name]

    def junction(self, name: str, parts: Sequence[Block]) -> Block:
        sign = f"{SIGNS[name]} "
        return [line for i, part in enumerate(parts)
                for line in hang(sign if i else " " * len(sign), part)]


class Program:
    """A prepared scope as Murphi; ``names`` and ``members`` say what is called how in it."""

    def __init__(self, prepared: Prepared, use: Use) -> None:
        self.prepared, self.use = prepared, use
        self.machine, self.scope = prepared.machine, prepared.scope
        identifiers = Identifiers(RESERVED.split())
        self.names: dict[str, str] = {}
        self.members: dict[str, list[str]] = {}
        self.extremes: set[str] = set()
        self._identifiers = identifiers
        self._terms = self._all_terms()
        self.sorts = [s for s in prepared.sorts(self._terms) if not s.is_bool]
        definitions = prepared.definitions(self._terms)
        self.definitions = definitions
        self.defined = {d.name for d in definitions}
        self._types = {s.name: identifiers.keep(s.name) for s in self.sorts}
        self._number = identifiers.keep("Number")
        for sort in self.sorts:
            self.members[sort.name] = [identifiers.keep(n) for n in sort.names]
        for variable in self.machine.variables.values():
            self.names[variable.name] = identifiers.keep(variable.name)
        for name in (*(d.name for d in definitions), "min", "max"):
            self.names[name] = identifiers.keep(name)
        self.writer = _Writer(self, identifiers)

    def type_of(self, sort: Sort) -> str:
        """The name of the sort's type."""
        return "boolean" if sort.is_bool else self._types[sort.name]

    def text(self) -> str:
        rules = [line for a in self.prepared.actions for line in ("", *self._rule(a))]
        last = self._properties()
        functions = self._functions()
        return "\n".join([
            *self._header(), "", *self._declarations(), *functions, "", *self._start(),
            *rules, *last]) + "\n"

    def _all_terms(self) -> list[Term]:
        p = self.prepared
        terms: list[Term] = []
        for a in p.actions:
            terms += [r.term for r in a.requirements]
            for cut in a.cuts:
                terms.append(cut.as_term(self.scope))
            for u in a.updates:
                terms += [*u.index, u.value] if isinstance(u, Assign) else [u.condition, u.value]
        terms += [predicate.term for _, predicate in p.invariants]
        terms += [s.term for step in p.steps for s in step.by_action.values()]
        if self.use == "count":
            terms += [predicate.term for _, _, predicate in p.witnesses]
        quantified = [predicate for _, predicate in p.invariants]
        quantified += [s for step in p.steps for s in step.by_action.values()]
        return [*terms, *(Quantified(True, q.parameters, TRUE) for q in quantified)]

    # --- declarations ----------------------------------------------------------------------

    def _header(self) -> Block:
        p = self.prepared
        lines = [f"kvoracle: scope {self.scope.name}, {p.design}.", "", self.scope.doc + "."]
        if p.variant:
            lines += ["", f"The variant: {p.variant.statement}.  Source: {p.variant.source}."]
        count = "" if self.use == "assert" else " (properties counted, not asserted)"
        lines += ["", f"Written by `kvoracle export murphi {p.command}`{count} from the machine in "
                  "model/; change that, not this.", "",
                  "rumur --deadlock-detection off --output model.c FILE", "",
                  "cc -O3 -march=native -std=c11 -o model model.c -lpthread && ./model"]
        return [f"-- {line}".rstrip() for paragraph in lines for line in comment(paragraph)]

    def _declarations(self) -> Block:
        lines = ["type"]
        for sort in self.sorts:
            name = self._types[sort.name]
            lines.append(
                f"  {name}: enum {{ {', '.join(self.members[sort.name])} }};" if sort.names
                else f"  {name}: 0..{self.scope.size(sort) - 1};")
        functions = self.definitions or self.extremes
        if functions:
            widest = max(map(self.prepared.bounds.widest, self._terms), default=0)
            lines += ["  -- any number that is reckoned with",
                      f"  {self._number}: (0 - {widest})..{widest};".replace("(0 - 0)", "0")]
        lines += ["", "var"]
        for variable in self.machine.state:
            ghost = "; history, for properties alone" if variable.ghost else ""
            lines += [f"  -- {line}" for line in comment(variable.doc + ghost)]
            lines.append(f"  {self.names[variable.name]}: {self._array(variable)};")
        return lines

    def _array(self, variable: Variable) -> str:
        return "".join(f"array [{self.type_of(s)}] of " for s in variable.domain) \
            + self.type_of(variable.sort)

    def _functions(self) -> Block:
        lines: Block = []
        bodies: Block = []
        for d in self.definitions:
            names = self.writer.bind(d.parameters, {})
            shown = "; ".join(f"{names[p]}: {self.type_of(p.sort)}" for p in d.parameters)
            kind = kind_of_sort(d.symbol.sort)
            body = self.writer.block(d.body, names, kind)
            bodies += ["", *(f"-- {line}" for line in comment(d.doc)),
                       f"function {self.names[d.name]}({shown}): "
                       f"{self._number if kind == NUMBER else self.type_of(kind)};",
                       "begin", *hang("  return ", body, ";"), "end;"]
        for name, sign in (("min", "<="), ("max", ">=")):
            if name in self.extremes:
                number = self._number
                lines += ["", f"function {self.names[name]}(a: {number}; b: {number}): {number};",
                          "begin", f"  return a {sign} b ? a : b;", "end;"]
        for variable in self.machine.constants:
            lines += self._constant(variable)
        return lines + bodies

    def _constant(self, variable: Variable) -> Block:
        """A constant that is not the same for all; one that is has been folded in."""
        values = constant_values(self.scope, variable)
        sort = variable.domain[0]
        shown = ", ".join(map(variable.sort.show, values))
        lines = ["", f"-- {variable.name}: {shown} ({variable.doc})"]
        if not self._speaks_of(variable):
            return lines
        kind = kind_of_sort(variable.sort)
        literals = [self.writer.literal(v, kind) for v in values]
        lines += [f"function {self.names[variable.name]}(i: {self.type_of(sort)}): "
                  f"{self._number if kind == NUMBER else self.type_of(kind)};", "begin"]
        lines += [f"  if i = {i} then return {v}; end;" for i, v in enumerate(literals[:-1])]
        return [*lines, f"  return {literals[-1]};", "end;"]

    def _speaks_of(self, variable: Variable) -> bool:
        def speaks(term: Term) -> bool:
            return mentions(term, lambda t: isinstance(t, Read) and t.variable is variable)

        return any(map(speaks, [*self._terms, *(d.body for d in self.definitions)]))

    def _start(self) -> Block:
        lines = ["startstate", "begin"]
        for variable in self.machine.state:
            bounds = tuple(Bound(s.name[0].lower(), s) for s in variable.domain)
            names = self.writer.bind(bounds, {})
            lines += self._loops(bounds, names, [
                self.place(variable, [names[b] for b in bounds])
                + f" := {self.writer.literal(variable.initial, kind_of_sort(variable.sort))};"])
        return [*lines, "end;"]

    def _loops(self, bounds: Sequence[Bound], names: Names, body: Block) -> Block:
        lines, pad = [], "  "
        for b in bounds:
            lines.append(f"{pad}for {names[b]}: {self.type_of(b.sort)} do")
            pad += "  "
        lines += [pad + line for line in body]
        for _ in bounds:
            pad = pad[2:]
            lines.append(f"{pad}end;")
        return lines

    def place(self, variable: Variable, index: Sequence[str]) -> str:
        return self.names[variable.name] + "".join(f"[{i}]" for i in index)

    # --- rules ---------------------------------------------------------------------------------

    def _rule(self, a: PreparedAction) -> Block:
        writer = self.writer
        names = writer.bind(a.action.parameters, {})
        whose = "  (done to the engine)" if a.action.external else ""
        lines = [f"-- {line}" for line in comment(a.label + whose)]
        lines += [f"-- {line}" for line in comment(a.action.doc)] if a.action.doc else []
        pad = ""
        if a.action.parameters:
            shown = "; ".join(f"{names[p]}: {self.type_of(p.sort)}" for p in a.action.parameters)
            lines.append(f"ruleset {shown} do")
            pad = "  "
        body = [f'rule "{a.action.name}"', *self._guard(a, names), "==>"]
        kept, statements = self._statements(a, names)
        if kept:
            body += ["var"]
            body += [f"  {copy}: {self._array(self.machine.variables[name])};"
                     for name, copy in kept.items()]
        body += ["begin"]
        body += [f"  {copy} := {self.names[name]};" for name, copy in kept.items()]
        body += ["  " + line for line in statements]
        body += ["end;"]
        lines += [pad + line for line in body]
        return [*lines, "end;"] if pad else lines

    def _guard(self, a: PreparedAction, names: Names) -> Block:
        conditions = [(r.name, r.term) for r in a.requirements]
        conditions += [("stays within the scope", c.as_term(self.scope)) for c in a.cuts]
        lines: Block = []
        for name, term in conditions:
            lines.append(f"  -- {name}")
            block = self.writer.condition(term, names)
            lines += ["  " + line for line in hang("& " if len(lines) > 1 else "  ", block)]
        return lines or ["  true"]

    def _statements(self, a: PreparedAction, names: Names) -> tuple[dict[str, str], Block]:
        """What must be kept from before, by its copy's name; and the rule's statements."""
        steps = [(s.property, s.by_action[a.action.name]) for s in self.prepared.steps
                 if a.action.name in s.by_action]
        kept: dict[str, str] = {}
        written: set[str] = set()
        updates: list[Update] = []
        for update in map(_narrowed, a.updates):
            late = self._late(update, written)
            if late:
                update = self._expanded(update)
                kept |= {name: self._copy(name) for name in sorted(late)}
            updates.append(update)
            written.add(update.variable.name)
        asserted: list[tuple[Property, Predicate]] = []
        for wanted, predicate in steps:
            term = self.prepared.expanded(predicate.term)
            kept |= {n: self._copy(n) for n in sorted(self._read_before(term) & written)}
            asserted.append((wanted, Predicate(predicate.name, predicate.parameters, term)))
        self.writer.kept = kept
        lines = [line for u in updates for line in self._update(u, names)]
        for wanted, predicate in asserted:
            lines += self._check(wanted.name, predicate, names)
        self.writer.kept = {}
        return kept, lines

    def _copy(self, variable: str) -> str:
        return self._identifiers.new(f"{self.names[variable]}_before")

    def _late(self, update: Update, written: set[str]) -> set[str]:
        """The variables that the update reads after the rule has written them."""
        if isinstance(update, Assign):
            parts: tuple[Term, ...] = (*update.index, update.value)
            return {n for t in parts for n in self.prepared.reads(t)} & written
        own = update.variable.name
        parts = (update.condition, update.value)
        reads = {n for t in parts for n in self.prepared.reads(t)}
        late = reads & written
        if own in reads and not all(self._reads_only(t, own, update.bounds) for t in parts):
            late.add(own)
        return late

    def _reads_only(self, term: Term, name: str, place: tuple[Term, ...]) -> bool:
        """Whether the variable is read at the place only (not within a definition)."""
        if isinstance(term, Read) and term.variable.name == name:
            return all(a is b for a, b in zip(term.index, place))
        if isinstance(term, Read) and term.variable.name in self.defined:
            return name not in self.prepared.reads(term)
        return all(self._reads_only(c, name, place) for c in children(term))

    def _expanded(self, update: Update) -> Update:
        go = self.prepared.expanded
        if isinstance(update, Assign):
            return Assign(update.variable, tuple(map(go, update.index)), go(update.value))
        return Where(update.variable, update.bounds, go(update.condition), go(update.value))

    def _read_before(self, term: Term) -> set[str]:
        own = {term.variable.name} \
            if isinstance(term, Read) and not term.after and not term.variable.rigid else set()
        return own.union(*map(self._read_before, children(term)))

    def _update(self, update: Update, names: Names) -> Block:
        kind = kind_of_sort(update.variable.sort)
        if isinstance(update, Assign):
            place = self.place(update.variable, [
                self.writer.flat(i, names, kind_of_sort(s))
                for i, s in zip(update.index, update.variable.domain)])
            return hang(f"{place} := ", self.writer.block(update.value, names, kind, WIDTH - 24),
                        ";")
        loops = [b for b in update.bounds if b not in names]
        inner = self.writer.bind(loops, names)
        place = self.place(update.variable, [inner[b] for b in update.bounds])
        body = hang(f"{place} := ", self.writer.block(update.value, inner, kind, WIDTH - 24), ";")
        condition = update.condition
        if not (isinstance(condition, Literal) and condition.value):
            body = [*hang("if ", self.writer.block(condition, inner, BOOL), " then"),
                    *("  " + line for line in body), "end;"]
        return [line[2:] for line in self._loops(loops, inner, body)]

    # --- properties ------------------------------------------------------------------------------

    def _check(self, name: str, predicate: Predicate, names: Names) -> Block:
        term: Term = predicate.term
        if predicate.parameters:
            term = Quantified(True, predicate.parameters, term)
        if self.use == "count":
            return self._statement("cover", name, lift(not_(term)), names)
        return self._statement("assert", name, term, names)

    def _statement(self, word: str, name: str, term: Term, names: Names) -> Block:
        return [f'{word} "{name}"',
                *("  " + line for line in hang("", self.writer.block(term, names, BOOL), ";"))]

    def _properties(self) -> Block:
        lines: Block = []
        for wanted, predicate in self.prepared.invariants:
            lines += ["", *(f"-- {line}" for line in comment(wanted.statement))]
            term: Term = predicate.term
            if predicate.parameters:
                term = Quantified(True, predicate.parameters, term)
            lines += self._statement("invariant", wanted.name, term, {}) \
                if self.use == "assert" \
                else self._statement("cover", wanted.name, lift(not_(term)), {})
        if self.use == "count":
            for wanted, witness, predicate in self.prepared.witnesses:
                term = predicate.term
                if predicate.parameters:
                    term = Quantified(False, predicate.parameters, term)
                lines += ["", *self._statement(
                    "cover", f"{wanted.name}: {witness.name}", term, {})]
        return lines


def _narrowed(update: Update) -> Update:
    """A bulk change at ``r2 == r`` as one that speaks of ``r`` alone."""
    if isinstance(update, Assign):
        return update
    fixed: dict[Bound, Bound] = {}
    rest: list[Term] = []
    for term in conjuncts(update.condition):
        known = _fixes(term, update.bounds)
        if known is None or known[0] in fixed:
            rest.append(term)
        else:
            fixed[known[0]] = known[1]
    if not fixed:
        return update

    def replaced(t: Term) -> Term | None:
        return fixed.get(t) if isinstance(t, Bound) else None

    bounds = tuple(fixed.get(b, b) for b in update.bounds)
    return Where(update.variable, bounds,
                 substitute(conjunction(rest), replaced), substitute(update.value, replaced))


def _fixes(term: Term, bounds: Sequence[Bound]) -> tuple[Bound, Bound] | None:
    """The bound that the term sets equal to something known of the same sort, and that."""
    if not isinstance(term, Op) or term.name != "eq":
        return None
    for bound in bounds:
        for a, b in (term.args, term.args[::-1]):
            if a is bound and isinstance(b, Bound) and b.sort == bound.sort \
                    and not any(b is other for other in bounds):
                return bound, b
    return None
