"""Folding of terms whose parts are known, so that a reading works on what is left.

A scope fixes constants and unrolled parameters; most of a rule then folds away (a group
that is no draft group has no volatile tail).  Folding changes no value: a test holds it
against plain evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .terms import (
    FALSE,
    TRUE,
    Bound,
    Literal,
    Op,
    Plain,
    Quantified,
    Read,
    Term,
    Variable,
    conjunction,
    disjunction,
    numbers,
)

Constants = Callable[[Variable, tuple[int, ...]], Plain]

OPERATIONS: Mapping[str, Callable[..., Plain]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": lambda a, b: a // b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda *a: all(a),
    "or": lambda *a: any(a),
    "not": lambda a: not a,
    "implies": lambda a, b: bool(not a or b),
    "ite": lambda c, a, b: a if c else b,
    "min": min,
    "max": max,
}
"""What each operator means.  Every reading that does not take this table is held against it."""


def _op(name: str, args: tuple[Term, ...]) -> Term:
    known = [a.value for a in args if isinstance(a, Literal)]
    if len(known) == len(args):
        return Literal(OPERATIONS[name](*known))
    first = args[0]
    if name == "and":
        return FALSE if any(_is(a, False) for a in args) else conjunction(args)
    if name == "or":
        return TRUE if any(_is(a, True) for a in args) else disjunction(args)
    if name == "implies":
        if _is(first, True):
            return args[1]
        if _is(first, False) or _is(args[1], True):
            return TRUE
        if _is(args[1], False):
            return _op("not", (first,))
    if name == "ite" and isinstance(first, Literal):
        return args[1] if first.value else args[2]
    if name == "div" and _is(args[1], 1):
        return first
    if name in ("add", "sub") and _is(args[1], 0):
        return first
    return Op(name, args)


def _is(term: Term, value: Plain) -> bool:
    return isinstance(term, Literal) and term.value == value \
        and isinstance(term.value, bool) == isinstance(value, bool)


def simplify(term: Term, values: Mapping[Term, Term], constants: Constants | None) -> Term:
    """``term`` with bound variables replaced by ``values``, constants by theirs, and folded."""

    def fold(t: Term) -> Term:
        if isinstance(t, Bound):
            return values.get(t, t)
        if isinstance(t, Read):
            index = tuple(map(fold, t.index))
            at = numbers(index)
            if t.variable.rigid and constants is not None and at is not None:
                return Literal(constants(t.variable, at))
            return Read(t.variable, index, t.after)
        if isinstance(t, Quantified):
            body = fold(t.body)
            return body if isinstance(body, Literal) else Quantified(t.every, t.bounds, body)
        if isinstance(t, Op):
            return _op(t.name, tuple(map(fold, t.args)))
        return t

    return fold(term)
