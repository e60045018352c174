"""The notation: how a transition system is put together from parts.

A `Part` declares state variables, constants and actions; a `Machine` is
composed of parts under a `Design` (the rules in force) and traced once into
terms.  An action is a function over a state view::

    @part.action("{r} is preempted")
    def preempt(s: View, r: Request) -> None:
        '''Why and when.'''
        s.require("running", s.life[r] == RUNNING)
        s.blocks.where(lambda r2, g: r2 == r, 0)
        s.life[r] = PREEMPTED

It says what it requires and what it changes.  Every read sees the state before
the action, in every reading; of two writes to one place the later one stands.
Parameters are annotated with a sort (``Request = Annotated[Term, REQUEST]``).

A part may also ``extend`` an action of another part with further requirements
and changes, and with parameters of its own; a machine composed without that part
does not pay for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from .terms import (
    TRUE,
    Bound,
    Literal,
    NotationError,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    Value,
    Variable,
    bounds_of,
    children,
    conjunction,
    lift,
    mentions,
    show,
    substitute,
)


@dataclass(frozen=True)
class Requirement:
    """One conjunct of a guard, with a name that a report can say was not met."""

    name: str
    term: Term


@dataclass(frozen=True)
class Assign:
    """``variable[index] = value``."""

    variable: Variable
    index: tuple[Term, ...]
    value: Term


@dataclass(frozen=True)
class Where:
    """``variable[bounds] = value`` for all values of the bounds that meet the condition."""

    variable: Variable
    bounds: tuple[Bound, ...]
    condition: Term
    value: Term


Update = Assign | Where


Label = str | Callable[[Mapping[str, str]], str]
"""A step in words: a template with parameters in braces, or a function of their shown values."""


@dataclass(frozen=True)
class Action:
    """A traced action: its parameters, guard and updates as terms, and how people read it."""

    name: str
    doc: str
    label: Label
    parameters: tuple[Bound, ...]
    requirements: tuple[Requirement, ...]
    updates: tuple[Update, ...]
    external: bool = False

    @property
    def guard(self) -> Term:
        return conjunction(r.term for r in self.requirements)

    @property
    def written(self) -> frozenset[str]:
        """The names of the variables it changes."""
        return frozenset(u.variable.name for u in self.updates)

    def describe(self, values: Mapping[str, int]) -> str:
        """The step with these parameter values, in words."""
        shown = {p.name: p.sort.show(values[p.name]) for p in self.parameters}
        return self.label(shown) if callable(self.label) else self.label.format(**shown)


class VariableView:
    """A state variable inside an action or property: read, write, change in bulk."""

    __slots__ = ("_variable", "_view")

    def __init__(self, view: View, variable: Variable) -> None:
        self._view = view
        self._variable = variable

    def _index(self, index: Any) -> tuple[Term, ...]:
        terms = tuple(lift(i) for i in (index if isinstance(index, tuple) else (index,)))
        if len(terms) != len(self._variable.domain):
            raise NotationError(
                f"{self._variable.name} has {len(self._variable.domain)} indices, not {len(terms)}"
            )
        return terms

    def __getitem__(self, index: Any) -> Term:
        return Read(self._variable, self._index(index), self._view.after)

    def __setitem__(self, index: Any, value: Value) -> None:
        self._view.write(Assign(self._variable, self._index(index), lift(value)))

    def where(self, condition: Callable[..., Value], value: Value | Callable[..., Value]) -> None:
        """Give ``value`` to every place whose indices meet the condition."""
        bounds = bounds_of(condition, self._variable.domain)
        new = value(*bounds) if callable(value) else value
        self._view.write(Where(self._variable, bounds, lift(condition(*bounds)), lift(new)))


def _labels(first: Label, more: str) -> Label:
    """A step in words, with what an extension says of it behind."""
    if not more:
        return first
    if isinstance(first, str):
        return first + more
    return lambda shown: first(shown) + more.format(**shown)


class View:
    """What an action or property sees of the state: its variables as attributes."""

    # No other attributes: `s.life = x` for `s.life[r] = x` must not pass unnoticed.
    __slots__ = ("after", "machine", "requirements", "updates")

    def __init__(self, machine: Machine, after: bool = False) -> None:
        self.machine = machine
        self.after = after
        self.requirements: list[Requirement] = []
        self.updates: list[Update] = []

    @property
    def rules(self) -> Any:
        """The design's rules: what a variant replaces."""
        return self.machine.design

    def __getattr__(self, name: str) -> VariableView:
        variable = self.machine.variables.get(name)
        if variable is None:
            raise NotationError(
                f"no variable {name!r} in the parts {', '.join(p.name for p in self.machine.parts)}"
            )
        return VariableView(self, variable)

    def has(self, part: str) -> bool:
        """Whether the machine is composed with this part."""
        return any(p.name == part for p in self.machine.parts)

    def require(self, name: str, *conditions: Value) -> None:
        """The action is possible only if all the conditions hold; what always holds under the
        design is no requirement."""
        condition = conjunction(conditions)
        if condition is not TRUE:
            self.requirements.append(Requirement(name, condition))

    def write(self, update: Update) -> None:
        if update.variable.rigid:
            raise NotationError(f"{update.variable.name} is a constant of the scope")
        self.updates.append(update)

    def possible(self, action: str, **fixed: Value) -> Term:
        """Whether the action can happen now, with these parameters fixed and some choice of the
        others."""
        traced = self.machine.actions.get(action)
        if traced is None or not fixed.keys() <= {p.name for p in traced.parameters}:
            raise NotationError(
                f"no action {action!r} with parameters {', '.join(fixed)} (so far)")
        fresh = {p: Bound(p.name, p.sort) for p in traced.parameters if p.name not in fixed}
        chosen = tuple(fresh.values())
        values = {p: fresh[p] if p in fresh else lift(fixed[p.name]) for p in traced.parameters}

        def seen_here(term: Term) -> Term | None:
            if isinstance(term, Bound):
                return values.get(term)
            if isinstance(term, Read):
                index = tuple(substitute(i, seen_here) for i in term.index)
                return Read(term.variable, index, self.after)
            return None

        guard = substitute(traced.guard, seen_here)
        return Quantified(False, chosen, guard) if chosen else guard


