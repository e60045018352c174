"""Are transfers proved, by what is needed, and do the careless designs stay unproved?"""

from __future__ import annotations

import functools

import pytest
import z3

from kvoracle.model.fencing import MISSING, Care
from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run, Unmet
from kvoracle.model.scopes import ALL_PARTS, SCOPES, TRANSFER_PARTS, UnknownName
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.properties.transferring import TRANSFER_LEMMAS, TRANSFERRING
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import VARIANTS
from kvoracle.spec.variants.transfers import CARELESS

ENOUGH = 200_000
"""Solver effort: twice what any obligation of transfers needs."""

MACHINE = Machine(TRANSFER_PARTS, REFERENCE)


PROOF = Proof(MACHINE, effort=ENOUGH)


@functools.cache
def _reference() -> tuple[Obligation, ...]:
    return tuple(PROOF.obligations())


def _unproved(decided: tuple[Obligation, ...] | list[Obligation]) -> set[str]:
    return {str(o) for o in decided if o.answer.verdict != "proved"}


# --- proofs ----------------------------------------------------------------------------------


def test_transfers_are_proved_for_all_sizes() -> None:
    assert _unproved(_reference()) == set()
    shown = {(o.property, o.action) for o in _reference()}
    assert len(shown) == len(_reference())
    assert {(p.name, action) for p in (*TRANSFERRING, *TRANSFER_LEMMAS)
            for action in MACHINE.actions if p.applies(MACHINE) and not p.derived} <= shown


@pytest.mark.parametrize("action", MACHINE.actions)
def test_hypotheses_about_transfers_are_not_contradictory(action: str) -> None:
    hypotheses = PROOF.hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 60_000).verdict != "proved"


NEEDED_FOR = {
    "OwnBlocks": "LoadedBytes / compute",
    "SoleOwner": "OwnBlocks / preempt",
    "LeftBlocks": "LeftBytes / compute",
    "LeftBytes": "ReuseFence / plan_store",
    "ToldIsAllocated": "LeftBlocks / finish",
    "TouchedIsAllocated": "LoadedBytes / compute",
    "WaitingHasComputedNothing": "JobExclusive / plan_store",
    "SlotIsThere": "DoneIsCopied / copy_out",
    "SlotIsSettled": "TrueBytes / copy_late",
    "SlotHasItsKey": "ReuseFence / plan_store",
    "FlightHasItsKey": "ReuseFence / plan_store",
    "DoneIsUnderWay": "DoneIsCopied / copy_out",
    "DoneIsCopied": "TrueBytes / report_store",
    "FreshTargets": "ReuseFence / copy_in",
    "DoneIsLoaded": "LoadedBytes / report_load",
    "LoadIsWithin": "computed in range / report_load",
}


def test_every_lemma_of_transfers_is_said_to_be_needed_for_something() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in TRANSFER_LEMMAS}


@pytest.mark.parametrize("lemma", NEEDED_FOR)
def test_without_the_lemma_something_is_not_proved(lemma: str) -> None:
    assert PROOF.decide_one(NEEDED_FOR[lemma]).answer.verdict == "proved"
    assert PROOF.decide_one(NEEDED_FOR[lemma], without=lemma).answer.verdict != "proved"


def test_an_obligation_that_there_is_not_names_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean ReuseFence / compute"):
        PROOF.decide_one("ReuseFence / compte")


UNPROVED_AT = {
    "no-fence-at-finish": "ReuseFence / compute",
    "no-fence-at-preemption": "ReuseFence / compute",
    "load-into-read": "FreshTargets / plan_load",
    "list-kept-at-reuse": "LeftBlocks / allocate",
    "abort-frees-at-once": "ReuseFence / abort",
    "load-beside-stores": "JobExclusive / plan_load",
    "pin-dropped-at-issue": "RefExact / plan_load",
    "evict-pending": "FlightHasItsKey / evict",
    "fence-of-submitted": "ReuseFence / compute",
    "late-report-counts": "FlightHasItsKey / reset",
    "reset-frees-written": "ReuseFence / plan_store",
    "reset-frees-read": "LoadReady / reset",
    "last-store-waits": "NoStall / in any state",
    "load-pending": "LoadReady / plan_load",
    "first-report-counts": "WorkerAgreement / report_store",
    "failed-is-ready": "TrueBytes / report_store",
    "failed-stays-pending": "NoLeak / report_store",
    "largest-rank-counts": "WorkerAgreement / plan_store",
    "refused-with-room": "NoStall / in any state",
    "failed-keeps-its-slot": "NoLeak / report_store",
}


def test_every_careless_design_is_among_them() -> None:
    assert UNPROVED_AT.keys() == {v.name for v in CARELESS}


