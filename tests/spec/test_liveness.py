"""Are runs that wait for ever found, on cycles too, and no others?"""

from __future__ import annotations

import functools
import itertools
import json
import random
from typing import Annotated, Any

import networkx
import pytest

from kvoracle.model.fairness import CEASING, FAIR, fair
from kvoracle.model.machine import Machine, Part, View
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run
from kvoracle.model.scopes import COMPOSITIONS, QUEUE_PARTS, SCOPES, Scope
from kvoracle.model.terms import BOOL, Sort, Term, not_
from kvoracle.oracle import cli, exits
from kvoracle.spec.explore import OutOfMemory, native_graph
from kvoracle.spec.explore.labels import Labels
from kvoracle.spec.explore.liveness import Lasso, Lasting, lasting
from kvoracle.spec.explore.native_graph import NativeGraph
from kvoracle.spec.explore.reference import ReferenceBackend
from kvoracle.spec.explore.state_graph import PythonGraph, TooManyStates, judged
from kvoracle.spec.properties import LIVENESS, PROPERTIES, Duty, Liveness
from kvoracle.spec.variants import VARIANTS

STARVING = [name for name, v in VARIANTS.items() if v.starves]

LASSOS = {  # steps of the stem and of the cycle of each promise that breaks
    "failed-stays-pending": {"NoLeak": (13, 0)},
    "last-store-waits": {"EventuallyStored": (8, 0), "NoLeak": (8, 0)},
    "failed-keeps-its-slot": {"NoLeak": (13, 0)},
    "retry-for-ever": {"EventuallyAnswered": (3, 1)},
    "begins-anew-at-refusal": {"EventuallyStored": (6, 2)},
    "never-complete": {"EventuallyStored": (11, 0), "NoLeak": (11, 0)},
    "pins-kept-at-abort": {"NoLeak": (19, 0)},
    "strict-queue": {"NoLeak": (16, 0), "NoStall": (16, 0)},
}


@functools.cache
def _lasting(scope: str, variant: str | None = None, backend: str | None = None) -> Lasting:
    return lasting(SCOPES[scope], VARIANTS[variant] if variant else None, backend)


# --- verdicts --------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["seed", "ranks", "workers", "queue", "verdicts"])
def test_the_reference_keeps_what_it_promises_of_the_future(scope: str) -> None:
    found = _lasting(scope)
    assert found.violations == {} and not found.stopped
    assert found.states > 2000


@pytest.mark.parametrize("name", [*STARVING, "gives-up-at-refusal", "no-key-bound"])
def test_a_variant_starves_what_it_says(name: str) -> None:
    variant = VARIANTS[name]
    found = _lasting(variant.scope, name)
    assert set(found.violations) == set(variant.starves)
    assert {p: (len(v.stem), len(v.cycle)) for p, v in found.violations.items()} \
        == LASSOS.get(name, {})


@pytest.mark.parametrize("name", LIVENESS)
def test_every_promise_says_why_and_is_broken_by_a_variant(name: str) -> None:
    promise = LIVENESS[name]
    assert promise.statement and promise.why.endswith(".") and promise.source and promise.bugs
    assert name in PROPERTIES, "it is the other part of a promise about states"
    assert any(name in v.starves for v in VARIANTS.values())


def test_every_duty_waits_somewhere() -> None:
    waiting: dict[str, int] = {}
    for found in [_lasting(s) for s in ("workers", "queue", "verdicts")] \
            + [_lasting(VARIANTS[n].scope, n) for n in STARVING]:
        for duties in found.judged.values():
            for duty, sums in duties.items():
                waiting[duty] = waiting.get(duty, 0) + sums.waiting
    assert {d.name for p in LIVENESS.values() for d in p.duties} == waiting.keys()
    assert all(waiting.values())


@pytest.mark.parametrize("scope", ["queue", "workers"])
def test_the_pool_of_a_scope_holds_every_request_of_it(scope: str) -> None:
    sizes = SCOPES[scope].sizes
    assert sizes["Block"] >= sizes["Chunk"] * sizes["Group"]  # else NoStall has nothing to say


# --- lassos ----------------------------------------------------------------------------------


def _lassos() -> list[tuple[str, str]]:
    return [(n, p) for n in STARVING for p in VARIANTS[n].starves]


