"""What an outside checker's answer is worth: its counts, and its run replayed on the machine.

A run that another tool reports is taken step by step through the plain reading.  A step
that the machine cannot take is no counterexample but a disagreement of two readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope

from ..explore import MachineStep
from ..explore.reference import ReferenceBackend


class ToolMissing(Exception):
    """A program that is needed is not here; the message says how to get it."""


class ToolFailed(Exception):
    """A program that was run did not do what was asked of it."""


class Disagreement(Exception):
    """Another checker saw a step that the machine cannot take, or a state it never has."""


State = Mapping[tuple[str, tuple[int, ...]], int]
"""A state as another tool shows it: values by variable and index."""


@dataclass(frozen=True)
class Seen:
    """One step of a run reported by another tool; its action where the tool says it."""

    action: str | None
    state: State


@dataclass(frozen=True)
class Verdict:
    """What another checker found: counts as ours, and the first property it saw broken, if any.

    ``generated`` counts all successors; ``depth`` the steps to the farthest state (None where
    the tool does not say).  ``complete``: it has seen every state.
    """

    checker: str
    distinct: int
    generated: int
    depth: int | None
    complete: bool
    seconds: float
    broken: str | None = None
    run: tuple[MachineStep, ...] = ()
    state_bytes: int | None = None


def replayed(machine: Machine, scope: Scope, checker: str,
             states: Iterable[Seen]) -> tuple[MachineStep, ...]:
    """The reported states, the initial one first, as steps of the machine."""
    reading = ReferenceBackend(machine, scope)
    layout = reading.layout
    run: list[MachineStep] = []
    before: bytes | None = None
    for number, seen in enumerate(states):
        packed = bytearray(layout.cells)
        for variable in machine.state:
            for index in layout.indices(variable.domain):
                cell = layout.cell(variable, index)
                key = (variable.name, index)
                if cell is None or key not in seen.state:
                    raise Disagreement(f"{checker}'s state {number} has no {variable.name}"
                                       f"[{', '.join(map(str, index))}]")
                packed[cell] = seen.state[key]
        after = bytes(packed)
        if before is None:
            if after != reading.initial:
                raise Disagreement(f"{checker} starts in a state that is not the initial one")
        else:
            run.append(_step(reading, machine, checker, number, seen.action, before, after))
        before = after
    return tuple(run)


def _step(reading: ReferenceBackend, machine: Machine, checker: str, number: int,
          action: str | None, before: bytes, after: bytes) -> MachineStep:
    for name, values, reached in reading.successors(before)[0]:
        if reached == after and action in (None, name):
            parameters = (p.name for p in machine.actions[name].parameters)
            return MachineStep(name, dict(zip(parameters, values)), after)
    raise Disagreement(
        f"{checker}'s step {number}{f', {action},' if action else ''} is no step of the machine")
