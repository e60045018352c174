"""Is a second connector's traffic proved harmless, and does forgetting it show?"""

from __future__ import annotations

import functools

import pytest
import z3
from proved import beyond_transfers

from kvoracle.model.connecting import AWARE
from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run, Unmet
from kvoracle.model.scopes import CONNECTOR_PARTS, SCOPES, TRANSFER_PARTS
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.properties.connecting import CONNECTING, CONNECTOR_LEMMAS
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import VARIANTS
from kvoracle.spec.variants.connectors import UNAWARE
from kvoracle.spec.variants.failures import FAILING

MACHINE = Machine(CONNECTOR_PARTS, REFERENCE)
OWN = [n for n in MACHINE.actions if n not in Machine(TRANSFER_PARTS, REFERENCE).actions]


@functools.cache
def _proof() -> Proof:
    return Proof(MACHINE)


@functools.cache
def _decided() -> tuple[Obligation, ...]:
    return beyond_transfers(MACHINE)


# --- proofs ----------------------------------------------------------------------------------


def test_two_connectors_are_proved_for_all_sizes() -> None:
    assert {str(o) for o in _decided() if o.answer.verdict != "proved"} == set()
    assert {p.name for p in (*CONNECTING, *CONNECTOR_LEMMAS)} < {o.property for o in _decided()}


def test_what_transfers_have_shown_alone_is_not_shown_again() -> None:
    assert sum(o.as_in == "transfers" for o in _decided()) > 400


@pytest.mark.parametrize("action", OWN)
def test_hypotheses_about_connectors_are_not_contradictory(action: str) -> None:
    hypotheses = _proof().hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 60_000).verdict != "proved"


NEEDED_FOR = {
    "BorrowingWaits": "LoadedBytes / borrowed_over",
    "BroughtIsThere": "LoadedBytes / borrowed_over",
    "BorrowedTargets": "ReuseFence / bring",
    "UsedIsKept": "ConnectorFence / allocate",
}


def test_every_lemma_of_connectors_is_said_to_be_needed_for_something() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in CONNECTOR_LEMMAS}


@pytest.mark.parametrize("lemma", NEEDED_FOR)
def test_without_the_lemma_something_is_not_proved(lemma: str) -> None:
    assert _proof().decide_one(NEEDED_FOR[lemma]).answer.verdict == "proved"
    assert _proof().decide_one(NEEDED_FOR[lemma], without=lemma).answer.verdict != "proved"


UNPROVED_AT = {
    "borrowed-unfenced": "BorrowedTargets / borrow",
    "borrowed-counts-at-once": "BorrowingWaits / borrow",
    "cursor-over-borrowed": "NoHole / borrowed_over",
    "first-connector-frees": "UsedIsKept / load_dropped",
    "sent-is-freed": "UsedIsKept / finish",
    "failed-load-starts": "LoadedBytes / report_load",
}


def test_every_unaware_and_failing_design_is_among_them() -> None:
    assert UNPROVED_AT.keys() == {v.name for v in (*UNAWARE, *FAILING)}


@pytest.mark.parametrize("name", UNPROVED_AT)
def test_such_a_design_is_not_proved_where_its_rule_is_missing(name: str) -> None:
    proof = Proof(VARIANTS[name].whole())
    assert proof.decide_one(UNPROVED_AT[name]).answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def _run(name: str | None = None, scope: str = "sent") -> Run:
    machine = VARIANTS[name].whole() if name else MACHINE
    return Run(Program(machine), SCOPES[scope].constants, {
        "Request": 2, "Group": 1, "Chunk": 1, "Block": 1, "Text": 1, "Slot": 1, "Worker": 1})


def _aborted_while_brought_and_sent(run: Run) -> Run:
    run.step("arrive", r=0, t=0, p=1)
    run.step("allocate", r=0, g=0, b=0)
    run.step("borrow", r=0, n=1)
    run.step("abort", r=0, y=True)
    run.step("arrive", r=1, t=0, p=1)
    return run


@pytest.mark.parametrize("order", [("brought", "sent"), ("sent", "brought")])
def test_blocks_go_when_the_last_of_several_transfers_is_over(order: tuple[str, str]) -> None:
    run = _aborted_while_brought_and_sent(_run())
    for ends in order:
        with pytest.raises(Unmet, match="not met: not kept for another connector"):
            run.step("allocate", r=1, g=0, b=0)
        if ends == "brought":
            run.step("bring", r=0, g=0, c=0, w=0)
            run.step("borrowed_dropped", r=0)
        else:
            run.step("sent", r=0)
    run.step("allocate", r=1, g=0, b=0)


def test_a_flag_that_the_first_report_lowers_gives_the_blocks_away() -> None:
    run = _aborted_while_brought_and_sent(_run("first-connector-frees"))
    run.step("sent", r=0)
    run.step("allocate", r=1, g=0, b=0)
    check = run.program.predicate(EVERYTHING["ConnectorFence"].over_states(run.machine), ())
    assert run.broken(check) is not None


def test_what_another_connector_brought_is_offered_to_our_pool() -> None:
    run = _run()
    run.step("arrive", r=0, t=0, p=2)
    run.step("allocate", r=0, g=0, b=0)
    run.step("borrow", r=0, n=1)
    run.step("keys_arrive", r=0, g=0, n=1)
    assert run.unmet("plan_store", r=0, g=0, h=0, n=1, d=1) is not None
    run.step("bring", r=0, g=0, c=0, w=0)
    run.step("borrowed_over", r=0)
    run.step("blocks_told", r=0, g=0, n=1)
    run.step("plan_store", r=0, g=0, h=0, n=1, d=1)


def test_one_connector_loads_a_request_at_a_time() -> None:
    run = _run()
    run.step("arrive", r=0, t=0, p=1)
    run.step("allocate", r=0, g=0, b=0)
    run.step("borrow", r=0, n=1)
    unmet = run.unmet("start", r=0, n=0)
    assert unmet is not None and unmet.name == "nothing is being brought"


def test_a_request_whose_load_failed_computes_what_did_not_come() -> None:
    run = _run()
    run.step("arrive", r=0, t=0, p=2)
    run.step("start", r=0, n=0)
    run.step("allocate", r=0, g=0, b=0)
    run.step("compute", r=0, n=1)
    run.step("keys_arrive", r=0, g=0, n=1)
    run.step("blocks_told", r=0, g=0, n=1)
    run.step("plan_store", r=0, g=0, h=0, n=1, d=1)
    run.step("submit", r=0, g=0, c=0)
    run.step("copy_out", r=0, g=0, c=0, w=0)
    run.step("report_store", r=0, g=0, c=0)
    run.step("preempt", r=0)
    run.step("allocate", r=0, g=0, b=0)
    run.step("plan_load", r=0, n=1)
    run.step("copy_in_fails", r=0, g=0, c=0, w=0)
    with pytest.raises(Unmet, match="report_load: not met: no copy failed"):
        run.step("report_load", r=0)
    run.step("load_fails", r=0)
    assert run.unmet("start", r=0, n=1) is not None  # the block does not hold its KV
    run.step("start", r=0, n=0)
    run.step("compute", r=0, n=1)
    assert [run.get(f"tag_{what}", 0, 0) for what in ("text", "g", "end")] == [0, 0, 1]


def test_rules_between_connectors_work_on_plain_truths() -> None:
    assert AWARE.borrow_waits(False) and not AWARE.borrow_waits(True)
    assert AWARE.frees(False) and not AWARE.frees(True)
    assert AWARE.frees_at_end(False) and not AWARE.frees_at_end(True)
    assert AWARE.cursor_after_borrowing(3, 5) == 3
