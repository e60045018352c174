"""How a term is laid out as text in another notation: kinds, parentheses, line breaks, names.

A `Writer` knows the shape of terms; a language says how its signs look (`murphi`, `tla`).
Other languages are stricter than terms: a truth is no number and a member of an
enumeration is neither, so every term is written as the kind that its place wants.
"""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from kvoracle.model.terms import BOOL, Bound, Literal, Op, Quantified, Read, Sort, Term

from .definitions import NUMBER

Names = Mapping[Term, str]
Block = list[str]

WIDTH = 96
COMPARISONS = ("eq", "ne", "lt", "le")
LOGIC = (*COMPARISONS, "and", "or", "not", "implies")


def kind_of_sort(sort: Sort) -> Sort:
    """What values of the sort are in a language: truths, an enumeration's members, or numbers."""
    return sort if sort.is_bool or sort.names else NUMBER


def kind(term: Term) -> Sort | None:
    """What the term's value is; None for a number that may stand for a truth or a member."""
    if isinstance(term, Literal):
        return BOOL if isinstance(term.value, bool) else None
    if isinstance(term, Bound):
        return kind_of_sort(term.sort)
    if isinstance(term, Read):
        return kind_of_sort(term.variable.sort)
    if isinstance(term, Op) and term.name == "ite":
        return joined(term.args[1:])
    if isinstance(term, Op) and term.name not in LOGIC:
        return NUMBER
    return BOOL


def joined(terms: Sequence[Term]) -> Sort | None:
    """The one kind that all the terms can be written as."""
    kinds = {k.name: k for k in map(kind, terms) if k is not None}
    if not kinds:
        return None
    one = next(iter(kinds.values()))
    if len(kinds) > 1:
        return NUMBER
    fits = all(_fits(t, one) for t in terms)
    return one if fits else NUMBER


def _fits(term: Term, wanted: Sort) -> bool:
    if isinstance(term, Literal) and not isinstance(term.value, bool):
        last = 1 if wanted.is_bool else len(wanted.names) - 1
        return not (wanted.is_bool or wanted.names) or 0 <= term.value <= last
    if isinstance(term, Op) and term.name == "ite":
        return all(_fits(a, wanted) for a in term.args[1:])
    return True


