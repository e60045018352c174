"""Does Apalache, a symbolic checker of TLA+, find a run that breaks a property?

The server (``apalache-mc server --server-type=explorer``) is the user's, the client the package
``apalache-rpc-client``.  A symbolic run is a sequence of actions, chosen at random from a seed
among those that can happen, with every parameter and state left open: Apalache says after
each step whether some choice of them breaks a property, and then which (a trace in its format
ITF).  Nothing found is no proof: our own search sees everything, and Apalache, which shares no
code with it, sees the same machine along these runs.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope
from kvoracle.model.terms import Sort, Variable

from ..explore import MachineStep
from ..explore.reference import ReferenceBackend
from ..properties import Property
from ..variants import Variant
from .external import Disagreement, Seen, ToolFailed, ToolMissing, replayed
from .prepared import Prepared, Step
from .tla import Module
from .writer import Block, hang

PORT = 8822
RUNS, STEPS = 10, 12
"""How many symbolic runs are tried, and how long they are at most."""


class Client(Protocol):
    """What is used of ``apalache_rpc.client.JsonRpcClient``."""

    def load_spec(self, sources: list[str], init: str, next: str, invariants: list[str],
                  view: str | None) -> Any: ...

    def assume_transition(self, transition_id: int, check_enabled: bool = True) -> Any: ...

    def next_step(self) -> Any: ...

    def check_invariants(self, nstate: int, naction: int) -> Any: ...

    def rollback(self, snapshot_id: int) -> Any: ...

    def dispose_spec(self) -> None: ...


@dataclass(frozen=True)
class Answer:
    """What Apalache found along so many symbolic runs, with so many states in all.

    ``unknown``: how often its solver did not know."""

    runs: int
    states: int
    seconds: float
    unknown: int
    broken: str | None = None
    run: tuple[MachineStep, ...] = ()


class TypedModule(Module):
    """The module as Apalache wants it: sets defined, variables with types, and properties over
    steps as formulas over two states."""

    def _declarations(self) -> Block:
        lines = super()._declarations()
        numbers = [s for s in self.sorts if not s.names]
        start = next((i for i, line in enumerate(lines) if line.startswith("CONSTANTS")), None)
        if start is not None:
            lines[start:start + 1] = [
                f"{self.set_of(s)} == 0..{self.scope.size(s) - 1}" for s in numbers]
        typed: Block = []
        within = False
        names = {self.names[v.name]: v for v in self.machine.state}
        for line in lines:
            within = line == "VARIABLES" or (within and line.startswith("    "))
            variable = names.get(line.strip().rstrip(",")) if within else None
            if variable is not None:
                typed.append(f"    \\* @type: {_type(variable)};")
            typed.append(line)
        return typed

    def _next(self) -> Block:
        return super()._next()[:-2]  # without Spec, which is temporal

    def _over_steps(self, step: Step) -> Block:
        return hang("    ", self.step_formula(step))


def _type(variable: Variable) -> str:
    value = _kind(variable.sort)
    if not variable.domain:
        return value
    index = [_kind(s) for s in variable.domain]
    return f"{index[0] if len(index) == 1 else '<<' + ', '.join(index) + '>>'} -> {value}"


def _kind(sort: Sort) -> str:
    return "Bool" if sort.is_bool else "Str" if sort.names else "Int"


def connect(server: str) -> Client:
    """A client of the server ``HOST:PORT``; raises `ToolMissing`."""
    try:
        from apalache_rpc.client import JsonRpcClient
    except ImportError:
        raise ToolMissing("the backend apalache needs its client: pip install "
                          "apalache-rpc-client") from None
    host, _, port = server.partition(":")
    if port and not port.isdigit():
        raise ToolMissing(f"no server {server!r}: --server takes HOST or HOST:PORT")
    client: Client = JsonRpcClient(hostname=host, port=int(port or PORT))
    return client


def check(scope: Scope, variant: Variant | None, client: Client, *,
          properties: Iterable[Property] | None = None, runs: int | None = None,
          steps: int = STEPS, seed: int = 0) -> Answer:
    """Try symbolic runs, `RUNS` unless said, until one can break a property.

    Raises `ToolMissing`, `ToolFailed`, and `Disagreement` where what Apalache found is no run
    of the machine, or breaks nothing.
    """
    module = TypedModule(Prepared(scope, variant, properties, fold_constants=False))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kvoracle-apalache-") as folder:
        path = Path(folder) / f"{module.name}.tla"
        path.write_text(module.text(), encoding="utf-8")
        names = list(module.property_names.values())
        loaded = client.load_spec([str(path)], "Init", "Next", names, None)
    if loaded is None:
        raise ToolFailed("Apalache does not load the module, or no server answers (start it with "
                         "apalache-mc server --server-type=explorer)")
    runs = RUNS if runs is None else runs
    taken = unknown = 0
    chance = random.Random(seed)
    try:
        for _ in range(runs):
            client.rollback(loaded["snapshot_id"])
            transitions = range(len(loaded["init"]))
            for _ in range(steps + 1):
                said = _any_enabled(client, transitions, chance)
                if said is None:
                    break
                unknown += said == "TransitionUnknown"
                client.next_step()
                found = client.check_invariants(len(loaded["state"]), len(loaded["action"]))
                taken += 1
                transitions = range(len(loaded["next"]))
                unknown += _name(found) == "InvariantUnknown"
                if _name(found) == "InvariantViolated":
                    broken, run = _broken(module, scope, found.trace)
                    return Answer(runs, taken, time.perf_counter() - started, unknown, broken, run)
    except (ToolFailed, Disagreement):
        raise
    except Exception as error:
        # The client's own errors derive from nothing narrower.
        raise ToolFailed(f"Apalache stopped: {error}") from None
    finally:
        client.dispose_spec()
    return Answer(runs, taken, time.perf_counter() - started, unknown)


def _name(answer: object) -> str:
    return type(answer).__name__


def _any_enabled(client: Client, transitions: range, chance: random.Random) -> str | None:
    """Assume one of the transitions that can happen, in random order; how sure that is."""
    for transition in chance.sample(transitions, len(transitions)):
        said = client.assume_transition(transition)
        if _name(said) != "TransitionDisabled":
            return _name(said)
    return None


# --- traces ------------------------------------------------------------------------------


def _broken(module: Module, scope: Scope,
            trace: Any) -> tuple[str, tuple[MachineStep, ...]]:
    """The trace as a run of the machine, and the property that its last step breaks."""
    states = trace["states"] if isinstance(trace, Mapping) else trace
    run = replayed(module.machine, scope, "Apalache",
                   [Seen(None, state_of(module, s)) for s in states])
    name = _broken_at_end(module.prepared, module.machine, scope, run)
    if name is None:
        raise Disagreement(f"Apalache's run of {len(run)} steps breaks no property")
    return name, run


def _broken_at_end(prepared: Prepared, machine: Machine, scope: Scope,
                   run: Sequence[MachineStep]) -> str | None:
    reading = ReferenceBackend(machine, scope)
    states = [reading.initial, *(s.state for s in run)]
    for wanted, _ in prepared.invariants:
        if not reading.check(wanted.over_states(machine), every=True)(states[-1], None):
            return wanted.name
    for step in prepared.steps if run else ():
        predicate = step.property.over_steps(machine, run[-1].action)
        if not reading.check(predicate, every=True)(states[-2], states[-1]):
            return step.property.name
    return None


def state_of(module: Module, shown: Mapping[str, Any]) -> dict[tuple[str, tuple[int, ...]], int]:
    """One state of an ITF trace, as values by variable and index; raises `ToolFailed`."""
    state: dict[tuple[str, tuple[int, ...]], int] = {}
    for variable in module.machine.state:
        name = module.names[variable.name]
        if name not in shown:
            raise ToolFailed(f"Apalache's trace does not show {name}")
        value = shown[name]
        pairs = value["#map"] if isinstance(value, Mapping) and "#map" in value else [[(), value]]
        for index, each in pairs:
            at = index["#tup"] if isinstance(index, Mapping) and "#tup" in index else \
                index if isinstance(index, tuple) else [index]
            state[variable.name, tuple(map(_number, at))] = \
                variable.sort.names.index(each) if isinstance(each, str) else _number(each)
    return state


def _number(value: Any) -> int:
    if isinstance(value, Mapping) and "#bigint" in value:
        return int(value["#bigint"])
    if isinstance(value, int):
        return int(value)
    raise ToolFailed(f"Apalache shows {value!r} where a number belongs")


__all__ = ["Answer", "Client", "TypedModule", "check", "connect", "state_of"]
