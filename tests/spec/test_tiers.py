"""Is a second tier proved, and do the designs that misjudge it stay unproved?"""

from __future__ import annotations

import functools

import pytest
import z3
from proved import beyond_transfers

from kvoracle.model.fencing import MISSING, PENDING, READY
from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run, Unmet
from kvoracle.model.scopes import SCOPES, TIER_PARTS, TRANSFER_PARTS
from kvoracle.model.tiering import ABSENT_BELOW, PRESENT_BELOW, Tier
from kvoracle.spec.properties.tiering import TIER_LEMMAS, TIERING
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import VARIANTS
from kvoracle.spec.variants.tiers import MISTIERED

ENOUGH = 200_000
MACHINE = Machine(TIER_PARTS, REFERENCE)
PROOF = Proof(MACHINE, effort=ENOUGH)
OWN = sorted(MACHINE.actions.keys() - Machine(TRANSFER_PARTS, REFERENCE).actions.keys())


@functools.cache
def _decided() -> tuple[Obligation, ...]:
    return beyond_transfers(MACHINE)


def test_tiers_are_proved_for_all_sizes() -> None:
    assert {str(o) for o in _decided() if o.answer.verdict != "proved"} == set()
    shown = {(o.property, o.action) for o in _decided()}
    assert {(p.name, action) for p in (*TIERING, *TIER_LEMMAS)
            for action in MACHINE.actions} <= shown


def test_what_transfers_have_shown_is_not_shown_again() -> None:
    again = [o for o in _decided() if o.as_in]
    assert len(again) > 200
    assert not {o.action for o in again} & set(OWN)


@pytest.mark.parametrize("action", OWN)
def test_hypotheses_about_tiers_are_not_contradictory(action: str) -> None:
    hypotheses = PROOF.hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 60_000).verdict != "proved"


NEEDED_FOR = {"RaisedIsPending": "SlotHasItsKey / promote_ends"}


def test_without_the_lemma_something_is_not_proved() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in TIER_LEMMAS}
    for lemma, obligation in NEEDED_FOR.items():
        assert PROOF.decide_one(obligation).answer.verdict == "proved"
        assert PROOF.decide_one(obligation, without=lemma).answer.verdict != "proved"


UNPROVED_AT = {
    "copy-down-unheld": "RefExact / lower_key",
    "failed-below-is-present": "TrueBytes / lower_fails",
    "unread-counted-on": "TierVerdict / promote_ends",
    "one-fails-all": "TierVerdict / promote_ends",
    "promotions-take-all": "NoStall / in any state",
}


def test_every_mistaken_design_is_among_them() -> None:
    assert UNPROVED_AT.keys() == {v.name for v in MISTIERED}


@pytest.mark.parametrize("name", UNPROVED_AT)
def test_a_mistaken_design_is_not_proved_where_its_rule_is_missing(name: str) -> None:
    proof = Proof(VARIANTS[name].whole(), effort=ENOUGH)
    assert proof.decide_one(UNPROVED_AT[name]).answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def _lowered(design_of: str | None = None) -> Run:
    """Request 0's chunk is in the second tier alone, and the request waits again."""
    machine = VARIANTS[design_of].whole() if design_of else MACHINE
    sizes = {"Request": 1, "Group": 1, "Chunk": 1, "Block": 1, "Text": 1, "Slot": 2, "Worker": 1}
    run = Run(Program(machine), SCOPES["tiers"].constants, sizes)
    at, key = {"r": 0, "g": 0, "c": 0}, {"t": 0, "g": 0, "c": 0}
    run.step("arrive", r=0, t=0, p=2)
    run.step("start", r=0, n=0)
    run.step("allocate", r=0, g=0, b=0)
    run.step("compute", r=0, n=1)
    run.step("keys_arrive", r=0, g=0, n=1)
    run.step("blocks_told", r=0, g=0, n=1)
    run.step("plan_store", r=0, g=0, h=0, n=1, d=1)
    run.step("submit", **at)
    run.step("copy_out", **at, w=0)
    run.step("report_store", **at)
    run.step("lower_key", **key)
    with pytest.raises(Unmet, match="evict: not met: may go"):
        run.step("evict", **key)
    run.step("lower_ends", **key)
    run.step("evict", **key)
    run.step("preempt", r=0)
    return run


def test_a_key_comes_back_from_the_second_tier() -> None:
    run = _lowered()
    assert run.get("lower", 0, 0, 0) == PRESENT_BELOW
    run.step("tell", r=0, g=0, c=0)
    run.step("promote", r=0, g=0, c=0, h=1)
    assert run.get("pooled", 0, 0, 0) == PENDING
    run.step("promote_ends", t=0, g=0, c=0)
    assert run.get("pooled", 0, 0, 0) == READY
    assert [run.get(f"byte_{what}", 1, 0) for what in ("text", "g", "end")] == [0, 0, 1]
    run.step("allocate", r=0, g=0, b=0)
    run.step("plan_load", r=0, n=1)


@pytest.mark.parametrize(("design", "counts_on_it"), [(None, 0), ("unread-counted-on", 1)])
def test_a_key_that_cannot_be_read_is_counted_on_no_longer(
    design: str | None, counts_on_it: int
) -> None:
    run = _lowered(design)
    run.step("tell", r=0, g=0, c=0)
    run.step("lose", t=0, g=0, c=0)
    run.step("promote", r=0, g=0, c=0, h=1)
    with pytest.raises(Unmet, match="read, or failed"):
        run.step("promote_ends", t=0, g=0, c=0)
    run.step("read_fails", t=0, g=0, c=0)
    run.step("promote_ends", t=0, g=0, c=0)
    assert run.get("pooled", 0, 0, 0) == MISSING and not run.get("taken", 1)
    assert run.get("told", 0, 0, 0) == counts_on_it


def test_rules_of_a_second_tier_work_on_plain_truths() -> None:
    tier = Tier()
    assert [tier.written(failed) for failed in (False, True)] == [PRESENT_BELOW, ABSENT_BELOW]
    assert not tier.unreadable(False, True) and tier.unreadable(True, True)
    assert tier.may_promote(True) and not tier.may_promote(False)