@pytest.mark.parametrize(("name", "promise"), _lassos())
def test_a_lasso_can_be_followed_comes_round_and_waits_all_the_way(
    name: str, promise: str
) -> None:
    variant = VARIANTS[name]
    scope = SCOPES[variant.scope]
    lasso = _lasting(variant.scope, name).violations[promise]
    machine = variant.machine(scope)
    run = Run(Program(machine), scope.constants, {
        k: v for k, v in scope.sizes.items() if any(
            k == s.name for var in machine.variables.values() for s in var.domain)})
    for step in (*lasso.stem, *lasso.cycle):
        run.step(step.action, **step.values)  # raises where the guard does not hold
    states = _states_of_cycle(lasso, ReferenceBackend(machine, scope).initial)
    assert states[0] == states[-1]
    labels = Labels(machine, Machine(scope.parts, variant.design, variant.overrides), scope)
    plain = ReferenceBackend(labels.whole, scope)
    owed = next(o for o in labels.owed if o.property == promise and str(o) == lasso.waits)
    assert all(plain.value(owed.waits.term, {}, s) for s in states)
    taken = {labels.demand_of.get(labels.of(s.action, tuple(s.values.values())))
             for s in lasso.cycle}
    for number, demand in enumerate(labels.demands):
        assert number in taken or not all(
            plain.value(demand.enabled.term, {}, s) for s in states), demand
    assert not {s.action for s in lasso.cycle} & {*CEASING, *owed.duty.until}


def _states_of_cycle(lasso: Lasso, initial: bytes) -> list[bytes]:
    start = lasso.stem[-1].state if lasso.stem else initial
    return [start, *(s.state for s in lasso.cycle)]


TICK = Sort("Tick")
Tick = Annotated[Term, TICK]


def _toy(*, once: bool) -> tuple[Scope, Liveness]:
    """Something waits to be served, which needs a switch to be on.  The switch is turned on, and,
    unless ``once``, off again, for ever.  (The actions bear names that are fair.)"""
    part = Part("toy", "a switch, and something that waits")
    part.variable("on", (TICK,), BOOL, "the switch")
    part.variable("due", (TICK,), BOOL, "something waits")

    @part.action("{i} begins to wait", external=True)
    def begin(s: View, i: Tick) -> None:
        s.require("once", not_(s.due[i]))
        s.due[i] = True

    @part.action("the switch of {i} is turned")
    def compute(s: View, i: Tick) -> None:
        if once:
            s.require("off", not_(s.on[i]))
        s.on[i] = not_(s.on[i])

    @part.action("{i} is served")
    def start(s: View, i: Tick) -> None:
        s.require("waits", s.due[i])
        s.require("the switch is on", s.on[i])
        s.due[i] = False

    def waits(s: View, i: Tick) -> Any:
        return s.due[i]

    promise = Liveness("Toy", "it is served", "why.", "here", (Duty("{i} waits", waits),))
    return Scope("toy", "a toy", (part,), {"Tick": 1}, {}), promise


@pytest.mark.parametrize("backend", ["compiled", "python"])
def test_a_cycle_on_which_something_waits_is_found_though_no_run_ends(backend: str) -> None:
    scope, promise = _toy(once=False)
    found = lasting(scope, None, backend, properties=[promise])
    labels = Labels(scope.machine(), scope.machine(), scope, [promise])
    graph = PythonGraph(labels, scope)
    # Something is demanded in every state, so no run may end: who looks for ends finds none.
    assert all(graph.enabled(i) for i in range(graph.states))
    lasso = found.violations["Toy"]
    assert [s.action for s in lasso.stem] == ["begin"]
    assert [s.action for s in lasso.cycle] == ["compute", "compute"]
    assert lasso.waits == "0 waits"


@pytest.mark.parametrize("backend", ["compiled", "python"])
def test_a_fair_action_that_stays_possible_is_taken(backend: str) -> None:
    scope, promise = _toy(once=True)
    found = lasting(scope, None, backend, properties=[promise])
    assert found.violations == {}
    assert found.judged["Toy"]["{i} waits"].waiting == 2


def test_where_only_going_round_is_fair_the_lasso_goes_round() -> None:
    lasso = _lasting("seed", "begins-anew-at-refusal").violations["EventuallyStored"]
    assert {s.action for s in lasso.cycle} == {"refuse", "plan_store"}


# --- against brute force -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_fair_runs_are_found_exactly_where_brute_force_finds_them(seed: int) -> None:
    chance = random.Random(seed)
    states, demands = chance.randint(1, 6), chance.randint(0, 3)
    everything = (1 << demands) - 1
    steps = [[(chance.randrange(demands + 1), chance.randrange(states))
              for _ in range(chance.randint(0, 3))] for _ in range(states)]
    demand_of = {label: label for label in range(demands)}
    inside = [sum({1 << label for label, _ in out if label < demands}) for out in steps]
    enabled = [i | (chance.getrandbits(demands) if demands else 0) for i in inside]
    waiting = [chance.random() < 0.8 for _ in range(states)]
    kept = [[(label, to) for label, to in out if waiting[to]] if waiting[i] else []
            for i, out in enumerate(steps)]
    found = judged(waiting, kept, enabled, inside, demand_of, everything)
    expected = _by_brute_force(waiting, kept, enabled, everything)
    assert (found.fair is None) == (not expected)
    if expected:
        assert found.fair == min(min(e) for e in expected)


