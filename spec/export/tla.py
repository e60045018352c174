"""A scope as a TLA+ module and a configuration for TLC: can a person read it, and TLC check it?

The module has the machine's names and words.  Sorts are sets, given by the configuration;
enumerations are strings; what the scope cuts is a conjunct of the action; each property is
an invariant of its own, one over two states an action property.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvoracle.model.machine import Assign, Where
from kvoracle.model.scopes import Scope
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
)

from ..properties import Property
from ..variants import Variant
from .bounds import Within, constant_values
from .definitions import NUMBER
from .prepared import Prepared, PreparedAction, Step
from .writer import WIDTH, Block, Identifiers, Names, Writer, comment, hang, kind_of_sort

RESERVED = """
ASSUME ASSUMPTION AXIOM BOOLEAN CASE CHOOSE CONSTANT CONSTANTS COROLLARY DOMAIN ELSE ENABLED
EXCEPT EXTENDS FALSE IF IN INSTANCE Init Int LAMBDA LEMMA LET LOCAL MODULE Nat Next OTHER
PROPOSITION RECURSIVE SF SPECIFICATION STRING SUBSET Spec THEN THEOREM TRUE TypeOK UNCHANGED UNION
USE VARIABLE VARIABLES WF WITH vars
"""

SIGNS = {
    "add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "=", "ne": "/=", "and": "/\\",
    "or": "\\/", "implies": "=>",
}


@dataclass(frozen=True)
class TlaFiles:
    """A module and its configuration; the file names TLC wants are ``name`` with .tla, .cfg."""

    name: str
    module: str
    configuration: str


def tla(scope: Scope, variant: Variant | None = None,
        properties: Iterable[Property] | None = None) -> TlaFiles:
    """The scope as a TLA+ module with a configuration for TLC."""
    module = Module(Prepared(scope, variant, properties, fold_constants=False))
    return TlaFiles(module.name, module.text(), module.configuration())


class _Writer(Writer):
    """TLA+'s signs."""

    def __init__(self, module: Module, identifiers: Identifiers) -> None:
        super().__init__(identifiers)
        self.module = module

    def number(self, value: int) -> str:
        return str(value) if value >= 0 else f"(-{-value})"

    def truth(self, value: bool) -> str:
        return "TRUE" if value else "FALSE"

    def member(self, sort: Sort, value: int) -> str:
        return f'"{sort.names[value]}"'

    def sign(self, name: str) -> str:
        return SIGNS[name]

    def read(self, read: Read, names: Names) -> str:
        variable = read.variable
        index = [self.flat(i, names, kind_of_sort(s)) for i, s in zip(read.index, variable.domain)]
        name = self.module.names[variable.name]
        if variable.name in self.module.defined:
            return f"{name}({', '.join(index)})"
        text = name + ("'" if read.after and not variable.rigid else "") \
            + (f"[{', '.join(index)}]" if index else "")
        limits = [
            f"{shown} \\in {self.module.set_of(sort)}"
            for term, shown, sort in zip(read.index, index, variable.domain)
            if not self.module.prepared.bounds.inside(term, sort)
        ]
        if not limits:
            return text
        default = self.literal(variable.initial, kind_of_sort(variable.sort))
        inside = " /\\ ".join(limits)
        return f"(IF {inside} THEN {text} ELSE {default})"

    def negation(self, block: Block, whole: bool) -> Block:
        return hang("~", block) if whole else hang("~(", block, ")")

    def choice(self, condition: Block, then: Block, otherwise: Block) -> Block:
        parts = (condition, then, otherwise)
        if all(len(p) == 1 for p in parts) and sum(len(p[0]) for p in parts) < WIDTH - 20:
            return [f"IF {condition[0]} THEN {then[0]} ELSE {otherwise[0]}"]
        return [*hang("IF ", condition), *hang("THEN ", then), *hang("ELSE ", otherwise)]

    def quantifier(self, every: bool, bounds: Sequence[tuple[str, Sort]]) -> tuple[str, str]:
        sign = "\\A" if every else "\\E"
        return f"{sign} {self.module.ranges(bounds)} :", ""

    def floor(self, term: Op, names: Names, room: int) -> Block:
        over, by = (" ".join(self.block(a, names, NUMBER, 10**9, bare=False)) for a in term.args)
        return [f"{over} \\div {by}"]

    def extreme(self, name: str) -> str:
        self.module.extremes.add(name)
        return self.module.names[name]

    def junction(self, name: str, parts: Sequence[Block]) -> Block:
        return [line for part in parts for line in hang(f"{SIGNS[name]} ", part)]


