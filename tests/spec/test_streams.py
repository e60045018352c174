"""Is order across streams proved, by what is needed, and can nobody tell when an operation ran?"""

from __future__ import annotations

import functools

import pytest
import z3

from kvoracle.model.machine import Machine
from kvoracle.model.ordering import ORDERLY
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run, Unmet
from kvoracle.model.scopes import STREAM_PARTS
from kvoracle.model.streams import COMPUTE, LOAD, STORE
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.properties.streaming import STREAM_LEMMAS, STREAMING
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import VARIANTS
from kvoracle.spec.variants.streams import UNORDERED

MACHINE = Machine(STREAM_PARTS, REFERENCE)
PROOF = Proof(MACHINE)


@functools.cache
def _reference() -> tuple[Obligation, ...]:
    return tuple(PROOF.obligations())


# --- proofs ----------------------------------------------------------------------------------


def test_streams_are_proved_for_all_sizes() -> None:
    assert {str(o) for o in _reference() if o.answer.verdict != "proved"} == set()
    assert {p.name for p in (*STREAMING, *STREAM_LEMMAS)} < {o.property for o in _reference()}


@pytest.mark.parametrize("action", MACHINE.actions)
def test_hypotheses_about_streams_are_not_contradictory(action: str) -> None:
    hypotheses = PROOF.hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 60_000).verdict != "proved"


NEEDED_FOR = {
    "DoneIsForgotten": "WaitsGoBack / launch",
    "WaitsGoBack": "StreamOrder / store",
    "OwnStream": "StreamOrder / load",
    "OneOrder": "SoughtComes / run",
    "LastWriter": "DueComes / launch",
    "LastWriterBefore": "SoughtComes / run",
    "DueComes": "SoughtComes / launch",
    "SoughtComes": "TrueReads / run",
    "PlannedIsKept": "SoughtComes / store",
    "OneStore": "SlotBytes / run",
    "SlotBytes": "LoadSource / load",
    "LoadSource": "TrueReads / run",
    "LoadBeforeStore": "LoadSource / run",
    "TableIsKept": "TrueReads / run",
}


def test_every_lemma_of_streams_is_said_to_be_needed_for_something() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in STREAM_LEMMAS}


@pytest.mark.parametrize("lemma", NEEDED_FOR)
def test_without_the_lemma_something_is_not_proved(lemma: str) -> None:
    assert PROOF.decide_one(NEEDED_FOR[lemma]).answer.verdict == "proved"
    assert PROOF.decide_one(NEEDED_FOR[lemma], without=lemma).answer.verdict != "proved"


UNPROVED_AT = {
    "store-beside-kernels": "StreamOrder / store",
    "step-late-is-no-event": "StreamOrder / store",
    "late-store-unfenced": "PlannedIsKept / launch",
    "store-of-what-loads": "StreamOrder / store",
    "store-over-slot": "StreamOrder / store",
    "ready-at-queueing": "OneStore / store",
    "kernels-before-load": "StreamOrder / launch",
    "kernels-over-store": "StreamOrder / launch",
    "load-over-reads": "StreamOrder / load",
    "load-over-writes": "StreamOrder / load",
    "load-over-store": "StreamOrder / load",
    "host-over-slot": "StreamOrder / promote",
    "table-written-early": "StreamOrder / launch",
}


def test_every_unordered_design_is_among_them() -> None:
    assert UNPROVED_AT.keys() == {v.name for v in UNORDERED}


@pytest.mark.parametrize("name", UNPROVED_AT)
def test_an_unordered_design_is_not_proved_where_its_order_is_missing(name: str) -> None:
    proof = Proof(VARIANTS[name].whole())
    assert proof.decide_one(UNPROVED_AT[name]).answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def _run(name: str | None = None) -> Run:
    machine = VARIANTS[name].whole() if name else MACHINE
    return Run(Program(machine), {}, {
        "Operation": 4, "Event": 2, "Block": 2, "Slot": 2, "KV": 3, "Table": 2})


def _kernels_then_store(run: Run) -> Run:
    """Kernels that write the KV of 1 are queued, and a store of it is planned."""
    run.step("join", b=0)
    run.step("launch", o=0, b=0, v=1, k=0)
    run.step("plan", b=0, h=0)
    return run