ActionFunction = Callable[..., None]


@dataclass(frozen=True)
class _Declared:
    function: ActionFunction
    label: Label
    external: bool


@dataclass(frozen=True)
class _Extension:
    action: str
    function: ActionFunction
    label: str


@dataclass
class Part:
    """A piece of the machine with a file of its own: variables, actions, extensions."""

    name: str
    doc: str
    variables: list[Variable] = field(default_factory=list)
    actions: dict[str, _Declared] = field(default_factory=dict)
    extensions: list[_Extension] = field(default_factory=list)

    def variable(self, name: str, domain: Sequence[Sort], sort: Sort, doc: str,
                 initial: int = 0) -> None:
        """Declare a state variable."""
        self.variables.append(Variable(name, tuple(domain), sort, initial, doc=doc))

    def ghost(self, name: str, domain: Sequence[Sort], sort: Sort, doc: str,
              initial: int = 0) -> None:
        """Declare a variable that records history for properties and that no guard reads."""
        self.variables.append(Variable(name, tuple(domain), sort, initial, ghost=True, doc=doc))

    def constant(self, name: str, domain: Sequence[Sort], sort: Sort, doc: str,
                 initial: int = 0) -> None:
        """Declare a constant that each scope sets, and that proofs leave open.

        ``initial`` is its value where a scope does not set it, and, for a number, the least
        value that a proof assumes of it.
        """
        if len(domain) != 1:
            raise NotationError(f"constant {name!r}: exactly one index is supported")
        self.variables.append(Variable(name, tuple(domain), sort, initial, rigid=True, doc=doc))

    def action(self, label: Label, external: bool = False) -> Callable[[ActionFunction],
                                                                     ActionFunction]:
        """Declare an action.  ``label`` says a step in words; ``external`` ones are done to the
        engine, the others by it."""

        def declare(function: ActionFunction) -> ActionFunction:
            if function.__name__ in self.actions:
                raise NotationError(f"action {function.__name__!r} is declared twice")
            self.actions[function.__name__] = _Declared(function, label, external)
            return function

        return declare

    def extend(self, action: str, label: str = "") -> Callable[[ActionFunction], ActionFunction]:
        """Add requirements and changes to an action declared by another part.

        The function takes the action's parameters and, after them, further ones that the
        action has wherever this part is in the machine; ``label`` is what it says of them.
        """

        def declare(function: ActionFunction) -> ActionFunction:
            self.extensions.append(_Extension(action, function, label))
            return function

        return declare


