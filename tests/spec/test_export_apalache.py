"""Is Apalache asked and understood rightly?  Its server is in no package registry: a stand-in
answers as the server's documentation says, by following all concrete runs of the machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvoracle.model.scopes import SCOPES, Scope
from kvoracle.oracle import cli
from kvoracle.spec.explore import search
from kvoracle.spec.explore.reference import ReferenceBackend
from kvoracle.spec.export import apalache
from kvoracle.spec.export.external import Disagreement, ToolFailed, ToolMissing
from kvoracle.spec.export.prepared import Prepared
from kvoracle.spec.properties import PROPERTIES
from kvoracle.spec.variants import VARIANTS, Variant


class Status:
    pass


class TransitionEnabled(Status):
    pass


class TransitionDisabled(Status):
    pass


class InvariantSatisfied(Status):
    pass


@dataclass
class InvariantViolated(Status):
    invariant_id: int
    trace: Any


@dataclass
class StandIn:
    """Answers for one scope: a symbolic path is the set of concrete runs that follow it."""

    scope: Scope
    variant: Variant | None = None
    spoil: bool = False
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = self.variant.machine(self.scope) if self.variant else self.scope.machine()
        self.reading = ReferenceBackend(self.machine, self.scope)
        self.module = apalache.TypedModule(
            Prepared(self.scope, self.variant, None, fold_constants=False))
        self.paths: dict[bytes, list[bytes]] = {}
        self.started = False

    def load_spec(self, sources: list[str], init: str, next: str, invariants: list[str],
                  view: str | None) -> Any:
        assert (init, next, view) == ("Init", "Next", None)
        assert set(invariants) == set(self.module.property_names.values())
        text = Path(sources[0]).read_text("utf-8")
        assert text == self.module.text()
        steps = [p for p in PROPERTIES.values() if p.name in invariants and p.is_step]
        return {"init": [{}], "next": [{} for _ in self.machine.actions],
                "state": [{}] * (len(invariants) - len(steps)), "action": [{}] * len(steps),
                "snapshot_id": 0}

    def rollback(self, snapshot_id: int) -> None:
        assert snapshot_id == 0
        self.paths, self.started = {}, False

    def assume_transition(self, transition_id: int, check_enabled: bool = True) -> Status:
        self.calls.append("assume")
        if not self.started:
            assert transition_id == 0
            self.assumed = {self.reading.initial: [self.reading.initial]}
            return TransitionEnabled()
        name = list(self.machine.actions)[transition_id]
        self.assumed = {}
        for state, path in self.paths.items():
            for action, _, after in self.reading.successors(state)[0]:
                if action == name:
                    self.assumed.setdefault(after, [*path, after])
        return TransitionEnabled() if self.assumed else TransitionDisabled()

    def next_step(self) -> int:
        self.paths, self.started = self.assumed, True
        return 1

    def check_invariants(self, nstate: int, naction: int) -> Status:
        for path in self.paths.values():
            for p in PROPERTIES.values():
                if p.applies(self.machine) and not p.is_step and not self.reading.check(
                        p.over_states(self.machine), every=True)(path[-1], None):
                    return InvariantViolated(0, self._trace(path))
        if self.spoil:
            return InvariantViolated(0, self._trace(next(iter(self.paths.values()))))
        return InvariantSatisfied()

    def _trace(self, path: list[bytes]) -> Any:
        """The run in ITF: numbers as ``#bigint``, functions as ``#map``, tuples as ``#tup``."""
        def shown(variable: Any, value: int) -> Any:
            if variable.sort.is_bool:
                return bool(value)
            return variable.sort.names[value] if variable.sort.names else {"#bigint": str(value)}

        states = []
        for number, state in enumerate(path):
            one: dict[str, Any] = {"#meta": {"index": number}}
            cells = self.reading.layout.unpack(state)
            for v in self.machine.state:
                pairs = [
                    [{"#bigint": str(i[0])} if len(i) == 1 else
                     {"#tup": [{"#bigint": str(k)} for k in i]}, shown(v, value)]
                    for i, value in cells[v.name].items()]
                one[self.module.names[v.name]] = {"#map": pairs} if v.domain else pairs[0][1]
            states.append(one)
        return {"#meta": {"format": "ITF"}, "vars": [], "states": states}

    def dispose_spec(self) -> None:
        self.calls.append("dispose")


