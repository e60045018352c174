"""Terms as Python source: what the fast readings compile actions and properties to.

Where a state variable lives (a cell of packed bytes, an entry of a dictionary) is the
reading's affair: it passes functions that print a read and the range of a sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .terms import (
    Bound,
    Literal,
    Op,
    Quantified,
    Read,
    Sort,
    Term,
    conjunction,
    conjuncts,
    mentions,
)

Names = Mapping[Term, str]

_INFIX = {"add": "+", "sub": "-", "div": "//", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}


@dataclass(frozen=True)
class Printer:
    """Prints terms; ``read`` prints a variable at printed indices, ``limit`` a sort's size.

    With ``capped`` every range ends at the sort's size; without, sizes have no end (but for
    enumerations and Booleans) and are asked for only where nothing else limits a range.
    """

    read: Callable[[Read, Sequence[str]], str]
    limit: Callable[[Sort], str]
    capped: bool = True

    def expression(self, term: Term, names: Names) -> str:
        """One Python expression.  Conditions are Python booleans, numbers integers."""
        if isinstance(term, Literal):
            return repr(term.value)
        if isinstance(term, Bound):
            return names[term]
        if isinstance(term, Read):
            return self.read(term, [self.expression(i, names) for i in term.index])
        if isinstance(term, Quantified):
            return self._quantified(term, names)
        assert isinstance(term, Op)
        parts = [self.expression(a, names) for a in term.args]
        if term.name in _INFIX:
            return f"({parts[0]} {_INFIX[term.name]} {parts[1]})"
        if term.name in ("and", "or"):
            return "(" + f" {term.name} ".join(parts) + ")"
        if term.name == "not":
            return f"(not {parts[0]})"
        if term.name == "implies":
            return f"(not {parts[0]} or {parts[1]})"
        if term.name == "ite":
            return f"({parts[1]} if {parts[0]} else {parts[2]})"
        return f"{term.name}({', '.join(parts)})"

    def _quantified(self, term: Quantified, names: Names) -> str:
        body = term.body
        if term.every and isinstance(body, Op) and body.name == "implies":
            loops, inner, rest = self.loops(term.bounds, body.args[0], names)
            holds = self.expression(body.args[1], inner)
        elif not term.every:
            loops, inner, rest = self.loops(term.bounds, body, names)
            return f"any({rest or 'True'} {' '.join(loops)})"
        else:
            loops, inner, rest = self.loops(term.bounds, conjunction(()), names)
            holds = self.expression(body, inner)
        if rest:
            holds = f"(not {rest} or {holds})"
        return f"all({holds} {' '.join(loops)})"

    def loops(self, bounds: Iterable[Bound], condition: Term,
              names: Names) -> tuple[list[str], dict[Term, str], str]:
        """``for`` clauses over ``bounds`` that visit all values meeting the condition.

        Conjuncts that bound a variable from outside (``r2 == r``, ``at <= c``, ``c < n``)
        become the range itself.  Returns the clauses, the names with the bounds' added, and
        the source of what is still to be tested ("" if nothing).
        """
        inner = dict(names)
        clauses: list[str] = []
        left = list(conjuncts(condition))
        for bound in bounds:
            name = f"_{len(inner)}"
            low, high, left = self._range(bound, left, inner)
            inner[bound] = name
            clauses.append(f"for {name} in range({low}, {high})")
        rest = [t for t in left if not (isinstance(t, Literal) and t.value)]
        return clauses, inner, self.expression(conjunction(rest), inner) if rest else ""

    def _range(self, bound: Bound, left: list[Term],
               names: Names) -> tuple[str, str, list[Term]]:
        lows: list[str] = ["0"]
        ends = self.capped or bound.sort.names or bound.sort.is_bool
        highs: list[str] = [self.limit(bound.sort)] if ends else []
        kept: list[Term] = []
        for term in left:
            found = self._limits(bound, term, names)
            if found is None:
                kept.append(term)
                continue
            low, high = found
            lows += [low] if low else []
            highs += [high] if high else []
        highs = highs or [self.limit(bound.sort)]
        low = lows[0] if len(lows) == 1 else f"max({', '.join(lows)})"
        high = highs[0] if len(highs) == 1 else f"min({', '.join(highs)})"
        return low, high, kept

    def _limits(self, bound: Bound, term: Term, names: Names) -> tuple[str, str] | None:
        """The half-open range that the term alone allows, if it speaks of the bound so."""
        if not isinstance(term, Op) or term.name not in ("eq", "lt", "le"):
            return None
        a, b = term.args
        if a is bound and self._known(b, names):
            other = self.expression(b, names)
            if term.name == "eq":
                return other, f"{other} + 1"
            return "", other if term.name == "lt" else f"{other} + 1"
        if b is bound and self._known(a, names):
            other = self.expression(a, names)
            if term.name == "eq":
                return other, f"{other} + 1"
            return (f"{other} + 1" if term.name == "lt" else other), ""
        return None

    @staticmethod
    def _known(term: Term, names: Names) -> bool:
        return not mentions(
            term, lambda t: isinstance(t, Quantified) or (isinstance(t, Bound) and t not in names)
        )