class Identifiers:
    """Names that a language allows, each given once."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken = {word.lower() for word in reserved}
        self._given: set[str] = set()

    def new(self, wanted: str, among: Iterable[str] = ()) -> str:
        """``wanted`` or the nearest name that is neither reserved, given nor ``among`` others."""
        name = "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted)
        name = name if name[:1].isalpha() else f"x{name}"
        others, number, free = set(among), 1, name
        while free.lower() in self._taken or free in self._given or free in others:
            number += 1
            free = f"{name}{number}"
        return free

    def keep(self, wanted: str) -> str:
        """A name for the whole text: nothing else is called so."""
        name = self.new(wanted)
        self._given.add(name)
        return name


def hang(first: str, block: Block, last: str = "") -> Block:
    """The block behind ``first``, its further lines indented below its first."""
    pad = " " * len(first)
    lines = [first + block[0], *(pad + line for line in block[1:])]
    lines[-1] += last
    return lines


class Writer(ABC):
    """Lays out terms; subclasses know a language's signs."""

    def __init__(self, identifiers: Identifiers) -> None:
        self.identifiers = identifiers

    # --- what a language decides -----------------------------------------------------------

    @abstractmethod
    def number(self, value: int) -> str: ...

    @abstractmethod
    def truth(self, value: bool) -> str: ...

    @abstractmethod
    def member(self, sort: Sort, value: int) -> str: ...

    @abstractmethod
    def read(self, read: Read, names: Names) -> str: ...

    @abstractmethod
    def sign(self, name: str) -> str: ...

    @abstractmethod
    def negation(self, block: Block, whole: bool) -> Block: ...

    @abstractmethod
    def choice(self, condition: Block, then: Block, otherwise: Block) -> Block: ...

    @abstractmethod
    def quantifier(self, every: bool, bounds: Sequence[tuple[str, Sort]]) -> tuple[str, str]: ...

    @abstractmethod
    def floor(self, term: Op, names: Names, room: int) -> Block: ...

    @abstractmethod
    def extreme(self, name: str) -> str: ...

    @abstractmethod
    def junction(self, name: str, parts: Sequence[Block]) -> Block: ...

    # --- the layout -----------------------------------------------------------------------

    def flat(self, term: Term, names: Names, want: Sort | None = None) -> str:
        """The term on one line."""
        return " ".join(self.block(term, names, want, room=10**9))

    def bind(self, bounds: Sequence[Bound], names: Names) -> dict[Term, str]:
        """The names with new ones for ``bounds``, none of them twice in one place."""
        inner = dict(names)
        for bound in bounds:
            inner[bound] = self.identifiers.new(bound.name, inner.values())
        return inner

    def block(self, term: Term, names: Names, want: Sort | None = None, room: int = WIDTH,
              bare: bool = True) -> Block:
        """The term as lines of about ``room`` characters; not ``bare``: in parentheses if it is
        not of one piece."""
        lines, whole = self._piece(term, names, want, room if bare else room - 2)
        return lines if bare or whole else hang("(", lines, ")")

    def condition(self, term: Term, names: Names) -> Block:
        """The term as one of several conditions: in parentheses unless it is a comparison."""
        return self.block(term, names, BOOL, bare=_is_comparison(term))

    def _piece(self, term: Term, names: Names, want: Sort | None,
               room: int) -> tuple[Block, bool]:
        """The lines, and whether they are of one piece."""
        have = kind(term)
        wanted = want or have or NUMBER
        if isinstance(term, Literal):
            return [self.literal(int(term.value), wanted)], True
        if have is not None and have != wanted:
            return self._converted(term, names, have, wanted, room), True
        if isinstance(term, Bound):
            return [names[term]], True
        if isinstance(term, Read):
            return [self.read(term, names)], True
        return self._compound(term, names, wanted, room)

    def literal(self, value: int, wanted: Sort) -> str:
        """A value of this kind."""
        if wanted.is_bool:
            return self.truth(bool(value))
        return self.member(wanted, value) if wanted.names else self.number(value)

    def _converted(self, term: Term, names: Names, have: Sort, wanted: Sort, room: int) -> Block:
        """The value of one kind as that of another, by the number that both stand for."""
        inner = self.block(term, names, have, room, bare=False)
        if not have.is_bool and not have.names:
            values = 2 if wanted.is_bool else len(wanted.names)
            cases = [(hang("", inner, f" {self.sign('eq')} {self.number(v)}"),
                      self.literal(v, wanted)) for v in range(values)]
        elif have.is_bool:
            cases = [(self.negation(inner, True), self.literal(0, wanted)),
                     (inner, self.literal(1, wanted))]
        else:
            cases = [(hang("", inner, f" {self.sign('eq')} {self.member(have, v)}"),
                      self.literal(v, wanted)) for v in range(len(have.names))]
        text = [cases[-1][1]]
        for condition, value in reversed(cases[:-1]):
            text = hang("(", self.choice(condition, [value], text), ")")
        return text

    def _compound(self, term: Term, names: Names, wanted: Sort,
                  room: int) -> tuple[Block, bool]:
        if isinstance(term, Quantified):
            return self._quantified(term, names, room)
        assert isinstance(term, Op)
        name, args = term.name, term.args
        if name in ("and", "or"):
            parts = [self.block(a, names, BOOL, room - 4, bare=_is_comparison(a)) for a in args]
            one = f" {self.sign(name)} ".join(" ".join(p) for p in parts)
            fits = len(one) <= room and all(len(p) == 1 for p in parts)
            return ([one] if fits else self.junction(name, parts)), False
        if name == "not":
            return self.negation(*self._piece(args[0], names, BOOL, room - 3)), True
        if name == "ite":
            return self.choice(
                self.block(args[0], names, BOOL, room - 8, bare=_is_comparison(args[0])),
                self.block(args[1], names, wanted, room - 8, bare=False),
                self.block(args[2], names, wanted, room - 8, bare=False)), False
        if name in ("min", "max"):
            return self._extreme(name, args, names, room), True
        if name == "div":
            return self.floor(term, names, room), False
        if name in ("eq", "ne"):
            return self._equation(term, names, room)
        of = BOOL if name == "implies" else NUMBER
        left = self.block(args[0], names, of, room - 4,
                          bare=_is_comparison(args[0]) or (name == "add" and _is(args[0], "add"))
                          or (name in ("lt", "le") and _is(args[0], "add", "sub")))
        right = self.block(args[1], names, of, room - 4,
                           bare=_is_comparison(args[1])
                           or (name in ("lt", "le") and _is(args[1], "add", "sub")))
        return self._infix(left, self.sign(name), right, room), False

    def _infix(self, left: Block, sign: str, right: Block, room: int) -> Block:
        if len(left) == len(right) == 1 and len(left[0]) + len(right[0]) + len(sign) + 2 <= room:
            return [f"{left[0]} {sign} {right[0]}"]
        return [*left, *hang(f"  {sign} ", right)]

    def _equation(self, term: Op, names: Names, room: int) -> tuple[Block, bool]:
        a, b = term.args
        of = joined((a, b)) or NUMBER
        if of.is_bool and isinstance(b, Literal):
            holds = bool(b.value) == (term.name == "eq")
            lines, whole = self._piece(a, names, BOOL, room - 3)
            return (lines, whole) if holds else (self.negation(lines, whole), True)
        return self._infix(self.block(a, names, of, room - 4, bare=_is(a, "add", "sub")),
                           self.sign(term.name),
                           self.block(b, names, of, room - 4, bare=_is(b, "add", "sub")),
                           room), False

    def _extreme(self, name: str, args: Sequence[Term], names: Names, room: int) -> Block:
        first = self.block(args[0], names, NUMBER, room - 4)
        if len(args) == 1:
            return first
        rest = self._extreme(name, args[1:], names, room - 4) if len(args) > 2 \
            else self.block(args[1], names, NUMBER, room - 4)
        start = f"{self.extreme(name)}("
        one = f"{start}{' '.join(first)}, {' '.join(rest)})"
        if len(one) <= room and len(first) == len(rest) == 1:
            return [one]
        return [*hang(start, first, ","), *hang(" " * len(start), rest, ")")]

    def _quantified(self, term: Quantified, names: Names, room: int) -> tuple[Block, bool]:
        inner = self.bind(term.bounds, names)
        opening, closing = self.quantifier(
            term.every, [(inner[b], b.sort) for b in term.bounds])
        body = self.block(term.body, inner, BOOL, room - 4)
        if len(body) == 1 and len(opening) + len(body[0]) + len(closing) + 1 <= room:
            return [f"{opening} {body[0]}{closing}"], bool(closing)
        lines = [opening, *("    " + line for line in body)]
        if closing:
            lines.append(closing.strip())
        return lines, bool(closing)


def _is(term: Term, *names: str) -> bool:
    return isinstance(term, Op) and term.name in names


def _is_comparison(term: Term) -> bool:
    return _is(term, *COMPARISONS)


def comment(text: str, width: int = WIDTH) -> Iterable[str]:
    """Text broken into lines for a comment, its own line breaks between paragraphs kept."""
    for paragraph in text.replace("``", "`").split("\n\n"):
        yield from textwrap.wrap(" ".join(paragraph.split()), width) or [""]


__all__ = [
    "WIDTH", "Block", "Identifiers", "Names", "Writer", "comment", "hang", "joined", "kind",
    "kind_of_sort",
]
