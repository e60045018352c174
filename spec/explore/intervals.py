"""Between which numbers a term's value lies in a scope: where a test of bounds can be left out."""

from __future__ import annotations

from kvoracle.model.scopes import Scope
from kvoracle.model.terms import Bound, Literal, Op, Read, Term


def interval(term: Term, scope: Scope) -> tuple[int, int]:
    """The least and the greatest value that the term may have, or numbers beyond them."""
    if isinstance(term, Literal):
        return int(term.value), int(term.value)
    if isinstance(term, Bound):
        return 0, scope.size(term.sort) - 1
    if isinstance(term, Read):
        variable = term.variable
        if not variable.rigid:
            last = scope.size(variable.sort) - 1
            return min(0, variable.initial), max(last, variable.initial)
        places = range(-1, scope.size(variable.domain[0]))
        values = [int(scope.constant(variable, (i,))) for i in places]
        return min(values), max(values)
    if isinstance(term, Op):
        lows, highs = zip(*(interval(a, scope) for a in term.args))
        if term.name == "add":
            return sum(lows), sum(highs)
        if term.name == "sub":
            return lows[0] - highs[1], highs[0] - lows[1]
        if term.name == "ite":
            return min(lows[1:]), max(highs[1:])
        if term.name in ("min", "max"):
            choose = min if term.name == "min" else max
            return choose(lows), choose(highs)
        if term.name == "div":
            return min(0, lows[0]), max(0, highs[0])
    return 0, 1
