"""Is it proved that what is under way ends, by nothing less than what is needed?"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import z3

from kvoracle.model.keys import Chunk
from kvoracle.model.machine import Machine, View
from kvoracle.model.requests import Group, Request
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import TRANSFER_PARTS
from kvoracle.oracle import cli, exits
from kvoracle.spec.properties import LIVENESS
from kvoracle.spec.prove import ranking
from kvoracle.spec.prove.obligations import Obligation
from kvoracle.spec.prove.ranking import RESPONSES, STORE_ENDS, Milestone, Response, Responses
from kvoracle.spec.prove.solver import decide
from kvoracle.spec.variants import VARIANTS


@functools.cache
def _proof(variant: str | None = None) -> Responses:
    return Responses(VARIANTS[variant].whole() if variant else Machine(TRANSFER_PARTS, REFERENCE))


@functools.cache
def _decided(variant: str | None = None) -> tuple[Obligation, ...]:
    return tuple(_proof(variant).responses())


def _unproved(obligations: tuple[Obligation, ...]) -> list[str]:
    return [str(o) for o in obligations if o.answer.verdict != "proved"]


def test_stores_and_loads_end_for_all_sizes() -> None:
    assert _unproved(_decided()) == []
    assert len(_decided()) > 60
    assert sum(not o.by_frame for o in _decided()) > 20


@pytest.mark.parametrize(("name", "stuck"), [
    ("never-complete", "a store under way ends: report_store / enabled"),
    ("last-store-waits", "a store under way ends: submit / enabled"),
])
def test_a_design_that_starves_is_not_proved(name: str, stuck: str) -> None:
    assert _unproved(_decided(name)) == [stuck]


def _has_failed(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.failed[r, g, c]


def _with(monkeypatch: pytest.MonkeyPatch, *milestones: Milestone) -> list[str]:
    wrong = dataclasses.replace(STORE_ENDS, milestones=milestones)
    monkeypatch.setattr(ranking, "RESPONSES", (wrong,))
    return _unproved(tuple(_proof().responses()))


def test_without_a_milestone_the_next_action_need_not_be_possible(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    _, copied, over = STORE_ENDS.milestones
    assert "a store under way ends: copy_out / enabled" in _with(monkeypatch, copied, over)


def test_an_action_that_does_not_reach_its_milestone_is_no_help(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted, copied, over = STORE_ENDS.milestones
    wrong = dataclasses.replace(submitted, reached=_has_failed)
    assert "a store under way ends: submit / helpful: submit" in _with(
        monkeypatch, wrong, copied, over)


@pytest.mark.parametrize("response", RESPONSES, ids=lambda r: r.name)
def test_the_turn_of_each_milestone_can_come(response: Response) -> None:
    proof = _proof()
    assert response.promise in LIVENESS
    for k, milestone in enumerate(response.milestones):
        turn = proof._turn(response, k, milestone)
        values, typed = proof._parameters(turn.parameters)
        given = proof._translator.formula(turn.term, values)
        known = proof._always()
        answer = decide([*known, *typed, given], z3.BoolVal(False), 60_000)
        assert answer.verdict != "proved", (response.name, k)


def test_prove_says_what_ends_and_shows_what_does_not(
    capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["prove", "--variant", "begins-anew-at-refusal", "EventuallyStored"]) \
        == exits.VIOLATION
    said = capsys.readouterr().out
    assert "EventuallyStored is broken under fairness" in said
    assert "and from then on, for ever, these:" in said