def test_a_store_waits_for_an_event_behind_the_kernels() -> None:
    run = _kernels_then_store(_run())
    run.step("record", q=COMPUTE, e=0)
    with pytest.raises(Unmet, match="store: not met: behind the kernels that write what it reads"):
        run.step("store", o=1, h=0)
    run.step("wait", q=STORE, e=0)
    run.step("store", o=1, h=0)
    with pytest.raises(Unmet, match="run: not met: all that it waits for has run"):
        run.step("run", o=1)
    run.step("run", o=0)
    run.step("run", o=1)
    assert run.get("bytes", 0) == 1


def test_an_event_covers_what_was_queued_when_it_was_recorded() -> None:
    run = _run()
    run.step("join", b=0)
    run.step("record", q=COMPUTE, e=0)  # too early
    run.step("launch", o=0, b=0, v=1, k=0)
    run.step("plan", b=0, h=0)
    run.step("wait", q=STORE, e=0)
    assert run.unmet("store", o=1, h=0) is not None


def test_waiting_goes_on_through_other_streams() -> None:
    """A load behind the store stream is behind the kernels that this is behind."""
    run = _kernels_then_store(_run())
    run.step("record", q=COMPUTE, e=0)
    run.step("wait", q=STORE, e=0)
    run.step("store", o=1, h=0)
    run.step("record", q=STORE, e=1)
    run.step("wait", q=LOAD, e=1)
    run.step("leave", b=0)
    run.step("promote", h=1, v=2)
    run.step("load", o=2, h=1, b=0)
    assert run.get("awaits", 2, 0) and run.get("awaits", 2, 1)


def test_what_the_host_has_seen_done_needs_no_event() -> None:
    run = _kernels_then_store(_run())
    run.step("record", q=COMPUTE, e=0)
    run.step("run", o=0)
    assert run.unmet("store", o=1, h=0) is not None  # it has run, and the host does not know
    run.step("see", e=0)
    run.step("store", o=1, h=0)


def test_the_host_sees_nothing_that_has_not_run() -> None:
    run = _kernels_then_store(_run())
    run.step("record", q=COMPUTE, e=0)
    with pytest.raises(Unmet, match="see: not met: fired"):
        run.step("see", e=0)


def test_a_table_is_filled_again_when_its_kernels_were_seen_done() -> None:
    run = _run()
    run.step("join", b=0)
    run.step("launch", o=0, b=0, v=1, k=0)
    unmet = run.unmet("launch", o=1, b=0, v=1, k=0)
    assert unmet is not None and unmet.name == "has seen the step done that read the table"
    run.step("launch", o=1, b=0, v=1, k=1)  # a table for each step under way


def test_without_the_event_the_old_bytes_are_stored() -> None:
    run = _kernels_then_store(_run("store-beside-kernels"))
    run.step("store", o=1, h=0)
    run.step("run", o=1)
    run.step("run", o=0)
    assert run.get("bytes", 0) == 0 and run.get("key", 0) == 1
    check = run.program.predicate(EVERYTHING["StreamOrder"].over_states(run.machine), ())
    assert run.broken(check) is not None


def test_a_store_that_is_queued_late_needs_a_fence_that_no_event_gives() -> None:
    run = _kernels_then_store(_run("late-store-unfenced"))
    run.step("launch", o=1, b=0, v=2, k=1)
    run.step("record", q=COMPUTE, e=0)
    run.step("wait", q=STORE, e=0)
    run.step("store", o=2, h=0)
    for o in (0, 1, 2):
        run.step("run", o=o)
    check = run.program.predicate(EVERYTHING["StreamOrder"].over_states(run.machine), ())
    assert run.broken(check) is None  # all in order, and
    assert run.get("bytes", 0) == 2 and run.get("key", 0) == 1


def test_rules_of_streams_work_on_plain_truths() -> None:
    assert ORDERLY.waits("load", "kernel", "WAR", False) is True
    assert [ORDERLY.ready(True, seen) for seen in (False, True)] == [False, True]
