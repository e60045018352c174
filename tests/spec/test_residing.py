"""Are blocks that are shared, or written late, proved safe, by what is needed, and do unsound
designs stay unproved?"""

from __future__ import annotations

import functools

import pytest
import z3
from proved import beyond_transfers

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run
from kvoracle.model.scopes import COMPOSITIONS, SCOPES
from kvoracle.spec.properties.property import Property
from kvoracle.spec.properties.residing import LAG_LEMMAS, RESIDENT_LEMMAS
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import Variant
from kvoracle.spec.variants.blocks import UNSOUND

PROOFS = {name: Proof(Machine(COMPOSITIONS[name], REFERENCE))
          for name in ("transfers", "residents", "lagging")}
MACHINE = PROOFS["residents"].machine


@functools.cache
def _reference(composition: str) -> tuple[Obligation, ...]:
    return beyond_transfers(PROOFS[composition].machine)


@pytest.mark.parametrize(("composition", "lemmas"), [
    ("residents", RESIDENT_LEMMAS), ("lagging", LAG_LEMMAS)])
def test_blocks_are_proved_safe_for_all_sizes(
    composition: str, lemmas: tuple[Property, ...]
) -> None:
    decided = _reference(composition)
    assert {str(o) for o in decided if o.answer.verdict != "proved"} == set()
    shown = {(o.property, o.action) for o in decided}
    assert {(p.name, a) for p in lemmas for a in PROOFS[composition].machine.actions} <= shown


@pytest.mark.parametrize(("composition", "action"), [
    *(("residents", a) for a in ("find", "give_back", "start", "allocate", "plan_load")),
    *(("lagging", a) for a in ("dispatch", "run_ahead", "allocate", "finish", "preempt")),
])
def test_hypotheses_are_not_contradictory(composition: str, action: str) -> None:
    proof = PROOFS[composition]
    hypotheses = proof.hypotheses(proof.machine.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 20_000).verdict != "proved"


NEEDED_FOR = {
    "NameIsTrue": ("residents", "LoadedBytes / start"),
    "NamedIsBehind": ("residents", "LoadedBytes / compute"),
    "FoundIsShort": ("residents", "NamedIsBehind / report_load"),
    "FoundKeepsItsName": ("residents", "LoadedBytes / report_load"),
    "AimIsItsOwn": ("lagging", "LeftBytes / run_ahead"),
    "AimIsAhead": ("lagging", "FreshAims / plan_store"),
    "FreshAims": ("lagging", "ReuseFence / run_ahead"),
}


def test_every_lemma_is_said_to_be_needed_for_something() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in (*RESIDENT_LEMMAS, *LAG_LEMMAS)}


@pytest.mark.parametrize("lemma", NEEDED_FOR)
def test_without_the_lemma_something_is_not_proved(lemma: str) -> None:
    composition, obligation = NEEDED_FOR[lemma]
    proof = PROOFS[composition]
    assert proof.decide_one(obligation).answer.verdict == "proved"
    assert proof.decide_one(obligation, without=lemma).answer.verdict != "proved"


UNPROVED_AT = {
    "first-holder-frees": "RefExact / finish",
    "finder-not-counted": "RefExact / find",
    "load-over-found": "ReuseFence / plan_load",
    "name-kept-at-reuse": "NamedIsBehind / allocate",
    "named-before-loaded": "NamedIsBehind / plan_load",
    "first-failure-ends": "WorkerAgreement / load_fails",
    "freed-under-a-step": "AimIsItsOwn / allocate",
    "ended-twice": "OwnBlocks / run_ahead",
}


def test_every_unsound_design_is_among_them() -> None:
    assert UNPROVED_AT.keys() == {v.name for v in UNSOUND}


@pytest.mark.parametrize("chosen", UNSOUND, ids=lambda v: v.name)
def test_an_unsound_design_is_not_proved_where_its_rule_is_missing(chosen: Variant) -> None:
    composition = next(n for n, parts in COMPOSITIONS.items() if parts is chosen.parts)
    obligation = UNPROVED_AT[chosen.name]
    assert PROOFS[composition].decide_one(obligation).answer.verdict == "proved"
    proof = Proof(chosen.whole(), effort=60_000)
    assert proof.decide_one(obligation).answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def _holder_of_two_chunks() -> Run:
    """Request 0 has computed two chunks in blocks 0 and 1; request 1 says the same and waits."""
    sizes = {"Request": 3, "Group": 1, "Chunk": 2, "Block": 3, "Text": 2, "Slot": 1, "Worker": 1}
    run = Run(Program(MACHINE), SCOPES["sharing"].constants, sizes)
    run.step("arrive", r=0, t=0, p=2)
    run.step("start", r=0, n=0)
    run.step("allocate", r=0, g=0, b=0)
    run.step("allocate", r=0, g=0, b=1)
    run.step("compute", r=0, n=2)
    run.step("arrive", r=1, t=0, p=2)
    return run


