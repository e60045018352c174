"""The words of the notation: terms that are written once and read in several ways.

A term is an expression over state variables, constants of a scope, parameters
and quantified variables.  Python's operators build terms; a *reading* (run,
prove, explore, ...) walks them.  The functions here (`ite`, `minimum`, ...)
also accept plain numbers, so that a rule written with them can be called with
numbers (by a test, by a person) and with terms (by a reading) alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Plain: TypeAlias = "int | bool"
Value: TypeAlias = "Term | int | bool"


class NotationError(Exception):
    """A machine is written in a way no reading could give a meaning to."""


@dataclass(frozen=True)
class Sort:
    """A set of things to index by, or of numbers to count with.

    ``symmetric`` sorts hold interchangeable things (requests, blocks): renaming them
    changes no behaviour, which exploration may use.  How many there are is up to a scope,
    and unbounded where a scope says nothing, as in proofs.
    """

    name: str
    symmetric: bool = False
    names: tuple[str, ...] = ()

    @property
    def is_bool(self) -> bool:
        return self.name == "Bool"

    def show(self, value: int) -> str:
        """``value`` as people read it: the name of an enumeration's member, else a number."""
        if self.is_bool:
            return "yes" if value else "no"
        return self.names[value] if 0 <= value < len(self.names) else str(value)


BOOL = Sort("Bool")


def enumeration(name: str, *names: str) -> Sort:
    """A sort of exactly these named values, numbered from 0."""
    return Sort(name, names=names)


@dataclass(frozen=True)
class Variable:
    """A state variable (or, if ``rigid``, a constant of the scope): a total map.

    ``domain`` are the sorts it is indexed by, ``sort`` that of its values, ``initial`` the
    value everywhere at first.  A ghost variable records history for properties alone; no
    guard may read it.
    """

    name: str
    domain: tuple[Sort, ...]
    sort: Sort
    initial: int = 0
    rigid: bool = False
    ghost: bool = False
    doc: str = ""


