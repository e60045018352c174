"""The graph of a scope's states and steps by compiled code.

The search of `native` first meets every state; `graph.c` then takes each one's steps once more
and keeps them with their labels, a few million a second and some ten bytes each, and finds the
components of those in which a duty waits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from kvoracle.model.fairness import fair
from kvoracle.model.machine import Action, Machine
from kvoracle.model.scopes import Scope
from kvoracle.model.terms import Term

from .bits import BitLayout
from .c_code import Judged, MachineCode
from .labels import Labels
from .layout import Layout
from .limits import OutOfMemory, default_memory, default_threads
from .native import search_api
from .packed import COMPLETE, ENOUGH, GOES_ON, NONE, SLICE_SECONDS
from .state_graph import Edge, TooManyStates, Verdict
from .toolchain import library

WORD = 64


class _Verdict(ctypes.Structure):
    """``Verdict`` of graph.c."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("waiting", "unjudged", "fair", "rest"))


class GraphCode(MachineCode):
    """The machine for a search with nothing to judge, and for the graph of what it meets."""

    def __init__(self, labels: Labels, scope: Scope, bits: BitLayout) -> None:
        self.labels = labels
        self._labelled = False
        super().__init__(labels.machine, scope, bits, Judged({}, {}, {}))
        self._labelled = True
        self.on_step, self.on_cut = "(void)breaks, edge(k, t)", "leaves(k)"
        code = "\n".join([*self._kinds(), *self._steps(), *self._waits()])
        graph = resources.files(__package__).joinpath("graph.c").read_text("utf-8")
        self.source = self.put_into("search.c") + graph.replace("\nMACHINE\n", f"\n{code}\n")

    def _kinds(self) -> list[str]:
        demand_of = self.labels.demand_of
        kinds = range(len(self.labels.actions))
        of = ", ".join(str(demand_of.get(label, -1)) for label in kinds)
        return [
            f"#define DEMANDS {len(self.labels.demands)}",
            f"#define OWED {len(self.labels.owed)}",
            f"#define LABELS {len(kinds)}",
            f"static const int DEMAND[] = {{{of}}};",
        ]

    def _steps(self) -> list[str]:
        lines = ["STEPS void steps(const uint8_t *restrict s, const word *restrict p, Graph *k)",
                 "{"]
        for action in self.labels.whole.actions.values():
            if action.name in self.machine.actions or fair(action.name) is not None:
                lines += self._action(action)
        return [*lines, "    (void)s, (void)p;", "}"]

    def _step(self, action: Action, names: dict[Term, str]) -> list[str]:
        if not self._labelled:
            return super()._step(action, names)
        at = "0"
        for parameter in self.labels.by(action):
            value = self.printer.expression(parameter, names)
            at = f"({at}) * {self.scope.size(parameter.sort)} + {value}"
        label = f"k->label = {self.labels.first(action.name)} + {at};"
        if action.name not in self.machine.actions:
            return [label, "leaves(k);"]
        return [label, *super()._step(action, names)]

    def _waits(self) -> list[str]:
        lines = ["static void waits(const uint8_t *restrict s, word *out)", "{", "    (void)s;"]
        for i, owed in enumerate(self.labels.owed):
            holds = self._holds(owed.waits.term, (), True, {})
            lines += [f"    /* {owed} */",
                      f"    out[{i // WORD}] |= (word)!!{holds} << {i % WORD};"]
        return [*lines, "    (void)out;", "}"]


def _graph_api(made: ctypes.CDLL) -> Any:
    """The functions of search.c and graph.c with their types."""
    api = search_api(made)
    graph = ctypes.c_void_p
    long, short = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
    for name, result, arguments in (
        ("", graph, [graph]),
        ("_close", None, [graph]),
        ("_steps", ctypes.c_uint64, [graph]),
        ("_first", long, [graph]),
        ("_target", short, [graph]),
        ("_label", ctypes.POINTER(ctypes.c_uint16), [graph]),
        ("_enabled", long, [graph]),
        ("_inside", long, [graph]),
        ("_component", short, [graph]),
        ("_judge", None, [graph, ctypes.c_uint32, ctypes.c_char_p, ctypes.POINTER(_Verdict)]),
    ):
        function = getattr(api, f"kv_graph{name}")
        function.restype, function.argtypes = result, arguments
    return api