def test_a_broken_design_is_found_and_its_run_is_one_of_the_machine(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along the actions of a shortest run; by chance it takes some hundred runs."""
    variant = VARIANTS["no-key-bound"]
    stand_in = StandIn(SCOPES["seed"], variant)
    violation = search(SCOPES["seed"], variant).violation
    assert violation is not None
    actions = list(stand_in.machine.actions)
    wanted = [0, *(actions.index(s.action) for s in violation.run)]

    class Chosen:
        def __init__(self, seed: int) -> None:
            self.left = list(wanted)

        def sample(self, transitions: range, count: int) -> list[int]:
            return [self.left.pop(0), *transitions]

    monkeypatch.setattr(apalache.random, "Random", Chosen)
    found = apalache.check(SCOPES["seed"], variant, stand_in)
    assert found.broken in variant.breaks
    assert [s.action for s in found.run] == [s.action for s in violation.run]
    assert stand_in.calls[-1] == "dispose"


def test_nothing_is_found_where_nothing_is_broken() -> None:
    stand_in = StandIn(SCOPES["seed"])
    found = apalache.check(SCOPES["seed"], None, stand_in, runs=2, steps=5)
    assert (found.broken, found.run, found.runs, found.unknown) == (None, (), 2, 0)
    assert 2 <= found.states <= 12
    again = apalache.check(SCOPES["seed"], None, StandIn(SCOPES["seed"]), runs=2, steps=5)
    assert again.states == found.states


def test_a_run_that_breaks_nothing_is_a_disagreement() -> None:
    stand_in = StandIn(SCOPES["seed"], spoil=True)
    with pytest.raises(Disagreement, match="Apalache's run of 0 steps breaks no property"):
        apalache.check(SCOPES["seed"], None, stand_in)
    assert stand_in.calls[-1] == "dispose"


def test_a_server_that_does_not_answer_is_said() -> None:
    class Silent(StandIn):
        def load_spec(self, *_: Any, **__: Any) -> Any:
            return None

    with pytest.raises(ToolFailed, match=r"no server answers .*--server-type=explorer"):
        apalache.check(SCOPES["seed"], None, Silent(SCOPES["seed"]))

    class Dying(StandIn):
        def next_step(self) -> int:
            raise RuntimeError("JSON-RPC Error -3: Request failed")

    with pytest.raises(ToolFailed, match="Apalache stopped: JSON-RPC Error -3"):
        apalache.check(SCOPES["seed"], None, Dying(SCOPES["seed"]))


def test_without_the_client_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "apalache_rpc.client", None)
    monkeypatch.setitem(sys.modules, "apalache_rpc", None)
    with pytest.raises(ToolMissing):
        apalache.connect("localhost")
    assert cli.main(["explore", "--backend", "apalache"]) == 3
    assert capsys.readouterr().err == \
        "kvoracle: the backend apalache needs its client: pip install apalache-rpc-client\n"


def test_the_command_reports_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(apalache, "connect", lambda server: StandIn(SCOPES["seed"]))
    monkeypatch.setattr(apalache, "RUNS", 2)
    assert cli.main(["explore", "--backend", "apalache", "--server", "here:1"]) == 0
    told = capsys.readouterr().out
    assert "scope seed, checked by Apalache" in told
    assert "nothing found along these runs; our own search agrees: 5,075 distinct states" in told
    assert cli.main(["explore", "--server", "here"]) == 2


@pytest.mark.parametrize("name", ["groups", "loads"])
def test_the_module_has_types_and_no_constants(name: str) -> None:
    module = apalache.TypedModule(Prepared(SCOPES[name], None, None, fold_constants=False))
    text = module.text()
    assert text.count("@type: ") == len(module.machine.state)
    assert "CONSTANTS" not in text and "[][" not in text and "Spec" not in text
    assert "\\* @type: <<Int, Int, Int>> -> Str;\n    mark" in text
    pytest.importorskip("tla").parse(text)
