"""Breadth-first search of a scope: every reachable state, the shortest run to a violation.

The search is the same for every reading; a `Backend` gives the successors of a
packed state and the value of predicates.  The order is fixed, so two searches of one
scope give the same counts and the same counterexample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from kvoracle.model.machine import Machine, Predicate, invariant
from kvoracle.model.scopes import Scope
from kvoracle.model.terms import Literal, Quantified, conjunction

from ..properties import PROPERTIES, Property
from .layout import Layout

Successor = tuple[str, tuple[int, ...], bytes]
"""An action's name, the values of its parameters, the state after it."""


Check = Callable[[bytes, bytes | None], bool]
"""A predicate's verdict on a state (a step: on two)."""


class Backend(Protocol):
    """A reading of a machine in a scope, over packed states."""

    name: str
    initial: bytes
    layout: Layout

    def successors(self, state: bytes) -> tuple[list[Successor], int]: ...

    def check(self, predicate: Predicate, every: bool) -> Check: ...


@dataclass(frozen=True)
class MachineStep:
    """One step of a run of the machine."""

    action: str
    values: dict[str, int]
    state: bytes


@dataclass(frozen=True)
class Violation:
    """A property broken at the end of a shortest run; ``also`` names others broken there."""

    property: str
    also: tuple[str, ...]
    run: tuple[MachineStep, ...]


@dataclass
class Exploration:
    """What a search saw.  Counts do not depend on the backend.

    ``stopped`` names the limit that was reached: "max_states" or "memory" ("": none).
    ``memory`` is what the states take, in bytes, where that is known.
    """

    scope: str
    variant: str | None
    backend: str
    distinct: int = 0
    generated: int = 0
    cut: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    stopped: str = ""
    evaluated: dict[str, int] = field(default_factory=dict)
    witnesses: dict[str, dict[str, int | None]] = field(default_factory=dict)
    violations: dict[str, Violation] = field(default_factory=dict)
    memory: int = field(default=0, repr=False, compare=False)

    @property
    def violation(self) -> Violation | None:
        """The first violation found: no run to any is shorter."""
        return next(iter(self.violations.values()), None)


Progress = Callable[[Exploration, int], None]
PROGRESS_SECONDS = 1.0


def instances(predicate: Predicate, scope: Scope) -> int:
    """How many choices of its parameters the predicate has in the scope."""
    count = 1
    for parameter in predicate.parameters:
        count *= scope.size(parameter.sort)
    return count


def explore(
    backend: Backend,
    machine: Machine,
    scope: Scope,
    *,
    variant: str | None = None,
    properties: Iterable[Property] | None = None,
    max_states: int | None = None,
    find_all: bool = False,
    progress: Progress | None = None,
) -> Exploration:
    """Search ``scope`` breadth first and check the properties in every state and step.

    Stops at the first state or step that breaks one, or with ``find_all`` when a shortest run
    to each that can be broken is found, or after ``max_states`` distinct states;
    `Exploration.complete` says whether everything was seen.
    ``progress`` is called about once a second with the counts and the frontier's size.
    """
    chosen = [p for p in (properties or PROPERTIES.values()) if p.applies(machine)]
    over_states: list[tuple[str, Check]] = []
    over_steps: dict[str, list[tuple[str, Check]]] = {a: [] for a in machine.actions}
    weights: dict[str, int] = {}
    together = []
    for p in chosen:
        if not p.is_step:
            predicate = p.over_states(machine)
            weights[p.name] = instances(predicate, scope)
            over_states.append((p.name, backend.check(predicate, every=True)))
            together.append(Quantified(True, predicate.parameters, predicate.term))
            continue
        traced = {a: p.over_steps(machine, a) for a in machine.actions}
        weights[p.name] = max(instances(predicate, scope) for predicate in traced.values())
        for action, predicate in traced.items():
            if not isinstance(predicate.term, Literal) or not predicate.term.value:
                over_steps[action].append((p.name, backend.check(predicate, every=True)))
    holds_all = backend.check(Predicate("all", (), conjunction(together)), every=True)
    pending = {
        (p.name, w.name): backend.check(invariant(machine, w.name, w.function), every=False)
        for p in chosen for w in p.witnesses
        if set(w.parts) <= {part.name for part in machine.parts}
    }
    result = Exploration(scope.name, variant, backend.name)
    result.evaluated = {p.name: 0 for p in chosen}
    for name, witness in pending:
        result.witnesses.setdefault(name, {})[witness] = None
    started = last = time.perf_counter()
    parents: dict[bytes, tuple[bytes, str, tuple[int, ...]] | None] = {backend.initial: None}

    def visit(state: bytes) -> tuple[str, ...]:
        for key in [k for k, happens in pending.items() if happens(state, None)]:
            result.witnesses[key[0]][key[1]] = result.depth
            del pending[key]
        if holds_all(state, None):
            return ()
        return tuple(name for name, holds in over_states if not holds(state, None))

    def done() -> Exploration:
        result.distinct, result.seconds = len(parents), time.perf_counter() - started
        for p in chosen:
            result.evaluated[p.name] = weights[p.name] * (steps if p.is_step else len(parents))
        return result

    def record(broken: tuple[str, ...], before: bytes, last: Successor | None) -> bool:
        """Keep the runs of what is broken for the first time; whether to stop."""
        order = [p.name for p in chosen if p.name in broken]
        for name in order:
            if name not in result.violations:
                run = _run_to(machine, parents, before)
                run += (_step(machine, *last),) if last is not None else ()
                others = tuple(n for n in order if n != name)
                result.violations[name] = Violation(name, others, run)
        return not find_all or len(result.violations) == len(chosen)

    steps = 0
    broken = visit(backend.initial)
    if broken and record(broken, backend.initial, None):
        return done()
    frontier = [backend.initial]
    while frontier:
        result.depth += 1
        following: list[bytes] = []
        for state in frontier:
            successors, cut = backend.successors(state)
            result.generated += len(successors)
            result.cut += cut
            for successor in successors:
                action, values, after = successor
                steps += 1
                broken = ()
                if after not in parents:
                    parents[after] = (state, action, values)
                    following.append(after)
                    broken = visit(after)
                for name, holds in over_steps[action]:
                    if not holds(state, after):
                        broken += (name,)
                if broken and record(broken, state, successor):
                    return done()
            if max_states is not None and len(parents) >= max_states:
                result.stopped = "max_states"
                return done()
            now = time.perf_counter()
            if progress is not None and now - last >= PROGRESS_SECONDS:
                last = now
                result.distinct, result.seconds = len(parents), now - started
                progress(result, len(following))
        frontier = following
    result.depth -= 1
    result.complete = True
    return done()


def _step(machine: Machine, action: str, values: tuple[int, ...], state: bytes) -> MachineStep:
    names = (p.name for p in machine.actions[action].parameters)
    return MachineStep(action, dict(zip(names, values)), state)


def _run_to(machine: Machine,
            parents: dict[bytes, tuple[bytes, str, tuple[int, ...]] | None],
            state: bytes) -> tuple[MachineStep, ...]:
    run: list[MachineStep] = []
    while True:
        parent = parents[state]
        if parent is None:
            return tuple(reversed(run))
        before, action, values = parent
        run.append(_step(machine, action, values, state))
        state = before