def test_a_block_is_found_by_its_name_but_not_the_one_of_the_last_token() -> None:
    run = _holder_of_two_chunks()
    run.step("find", r=1, g=0, b=0)
    unmet = run.unmet("find", r=1, g=0, b=1)
    assert unmet is not None and unmet.name == "a token is left to compute"
    run.step("start", r=1, n=1)
    assert [run.get("hold", 0, r) for r in (0, 1)] == [1, 1]


def test_a_shared_block_is_free_when_the_last_holder_lets_go_and_keeps_its_residue() -> None:
    run = _holder_of_two_chunks()
    run.step("find", r=1, g=0, b=0)
    run.step("sample", r=0, a=0)
    run.step("finish", r=0)
    run.step("arrive", r=2, t=1, p=2)
    unmet = run.unmet("allocate", r=2, g=0, b=0)
    assert unmet is not None and unmet.name == "nobody holds it"
    run.step("give_back", r=1)
    run.step("find", r=1, g=0, b=0)  # residue
    run.step("give_back", r=1)
    run.step("allocate", r=2, g=0, b=0)
    unmet = run.unmet("find", r=1, g=0, b=0)
    assert unmet is not None and unmet.name == "has its name"


def test_a_load_leaves_out_what_was_found() -> None:
    run = _holder_of_two_chunks()
    for c in range(2):
        run.values["pooled"][0, 0, c] = 2
    run.step("find", r=1, g=0, b=0)
    run.step("keys_arrive", r=1, g=0, n=2)
    unmet = run.unmet("plan_load", r=1, n=1)
    assert unmet is not None and unmet.name == "further than what was found"
    run.step("allocate", r=1, g=0, b=2)
    run.step("plan_load", r=1, n=2)
    assert [run.get("pin", 1, 0, c) for c in range(2)] == [0, 1]
    assert run.unmet("copy_in", r=1, g=0, c=0, w=0) is not None


def _ended_with_a_step_ahead() -> Run:
    """Request 0 has finished, and its next step will yet write block 1."""
    sizes = {"Request": 2, "Group": 1, "Chunk": 2, "Block": 2, "Text": 1, "Slot": 1, "Worker": 1}
    run = Run(Program(PROOFS["lagging"].machine), SCOPES["lag"].constants, sizes)
    run.step("arrive", r=0, t=0, p=1)
    run.step("start", r=0, n=0)
    run.step("allocate", r=0, g=0, b=0)
    run.step("allocate", r=0, g=0, b=1)
    run.step("compute", r=0, n=1)
    run.step("dispatch", r=0)
    run.step("sample", r=0, a=0)
    return run


def test_a_step_dispatched_ahead_computes_the_token_that_comes() -> None:
    run = _ended_with_a_step_ahead()
    run.step("run_ahead", r=0)
    assert run.get("computed", 0) == 2 and run.get("tag_end", 1, 0) == 2
    run.step("sample", r=0, a=0)


def test_a_freed_block_waits_for_the_step_that_writes_it() -> None:
    run = _ended_with_a_step_ahead()
    run.step("finish", r=0)
    run.step("arrive", r=1, t=0, p=2)
    run.step("allocate", r=1, g=0, b=0)
    unmet = run.unmet("allocate", r=1, g=0, b=1)
    assert unmet is not None and unmet.name == "no step still writes it"
    run.step("run_ahead", r=0)
    assert run.get("computed", 0) == 1
    run.step("allocate", r=1, g=0, b=1)


def test_preempting_a_request_with_a_step_ahead_makes_no_room_at_once() -> None:
    run = _ended_with_a_step_ahead()
    run.step("preempt", r=0)
    assert run.get("hold", 1, 0) == 0
    unmet = run.unmet("allocate", r=0, g=0, b=1)
    assert unmet is not None and unmet.name == "no step still writes it"
    run.step("run_ahead", r=0)
    assert run.get("tag_end", 1, 0) == 0  # a stray's KV is nobody's where the block was freed
    run.step("allocate", r=0, g=0, b=1)
