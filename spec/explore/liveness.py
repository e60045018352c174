"""Is there a fair run on which something waits for ever?  If so: these steps, then those again
and again.

Sound on cycles: a run that repeats its steps for ever is found as well as one that ends (each
run may stand still where nothing is demanded of it).  Symmetry is not used: fairness tells
apart what a renaming would make one.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope

from ..properties import LIVENESS, Liveness
from ..variants import Variant
from .breadth_first import MachineStep
from .compiled import CompiledBackend
from .labels import Labels
from .state_graph import PythonGraph, StateGraph, TooManyStates, Verdict
from .toolchain import NoCompiler

Path = list[tuple[int, int, int]]
"""Steps: a state, the label, the state after it."""

ANY = -1
"""Stands for the label of whichever step leads there."""


@dataclass(frozen=True)
class Lasso:
    """A fair run on which a duty waits for ever: ``stem``, then ``cycle`` again and again (empty:
    nothing more happens).  No shorter run leads to where such a cycle begins, or, if the cycle
    is empty and that makes the whole shorter, to where nothing more need happen."""

    property: str
    waits: str
    stem: tuple[MachineStep, ...]
    cycle: tuple[MachineStep, ...]


@dataclass
class Judgement:
    """A duty, at all choices of its parameters: in how many states one of them waits, and from
    how many of these a fair run that waits on leaves the scope, so that its end is not known."""

    waiting: int = 0
    unjudged: int = 0


@dataclass
class Lasting:
    """What a scope says of the promises about the future.

    ``judged``: by promise, then by duty.  ``stopped`` says why nothing could be said ("": all
    could be)."""

    scope: str
    variant: str | None
    backend: str = ""
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    stopped: str = ""
    judged: dict[str, dict[str, Judgement]] = field(default_factory=dict)
    violations: dict[str, Lasso] = field(default_factory=dict)


def lasting(scope: Scope, variant: Variant | None = None, backend: str | None = None, *,
            properties: Iterable[Liveness] | None = None,
            max_states: int | None = None) -> Lasting:
    """Judge the promises about the future in a scope.

    ``backend``: "compiled", "python", or the first of them that this machine can run.
    """
    started = time.perf_counter()
    result = Lasting(scope.name, variant.name if variant else None)
    machine = variant.machine(scope) if variant else scope.machine()
    labels = Labels(machine, _whole(scope, variant), scope,
                    LIVENESS.values() if properties is None else properties)
    if labels.owed:
        try:
            graph = _graph(labels, scope, backend, max_states)
        except TooManyStates as error:
            result.stopped = str(error)
        else:
            _judge(result, graph, labels)
    result.seconds = time.perf_counter() - started
    return result


def _whole(scope: Scope, variant: Variant | None) -> Machine:
    """The scope's machine with what the scope leaves out."""
    if variant is None:
        return Machine(scope.parts, scope.machine().design)
    return Machine(scope.parts, variant.design, variant.overrides)


def _graph(labels: Labels, scope: Scope, backend: str | None,
           max_states: int | None) -> StateGraph:
    if backend in (None, "compiled"):
        from .native_graph import NativeGraph

        try:
            return NativeGraph(labels, scope, max_states)
        except NoCompiler:
            if backend is not None:
                raise
    return PythonGraph(labels, scope, max_states)


def _judge(result: Lasting, graph: StateGraph, labels: Labels) -> None:
    result.backend, result.states, result.steps = graph.name, graph.states, graph.steps
    worst: dict[str, tuple[int, int, Verdict]] = {}
    for i, owed in enumerate(labels.owed):
        found = graph.judge(i)
        sum_of = result.judged.setdefault(owed.property, {}).setdefault(
            owed.duty.name, Judgement())
        sum_of.waiting += found.waiting
        sum_of.unjudged += found.unjudged
        if found.fair is not None:
            known = worst.get(owed.property)
            if known is None or found.fair < known[0]:
                worst[owed.property] = (found.fair, i, found)
    for name, (first, i, found) in worst.items():
        stem, cycle = _stem(graph, first), _cycle(graph, labels, first, i, found.component)
        if found.rest is not None:
            end = _stem(graph, found.rest)
            if len(end) <= len(stem) + len(cycle):
                stem, cycle = end, []
        result.violations[name] = Lasso(
            name, str(labels.owed[i]), _steps(graph, labels, stem), _steps(graph, labels, cycle))


def _stem(graph: StateGraph, state: int) -> Path:
    numbers = [state]
    while numbers[-1]:
        numbers.append(graph.parent(numbers[-1]))
    numbers.reverse()
    return [(a, ANY, b) for a, b in itertools.pairwise(numbers)]


def _cycle(graph: StateGraph, labels: Labels, start: int, owed: int,
           component: frozenset[int]) -> Path:
    """A way round from ``start`` that meets every demand, each time to the nearest place that
    meets one more."""
    ending = labels.ending(labels.owed[owed].duty)
    missing = labels.all_demands & graph.enabled(start)
    path: Path = []

    def met(label: int, to: int) -> int:
        """The demands that a step meets, or the state behind it."""
        demand = labels.demand_of.get(label)
        return ~graph.enabled(to) | (1 << demand if demand is not None else 0)

    def nearest(at: int, ends: Callable[[int, int], bool]) -> Path:
        """A shortest way whose last step meets the condition; there is one."""
        came: dict[int, tuple[int, int]] = {}
        queue = deque([at])
        while True:
            state = queue.popleft()
            for label, to in graph.edges(state):
                if to not in component or label in ending:
                    continue
                if ends(label, to):
                    way: Path = [(state, label, to)]
                    while way[-1][0] != at:
                        before, by = came[way[-1][0]]
                        way.append((before, by, way[-1][0]))
                    return way[::-1]
                if to != at and to not in came:
                    came[to] = (state, label)
                    queue.append(to)

    def meets_one_of(demands: int) -> Callable[[int, int], bool]:
        return lambda label, to: bool(demands & met(label, to))

    at = start
    while missing:
        for step in nearest(at, meets_one_of(missing)):
            path.append(step)
            missing &= ~met(step[1], step[2])
        at = path[-1][2]
    return path if at == start else path + nearest(at, lambda label, to: to == start)


def _steps(graph: StateGraph, labels: Labels, path: Path) -> tuple[MachineStep, ...]:
    """The machine's steps along the edges of a path; of alike ones the first."""
    python = CompiledBackend(labels.machine, labels.scope)
    run = []
    for before, label, after in path:
        wanted = graph.packed(after)
        action, values, state = next(
            s for s in python.successors(graph.packed(before))[0]
            if s[2] == wanted and label in (ANY, labels.of(s[0], s[1])))
        names = (p.name for p in labels.machine.actions[action].parameters)
        run.append(MachineStep(action, dict(zip(names, values)), state))
    return tuple(run)
