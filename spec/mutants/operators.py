"""What can be wrong with a machine, systematically: its mutants, one small change each.

A mutant differs from the machine in one term of one action: a condition is dropped, a bound
is off by one, an order is turned round, a change is forgotten, a case of several is left out.
Of each it is asked whether a property notices (`kill`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from kvoracle.model.machine import Action, Assign, Machine, Requirement, Where
from kvoracle.model.simplify import simplify
from kvoracle.model.terms import (
    FALSE,
    TRUE,
    Literal,
    NotationError,
    Op,
    Quantified,
    Read,
    Term,
    Variable,
    children,
    conjuncts,
    show,
)

KINDS = ("drop", "bound", "order", "forget", "case")
"""drop: a condition that an action or a change needs; bound: off by one; order: of two
arguments or branches; forget: a change; case: one of several, or one for all."""

_LONGEST = 60
"""Characters of a term quoted in a mutant's name."""

@dataclass(frozen=True)
class Place:
    """Where a term stands in an action: in which guard (``part`` "guard"), or in the value or
    the condition of which update, counted from 0, and by which arguments one comes to it."""

    part: str
    number: int
    path: tuple[int, ...] = ()

    def inner(self, argument: int) -> Place:
        """The place of an argument of the term here."""
        return replace(self, path=(*self.path, argument))


@dataclass(frozen=True)
class Mutant:
    """A folded machine's action changed in one place.

    ``name`` tells it from all others and stays the same while the place does; ``changed`` is the
    term that stands there now.
    """

    name: str
    action: str
    kind: str
    place: Place
    changed: Term

    def of(self, machine: Machine) -> Machine:
        """The machine with this mutation."""
        changed = rewritten(machine.actions[self.action], lambda place, term: (
            self.changed if place == self.place else None))
        return with_actions(machine, {self.action: changed})


def with_actions(machine: Machine, actions: Mapping[str, Action]) -> Machine:
    """The machine with some of its actions replaced, or with further ones."""
    changed = copy.copy(machine)
    changed.actions = {**machine.actions, **actions}
    return changed


def rewritten(action: Action, put: Callable[[Place, Term], Term | None]) -> Action:
    """The action with each term for which ``put`` gives another replaced by it, inner ones first:
    a term is given with what was put inside it."""
    guards = tuple(
        Requirement(r.name, _put_in(r.term, Place("guard", i), put))
        for i, r in enumerate(action.requirements))
    updates = []
    for i, u in enumerate(action.updates):
        new = replace(u, value=_put_in(u.value, Place("value", i), put))
        if isinstance(new, Where):
            new = replace(new, condition=_put_in(new.condition, Place("condition", i), put))
        updates.append(new)
    return replace(action, requirements=guards, updates=tuple(updates))


def _put_in(term: Term, place: Place, put: Callable[[Place, Term], Term | None]) -> Term:
    inner = term
    if isinstance(term, (Op, Quantified)):
        parts = children(term)
        changed = tuple(_put_in(p, place.inner(i), put) for i, p in enumerate(parts))
        if any(a is not b for a, b in zip(parts, changed)):
            inner = Op(term.name, changed) if isinstance(term, Op) \
                else Quantified(term.every, term.bounds, changed[0])
    new = put(place, inner)
    return inner if new is None else new


def folded(machine: Machine) -> Machine:
    """The machine without what its parts and its design leave no choice of: a case for draft
    groups where there are none."""
    def none_known(variable: Variable, index: tuple[int, ...]) -> int:
        raise NotationError(f"{variable.name} is read at {index}: mutants are of all sizes")

    def fold(place: Place, term: Term) -> Term | None:
        return None if place.path else simplify(term, {}, none_known)

    return with_actions(machine, {n: rewritten(a, fold) for n, a in machine.actions.items()})


def mutants(machine: Machine) -> tuple[Mutant, ...]:
    """All mutants of a folded machine, action by action, in a fixed order."""
    made: list[Mutant] = []
    for action in machine.actions.values():
        seen: dict[str, int] = {}
        for where, kind, what, place, changed in _changes(action):
            text = f"{action.name}: {where}: {what}"
            seen[text] = seen.get(text, 0) + 1
            again = f" ({seen[text]})" if seen[text] > 1 else ""
            made.append(Mutant(text + again, action.name, kind, place, changed))
    return tuple(made)


_ENTERED = frozenset({"and", "or", "not", "implies", "ite"})
"""What is made of conditions and branches."""

_Change = tuple[str, str, str, Place, Term]
"""Where in words, kind, what in words, place, the term that is put there."""


def _changes(action: Action) -> Iterator[_Change]:
    for i, requirement in enumerate(action.requirements):
        where, place = f"'{requirement.name}'", Place("guard", i)
        yield where, "drop", "not required", place, TRUE
        yield from _inside(where, requirement.term, place)
    for i, update in enumerate(action.updates):
        name, value = update.variable.name, Place("value", i)
        if isinstance(update, Assign):
            yield name, "forget", "not changed", value, Read(update.variable, update.index)
        else:
            condition = Place("condition", i)
            yield name, "forget", "not changed", condition, FALSE
            for i, part in enumerate(conjuncts(update.condition)):
                whole = len(conjuncts(update.condition)) == 1
                yield from _inside(f"where {name} changes", part,
                                   condition if whole else condition.inner(i))
        yield from _inside(name, update.value, value)


def _inside(where: str, term: Term, place: Place) -> Iterator[_Change]:
    """The changes of a term, and of the conditions and branches in it.

    The arithmetic that conditions compare is not changed: it is that of the rules, which a
    machine reads in many places, and of which the variants are the mutants.
    """
    for kind, what, changed in _of_node(term):
        yield where, kind, what, place, changed
    if isinstance(term, Quantified) or (isinstance(term, Op) and term.name in _ENTERED):
        for i, part in enumerate(children(term)):
            yield from _inside(where, part, place.inner(i))


def _of_node(term: Term) -> Iterator[tuple[str, str, Term]]:
    if isinstance(term, Quantified):
        word = "some" if term.every else "every"
        changed = Quantified(not term.every, term.bounds, term.body)
        yield "case", f"{word}, not {'every' if term.every else 'some'}: {_quoted(term)}", changed
    if not isinstance(term, Op):
        return
    a, *rest = term.args
    if term.name in ("and", "or"):
        for i, part in enumerate(term.args):
            kept = (*term.args[:i], *term.args[i + 1:])
            yield ("drop" if term.name == "and" else "case"), f"without {_quoted(part)}", \
                kept[0] if len(kept) == 1 else Op(term.name, kept)
    elif term.name in ("lt", "le"):
        other = "le" if term.name == "lt" else "lt"
        yield "bound", f"off by one: {_quoted(term)}", Op(other, term.args)
        yield "order", f"turned round: {_quoted(term)}", Op(term.name, (*rest, a))
    elif term.name in ("min", "max"):
        other = "max" if term.name == "min" else "min"
        yield "order", f"{other}, not {term.name}: {_quoted(term)}", Op(other, term.args)
    elif term.name == "ite":
        yield "order", f"branches exchanged: {_quoted(term)}", Op("ite", (a, rest[1], rest[0]))
    elif term.name in ("add", "sub") and isinstance(rest[-1], Literal):
        yield "bound", f"off by {int(rest[-1].value)}: {_quoted(term)}", a


def _quoted(term: Term) -> str:
    text = show(term)
    return text if len(text) <= _LONGEST else text[:_LONGEST - 3] + "..."
