"""The part of TLA+ that exports use, read by a parser of other people and evaluated here.

Enough to take an exported module's steps and judge its properties where no TLC is at hand:
an independent parser (the package ``tla``) says whether the text is TLA+ at all, and the
few rules below what it means.  A name that nothing defines is an error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tla

Env = Mapping[str, Any]
State = Mapping[str, Any]

INFIX = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "\\div": lambda a, b: a // b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
    "=": lambda a, b: type(a) is type(b) and a == b,
    "/=": lambda a, b: not (type(a) is type(b) and a == b),
}


class TlaReading:
    """A module with its configuration."""

    def __init__(self, module: str, configuration: str) -> None:
        self.parsed = tla.parse(module)
        self.constants: dict[str, tuple[int, ...]] = {
            name: tuple(map(int, members.split(",")))
            for name, members in re.findall(r"^    (\w+) = \{([\d, ]+)\}$", configuration, re.M)
        }
        self.configuration = configuration
        self.definitions: dict[str, tuple[list[str], Any]] = {}
        self.variables: list[str] = []
        self.declared: list[str] = []
        for unit in self.parsed.units:
            kind = type(unit).__name__
            if kind == "OperatorDefinition":
                names = [a.operator if hasattr(a, "operator") else a.name
                         for a in unit.arity or ()]
                assert unit.name not in self.definitions, f"{unit.name} is defined twice"
                self.definitions[unit.name] = names, unit.definiens
            elif kind == "Variables":
                self.variables += [n.operator for n in unit.names]
            else:
                assert kind == "Constants", kind
                self.declared += [n.operator for n in unit.names]

    def listed(self, section: str) -> list[str]:
        """The names below a section's title in the configuration."""
        found = re.search(rf"^{section}\n((?:    \w+\n)+)", self.configuration, re.M)
        return found[1].split() if found else []

    # --- values ------------------------------------------------------------------------------

    def value(self, node: Any, env: Env, s: State, t: State | None = None) -> Any:
        """The value of an expression in a state, or of an action in two."""
        return getattr(self, f"_{type(node).__name__}")(node, env, s, t)

    def holds(self, name: str, s: State, t: State | None = None) -> bool:
        """Whether a definition without parameters is true."""
        found = self.value(self.definitions[name][1], {}, s, t)
        assert isinstance(found, bool)
        return found

    def _IntegralNumeral(self, node: Any, env: Env, s: State, t: State | None) -> int:
        return int(node.value)

    def _StringLiteral(self, node: Any, env: Env, s: State, t: State | None) -> str:
        return str(node.value)[1:-1]

    def _BooleanLiteral(self, node: Any, env: Env, s: State, t: State | None) -> bool:
        return bool(node.value == "TRUE")

    def _Parentheses(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        return self.value(node.expression, env, s, t)

    def _SetEnumeration(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        return tuple(self.value(i, env, s, t) for i in node.items)

    def _SetOfBooleans(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        return (False, True)

    def _Tuple(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        return tuple(self.value(i, env, s, t) for i in node.items)

    def _If(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        chosen = node.then if self.value(node.predicate, env, s, t) else node.else_
        return self.value(chosen, env, s, t)

    def _Cases(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        return next(self.value(c.expression, env, s, t) for c in node.cases
                    if self.value(c.predicate, env, s, t))

    def _VerticalList(self, node: Any, env: Env, s: State, t: State | None) -> bool:
        each = (self.value(i.expression, env, s, t) for i in node.arguments)
        return all(each) if node.operator == "/\\" else any(each)

    def _Quantification(self, node: Any, env: Env, s: State, t: State | None) -> bool:
        each = (self.value(node.predicate, inner, s, t)
                for _, inner in self._choices(node.declarations, env, s))
        return all(each) if node.quantifier == "\\A" else any(each)

    def _choices(self, declarations: Any, env: Env,
                 s: State) -> Iterator[tuple[tuple[Any, ...], Env]]:
        names, ranges = [], []
        for declared in declarations:
            name, of = declared.arguments
            assert declared.operator == "\\in"
            assert name.operator not in {*env, *self.variables, *self.declared,
                                         *self.definitions}, f"{name.operator} is taken"
            names.append(name.operator)
            ranges.append(self.value(of, env, s))
        for chosen in itertools.product(*ranges):
            yield chosen, {**env, **dict(zip(names, chosen))}

    def _Function(self, node: Any, env: Env, s: State, t: State | None) -> dict[Any, Any]:
        return {
            chosen if len(chosen) > 1 else chosen[0]: self.value(node.value, inner, s, t)
            for chosen, inner in self._choices(node.declaration, env, s)
        }

    def _at(self, index: Any, env: Env, s: State, t: State | None) -> Any:
        at = tuple(self.value(i, env, s, t) for i in index)
        return at if len(at) > 1 else at[0]

    def _FunctionApplication(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        return self.value(node.function, env, s, t)[self._at(node.arguments, env, s, t)]

    def _Except(self, node: Any, env: Env, s: State, t: State | None) -> dict[Any, Any]:
        function = dict(self.value(node.function, env, s, t))
        for change in node.changes:
            (index,) = change.item
            at = self._at(index, env, s, t)
            assert at in function
            function[at] = self.value(change.expression, env, s, t)
        return function

    def _SubscriptedAction(self, node: Any, env: Env, s: State, t: State | None) -> bool:
        return s == t or bool(self.value(node.action, env, s, t))

    def _OperatorApplication(self, node: Any, env: Env, s: State, t: State | None) -> Any:
        name, args = node.operator, node.arguments or ()
        if name == "'":
            assert t is not None, "a prime outside an action"
            return self.value(args[0], env, t)
        if name == "UNCHANGED":
            assert t is not None
            return self.value(args[0], env, s) == self.value(args[0], env, t)
        if name == "[]":
            return self.value(args[0], env, s, t)
        if name == "~":
            return not self.value(args[0], env, s, t)
        if name in ("/\\", "\\/", "=>"):
            first = self.value(args[0], env, s, t)
            assert isinstance(first, bool)
            if name == "=>":
                return self.value(args[1], env, s, t) if first else True
            return first if first is (name == "\\/") else self.value(args[1], env, s, t)
        if name == "-" and len(args) == 1:
            return -self.value(args[0], env, s, t)
        if name == "\\in":
            return self._member(self.value(args[0], env, s, t), args[1], env, s)
        if name in INFIX:
            return INFIX[name](*(self.value(a, env, s, t) for a in args))
        if name in env:
            return env[name]
        if name in self.variables:
            return s[name]
        if name in self.declared:
            return self.constants[name]
        assert name in self.definitions, f"{name} is not defined"
        parameters, body = self.definitions[name]
        assert len(parameters) == len(args)
        values = dict(zip(parameters, (self.value(a, env, s, t) for a in args)))
        return self.value(body, values, s, t)

    def _member(self, value: Any, of: Any, env: Env, s: State) -> bool:
        if type(of).__name__ != "SetOfFunctions":
            members = self.value(of, env, s)
            return any(type(m) is type(value) and m == value for m in members)
        factors = [of.domain]
        while getattr(factors[0], "operator", None) == "\\X":
            factors[:1] = factors[0].arguments
        domain = itertools.product(*(self.value(f, env, s) for f in factors))
        keys = {at if len(at) > 1 else at[0] for at in domain}
        return set(value) == keys \
            and all(self._member(v, of.codomain, env, s) for v in value.values())

    # --- steps -------------------------------------------------------------------------------

    def initial(self) -> State:
        """The initial state: what the conjuncts of Init say each variable is."""
        state = {}
        for item in self.definitions["Init"][1].arguments:
            name, value = item.expression.arguments
            state[name.operator] = self.value(value, {}, {})
        assert list(state) == self.variables
        return state

    def steps(self, s: State) -> Iterator[tuple[str, tuple[Any, ...], State]]:
        """Every step of Next out of a state: the action, its parameters, the state after it."""
        for item in self.definitions["Next"][1].arguments:
            step = item.expression
            if type(step).__name__ == "Quantification":
                choices, call = self._choices(step.declarations, {}, s), step.predicate
            else:
                choices, call = iter([((), {})]), step
            parameters, body = self.definitions[call.operator]
            for values, _ in choices:
                after = self._taken(body, dict(zip(parameters, values)), s)
                if after is not None:
                    yield call.operator, values, after

    def _taken(self, body: Any, env: Env, s: State) -> State | None:
        after: dict[str, Any] = {}
        for item in body.arguments:
            conjunct = item.expression
            operator = getattr(conjunct, "operator", None)
            if operator == "UNCHANGED":
                names = [n.operator for n in conjunct.arguments[0].items]
                after.update((n, s[n]) for n in names)
            elif operator == "=" and getattr(conjunct.arguments[0], "operator", None) == "'":
                name = conjunct.arguments[0].arguments[0].operator
                assert name not in after
                after[name] = self.value(conjunct.arguments[1], env, s)
            elif not self.value(conjunct, env, s):
                return None
        assert set(after) == set(self.variables), "a variable is left open"
        return after