class Term:
    """A node of an expression.  Has no truth value: use `&`, `|`, `not_`, `ite`."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise NotationError(
            "a term has no truth value: write a & b, a | b, not_(a), ite(c, a, b) "
            "instead of and, or, not, if"
        )

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return Op("eq", (self, lift(other)))

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return Op("ne", (self, lift(other)))

    __hash__ = object.__hash__

    def __lt__(self, other: Value) -> Term:
        return Op("lt", (self, lift(other)))

    def __le__(self, other: Value) -> Term:
        return Op("le", (self, lift(other)))

    def __gt__(self, other: Value) -> Term:
        return Op("lt", (lift(other), self))

    def __ge__(self, other: Value) -> Term:
        return Op("le", (lift(other), self))

    def __add__(self, other: Value) -> Term:
        return Op("add", (self, lift(other)))

    def __radd__(self, other: Value) -> Term:
        return Op("add", (lift(other), self))

    def __sub__(self, other: Value) -> Term:
        return Op("sub", (self, lift(other)))

    def __rsub__(self, other: Value) -> Term:
        return Op("sub", (lift(other), self))

    def __floordiv__(self, other: Value) -> Term:
        return Op("div", (self, lift(other)))

    def __and__(self, other: Value) -> Term:
        return conjunction((self, other))

    def __rand__(self, other: Value) -> Term:
        return conjunction((other, self))

    def __or__(self, other: Value) -> Term:
        return disjunction((self, other))

    def __ror__(self, other: Value) -> Term:
        return disjunction((other, self))


@dataclass(frozen=True, eq=False, slots=True)
class Literal(Term):
    """A number, or True or False."""

    value: Plain


@dataclass(frozen=True, eq=False, slots=True)
class Bound(Term):
    """A parameter of an action or property, or a quantified variable; itself is its identity."""

    name: str
    sort: Sort


@dataclass(frozen=True, eq=False, slots=True)
class Read(Term):
    """The value of a variable at an index, before (or, ``after``, behind) the action."""

    variable: Variable
    index: tuple[Term, ...]
    after: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Op(Term):
    """An operator (`simplify.OPERATIONS` says what each means) applied to its arguments."""

    name: str
    args: tuple[Term, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Quantified(Term):
    """``body`` for all (``every``) or for at least one value of the bound variables."""

    every: bool
    bounds: tuple[Bound, ...]
    body: Term


TRUE = Literal(True)
FALSE = Literal(False)


def lift(value: object) -> Term:
    """A plain number as a term; a term as it is."""
    if isinstance(value, Term):
        return value
    if isinstance(value, (bool, int)):
        return Literal(value)
    raise NotationError(f"{value!r} is neither a term nor a number")


def _plain(values: Iterable[object]) -> bool:
    return not any(isinstance(v, Term) for v in values)


def ite(condition: Value, then: Value, otherwise: Value) -> Any:
    """``then`` where the condition holds, else ``otherwise``."""
    if not isinstance(condition, Term):
        return then if condition else otherwise
    return Op("ite", (condition, lift(then), lift(otherwise)))


def minimum(*values: Value) -> Any:
    """The least of the values."""
    return Op("min", tuple(map(lift, values))) if not _plain(values) else min(values)


def maximum(*values: Value) -> Any:
    """The greatest of the values."""
    return Op("max", tuple(map(lift, values))) if not _plain(values) else max(values)


def not_(value: Value) -> Any:
    """Negation."""
    return Op("not", (value,)) if isinstance(value, Term) else not value


def implies(premise: Value, conclusion: Value) -> Any:
    """The conclusion, wherever the premise holds."""
    if _plain((premise, conclusion)):
        return bool(not premise or conclusion)
    return Op("implies", (lift(premise), lift(conclusion)))


def _flat(name: str, values: Iterable[Value]) -> tuple[Term, ...]:
    flat: list[Term] = []
    for value in values:
        term = lift(value)
        flat.extend(term.args if isinstance(term, Op) and term.name == name else (term,))
    return tuple(flat)


def conjunction(values: Iterable[Value]) -> Term:
    """All of the values; true of none."""
    terms = [t for t in _flat("and", values) if not (isinstance(t, Literal) and t.value)]
    if not terms:
        return TRUE
    return terms[0] if len(terms) == 1 else Op("and", tuple(terms))


def disjunction(values: Iterable[Value]) -> Term:
    """At least one of the values; false of none."""
    terms = [t for t in _flat("or", values) if not (isinstance(t, Literal) and not t.value)]
    if not terms:
        return FALSE
    return terms[0] if len(terms) == 1 else Op("or", tuple(terms))


def bounds_of(function: Callable[..., object], sorts: Sequence[Sort]) -> tuple[Bound, ...]:
    """A bound variable for each sort, named as ``function`` names its parameters."""
    names = list(inspect.signature(function).parameters)
    if len(names) != len(sorts):
        raise NotationError(
            f"a function of {', '.join(s.name for s in sorts) or 'nothing'} "
            f"takes {len(names)} parameters, not {len(sorts)}"
        )
    return tuple(map(Bound, names, sorts))


def _quantify(every: bool, sorts: Sequence[Sort], body: Callable[..., Value]) -> Term:
    bounds = bounds_of(body, sorts)
    return Quantified(every, bounds, lift(body(*bounds)))


def forall(*sorts_and_body: Any) -> Term:
    """``forall(GROUP, lambda g: ...)``: the body for every value of the sorts."""
    return _quantify(True, sorts_and_body[:-1], sorts_and_body[-1])


def exists(*sorts_and_body: Any) -> Term:
    """``exists(CHUNK, lambda c: ...)``: the body for at least one value of the sorts."""
    return _quantify(False, sorts_and_body[:-1], sorts_and_body[-1])


def children(term: Term) -> tuple[Term, ...]:
    """The direct parts of a term."""
    if isinstance(term, Op):
        return term.args
    if isinstance(term, Read):
        return term.index
    if isinstance(term, Quantified):
        return (term.body,)
    return ()


def substitute(term: Term, replace: Callable[[Term], Term | None]) -> Term:
    """``term`` with every part for which ``replace`` gives a term replaced by it, top down."""
    new = replace(term)
    if new is not None:
        return new
    if isinstance(term, Op):
        return Op(term.name, tuple(substitute(a, replace) for a in term.args))
    if isinstance(term, Read):
        index = tuple(substitute(a, replace) for a in term.index)
        return Read(term.variable, index, term.after)
    if isinstance(term, Quantified):
        return Quantified(term.every, term.bounds, substitute(term.body, replace))
    return term


def numbers(terms: Sequence[Term]) -> tuple[int, ...] | None:
    """The values of the terms if all are literals."""
    values = tuple(int(t.value) for t in terms if isinstance(t, Literal))
    return values if len(values) == len(terms) else None


def mentions(term: Term, wanted: Callable[[Term], bool]) -> bool:
    """Whether ``wanted`` holds of the term or of any part of it."""
    return wanted(term) or any(mentions(c, wanted) for c in children(term))


def variables_read(term: Term) -> frozenset[str]:
    """The names of the variables whose value the term depends on."""
    own = frozenset({term.variable.name}) if isinstance(term, Read) else frozenset()
    return own.union(*map(variables_read, children(term)))


def conjuncts(term: Term) -> tuple[Term, ...]:
    """The parts of a conjunction; a single term as it is."""
    return term.args if isinstance(term, Op) and term.name == "and" else (term,)


_SIGNS = {
    "add": " + ", "sub": " - ", "div": " // ", "lt": " < ", "le": " <= ", "eq": " = ",
    "ne": " != ", "and": " and ", "or": " or ", "implies": " implies ",
}

_BINDS = {
    "implies": 1, "and": 2, "or": 2, "lt": 3, "le": 3, "eq": 3, "ne": 3, "add": 4, "sub": 4,
    "div": 5,
}
"""How tightly a sign binds; what binds no tighter than its surroundings is parenthesised."""


def _enumerated(term: Term) -> Sort | None:
    """The enumeration a term's value belongs to, if it reads a variable or bound of one."""
    sort = term.variable.sort if isinstance(term, Read) else getattr(term, "sort", None)
    return sort if isinstance(sort, Sort) and (sort.names or sort.is_bool) else None