class Module:
    """A prepared scope as TLA+; ``names`` says what a variable or definition is called in it."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.machine, self.scope = prepared.machine, prepared.scope
        variant = f"_{prepared.variant.name}" if prepared.variant else ""
        self.name = Identifiers(()).new(f"kvoracle_{self.scope.name}{variant}")
        identifiers = Identifiers(RESERVED.split())
        identifiers.keep(self.name)
        self.names: dict[str, str] = {}
        self.extremes: set[str] = set()
        terms = self._all_terms()
        self.sorts = [s for s in prepared.sorts(terms) if not s.is_bool]
        self.definitions = prepared.definitions(terms)
        self.defined = {d.name for d in self.definitions}
        self._sets = {s.name: identifiers.keep(s.name) for s in self.sorts}
        for variable in self.machine.variables.values():
            self.names[variable.name] = identifiers.keep(variable.name)
        for name in (*(d.name for d in self.definitions), *self.machine.actions):
            self.names[name] = identifiers.keep(name)
        self.names |= {"min": identifiers.keep("Min"), "max": identifiers.keep("Max")}
        self.property_names = {
            p.name: identifiers.keep(p.name)
            for p in (*(p for p, _ in prepared.invariants), *(s.property for s in prepared.steps))
        }
        self.writer = _Writer(self, identifiers)

    def set_of(self, sort: Sort) -> str:
        """The name of the sort's set."""
        return "BOOLEAN" if sort.is_bool else self._sets[sort.name]

    def ranges(self, bounds: Sequence[tuple[str, Sort]]) -> str:
        """Bounds as the head of a quantifier or function."""
        return ", ".join(f"{name} \\in {self.set_of(sort)}" for name, sort in bounds)

    def text(self) -> str:
        """The module."""
        actions = [line for a in self.prepared.actions for line in ("", *self._action(a))]
        last = [*self._next(), *self._properties()]
        definitions = self._definitions()
        title = f" MODULE {self.name} "
        return "\n".join([
            title.center(78, "-"), *self._header(), "EXTENDS Integers", "",
            *self._declarations(), *definitions, "", *self._init(), *actions, *last,
            "", "=" * 78]) + "\n"

    def configuration(self) -> str:
        """TLC's configuration for the scope."""
        p = self.prepared
        lines = [f"\\* kvoracle: scope {self.scope.name}, {p.design}.  For {self.name}.tla.",
                 "SPECIFICATION Spec", "", "\\* The sizes of the scope.", "CONSTANTS"]
        for sort in self.sorts:
            if not sort.names:
                members = ", ".join(map(str, range(self.scope.size(sort))))
                lines.append(f"    {self._sets[sort.name]} = {{{members}}}")
        lines += ["", "INVARIANTS", "    TypeOK",
                  *(f"    {self.property_names[w.name]}" for w, _ in p.invariants)]
        if p.steps:
            lines += ["", "PROPERTIES",
                      *(f"    {self.property_names[s.property.name]}" for s in p.steps)]
        return "\n".join([*lines, "", "CHECK_DEADLOCK FALSE"]) + "\n"

    def _all_terms(self) -> list[Term]:
        p = self.prepared
        terms: list[Term] = []
        for a in p.actions:
            terms += [r.term for r in a.requirements]
            terms += [t for c in a.cuts for t in (c.condition, c.term)]
            for u in a.updates:
                terms += [*u.index, u.value] if isinstance(u, Assign) else [u.condition, u.value]
        predicates = [predicate for _, predicate in p.invariants]
        predicates += [s for step in p.steps for s in step.by_action.values()]
        return terms + [Quantified(True, q.parameters, q.term) for q in predicates]

    # --- declarations ----------------------------------------------------------------------

    def _header(self) -> Block:
        p = self.prepared
        lines = [f"kvoracle: scope {self.scope.name}, {p.design}.", self.scope.doc + "."]
        if p.variant:
            lines.append(f"The variant: {p.variant.statement}.  Source: {p.variant.source}.")
        lines.append(f"Written by `kvoracle export tla {p.command}` from the machine in model/; "
                     "change that, not this.")
        return _comment("\n\n".join(lines))

    def _declarations(self) -> Block:
        numbers = [s for s in self.sorts if not s.names]
        lines: Block = []
        if numbers:
            lines += ["\\* Sets of things and of numbers; the configuration says how many.",
                      "CONSTANTS " + ", ".join(self._sets[s.name] for s in numbers), ""]
        for sort in self.sorts:
            if sort.names:
                members = ", ".join(f'"{n}"' for n in sort.names)
                lines.append(f"{self._sets[sort.name]} == {{{members}}}")
        for variable in self.machine.constants:
            lines += ["", *_comment(variable.doc), *self._constant(variable)]
        lines += ["", "VARIABLES"]
        state = self.machine.state
        for variable in state:
            ghost = "; history, for properties alone" if variable.ghost else ""
            lines += [f"    \\* {line}" for line in comment(variable.doc + ghost)]
            comma = "," if variable is not state[-1] else ""
            lines.append(f"    {self.names[variable.name]}{comma}")
        return [*lines, "", *hang("vars == ", _tuple([self.names[v.name] for v in state]))]

    def _constant(self, variable: Variable) -> Block:
        kind, sort = kind_of_sort(variable.sort), variable.domain[0]
        values = [self.writer.literal(int(v), kind) for v in constant_values(self.scope, variable)]
        i = self.writer.bind([Bound(sort.name[0].lower(), sort)], {}).popitem()[1]
        each = values[0] if len(set(values)) == 1 else "CASE " + " [] ".join(
            f"{i} = {n} -> {v}" for n, v in enumerate(values))
        return [f"{self.names[variable.name]} == [{i} \\in {self.set_of(sort)} |-> {each}]"]

    def _definitions(self) -> Block:
        bodies: Block = []
        for d in self.definitions:
            names = self.writer.bind(d.parameters, {})
            shown = ", ".join(names[p] for p in d.parameters)
            body = self.writer.block(d.body, names, kind_of_sort(d.symbol.sort))
            bodies += ["", *_comment(d.doc), f"{self.names[d.name]}({shown}) ==",
                       *("    " + line for line in body)]
        lines: Block = []
        for name, sign in (("min", "<="), ("max", ">=")):
            if name in self.extremes:
                lines.append(f"{self.names[name]}(a, b) == IF a {sign} b THEN a ELSE b")
        return (["", *lines] if lines else []) + bodies

    def _function(self, variable: Variable, body: Block, bounds: Sequence[Bound],
                  names: Names) -> Block:
        """A function over the variable's indices; without any, the value itself."""
        if not variable.domain:
            return body
        head = f"[{self.ranges([(names[b], b.sort) for b in bounds])} |->"
        if len(body) == 1 and len(head) + len(body[0]) < WIDTH - 16:
            return [f"{head} {body[0]}]"]
        return [head, *hang("    ", body, "]")]

    def _init(self) -> Block:
        lines = ["Init =="]
        for variable in self.machine.state:
            bounds = tuple(Bound(s.name[0].lower(), s) for s in variable.domain)
            names = self.writer.bind(bounds, {})
            value = self.writer.literal(variable.initial, kind_of_sort(variable.sort))
            lines += hang(f"    /\\ {self.names[variable.name]} = ",
                          self._function(variable, [value], bounds, names))
        lines += ["", "TypeOK =="]
        for variable in self.machine.state:
            of = self.set_of(variable.sort)
            domain = " \\X ".join(map(self.set_of, variable.domain))
            lines.append(f"    /\\ {self.names[variable.name]} \\in "
                         + (f"[{domain} -> {of}]" if domain else of))
        return lines

    # --- actions --------------------------------------------------------------------------------

    def _action(self, a: PreparedAction) -> Block:
        names = self.writer.bind(a.action.parameters, {})
        whose = "  (done to the engine)" if a.action.external else ""
        shown = ", ".join(names[p] for p in a.action.parameters)
        head = self.names[a.action.name] + (f"({shown})" if shown else "")
        lines = [*_comment(f"{a.label}{whose}\n\n{a.action.doc}"), f"{head} =="]
        for requirement in a.requirements:
            lines += [f"    \\* {requirement.name}", *hang(
                "    /\\ ", self.writer.condition(requirement.term, names))]
        for cut in a.cuts:
            lines += ["    \\* stays within the scope", *hang("    /\\ ", self._cut(cut, names))]
        for variable in self.machine.state:
            updates = [u for u in a.updates if u.variable is variable]
            if updates:
                lines += hang(f"    /\\ {self.names[variable.name]}' = ",
                              self._after(variable, updates, names))
        rest = [self.names[v.name] for v in self.machine.state if v.name not in a.writes]
        if rest:
            lines += hang("    /\\ UNCHANGED ", _tuple(rest))
        return lines

    def _cut(self, cut: Within, names: Names) -> Block:
        if cut.sort.is_bool or cut.sort.names:
            return self.writer.block(cut.as_term(self.scope), names, BOOL, bare=False)
        inner = self.writer.bind(cut.bounds, names)
        member = self.writer.block(cut.term, inner, NUMBER, bare=True)
        member = hang("", member, f" \\in {self.set_of(cut.sort)}")
        if not cut.bounds:
            return member
        condition = self.writer.condition(cut.condition, inner)
        opening = f"\\A {self.ranges([(inner[b], b.sort) for b in cut.bounds])} :"
        return [opening, *hang("    ", condition), *hang("      => ", member)]

    def _after(self, variable: Variable, updates: Sequence[Assign | Where],
               names: Names) -> Block:
        """The variable's value after the updates, of which the later stand."""
        kind = kind_of_sort(variable.sort)
        name = self.names[variable.name]
        if not variable.domain and isinstance(updates[-1], Assign):
            return self.writer.block(updates[-1].value, names, kind)
        if all(isinstance(u, Assign) for u in updates):
            changes: Block = []
            for u in updates:
                assert isinstance(u, Assign)
                index = ", ".join(self.writer.flat(i, names, kind_of_sort(s))
                                  for i, s in zip(u.index, variable.domain))
                value = self.writer.block(u.value, names, kind, WIDTH - 30)
                changes += hang(f"![{index}] = ", value, "," if u is not updates[-1] else "]")
            return hang(f"[{name} EXCEPT ", changes)
        bounds = next(u.bounds for u in updates if isinstance(u, Where))
        inner = self.writer.bind(bounds, names)
        place = f"{name}[{', '.join(inner[b] for b in bounds)}]" if bounds else name
        body = [place]
        for u in updates:
            own: dict[Term, str] = dict(names)
            if isinstance(u, Where):
                own.update((b, inner[mine]) for b, mine in zip(u.bounds, bounds))
                condition: Block | None = None
                if not (isinstance(u.condition, Literal) and u.condition.value):
                    condition = self.writer.condition(u.condition, own)
            else:
                condition = [" /\\ ".join(
                    f"{inner[b]} = {self.writer.flat(i, names, kind_of_sort(b.sort))}"
                    for b, i in zip(bounds, u.index))]
            value = self.writer.block(u.value, own, kind, WIDTH - 30, bare=False)
            body = value if condition is None else self.writer.choice(condition, value, body)
        return self._function(variable, body, bounds, inner)

    def _step(self, action: str) -> str:
        parameters = self.machine.actions[action].parameters
        names = self.writer.bind(parameters, {})
        if not parameters:
            return self.names[action]
        call = f"{self.names[action]}({', '.join(names[p] for p in parameters)})"
        return f"\\E {self.ranges([(names[p], p.sort) for p in parameters])} : {call}"

    def _next(self) -> Block:
        return ["", "Next ==", *(f"    \\/ {self._step(a)}" for a in self.machine.actions),
                "", "Spec == Init /\\ [][Next]_vars"]

    # --- properties ------------------------------------------------------------------------------

    def _properties(self) -> Block:
        lines: Block = []
        for wanted, predicate in self.prepared.invariants:
            term: Term = predicate.term
            if predicate.parameters:
                term = Quantified(True, predicate.parameters, term)
            lines += ["", *_comment(wanted.statement), f"{self.property_names[wanted.name]} ==",
                      *("    " + line for line in self.writer.block(term, {}, BOOL))]
        for step in self.prepared.steps:
            lines += ["", *_comment(step.property.statement),
                      f"{self.property_names[step.property.name]} ==", *self._over_steps(step)]
        return lines

    def _over_steps(self, step: Step) -> Block:
        return hang("    [][", self.step_formula(step), "]_vars")

    def step_formula(self, step: Step) -> Block:
        """The property as a formula over a state and the next."""
        alike: dict[str, tuple[list[str], Block]] = {}
        for action, predicate in step.by_action.items():
            term: Term = predicate.term
            if predicate.parameters:
                term = Quantified(True, predicate.parameters, term)
            block = self.writer.block(term, {}, BOOL, bare=False)
            alike.setdefault("\n".join(block), ([], block))[0].append(action)
        body: Block = []
        for actions, block in alike.values():
            each = [f"\\/ {self._step(a)}" for a in actions]
            body += hang("/\\ ", [*hang("(", each, ")"), *hang("  => ", block)])
        return body or [self.writer.truth(True)]


def _tuple(names: Sequence[str]) -> Block:
    lines, line = [], "<<"
    for name in names:
        more = name + (">>" if name is names[-1] else ", ")
        if len(line) + len(more) > WIDTH - 16:
            lines.append(line.rstrip())
            line = "  "
        line += more
    return [*lines, line]


def _comment(text: str) -> Block:
    lines = list(comment(text, WIDTH - 6))
    if len(lines) == 1:
        return [f"\\* {lines[0]}"]
    return [f"(* {lines[0]}", *(f"   {line}".rstrip() for line in lines[1:-1]),
            f"   {lines[-1]} *)"]


__all__ = ["Module", "TlaFiles", "tla"]
