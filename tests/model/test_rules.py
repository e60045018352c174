"""Is the arithmetic of what may be stored right, on numbers and as terms?"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoracle.model import fencing
from kvoracle.model.fencing import Care
from kvoracle.model.rules import (
    REFERENCE,
    Claim,
    by_blocks,
    by_keys,
    by_tokens,
    cursor_after_clearing,
    cursor_after_offer,
    cursor_after_refusal,
    cursor_in_passing,
    storable,
    tokens_counted,
)
from kvoracle.model.scopes import SCOPES
from kvoracle.model.terms import Bound, Sort, Term
from kvoracle.spec.explore.reference import ReferenceBackend

COUNT = st.integers(0, 40)
SIZE = st.integers(1, 6)

CLAIMS = st.builds(
    Claim, tokens=COUNT, prompt=COUNT, finished=st.booleans(), draft=st.booleans(),
    blocks=COUNT, keys=COUNT, tokens_per_chunk=SIZE, blocks_per_chunk=SIZE,
)


def chunk_by_chunk(claim: Any) -> int:
    """What `storable` says it counts, position by position and block by block."""

    def positions(chunk: int) -> range:
        return range(chunk * claim.tokens_per_chunk, (chunk + 1) * claim.tokens_per_chunk)

    def computed(chunk: int) -> bool:
        return all(position < claim.tokens for position in positions(chunk))

    def final(chunk: int) -> bool:
        decoding = any(position >= claim.prompt for position in range(claim.tokens))
        speculates = claim.draft and decoding and not claim.finished
        return not (speculates and not computed(chunk + 1))

    def allocated(chunk: int) -> bool:
        first = chunk * claim.blocks_per_chunk
        return all(block < claim.blocks for block in range(first, first + claim.blocks_per_chunk))

    chunks = 0
    while computed(chunks) and final(chunks) and allocated(chunks) and chunks < claim.keys:
        chunks += 1
    return chunks


@given(CLAIMS)
def test_storable_counts_leading_chunks_that_are_final_allocated_and_keyed(claim: Claim) -> None:
    assert storable(claim) == chunk_by_chunk(claim)


@given(CLAIMS)
def test_each_bound_alone_limits_the_storable_chunks(claim: Claim) -> None:
    plenty: dict[str, int] = {"tokens": 1000, "blocks": 1000, "keys": 1000}
    relaxed = {name: claim._replace(**(plenty | {name: getattr(claim, name)})) for name in plenty}
    assert storable(relaxed["tokens"]) == by_tokens(claim)
    assert storable(relaxed["blocks"]) == by_blocks(claim)
    assert storable(relaxed["keys"]) == by_keys(claim)


PLAIN = ReferenceBackend(SCOPES["seed"].machine(), SCOPES["seed"])


class _Numbers(dict[str, int]):
    """Names a claim's fields as bound variables and evaluates terms over them."""

    def __init__(self, claim: Claim) -> None:
        self.bounds = {name: Bound(name, Sort("Count")) for name in claim._fields}
        self.values = {self.bounds[n]: getattr(claim, n) for n in claim._fields}

    def value(self, term: Term) -> int:
        return PLAIN.value(term, self.values, PLAIN.initial)


@given(CLAIMS)
def test_rules_on_terms_have_the_values_of_rules_on_numbers(claim: Claim) -> None:
    numbers = _Numbers(claim)
    symbolic = Claim(**numbers.bounds)
    for rule in (by_tokens, by_blocks, by_keys, storable):
        assert numbers.value(rule(symbolic)) == rule(claim)


@given(CLAIMS)
def test_the_cursor_rules_on_terms_have_the_values_of_those_on_numbers(claim: Claim) -> None:
    numbers = _Numbers(claim)
    symbolic = Claim(**numbers.bounds)
    at, bound = claim.keys, claim.blocks
    at_term, bound_term = numbers.bounds["keys"], numbers.bounds["blocks"]
    for rule in (cursor_after_offer, cursor_in_passing, cursor_after_refusal):
        assert numbers.value(rule(at_term, bound_term, symbolic)) == rule(at, bound, claim)
    assert numbers.value(cursor_after_clearing(at_term)) == cursor_after_clearing(at)


WHOLE = Claim(tokens=8, prompt=4, finished=False, draft=False, blocks=8, keys=8,
              tokens_per_chunk=2, blocks_per_chunk=2)


@pytest.mark.parametrize(("change", "chunks"), [
    ({}, 4),
    ({"tokens": 7}, 3),
    ({"blocks": 7}, 3),
    ({"keys": 2}, 2),
    ({"keys": 0}, 0),
    ({"draft": True}, 3),
    ({"draft": True, "finished": True}, 4),
    ({"draft": True, "prompt": 8}, 4),  # prefill: nothing is speculated yet
    ({"draft": True, "prompt": 7}, 3),  # the first decoded token
    ({"draft": True, "prompt": 0, "tokens": 1}, 0),  # never below 0
])
def test_storable_of_one_case(change: dict[str, int], chunks: int) -> None:
    assert storable(WHOLE._replace(**change)) == chunks


@given(cursor=COUNT, bound=COUNT)
def test_the_reference_cursor_never_moves_back(cursor: int, bound: int) -> None:
    assert cursor_after_offer(cursor, bound, WHOLE) == max(cursor, bound)
    assert cursor_in_passing(cursor, bound, WHOLE) == max(cursor, bound)
    assert cursor_after_refusal(cursor, bound, WHOLE) == cursor
    assert cursor_after_clearing(cursor) == cursor


@given(computed=COUNT, tokens=COUNT, aborted=st.booleans())
def test_only_computed_tokens_count(computed: int, tokens: int, aborted: bool) -> None:
    assert tokens_counted(computed, tokens, not aborted, aborted) == computed


def test_the_reference_design_is_the_rules_of_the_page() -> None:
    import kvoracle.model.rules as page

    for field in fields(REFERENCE):
        rule = getattr(REFERENCE, field.name)
        if callable(rule):  # the others gather the rules of pages of their own
            assert rule is getattr(page, field.name)
    for field in fields(Care):
        rule = getattr(REFERENCE.care, field.name)
        assert isinstance(rule, bool) or rule is getattr(fencing, field.name)
