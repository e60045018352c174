"""Is what a smaller composition has shown taken over by a larger one, and only where it holds?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import pytest

from kvoracle.model.machine import Machine, Part, View, invariant
from kvoracle.model.scopes import COMPOSITIONS
from kvoracle.model.terms import Sort, Term, exists, forall
from kvoracle.spec.properties import EVERYTHING, Property
from kvoracle.spec.prove import obligations as prover
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.shapes import said

THING, COUNT = Sort("Thing"), Sort("Count")
Thing = Annotated[Term, THING]

base = Part("base", "")
base.variable("level", (THING,), COUNT, "")
base.variable("top", (THING,), COUNT, "")
base.variable("copy", (THING,), COUNT, "")


@base.action("{r}")
def rise(s: View, r: Thing) -> None:
    s.require("below", s.level[r] < s.top[r])
    s.level[r] = s.level[r] + 1


@base.action("{r}")
def raise_top(s: View, r: Thing) -> None:
    s.top[r] = s.top[r] + 1


@base.action("{r}")
def take(s: View, r: Thing) -> None:
    s.copy[r] = s.level[r]


def _part(action: str, function: Callable[..., None]) -> Part:
    part = Part("more", "")
    part.variable("extra", (THING,), COUNT, "")
    part.extend(action)(function)
    return part


def _below(s: View, r: Thing) -> Term:
    return s.level[r] <= s.top[r]


def _copied(s: View, r: Thing) -> Term:
    """That of a copy it follows when it is taken, and only then, from Below."""
    return s.copy[r] <= s.top[r]


def _property(name: str, function: Callable[..., Term]) -> Property:
    return replace(EVERYTHING["CountsInOrder"], name=name, function=function, parts=())


def _larger(monkeypatch: pytest.MonkeyPatch, part: Part,
            *properties: Property) -> dict[str, Obligation]:
    monkeypatch.setattr(prover, "EVERYTHING", {p.name: p for p in properties})
    smaller = Proof(Machine((base,), None), properties)
    assert all(o.answer.verdict == "proved" for o in smaller.obligations())
    larger = Proof(Machine((base, part), None), properties, smaller={"base": smaller})
    return {str(o): o for o in larger.obligations()}


BELOW, COPIED = _property("Below", _below), _property("Copied", _copied)


def test_what_is_the_same_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(s: View, r: Thing) -> None:
        s.require("more", s.extra[r] == 0)
        s.extra[r] = 1

    decided = _larger(monkeypatch, _part("rise", elsewhere), BELOW)
    assert {n for n, o in decided.items() if o.as_in == "base"} >= {
        "Below / at first", "Below / rise", "Below / raise_top", "level in range / rise"}
    assert decided["extra in range / rise"].as_in == ""
    assert all(o.answer.verdict == "proved" for o in decided.values())


def test_an_action_that_changes_more_of_what_is_read_is_shown_anew(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def higher(s: View, r: Thing) -> None:
        s.level[r] = s.top[r] + 1

    decided = _larger(monkeypatch, _part("rise", higher), BELOW)
    assert decided["Below / rise"].answer.verdict == "refuted"
    assert decided["Below / rise"].as_in == ""
    assert decided["Below / raise_top"].as_in == "base"


def test_nothing_is_taken_over_where_less_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied follows from Below, which the larger machine does not promise of all things."""
    def weaker(s: View, r: Thing) -> Term:
        return (s.extra[r] > 0) | _below(s, r) if s.has("more") else _below(s, r)

    def nothing(s: View, r: Thing) -> None:
        s.extra[r] = s.extra[r]

    decided = _larger(monkeypatch, _part("raise_top", nothing),
                      _property("Below", weaker), COPIED)
    assert decided["Copied / take"].as_in == ""
    assert decided["Copied / take"].answer.verdict == "refuted"


def test_more_may_be_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stronger(s: View, r: Thing) -> Term:
        return _below(s, r) & (s.extra[r] == 0) if s.has("more") else _below(s, r)

    def nothing(s: View, r: Thing) -> None:
        s.extra[r] = s.extra[r]

    decided = _larger(monkeypatch, _part("raise_top", nothing),
                      _property("Below", stronger), COPIED)
    assert decided["Copied / take"].as_in == "base"
    assert decided["Below / raise_top"].as_in == ""


def test_what_has_fallen_carries_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_below(s: View, r: Thing) -> None:
        s.level[r] = s.top[r] + s.top[r]

    properties = BELOW, COPIED
    monkeypatch.setattr(prover, "EVERYTHING", {p.name: p for p in properties})
    smaller = Proof(Machine((base,), None), properties)
    list(smaller.obligations())
    part = Part("more", "")
    part.action("{r}")(break_below)
    larger = Proof(Machine((base, part), None), properties, smaller={"base": smaller})
    first = {str(o): o for o in larger.obligations()}
    assert first["Copied / take"].as_in == "base"
    settled = {str(o): o for o in larger.settled(list(first.values()))}
    assert settled["Below / break_below"].answer.verdict != "proved"
    assert settled["Copied / take"].answer.verdict != "proved"


def test_what_a_predicate_says_does_not_depend_on_names() -> None:
    machine = Machine((base,), None)

    def one(s: View, r: Thing) -> Term:
        return forall(THING, lambda a: exists(THING, lambda b: s.level[a] <= s.top[b] + s.top[r]))

    def other(s: View, x: Thing) -> Term:
        return forall(THING, lambda x2: exists(
            THING, lambda r: s.level[x2] <= s.top[r] + s.top[x]))

    def crossed(s: View, r: Thing) -> Term:
        return forall(THING, lambda a: exists(THING, lambda b: s.level[b] <= s.top[a] + s.top[r]))

    first, same, different = (said(invariant(machine, "x", f)) for f in (one, other, crossed))
    assert first == same
    assert first != different


def test_smaller_compositions_come_first() -> None:
    seen: list[frozenset[str]] = []
    for parts in COMPOSITIONS.values():
        names = frozenset(p.name for p in parts)
        assert not any(names < earlier for earlier in seen)
        seen.append(names)
