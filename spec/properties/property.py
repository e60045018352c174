"""What a property is: a named statement with its reasons, its source and its witnesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvoracle.model.machine import Machine, Predicate, invariant, step


@dataclass(frozen=True)
class Witness:
    """A situation that a property is about, to be seen at least once: else it holds vacuously."""

    name: str
    function: Callable[..., Any]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """Where a property is broken: what its sentence may quote.

    ``get(variable, *index)`` reads the state (``before`` the one before, for steps); ``where``
    holds the values of the property's parameters; ``request`` is how the request is called.
    ``group`` is " in group 1", or "" where there is only one; ``parts`` names the parts of a
    machine with more than planning.
    """

    get: Callable[..., int]
    where: Mapping[str, int]
    request: str
    group: str
    before: Callable[..., int] | None = None
    parts: tuple[str, ...] = ()

    def has(self, part: str) -> bool:
        """Whether the machine has the part."""
        return part in self.parts

    def of(self, variable: str) -> int:
        """A variable's value for the request, and for the group if it has one."""
        r, g = self.where["r"], self.where.get("g")
        return self.get(variable, r) if g is None else self.get(variable, r, g)

    def of_request(self, variable: str) -> int:
        """A variable's value for the request alone."""
        return self.get(variable, self.where["r"])

    def constant(self, name: str) -> int:
        """A constant's value for the group."""
        return self.get(name, self.where["g"])


@dataclass(frozen=True)
class Property:
    """A safety property over one state, or (``is_step``) over a state and the next.

    ``function`` takes a state view (for a step: two views and the action's name) and
    parameters annotated with sorts; ``because`` completes the sentence "it is broken because"
    where it is false.  ``lemma`` marks a strengthening invariant: part of the
    design's explanation, proved and searched like the others, but no user-facing promise.
    ``parts`` names parts of the machine without which the property says nothing.  A
    ``derived`` one follows in any state from the others, and helps to prove none of them.
    ``supports`` names the promise that a lemma is there for.  Breaking a ``fatal`` one stops an
    engine that checks itself; breaking another goes unnoticed by it.  Those of one ``family``
    carry each other's proofs, so none of them is proved without the others.
    """

    name: str
    statement: str
    why: str
    source: str
    function: Callable[..., Any]
    because: Callable[[Seen], str]
    is_step: bool = False
    lemma: bool = False
    witnesses: tuple[Witness, ...] = ()
    bugs: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    derived: bool = False
    supports: str = ""
    fatal: bool = False
    family: str = ""

    def applies(self, machine: Machine) -> bool:
        """Whether the machine has the parts that the property speaks of."""
        return set(self.parts) <= {p.name for p in machine.parts}

    def over_states(self, machine: Machine) -> Predicate:
        """The property as a predicate over one state."""
        return invariant(machine, self.name, self.function)

    def over_steps(self, machine: Machine, action: str) -> Predicate:
        """The property as a predicate over a step by ``action``."""
        return step(machine, self.name, self.function, action)