class NativeGraph:
    """A scope's graph in the memory of compiled code; freed with the object.

    Raises `NoCompiler`, `OutOfMemory`, `TooManyStates`.
    """

    name = "compiled"

    def __init__(self, labels: Labels, scope: Scope, max_states: int | None = None) -> None:
        self._search = self._graph = None
        self.labels = labels
        machine: Machine = labels.machine
        self._bits = BitLayout(Layout(machine, scope))
        self._c = _graph_api(library(GraphCode(labels, scope, self._bits).source))
        self._search = self._c.kv_open(
            default_memory(), default_threads(), 0, 0, 0, 0, (max_states or 0) and max_states + 1,
            self._bits.pack(self._bits.layout.initial))
        status = GOES_ON
        while self._search and status == GOES_ON:
            status = self._c.kv_run(self._search, SLICE_SECONDS)
        if status == ENOUGH:
            raise TooManyStates(f"scope {scope.name} has more than {max_states:,} states")
        counts = self._c.kv_now(self._search).contents if self._search else None
        needed = self._bytes(counts.distinct, counts.generated) if counts else 0
        if status == COMPLETE and needed < default_memory():
            self._graph = self._c.kv_graph(self._search)
        if not self._graph:
            size = f", {needed / 2**20:,.1f} MiB," if status == COMPLETE else ""
            raise OutOfMemory(
                f"the states and steps of scope {scope.name}{size} do not fit into memory")
        self.states: int = self._c.kv_now(self._search).contents.distinct
        self.steps: int = self._c.kv_graph_steps(self._graph)
        self._first = self._c.kv_graph_first(self._graph)
        self._target = self._c.kv_graph_target(self._graph)
        self._label = self._c.kv_graph_label(self._graph)
        self._parents = ctypes.cast(
            self._c.kv_parents(self._search), ctypes.POINTER(ctypes.c_uint32))
        self._words = max(1, -(-len(labels.demands) // WORD))

    def _bytes(self, states: int, steps: int) -> int:
        """What the graph takes beside the search: see ``Graph`` of graph.c."""
        bits = 2 * max(1, -(-len(self.labels.demands) // WORD)) \
            + max(1, -(-len(self.labels.owed) // WORD))
        return states * (8 * bits + 2 * 8 + 5 * 4) + steps * (4 + 2) * 2

    def __del__(self) -> None:
        if self._graph:
            self._c.kv_graph_close(self._graph)
        if self._search:
            self._c.kv_close(self._search)

    def edges(self, state: int) -> Iterable[Edge]:
        """The steps out of a state."""
        for e in range(self._first[state], self._first[state + 1]):
            yield self._label[e], self._target[e]

    def enabled(self, state: int) -> int:
        """The demands that can be taken, within the scope or out of it."""
        return self._demands(self._c.kv_graph_enabled(self._graph), state)

    def inside(self, state: int) -> int:
        """The demands that can be taken within the scope."""
        return self._demands(self._c.kv_graph_inside(self._graph), state)

    def _demands(self, words: Mapping[int, int], state: int) -> int:
        at = state * self._words
        return sum(words[at + i] << WORD * i for i in range(self._words))

    def packed(self, state: int) -> bytes:
        """The state, a byte a cell."""
        size = 8 * self._bits.words
        address = self._c.kv_states(self._search) + state * size
        return self._bits.unpack(ctypes.string_at(address, size))

    def parent(self, state: int) -> int:
        """The state from which a state was met first."""
        return int(self._parents[state])

    def judge(self, owed: int) -> Verdict:
        """Whether a fair run waits for ever."""
        ending = self.labels.ending(self.labels.owed[owed].duty)
        steps = bytes(i in ending for i in range(len(self.labels.actions)))
        found = _Verdict()
        self._c.kv_graph_judge(self._graph, owed, steps, ctypes.byref(found))
        if found.fair == NONE:
            return Verdict(found.waiting, found.unjudged)
        component = self._c.kv_graph_component(self._graph)
        mine = component[found.fair]
        members = frozenset(i for i in range(self.states) if component[i] == mine)
        rest = None if found.rest == NONE else found.rest
        return Verdict(found.waiting, found.unjudged, found.fair, members, rest)