@pytest.mark.parametrize("name", UNPROVED_AT)
def test_a_careless_design_is_not_proved_where_its_rule_is_missing(name: str) -> None:
    proof = Proof(VARIANTS[name].whole(), effort=ENOUGH)
    assert proof.decide_one(UNPROVED_AT[name]).answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def test_planning_pays_nothing_for_transfers() -> None:
    planning = Machine(ALL_PARTS, REFERENCE)
    moved = {v.name for part in TRANSFER_PARTS[4:] for v in part.variables}
    assert not moved & planning.variables.keys()
    assert [p.name for p in planning.actions["arrive"].parameters] == ["r", "p"]
    assert [p.name for p in MACHINE.actions["arrive"].parameters] == ["r", "t", "p"]


def _run(design_of: str | None = None) -> Run:
    machine = VARIANTS[design_of].whole() if design_of else MACHINE
    sizes = {"Request": 2, "Group": 1, "Chunk": 1, "Block": 1, "Text": 2, "Slot": 1, "Worker": 1}
    return Run(Program(machine), SCOPES["reuse"].constants, sizes)


def _until_reused(run: Run) -> Run:
    """Request 0 stores its chunk and finishes; the block goes to request 1 of another text."""
    run.step("arrive", r=0, t=0, p=1)
    run.step("start", r=0, n=0)
    run.step("allocate", r=0, g=0, b=0)
    run.step("compute", r=0, n=1)
    run.step("sample", r=0, a=0)
    run.step("keys_arrive", r=0, g=0, n=1)
    run.step("blocks_told", r=0, g=0, n=1)
    run.step("plan_store", r=0, g=0, h=0, n=1, d=1)
    run.step("finish", r=0)
    run.step("arrive", r=1, t=1, p=1)
    run.step("start", r=1, n=0)
    run.step("allocate", r=1, g=0, b=0)
    return run


def test_the_next_writer_waits_for_the_store() -> None:
    run = _until_reused(_run())
    with pytest.raises(Unmet, match="compute: not met: no store still reads what is written"):
        run.step("compute", r=1, n=1)
    run.step("submit", r=0, g=0, c=0)
    run.step("copy_out", r=0, g=0, c=0, w=0)
    run.step("compute", r=1, n=1)  # copied: the fence is down, reported or not
    run.step("report_store", r=0, g=0, c=0)
    assert [run.get(f"byte_{what}", 0, 0) for what in ("text", "g", "end")] == [0, 0, 1]


def test_without_the_fence_the_next_writers_kv_is_stored() -> None:
    run = _until_reused(_run("no-fence-at-finish"))
    run.step("compute", r=1, n=1)
    run.step("submit", r=0, g=0, c=0)
    run.step("copy_out", r=0, g=0, c=0, w=0)
    run.step("report_store", r=0, g=0, c=0)
    assert run.get("byte_text", 0, 0) == 1
    check = run.program.predicate(EVERYTHING["TrueBytes"].over_states(run.machine), ())
    assert run.broken(check) == (0, 0, 0, 0)


def test_a_request_that_ended_forgets_a_block_that_went_elsewhere() -> None:
    run = _run()
    for action, values in (
        ("arrive", {"r": 0, "t": 0, "p": 1}), ("start", {"r": 0, "n": 0}),
        ("allocate", {"r": 0, "g": 0, "b": 0}), ("compute", {"r": 0, "n": 1}),
        ("sample", {"r": 0, "a": 0}), ("keys_arrive", {"r": 0, "g": 0, "n": 1}),
        ("blocks_told", {"r": 0, "g": 0, "n": 1}), ("finish", {"r": 0}),
    ):
        run.step(action, **values)
    run.step("arrive", r=1, t=1, p=1)
    assert run.unmet("plan_store", r=0, g=0, h=0, n=1, d=1) is None  # freed, and still its own
    run.step("allocate", r=1, g=0, b=0)
    unmet = run.unmet("plan_store", r=0, g=0, h=0, n=1, d=1)
    assert unmet is not None and unmet.name == "storable"


def test_what_a_reset_drops_is_copied_all_the_same_and_its_slot_waits() -> None:
    run = _until_reused(_run())
    run.step("submit", r=0, g=0, c=0)
    run.step("reset")
    assert run.get("pooled", 0, 0, 0) == MISSING and not run.get("taken", 0)
    run.step("compute", r=1, n=1)  # what is dropped may copy anything
    run.step("keys_arrive", r=1, g=0, n=1)
    run.step("blocks_told", r=1, g=0, n=1)
    unmet = run.unmet("plan_store", r=1, g=0, h=0, n=1, d=1)
    assert unmet is not None and unmet.name == "what is taken is not in the pool"
    run.step("copy_late", h=0, w=0)
    run.step("plan_store", r=1, g=0, h=0, n=1, d=1)


def test_rules_of_transfers_work_on_plain_truths() -> None:
    care = Care()
    assert care.still_reads(False, False, True, True)
    assert not care.still_reads(True, True, False, False)
    assert [care.outcome(failed) for failed in (False, True)] == [2, 0]
    assert [care.evictable(pooled, False) for pooled in range(3)] == [False, False, True]
    assert not care.evictable(2, True) and not care.droppable(2, True) and care.droppable(1, False)
    assert care.complete(True, False) is False