def _parameters(function: Callable[..., object], skip: int = 1) -> tuple[Bound, ...]:
    hints = get_type_hints(function, include_extras=True)
    bounds = []
    for name in list(inspect.signature(function).parameters)[skip:]:
        hint = hints.get(name)
        sort = next((a for a in get_args(hint)[1:] if isinstance(a, Sort)), None) \
            if get_origin(hint) is Annotated else None
        if sort is None:
            raise NotationError(f"{function.__name__}: parameter {name} names no sort")
        bounds.append(Bound(name, sort))
    return tuple(bounds)


def _reads_ghost(term: Term) -> bool:
    return mentions(term, lambda t: isinstance(t, Read) and t.variable.ghost)


def _member(term: Term) -> Sort | None:
    """The symmetric sort that the term's value is a member of, if any."""
    if isinstance(term, Op) and term.name == "ite":
        return _member(term.args[1]) or _member(term.args[2])
    sort = term.variable.sort if isinstance(term, Read) else getattr(term, "sort", None)
    return sort if isinstance(sort, Sort) and sort.symmetric else None


def _check(term: Term) -> None:
    """Raise `NotationError` where a reading could not give the term its one meaning."""
    if isinstance(term, Op):
        if term.name == "div" and not _at_least_one(term.args[1]):
            raise NotationError("a divisor must be a constant of the scope that is at least 1")
        members = {_member(a) for a in term.args}
        if (len(members) > 1 if term.name in ("eq", "ne")
                else members != {None} and term.name != "ite"):
            raise NotationError(f"{show(term)}: things of a symmetric sort have no order, no "
                                "number and no name; compare them with each other")
    if isinstance(term, Read):
        for index, sort in zip(term.index, term.variable.domain):
            member = _member(index)
            if member != (sort if sort.symmetric else None):
                raise NotationError(
                    f"{term.variable.name} is indexed by {sort.name}, not by {show(index)}")
    for child in children(term):
        _check(child)


def _at_least_one(term: Term) -> bool:
    if isinstance(term, Read):
        return term.variable.rigid and term.variable.initial >= 1
    return isinstance(term, Literal) and term.value >= 1


