"""Are tables that keep only a window proved safe, by what is needed, and do designs that misjudge
windows stay unproved?"""

from __future__ import annotations

import functools

import pytest
import z3
from proved import beyond_transfers

from kvoracle.model.kinds import LOCAL, RECURRENT, WINDOW
from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run
from kvoracle.model.scopes import SCOPES, WINDOW_PARTS
from kvoracle.spec.properties.windowing import WINDOW_LEMMAS
from kvoracle.spec.prove.obligations import Obligation, Proof
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import Variant
from kvoracle.spec.variants.windows import MISSLID

MACHINE = Machine(WINDOW_PARTS, REFERENCE)
PROOF = Proof(MACHINE)


@functools.cache
def _reference() -> tuple[Obligation, ...]:
    return beyond_transfers(MACHINE)


def test_windows_are_proved_safe_for_all_sizes() -> None:
    assert {str(o) for o in _reference() if o.answer.verdict != "proved"} == set()
    shown = {(o.property, o.action) for o in _reference()}
    assert {(p.name, a) for p in WINDOW_LEMMAS for a in MACHINE.actions} <= shown


@pytest.mark.parametrize("action", ["slide", "leave_out", "hand_back", "pass_over", "plan_store",
                                    "plan_load", "start", "compute"])
def test_hypotheses_are_not_contradictory(action: str) -> None:
    hypotheses = PROOF.hypotheses(MACHINE.actions[action])
    assert decide(hypotheses, z3.BoolVal(False), 20_000).verdict != "proved"


NEEDED_FOR = {
    "WindowIsKept": "LoadedBytes / compute",
    "SlidIsBehind": "LoadedBytes / compute",
}


def test_every_lemma_is_said_to_be_needed_for_something() -> None:
    assert NEEDED_FOR.keys() == {p.name for p in WINDOW_LEMMAS}


@pytest.mark.parametrize("lemma", NEEDED_FOR)
def test_without_the_lemma_something_is_not_proved(lemma: str) -> None:
    obligation = NEEDED_FOR[lemma]
    assert PROOF.decide_one(obligation).answer.verdict == "proved"
    assert PROOF.decide_one(obligation, without=lemma).answer.verdict != "proved"


UNPROVED_AT = {
    "slides-unfenced": "ReuseFence / compute",
    "null-stored": "NoVolatileStore / plan_store",
    "null-loaded": "ReuseFence / plan_load",
    "slides-too-early": "WindowIsKept / slide",
}


def test_every_such_design_is_among_them() -> None:
    assert UNPROVED_AT.keys() == {v.name for v in MISSLID}


@pytest.mark.parametrize("chosen", MISSLID, ids=lambda v: v.name)
def test_a_design_is_not_proved_where_its_rule_is_missing(chosen: Variant) -> None:
    obligation = UNPROVED_AT[chosen.name]
    assert PROOF.decide_one(obligation).answer.verdict == "proved"
    proof = Proof(chosen.whole(), effort=60_000)
    assert proof.decide_one(obligation).answer.verdict != "proved"


# --- the machine -----------------------------------------------------------------------------


def _run(kind: int, reach: int, size: int = 1, prompt: int = 4) -> Run:
    """A request that has computed its prompt, chunk c in block c, and has all its keys."""
    sizes = {"Request": 2, "Group": 1, "Tokens": prompt + 2, "Chunk": prompt, "Block": prompt,
             "Text": 2, "Slot": prompt, "Worker": 1}
    constants = dict(SCOPES["slides"].constants) | {
        "kind": (kind,), "reach": (reach,), "tokens_per_chunk": (size,)}
    run = Run(Program(MACHINE), constants, sizes)
    run.step("arrive", r=0, t=1, p=prompt)
    run.step("start", r=0, n=0)
    for b in range(prompt // size):
        run.step("allocate", r=0, g=0, b=b)
    run.step("compute", r=0, n=prompt)
    run.step("keys_arrive", r=0, g=0, n=prompt // size)
    run.step("blocks_told", r=0, g=0, n=prompt // size)
    return run


@pytest.mark.parametrize(("kind", "reach", "last"), [
    (WINDOW, 1, 2), (WINDOW, 3, 0), (LOCAL, 4, 3), (LOCAL, 3, 2), (RECURRENT, 1, 2)])
def test_a_window_slides_past_what_is_read_no_more(kind: int, reach: int, last: int) -> None:
    run = _run(kind, reach)
    unmet = run.unmet("slide", r=0, g=0, p=last + 1)
    assert unmet is not None and unmet.name == "read no more"
    run.step("slide", r=0, g=0, p=last)
    assert [run.get("hold", b, 0) for b in range(4)] == [int(b > last) for b in range(4)]


def test_a_chunk_that_is_read_in_part_keeps_its_block() -> None:
    run = _run(WINDOW, reach=1, size=2)
    run.step("slide", r=0, g=0, p=2)
    assert [run.get("hold", b, 0) for b in range(2)] == [0, 1]
    unmet = run.unmet("slide", r=0, g=0, p=1)
    assert unmet is not None and unmet.name == "a chunk more"


def test_who_is_given_a_block_behind_a_window_waits_for_the_store_that_reads_it() -> None:
    run = _run(WINDOW, reach=1)
    run.step("plan_store", r=0, g=0, n=1, d=1, h=0)
    run.step("slide", r=0, g=0, p=0)
    run.step("arrive", r=1, t=0, p=1)
    run.step("start", r=1, n=0)
    run.step("allocate", r=1, g=0, b=0)
    unmet = run.unmet("compute", r=1, n=1)
    assert unmet is not None and unmet.name == "no store still reads what is written"
    run.step("submit", r=0, g=0, c=0)
    run.step("copy_out", r=0, g=0, c=0, w=0)
    run.step("compute", r=1, n=1)


def test_the_planner_passes_over_a_null_block() -> None:
    run = _run(WINDOW, reach=1)
    run.step("slide", r=0, g=0, p=0)
    unmet = run.unmet("plan_store", r=0, g=0, n=1, d=1, h=0)
    assert unmet is not None and unmet.name == "something is there"
    run.step("pass_over", r=0, g=0)
    assert run.unmet("pass_over", r=0, g=0) is not None
    run.step("plan_store", r=0, g=0, n=2, d=2, h=0)
    assert run.get("source", 0, 0, 1) == 1


def test_a_load_brings_what_is_read_behind_it_and_no_less() -> None:
    run = _run(WINDOW, reach=2)
    run.step("sample", r=0, a=0)
    run.step("preempt", r=0)
    for c in range(4):
        run.values["pooled"][1, 0, c] = 2
    run.step("leave_out", r=0, g=0, n=2)
    run.step("allocate", r=0, g=0, b=3)
    unmet = run.unmet("plan_load", r=0, n=3)  # reads positions 1 and 2
    assert unmet is not None and unmet.name == "a block for all that is read"
    run.step("hand_back", r=0)
    run.step("leave_out", r=0, g=0, n=1)
    run.step("allocate", r=0, g=0, b=3)
    run.step("allocate", r=0, g=0, b=0)
    run.step("plan_load", r=0, n=3)
    assert [run.get("pin", 0, 0, c) for c in range(4)] == [0, 1, 1, 0]
    assert run.unmet("copy_in", r=0, g=0, c=0, w=0) is not None
    for c in (1, 2):
        run.step("copy_in", r=0, g=0, c=c, w=0)
    run.step("report_load", r=0)
    assert run.get("cursor", 0, 0) == 3
