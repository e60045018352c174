"""Who may write what while transfers are under way, as the headless vLLM sees it."""

from __future__ import annotations

from typing import Any

import pytest

from kvoracle.oracle.engines.vllm.child.ghost import InFlight


@pytest.fixture
def seen() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def flight(seen: list[dict[str, Any]]) -> InFlight:
    return InFlight(seen.append)


def test_the_step_that_plans_a_store_may_still_write_its_blocks(flight: InFlight) -> None:
    flight.plan("a", True, [1, 2], [0], ended=False)
    assert not flight.reads
    flight.step_over()
    assert set(flight.reads) == {1, 2}


def test_blocks_of_a_request_that_has_ended_are_nobodys_at_once(
        flight: InFlight, seen: list[dict[str, Any]]) -> None:
    flight.plan("b", True, [5], [1], ended=False)
    flight.plan("a", True, [1], [0], ended=True)
    assert set(flight.reads) == {1}
    flight.block_written(1, "a kernel of request b")
    assert seen == [{"saw": "overwritten", "what": "block", "r": "a",
                     "by": "a kernel of request b"}]
    assert not flight.reads  # said once


def test_a_block_is_free_once_the_copy_has_run(flight: InFlight, seen: list[Any]) -> None:
    job = flight.plan("a", True, [1], [0], ended=True)
    flight.runs(job)
    assert not flight.reads and not seen


def test_a_load_before_the_store_it_reads_is_not_ready(
        flight: InFlight, seen: list[dict[str, Any]]) -> None:
    store = flight.plan("a", True, [1], [0], ended=False)
    flight.runs(flight.plan("b", False, [2], [0], ended=False))
    assert seen == [{"saw": "unready", "r": "b"}]
    seen.clear()
    flight.runs(store)
    flight.runs(flight.plan("b", False, [2], [0], ended=False))
    assert not seen


def test_a_slot_given_away_is_written_after_its_load(
        flight: InFlight, seen: list[dict[str, Any]]) -> None:
    flight.runs(flight.plan("a", True, [1], [0], ended=False))
    load = flight.plan("b", False, [2], [0], ended=False)
    store = flight.plan("c", True, [3], [0], ended=False)
    flight.runs(store)
    assert seen == [{"saw": "overwritten", "what": "slot", "r": "b",
                     "by": "a store of request c"}]
    seen.clear()
    flight.runs(load)
    assert not seen


def test_stores_to_one_slot_run_in_the_order_of_their_plans(
        flight: InFlight, seen: list[dict[str, Any]]) -> None:
    first = flight.plan("a", True, [1], [0], ended=False)
    second = flight.plan("b", True, [2], [0], ended=False)
    flight.runs(second)
    assert not seen
    flight.runs(first)
    assert seen[0]["what"] == "slot" and seen[0]["r"] == "a"
