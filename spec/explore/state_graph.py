"""A scope's states and steps as a graph: what is asked about runs that go on for ever.

States are numbered as a breadth-first search meets them, so of two states the one with the
lower number is reached by no longer run.  `PythonGraph` is the plain reading, any backend's
steps kept in lists; `native_graph` makes the same graph by compiled code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvoracle.model.scopes import Scope

from .breadth_first import Check
from .compiled import CompiledBackend
from .labels import Labels

Edge = tuple[int, int]
"""A step's label, and the number of the state after it."""


@dataclass(frozen=True)
class Verdict:
    """What a duty comes to in a scope.

    ``waiting``: states in which it waits.  ``fair``: the first state from which a fair run waits
    for ever (None: there is none), ``component`` the states that such a run goes round;
    ``rest``: the first in which nothing more need happen.  ``unjudged``: states in which a fair
    run that still waits must leave the scope, so that what comes of it is not known.
    """

    waiting: int
    unjudged: int
    fair: int | None = None
    component: frozenset[int] = frozenset()
    rest: int | None = None


class StateGraph(Protocol):
    """States, labelled steps, and which demands are enabled where.

    A demand is ``enabled`` also where taking it would leave the scope; ``inside`` are those with
    a step within it.  Both are sets as bits.
    """

    name: str
    states: int
    steps: int

    def edges(self, state: int) -> Iterable[Edge]: ...

    def enabled(self, state: int) -> int: ...

    def inside(self, state: int) -> int: ...

    def packed(self, state: int) -> bytes: ...

    def parent(self, state: int) -> int: ...

    def judge(self, owed: int) -> Verdict: ...


class TooManyStates(Exception):
    """The scope has more states than the limit: nothing can be said of runs without end."""


class PythonGraph:
    """The graph by the steps that a backend gives, in lists."""

    name = "python"

    def __init__(self, labels: Labels, scope: Scope, max_states: int | None = None) -> None:
        self.labels = labels
        backend = CompiledBackend(labels.machine, scope)
        asked = CompiledBackend(labels.whole, scope)
        demanded: Sequence[Check] = [asked.check(d.enabled, every=True) for d in labels.demands]
        waits: Sequence[Check] = [backend.check(o.waits, every=True) for o in labels.owed]
        numbers = {backend.initial: 0}
        self._packed, self._parent = [backend.initial], [0]
        self._edges: list[list[Edge]] = []
        self._enabled: list[int] = []
        self._waiting: list[list[bool]] = []
        while len(self._edges) < len(self._packed):
            at = len(self._edges)
            state = self._packed[at]
            edges = []
            for action, values, after in backend.successors(state)[0]:
                number = numbers.setdefault(after, len(numbers))
                if number == len(self._packed):
                    self._packed.append(after)
                    self._parent.append(at)
                edges.append((labels.of(action, values), number))
            self._edges.append(edges)
            self._enabled.append(sum(d(state, None) << i for i, d in enumerate(demanded)))
            self._waiting.append([w(state, None) for w in waits])
            if max_states is not None and len(self._packed) > max_states:
                raise TooManyStates(f"scope {scope.name} has more than {max_states:,} states")
        self.states, self.steps = len(self._packed), sum(map(len, self._edges))

    def edges(self, state: int) -> Iterable[Edge]:
        """The steps out of a state."""
        return self._edges[state]

    def enabled(self, state: int) -> int:
        """The demands that can be taken, within the scope or out of it."""
        return self._enabled[state]

    def inside(self, state: int) -> int:
        """The demands that can be taken within the scope."""
        demand_of = self.labels.demand_of
        found = 0
        for label, _ in self._edges[state]:
            found |= 1 << demand_of[label] if label in demand_of else 0
        return found

    def packed(self, state: int) -> bytes:
        """The state, a byte a cell."""
        return self._packed[state]

    def parent(self, state: int) -> int:
        """The state from which a state was met first."""
        return self._parent[state]

    def judge(self, owed: int) -> Verdict:
        """Whether a fair run waits for ever."""
        ending = self.labels.ending(self.labels.owed[owed].duty)
        waiting = [w[owed] for w in self._waiting]
        steps = [
            [(label, to) for label, to in self._edges[i] if waiting[to] and label not in ending]
            if waiting[i] else [] for i in range(self.states)
        ]
        inside = [self.inside(i) for i in range(self.states)]
        return judged(waiting, steps, self._enabled, inside, self.labels.demand_of,
                      self.labels.all_demands)


def judged(waiting: Sequence[bool], steps: Sequence[Sequence[Edge]], enabled: Sequence[int],
           inside: Sequence[int], demand_of: Mapping[int, int], everything: int) -> Verdict:
    """The verdict on a duty that waits in some states, given the steps between these, the
    demands enabled in each state (as bits; ``inside``: within the scope), the demand that a step
    of each label meets, and all demands.

    A run may always stand still.  So a strongly connected component harbours a fair run if each
    demand is disabled in one of its states or taken by one of its steps: the run that goes round
    through all of it is fair.  If some demand is always enabled and never taken in it, the same
    is true of each part of it, and no run that stays in it is fair.
    """
    fair: int | None = None
    members: frozenset[int] = frozenset()
    unjudged = 0
    for component in components(waiting, steps):
        met = met_outside = 0
        for i in component:
            met |= ~enabled[i]
            met_outside |= ~inside[i]
            for label, to in steps[i]:
                if to in component and label in demand_of:
                    met |= 1 << demand_of[label]
        if met & everything == everything:
            if fair is None or min(component) < fair:
                fair, members = min(component), component
        elif (met | met_outside) & everything == everything:
            unjudged += len(component)
    rest = next((i for i, w in enumerate(waiting) if w and not enabled[i]), None)
    return Verdict(sum(waiting), unjudged, fair, members, rest)


def components(waiting: Sequence[bool],
               steps: Sequence[Sequence[Edge]]) -> Iterable[frozenset[int]]:
    """The strongly connected components of the states that wait (Tarjan's algorithm, without
    recursion)."""
    found: dict[int, int] = {}
    low: dict[int, int] = {}
    closed: set[int] = set()
    stack: list[int] = []
    for root in range(len(steps)):
        if not waiting[root] or root in found:
            continue
        path = [(root, iter(steps[root]))]
        found[root] = low[root] = len(found)
        stack.append(root)
        while path:
            state, rest = path[-1]
            for _, to in rest:
                if to not in found:
                    found[to] = low[to] = len(found)
                    stack.append(to)
                    path.append((to, iter(steps[to])))
                    break
                if to not in closed:
                    low[state] = min(low[state], found[to])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[state])
                if low[state] == found[state]:
                    component = [stack.pop()]
                    while component[-1] != state:
                        component.append(stack.pop())
                    closed.update(component)
                    yield frozenset(component)
