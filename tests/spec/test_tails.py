"""Does no guess of a drafter's come under a key, and what becomes of one in blocks and slots?"""

from __future__ import annotations

import functools

import pytest
import z3
from proved import beyond_transfers

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run
from kvoracle.model.scopes import DRAFTED_PARTS, SCOPES
from kvoracle.spec.properties.drafting import DRAFTING, DRAFTING_LEMMAS
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import VARIANTS
from kvoracle.spec.variants.tails import UNTOLD

ENOUGH = 200_000
MACHINE = Machine(DRAFTED_PARTS, REFERENCE)
PROOF = Proof(MACHINE, effort=ENOUGH)


@functools.cache
def _decided() -> tuple[Obligation, ...]:
    return beyond_transfers(MACHINE)


def test_tails_are_proved_for_all_sizes() -> None:
    assert {str(o) for o in _decided() if o.answer.verdict != "proved"} == set()
    shown = {(o.property, o.action) for o in _decided()}
    assert {(p.name, action) for p in (*DRAFTING, *DRAFTING_LEMMAS)
            for action in MACHINE.actions} <= shown


def test_what_transfers_have_shown_is_not_shown_again() -> None:
    assert len([o for o in _decided() if o.as_in]) > 200


@pytest.mark.parametrize("action", ["compute", "sample", "reject", "copy_out", "copy_in"])
def test_hypotheses_about_tails_are_not_contradictory(action: str) -> None:
    hypotheses = PROOF.hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 60_000).verdict != "proved"


NEEDED_FOR = {
    "GuessIsInStep": "GuessIsNotRead / plan_store",
    "GuessIsNotRead": "GuessStaysOnTheGpu / copy_out",
    "GuessStaysOnTheGpu": "TrueTails / report_store",
}


def test_without_a_lemma_something_is_not_proved() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in DRAFTING_LEMMAS}
    for lemma, obligation in NEEDED_FOR.items():
        assert PROOF.decide_one(obligation).answer.verdict == "proved"
        assert PROOF.decide_one(obligation, without=lemma).answer.verdict != "proved"


@pytest.mark.parametrize("name", [v.name for v in UNTOLD])
def test_a_design_that_offers_the_tail_is_not_proved_where_it_does(name: str) -> None:
    proof = Proof(VARIANTS[name].whole(), effort=ENOUGH)
    assert proof.decide_one("GuessIsNotRead / plan_store").answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def _in_step(machine: Machine) -> Run:
    """Request 0's one chunk is computed, its last position from a guess."""
    sizes = {"Request": 1, "Group": 1, "Chunk": 2, "Block": 2, "Text": 1, "Slot": 2, "Worker": 1}
    run = Run(Program(machine), SCOPES["tails"].constants, sizes)
    run.step("arrive", r=0, t=0, p=1)
    run.step("start", r=0, n=0)
    run.step("allocate", r=0, g=0, b=0)
    run.step("compute", r=0, n=1)
    assert not run.get("guessed", 0, 0)  # the token after the prompt is sampled, never a draft
    run.step("sample", r=0, a=0)
    run.step("compute", r=0, n=2)
    assert run.get("guessed", 0, 0)
    run.step("keys_arrive", r=0, g=0, n=1)
    run.step("blocks_told", r=0, g=0, n=1)
    return run


def _offered_in_step(design_of: str) -> Run:
    run = _in_step(VARIANTS[design_of].whole())
    run.step("plan_store", r=0, g=0, h=0, n=1, d=1)
    return run


def _store(run: Run) -> None:
    run.step("submit", r=0, g=0, c=0)
    run.step("copy_out", r=0, g=0, c=0, w=0)
    run.step("report_store", r=0, g=0, c=0)


def test_a_guess_that_was_copied_stays_under_the_key_and_is_loaded() -> None:
    run = _offered_in_step("tail-copied")
    _store(run)
    assert run.get("byte_guessed", 0, 0)
    run.step("reject", r=0)
    assert not run.get("guessed", 0, 0) and run.get("byte_guessed", 0, 0)
    run.step("sample", r=0, a=0)
    run.step("preempt", r=0)
    run.step("allocate", r=0, g=0, b=1)
    run.step("plan_load", r=0, n=2)
    run.step("copy_in", r=0, g=0, c=0, w=0)
    assert run.get("guessed", 1, 0)


@pytest.mark.parametrize("settles", ["reject", "sample"])
def test_a_store_held_back_copies_what_was_written_last(settles: str) -> None:
    run = _offered_in_step("tail-copied-late")
    unmet = run.unmet("submit", r=0, g=0, c=0)
    assert unmet is not None and unmet.name == "the step's output is known"
    if settles == "reject":  # and still, until the step's output is known
        run.step("reject", r=0)
        assert run.unmet("submit", r=0, g=0, c=0) is not None
    run.step("sample", r=0, a=0)
    _store(run)
    assert not run.get("byte_guessed", 0, 0)


def test_the_reference_offers_the_tail_when_its_request_has_finished() -> None:
    run = _in_step(MACHINE)
    assert run.unmet("plan_store", r=0, g=0, h=0, n=1, d=1) is not None
    run.step("sample", r=0, a=0)
    assert run.unmet("plan_store", r=0, g=0, h=0, n=1, d=1) is not None
    run.step("finish", r=0)
    run.step("plan_store", r=0, g=0, h=0, n=1, d=1)
    _store(run)
    assert not run.get("byte_guessed", 0, 0)


def test_accepted_drafts_need_blocks_and_get_their_kv_with_the_output() -> None:
    run = _in_step(MACHINE)
    unmet = run.unmet("sample", r=0, a=1)
    assert unmet is not None and unmet.name == "a block for each accepted draft"
    run.step("allocate", r=0, g=0, b=1)
    run.step("sample", r=0, a=1)
    assert run.get("computed", 0) == 3 and run.get("tag_end", 1, 0) == 2
    assert not run.get("guessed", 0, 0) and not run.get("guessed", 1, 0)