def _by_brute_force(waiting: list[bool], steps: list[list[tuple[int, int]]], enabled: list[int],
                    everything: int) -> list[tuple[int, ...]]:
    """Every set of states that a fair run may go round for ever, tried one by one."""
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(i for i, w in enumerate(waiting) if w)
    graph.add_edges_from((i, to, {"label": label})
                         for i, out in enumerate(steps) for label, to in out)
    found = []
    for size in range(1, len(graph) + 1):
        for chosen in itertools.combinations(sorted(graph), size):
            part = graph.subgraph(chosen)
            taken = {d["label"] for _, _, d in part.edges(data=True)}
            fair_there = all(
                d in taken or any(not enabled[i] >> d & 1 for i in chosen)
                for d in range(everything.bit_length()))
            if fair_there and networkx.is_strongly_connected(part):
                found.append(chosen)
    return found


# --- backends and bounds -----------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "variant"), [
    ("seed", "begins-anew-at-refusal"), ("ranks", None), ("limits", None),
])
def test_backends_agree(scope: str, variant: str | None) -> None:
    quick, plain = _lasting(scope, variant, "compiled"), _lasting(scope, variant, "python")
    assert quick.backend == "compiled" and plain.backend == "python"
    for name in ("states", "steps", "judged", "violations"):
        assert getattr(quick, name) == getattr(plain, name), name


def test_graphs_agree_on_every_demand_and_step() -> None:
    scope = SCOPES["ranks"]
    labels = Labels(scope.machine(), Machine(scope.parts, REFERENCE), scope)
    quick, plain = NativeGraph(labels, scope), PythonGraph(labels, scope)
    for i in range(plain.states):
        assert quick.packed(i) == plain.packed(i)
        assert list(quick.edges(i)) == list(plain.edges(i))
        assert (quick.enabled(i), quick.inside(i)) == (plain.enabled(i), plain.inside(i))


def test_a_demand_that_leads_out_of_the_scope_is_no_excuse_to_wait() -> None:
    found = _lasting("limits")
    assert found.violations == {}
    stall = next(iter(found.judged["NoStall"].values()))
    assert 0 < stall.unjudged < stall.waiting
    scope = SCOPES["limits"]
    labels = Labels(scope.machine(), Machine(scope.parts, REFERENCE), scope)
    graph = PythonGraph(labels, scope)
    inside = [graph.inside(i) for i in range(graph.states)]
    assert any(graph.enabled(i) != inside[i] for i in range(graph.states))


def test_what_a_scope_leaves_out_is_demanded_all_the_same() -> None:
    scope = SCOPES["fences"]
    assert "finish" in scope.without
    labels = Labels(scope.machine(), Machine(scope.parts, REFERENCE), scope)
    assert any("finish" in d.line.actions for d in labels.demands)


@pytest.mark.parametrize("backend", ["compiled", "python"])
def test_too_many_states_are_said(backend: str) -> None:
    found = lasting(SCOPES["seed"], None, backend, max_states=100)
    assert found.stopped == "scope seed has more than 100 states"
    assert found.judged == {} and found.violations == {}
    assert issubclass(TooManyStates, Exception)


# --- fairness ------------------------------------------------------------------------------------


def test_fairness_names_actions_and_their_parameters() -> None:
    machines = [Machine(parts, REFERENCE) for parts in (*COMPOSITIONS.values(), QUEUE_PARTS)]
    actions = {a.name: a for m in machines for a in m.actions.values()}
    for line in FAIR:
        assert line.because
        for name in line.actions:
            assert set(line.by) <= {p.name for p in actions[name].parameters}, name
            assert fair(name) is line
    assert CEASING.keys() <= actions.keys()
    assert not CEASING.keys() & {a for line in FAIR for a in line.actions}


# --- the command ---------------------------------------------------------------------------------


def test_explore_shows_these_steps_and_then_for_ever_these(
    capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["explore", "--liveness", "--scope", "seed", "--property", "EventuallyStored"]
    assert cli.main(asked) == exits.HOLDS
    assert cli.main([*asked, "--variant", "begins-anew-at-refusal"]) == exits.VIOLATION
    said = capsys.readouterr().out
    assert "These 6 steps:" in said and "and from then on, for ever, these:" in said
    assert said.index("    7  the host pool refuses") > said.index("for ever, these:")
    assert "replay: kvoracle explore --liveness --scope seed --variant begins-anew-at-refusal " \
        "--property EventuallyStored" in said


def test_explore_says_what_it_could_not_judge(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explore", "--liveness", "--max-states", "100", "--json", "-"]
    assert cli.main(asked) == exits.UNJUDGED
    document = json.loads(capsys.readouterr().out)
    assert document["future"][0]["stopped"] == "scope seed has more than 100 states"


def test_a_graph_that_does_not_fit_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_graph, "default_memory", lambda: 16 * 2**20)
    with pytest.raises(OutOfMemory, match=r"states and steps of scope pair, [0-9.]* MiB, do"):
        lasting(SCOPES["pair"], None, "compiled")
