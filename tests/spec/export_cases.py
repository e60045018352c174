"""What the tests of exports have in common: scopes and variants, and a machine full of edges."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from kvoracle.model.machine import Part, View
from kvoracle.model.scopes import SCOPES, Scope
from kvoracle.model.terms import BOOL, Sort, Term, enumeration, exists, forall, ite, maximum
from kvoracle.spec.properties import Property
from kvoracle.spec.variants import VARIANTS, Variant

QUICK = ("seed", "draft", "limits", "groups")
FIRST = {v.scope: v.name for v in reversed(VARIANTS.values())}
"""Of each scope, the variant whose exports are always checked; those of others take minutes."""


SLOW = frozenset({"found-loads", "promotions", "resets", "sharing"})
"""Scopes that other tools search in half a minute and more."""


def _marks(variant: Variant) -> tuple[pytest.MarkDecorator, ...]:
    always = FIRST[variant.scope] == variant.name and variant.scope not in SLOW
    return () if always else (pytest.mark.deep,)


PLACES = [pytest.param(SCOPES[name], None, id=name) for name in QUICK]
PLACES += [pytest.param(SCOPES[v.scope], v, id=v.name, marks=_marks(v)) for v in VARIANTS.values()]
NAMES = [pytest.param(v.name, marks=_marks(v)) for v in VARIANTS.values()]

# --- a machine full of edges ---------------------------------------------------------------

THING = Sort("Thing", symmetric=True)
PLACE = Sort("Place")
COUNT = Sort("Count")
COLOUR = enumeration("Colour", "red", "dark green", "end")
Thing = Annotated[Term, THING]
Place = Annotated[Term, PLACE]
Count = Annotated[Term, COUNT]
Truth = Annotated[Term, BOOL]
Colour = Annotated[Term, COLOUR]

edges = Part("edges", "what other languages do differently")
edges.constant("width", (PLACE,), COUNT, "not the same for all", initial=1)
edges.constant("wide", (PLACE,), BOOL, "a truth that is not the same for all")
edges.variable("level", (THING,), COUNT, "a number", initial=1)
edges.variable("rule", (THING, PLACE), COUNT, "named like a word of Murphi")
edges.variable("Init", (), COUNT, "without index, named like a word of TLA+")
edges.variable("n", (THING,), COLOUR, "named like a parameter")
edges.variable("lit", (PLACE,), BOOL, "a truth")
edges.variable("red", (), BOOL, "named like a member", initial=1)


@edges.action("{r} swaps with the clock")
def swap(s: View, r: Thing) -> None:
    """Both reads see the state before."""
    s.level[r] = s.Init[()]
    s.Init[()] = s.level[r]


@edges.action("{r} grows by {n}")
def grow(s: View, r: Thing, n: Count) -> None:
    """May leave what counts."""
    s.require("first", n >= 1)
    s.level[r] = s.level[r] + n


@edges.action("{r} is put at {p} and beyond")
def beyond(s: View, r: Thing, p: Place) -> None:
    """May leave the places."""
    s.rule[r, p + 1] = 1
    s.rule[r, p] = 2


@edges.action("twice {r}")
def twice(s: View, r: Thing) -> None:
    """The later write stands, in bulk and alone."""
    s.rule.where(lambda t, p: t == r, lambda t, p: s.rule[t, p + 1])
    s.rule[r, 0] = ite(s.rule[r, 0] == 0, 1, 0)
    s.level[r] = 1
    s.level.where(lambda t: t == r, lambda t: s.Init[()])


@edges.action("rounded {n}")
def rounded(s: View, r: Thing, n: Count) -> None:
    """A dividend below 0; a minimum of one; indices outside of bounds."""
    s.require("low", (s.level[r] - 3) // 2 < 0 - 1 + s.rule[r, n + 5])
    s.Init[()] = maximum(0, (s.level[r] - n) // s.width[0] + 1)


@edges.action("painted {c}")
def paint(s: View, r: Thing, c: Colour) -> None:
    """Members of an enumeration as such, and compared with numbers."""
    s.require("other", s.n[r] != c)
    s.require("in turn", (c == 1) | (s.n[r] < c) | (s.n[r] == 2))
    s.n[r] = c


@edges.action("lit {b}")
def light(s: View, p: Place, b: Truth) -> None:
    """Truths as parameters, as numbers, by constants, and within quantifiers."""
    s.require("may", (b | s.wide[p]) & (s.lit[p] != b) & (s.red[()] == 1))
    s.require("room", exists(THING, lambda p: forall(PLACE, lambda q: s.rule[p, q] <= s.width[q])))
    s.lit[p] = b
    s.red.where(lambda: s.lit[p] == 0, lambda: s.lit[p] == s.lit[0])


@edges.action("dark", external=True)
def dark(s: View) -> None:
    """Writes everywhere."""
    s.require("is not", s.red[()] == 0)
    s.lit.where(lambda p: True, False)
    s.red[()] = True


EDGES = Scope("edges", "what other languages do differently", (edges,),
              {"Thing": 2, "Place": 2, "Count": 3}, {"width": (2, 1), "wide": (False, True)})


def _never_full(s: View, r: Thing) -> Any:
    return s.level[r] + s.Init[()] < 4


def _clock_never_falls(s: View, t: View, action: str, r: Thing) -> Any:
    return (s.Init[()] <= t.Init[()]) | (t.level[r] == s.level[r]) if action == "swap" else True


def _property(name: str, function: Any, is_step: bool = False) -> Property:
    return Property(name=name, statement=f"what {name} says", why="", source="",
                    function=function, because=lambda seen: "", is_step=is_step)


def _counts(s: View, r: Thing) -> Any:
    return s.level[r] < 3


EDGES_PROPERTIES = (
    _property("Counts", _counts),
    _property("NeverFull", _never_full), _property("NeverFalls", _clock_never_falls, True))