def show(term: Term, within: int = 0) -> str:
    """A term in words and signs, for reports."""
    if isinstance(term, Literal):
        return str(term.value).lower() if isinstance(term.value, bool) else str(term.value)
    if isinstance(term, Bound):
        return term.name
    if isinstance(term, Read):
        text = term.variable.name + ("'" if term.after else "")
        return text + (f"[{', '.join(map(show, term.index))}]" if term.index else "")
    if isinstance(term, Quantified):
        bound = ", ".join(f"{b.name}: {b.sort.name}" for b in term.bounds)
        return f"({'for all' if term.every else 'some'} {bound}: {show(term.body)})"
    assert isinstance(term, Op)
    if term.name == "not":
        return f"not {show(term.args[0], max(_BINDS.values()))}"
    if term.name in ("min", "max"):
        return f"{term.name}({', '.join(map(show, term.args))})"
    if term.name == "ite":
        c, a, b = term.args
        return f"({show(a, 1)} if {show(c, 1)} else {show(b, 1)})"
    binds = _BINDS[term.name]
    parts = [show(a, binds) for a in term.args]
    if term.name in ("eq", "ne"):
        sort = _enumerated(term.args[0]) or _enumerated(term.args[1])
        parts = [
            sort.show(int(a.value)) if sort and isinstance(a, Literal) else text
            for a, text in zip(term.args, parts)
        ]
    text = _SIGNS[term.name].join(parts)
    return f"({text})" if binds <= within else text
