"""What terms say, whatever their bound variables are called: equal shapes mean the same.

A larger composition has most of its properties and actions in common with a smaller one.
By their shapes the prover sees which obligations it has decided already.  A shape is a number,
since it is compared and looked up far more often than it is made.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import count
from typing import NewType

from kvoracle.model.machine import Action, Assign, Predicate, Update
from kvoracle.model.terms import Bound, Literal, Op, Quantified, Read, Term, children, conjuncts

Shape = NewType("Shape", int)

_SHAPES: dict[Hashable, Shape] = {}
_NUMBERS = count()


def shape_of(said: Hashable) -> Shape:
    """The shape of what is said so: the same number for what is equal, in this process."""
    known = _SHAPES.get(said)
    return known if known is not None else _SHAPES.setdefault(said, Shape(next(_NUMBERS)))


def shape(term: Term, bound: Mapping[Term, int]) -> Shape:
    """The term with its bound variables numbered, ``bound`` first, and the others by name."""
    return shape_of(_said(term, bound))


def _said(term: Term, bound: Mapping[Term, int]) -> Hashable:
    if isinstance(term, Literal):
        return "literal", isinstance(term.value, bool), term.value
    if isinstance(term, Bound):
        return ("bound", bound[term]) if term in bound else ("free", term.name, term.sort)
    if isinstance(term, Read):
        return ("read", term.variable, term.after, *(shape(i, bound) for i in term.index))
    if isinstance(term, Quantified):
        inner = _numbered(term.bounds, bound)
        sorts = tuple(b.sort for b in term.bounds)
        return "quantified", term.every, sorts, shape(term.body, inner)
    assert isinstance(term, Op)
    return (term.name, *(shape(a, bound) for a in term.args))


def _numbered(bounds: Iterable[Bound], after: Mapping[Term, int]) -> dict[Term, int]:
    return {**after, **{b: len(after) + k for k, b in enumerate(bounds)}}


def free_in(term: Term) -> tuple[Bound, ...]:
    """The variables that the term speaks of and does not bind, in the order of their first use."""
    if isinstance(term, Bound):
        return (term,)
    found = dict.fromkeys(b for c in children(term) for b in free_in(c))
    own = term.bounds if isinstance(term, Quantified) else ()
    return tuple(b for b in found if not any(b is o for o in own))


def said_of(term: Term) -> Shape:
    """What the term says of its free variables, whatever they are called."""
    free = free_in(term)
    return shape_of(
        ("of", *(b.sort for b in free), shape(term, {b: k for k, b in enumerate(free)})))


def quantified_in(term: Term) -> Iterator[Quantified]:
    """The outermost quantified parts of the term."""
    if isinstance(term, Quantified):
        yield term
    else:
        for child in children(term):
            yield from quantified_in(child)


def gives_no_trigger(term: Quantified) -> bool:
    """Whether some variable that it binds is, outside of further quantifiers, no index and is not
    divided: only compared."""
    def is_index(b: Bound, part: Term) -> bool:
        if isinstance(part, Quantified):
            return False
        here = isinstance(part, Read) or (isinstance(part, Op) and part.name == "div")
        return (here and any(c is b for c in children(part))) \
            or any(is_index(b, c) for c in children(part))

    return any(not is_index(b, term.body) for b in term.bounds)


def parts(predicate: Predicate) -> list[Shape]:
    """The parts of what the predicate says, in order."""
    numbered = _numbered(predicate.parameters, {})
    sorts = tuple(p.sort for p in predicate.parameters)
    return [shape_of(("for all", sorts, shape(c, numbered))) for c in conjuncts(predicate.term)]


def said(predicate: Predicate) -> frozenset[Shape]:
    """What the predicate says; one that has more parts says more."""
    return frozenset(parts(predicate))


def required(action: Action) -> frozenset[Shape]:
    """The parts of the action's guard."""
    return frozenset(shape(c, {}) for c in conjuncts(action.guard))


def changed(action: Action) -> dict[str, Shape]:
    """What becomes of each variable that the action writes: its updates in order."""
    updates: dict[str, list[Hashable]] = {}
    for update in action.updates:
        updates.setdefault(update.variable.name, []).append(_update(update))
    return {name: shape_of(("becomes", name, *said)) for name, said in updates.items()}


def _update(update: Update) -> Hashable:
    if isinstance(update, Assign):
        return ("at", *(shape(i, {}) for i in update.index), shape(update.value, {}))
    numbered = _numbered(update.bounds, {})
    return "where", shape(update.condition, numbered), shape(update.value, numbered)
