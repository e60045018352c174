"""Which parts of the machine's terms have a name of their own in an exported model.

Terms remember no function calls: the count of storable chunks is a page of arithmetic
wherever it is used.  Here the counts and conditions that people speak of are found again
by their shape, and an exported model defines each once and calls it by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvoracle.model import rules, store
from kvoracle.model.machine import Machine, View, invariant
from kvoracle.model.requests import Group, Request, ended
from kvoracle.model.terms import (
    BOOL,
    Bound,
    Literal,
    NotationError,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    Variable,
    children,
    mentions,
    substitute,
)

NUMBER = Sort("Number")
"""What a definition that is no condition gives: a number that no sort bounds."""


@dataclass(frozen=True)
class Definition:
    """A named term over parameters; ``symbol`` stands for it in other terms."""

    name: str
    doc: str
    parameters: tuple[Bound, ...]
    body: Term
    symbol: Variable


def has_ended(s: View, r: Request) -> Any:
    """Whether the request has finished or was aborted, and is not forgotten yet."""
    return ended(s, r)


def planned_for(s: View, r: Request) -> Any:
    """Whether the planner looks at the request: it runs, or has ended and is not forgotten."""
    return store.planned_for(s, r)


def counted(s: View, r: Request, g: Group) -> Any:
    """The tokens that a claim is made for."""
    return store.claim(s, r, g).tokens


def has_volatile_tail(s: View, r: Request, g: Group) -> Any:
    """Whether the last whole chunk's KV may still be rewritten."""
    return rules.has_volatile_tail(store.claim(s, r, g))


def by_tokens(s: View, r: Request, g: Group) -> Any:
    """Chunks whose KV is computed and final."""
    return rules.by_tokens(store.claim(s, r, g))


def by_blocks(s: View, r: Request, g: Group) -> Any:
    """Chunks all of whose blocks are allocated and known."""
    return rules.by_blocks(store.claim(s, r, g))


def storable(s: View, r: Request, g: Group) -> Any:
    """Leading chunks that the design allows to store now."""
    return s.rules.storable(store.claim(s, r, g))


def owed(s: View, r: Request, g: Group) -> Any:
    """Leading chunks that the reference design would store now."""
    return rules.REFERENCE.storable(store.claim(s, r, g, rules.REFERENCE))


NAMED: tuple[Callable[..., Any], ...] = (
    has_ended, planned_for, counted, has_volatile_tail, by_tokens, by_blocks, storable, owed)
"""Each may be built of those before it, never of those behind."""

CONDITIONS = (has_ended, planned_for, has_volatile_tail)
"""Those that are true or false; the others are numbers."""


def definitions(machine: Machine, fold: Callable[[Term], Term]) -> tuple[Definition, ...]:
    """What has a name in the machine; ``fold`` says what its scope leaves of a term."""
    found: list[Definition] = []
    for function in NAMED:
        try:
            traced = invariant(machine, function.__name__, function)
        except NotationError:
            continue  # speaks of a part that the machine does not have
        if isinstance(fold(traced.term), (Literal, Read)) \
                or any(_match(d.body, traced.term, {}) for d in found):
            continue  # needs no name, or has one
        parameters = tuple(p for p in traced.parameters if _mentions(traced.term, p))
        symbol = Variable(
            function.__name__, tuple(p.sort for p in parameters),
            BOOL if function in CONDITIONS else NUMBER)
        found.append(Definition(
            symbol.name, inspect.getdoc(function) or "", parameters, traced.term, symbol))
    return tuple(found)


def _mentions(term: Term, bound: Bound) -> bool:
    return mentions(term, lambda t: t is bound)


# --- finding them again -----------------------------------------------------------------


def same(a: Term, b: Term) -> bool:
    """Whether two terms are built alike, of the same parameters."""
    return _match(a, b, {}, fixed=True)


def _match(pattern: Term, term: Term, found: dict[Term, Term], fixed: bool = False) -> bool:
    """Whether ``term`` is the pattern with its parameters replaced; ``found`` says by what."""
    if isinstance(pattern, Bound):
        if pattern in found:
            return found[pattern] is term or \
                (not isinstance(term, Bound) and same(found[pattern], term))
        if fixed or _sort(term) is not pattern.sort:
            return pattern is term
        found[pattern] = term
        return True
    if isinstance(pattern, Literal):
        return isinstance(term, Literal) and type(term.value) is type(pattern.value) \
            and term.value == pattern.value
    if isinstance(pattern, Read):
        alike = isinstance(term, Read) and term.variable is pattern.variable \
            and term.after == pattern.after
    elif isinstance(pattern, Op):
        alike = isinstance(term, Op) and term.name == pattern.name \
            and len(term.args) == len(pattern.args)
    else:
        assert isinstance(pattern, Quantified)
        alike = isinstance(term, Quantified) and term.every == pattern.every \
            and [b.sort for b in term.bounds] == [b.sort for b in pattern.bounds]
        if alike:
            assert isinstance(term, Quantified)
            found.update(zip(pattern.bounds, term.bounds))
    return alike and all(
        _match(p, t, found, fixed) for p, t in zip(children(pattern), children(term)))


def _sort(term: Term) -> Sort | None:
    if isinstance(term, Bound):
        return term.sort
    return term.variable.sort if isinstance(term, Read) else None


def named(term: Term, known: Sequence[Definition]) -> Term:
    """The term with every part that is the body of a definition replaced by its name."""

    def replaced(t: Term) -> Term | None:
        if isinstance(t, (Literal, Bound)):
            return None
        for d in reversed(known):
            found: dict[Term, Term] = {}
            if _match(d.body, t, found) and all(p in found for p in d.parameters):
                return Read(d.symbol, tuple(named(found[p], known) for p in d.parameters))
        return None

    return substitute(term, replaced)


def shortened(known: Sequence[Definition]) -> tuple[Definition, ...]:
    """The definitions with their bodies in terms of those before them."""
    return tuple(replace(d, body=named(d.body, known[:i])) for i, d in enumerate(known))


def expanded(term: Term, known: Mapping[str, Definition]) -> Term:
    """The term without names: each replaced by what it stands for."""

    def replaced(t: Term) -> Term | None:
        if not isinstance(t, Read) or t.variable.name not in known:
            return None
        d = known[t.variable.name]
        if t.variable is not d.symbol:
            return None
        values = dict(zip(d.parameters, (expanded(i, known) for i in t.index)))
        return substitute(expanded(d.body, known),
                          lambda inner: values.get(inner) if isinstance(inner, Bound) else None)

    return substitute(term, replaced)


def used(terms: Sequence[Term], known: Sequence[Definition]) -> tuple[Definition, ...]:
    """Of the definitions, those that the terms speak of, and those that these speak of."""
    wanted: set[str] = set()

    def note(term: Term) -> None:
        if isinstance(term, Read):
            for d in known:
                if d.symbol is term.variable and d.name not in wanted:
                    wanted.add(d.name)
                    note(d.body)
        for child in children(term):
            note(child)

    for term in terms:
        note(term)
    return tuple(d for d in known if d.name in wanted)