class Machine:
    """Parts composed under a design, traced into terms.

    ``without`` names actions that are left out: a smaller machine, which does less.

    Raises `NotationError` if a part refers to what no part declares, a name is declared
    twice, a guard or a change of other variables reads a ghost, a term divides by what may be
    0, or the members of a symmetric sort are told apart other than by equality.
    """

    def __init__(self, parts: Sequence[Part], design: Any,
                 overrides: Mapping[str, ActionFunction] | None = None,
                 without: Sequence[str] = ()) -> None:
        self.parts = tuple(parts)
        self.design = design
        self.variables: dict[str, Variable] = {}
        self.actions: dict[str, Action] = {}
        for part in parts:
            for variable in part.variables:
                if variable.name in self.variables:
                    raise NotationError(f"variable {variable.name!r} is declared twice")
                if hasattr(View, variable.name):
                    raise NotationError(f"a view has {variable.name!r} already: choose another")
                self.variables[variable.name] = variable
        self._indexing = {s.name for v in self.variables.values() for s in v.domain}
        overrides = dict(overrides or {})
        for part in parts:
            for name, declared in part.actions.items():
                if name in self.actions:
                    raise NotationError(f"action {name!r} is declared twice")
                extended = [e for p in parts for e in p.extensions if e.action == name]
                self.actions[name] = self._trace(
                    name, declared, overrides.pop(name, declared.function), extended)
        if overrides:
            raise NotationError(f"no action {', '.join(sorted(overrides))} to override")
        for part in parts:
            for extension in part.extensions:
                if extension.action not in self.actions:
                    raise NotationError(
                        f"part {part.name!r}: no action {extension.action!r} to extend")
        for name in without:
            if self.actions.pop(name, None) is None:
                raise NotationError(f"no action {name!r} to leave out")
        for action in self.actions.values():
            counts = [self._counts(p) for p in action.parameters]
            if counts != sorted(counts):
                raise NotationError(f"{action.name}: say what it happens to before how much, "
                                    "so that all readings take its instances in one order")

    def _counts(self, parameter: Bound) -> bool:
        """Whether the parameter says how much, not what the action happens to."""
        return parameter.sort.name not in self._indexing

    def _trace(self, name: str, declared: _Declared, function: ActionFunction,
               extended: list[_Extension]) -> Action:
        view = View(self)
        parameters = _parameters(function)
        function(view, *parameters)
        own, label = [(p.name, p.sort) for p in parameters], declared.label
        for extension in extended:
            taken = _parameters(extension.function)
            if [(p.name, p.sort) for p in taken[:len(own)]] != own:
                raise NotationError(
                    f"{name}: {extension.function.__name__} takes other parameters")
            more = taken[len(own):]
            for twice in {p.name for p in more} & {p.name for p in parameters}:
                raise NotationError(f"{name}: two extensions add a parameter {twice}")
            extension.function(view, *parameters[:len(own)], *more)
            parameters, label = (*parameters, *more), _labels(label, extension.label)
        if len(parameters) > len(own):
            parameters = tuple(sorted(parameters, key=self._counts))
        for requirement in view.requirements:
            _check(requirement.term)
            if _reads_ghost(requirement.term):
                raise NotationError(f"{name}: the guard {requirement.name!r} reads a ghost")
        for update in view.updates:
            parts = (*update.index, update.value) if isinstance(update, Assign) \
                else (update.condition, update.value)
            for term in parts:
                _check(term)
            if not update.variable.ghost and any(map(_reads_ghost, parts)):
                raise NotationError(f"{name}: the change of {update.variable.name} reads a ghost")
        doc = inspect.getdoc(function) or inspect.getdoc(declared.function) or ""
        return Action(name, doc, label, parameters, tuple(view.requirements),
                      tuple(view.updates), declared.external)

    @property
    def state(self) -> tuple[Variable, ...]:
        """The variables that make up a state, in declaration order."""
        return tuple(v for v in self.variables.values() if not v.rigid)

    @property
    def constants(self) -> tuple[Variable, ...]:
        """The constants that a scope sets."""
        return tuple(v for v in self.variables.values() if v.rigid)

    @property
    def sorts(self) -> tuple[Sort, ...]:
        """Every sort that indexes a variable, bounds a number, or ranges over a parameter."""
        seen: dict[str, Sort] = {}
        for variable in self.variables.values():
            for sort in (*variable.domain, variable.sort):
                seen.setdefault(sort.name, sort)
        for action in self.actions.values():
            for parameter in action.parameters:
                seen.setdefault(parameter.sort.name, parameter.sort)
        return tuple(seen.values())


@dataclass(frozen=True)
class Predicate:
    """A named statement over one state (`invariant`) or over a step (`step`), as a term."""

    name: str
    parameters: tuple[Bound, ...]
    term: Term


def invariant(machine: Machine, name: str, function: Callable[..., Value]) -> Predicate:
    """Trace ``function(s, ...)`` over one state."""
    parameters = _parameters(function)
    term = lift(function(View(machine), *parameters))
    _check(term)
    return Predicate(name, parameters, term)


def step(machine: Machine, name: str, function: Callable[..., Value], action: str) -> Predicate:
    """Trace ``function(s, t, action, ...)``: ``s`` the state before, ``t`` the state after."""
    parameters = _parameters(function, skip=3)
    term = lift(function(View(machine), View(machine, after=True), action, *parameters))
    _check(term)
    return Predicate(name, parameters, term)


__all__ = [
    "Action", "Assign", "Machine", "Part", "Predicate", "Requirement", "Update", "VariableView",
    "View", "Where", "invariant", "step",
]
