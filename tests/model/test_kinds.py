"""Does a group of each kind need the chunks that it reads, and no others?"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoracle.model import kinds
from kvoracle.model.hits import chunks_touched
from kvoracle.model.kinds import (
    DOCUMENTED,
    FULL,
    LOCAL,
    RECURRENT,
    WINDOW,
    Seeking,
    can_go_on,
    customary,
    goes_on_at,
    longest,
    needed,
    reads,
    worth_it,
)
from kvoracle.model.simplify import OPERATIONS
from kvoracle.model.sliding import passed
from kvoracle.model.terms import Bound, Literal, Op, Quantified, Sort, Term

NUMBER = Sort("Number")
SIZES = st.integers(1, 9)
POSITIONS = st.integers(0, 40)
KINDS = st.sampled_from((FULL, WINDOW, LOCAL, RECURRENT))


def chunks(kind: int, reach: int, size: int, n: int) -> list[int]:
    return [c for c in range(50) if needed(kind, reach, size, n, c)]


@pytest.mark.parametrize(("kind", "reach", "size", "n", "expected"), [
    (FULL, 1, 4, 0, []),
    (FULL, 1, 4, 9, [0, 1, 2]),  # part of the last
    (WINDOW, 4, 4, 8, [1]),
    (WINDOW, 4, 4, 9, [1, 2]),  # unaligned: one more (vLLM#48959)
    (WINDOW, 8, 4, 10, [0, 1, 2]),
    (WINDOW, 50, 4, 8, [0, 1]),
    (LOCAL, 6, 4, 6, []),  # the first position of a local chunk
    (LOCAL, 6, 4, 11, [1, 2]),  # vLLM PR51161: two, not one
    (LOCAL, 8, 4, 15, [2, 3]),
    (RECURRENT, 1, 4, 8, [1]),
])
def test_chunks_of_one_case(
    kind: int, reach: int, size: int, n: int, expected: list[int]
) -> None:
    assert chunks(kind, reach, size, n) == expected


@given(KINDS, SIZES, SIZES, POSITIONS)
def test_needed_is_what_is_read_and_no_gap_is_in_it(
    kind: int, reach: int, size: int, n: int
) -> None:
    found = chunks(kind, reach, size, n)
    assert found == sorted({p // size for p in range(n) if reads(kind, reach, n, p)})
    assert found == list(range(found[0], chunks_touched(n, size))) if found else True


@given(SIZES, SIZES, POSITIONS)
def test_a_window_touches_its_length_in_chunks_and_at_most_one_more(
    reach: int, size: int, n: int
) -> None:
    least = chunks_touched(min(reach, n), size)
    assert least <= len(chunks(WINDOW, reach, size, n)) <= least + 1
    if n % size == 0:
        assert len(chunks(WINDOW, reach, size, n)) == least


@given(KINDS, SIZES, SIZES, POSITIONS, st.integers(0, 12))
def test_lookups_ask_for_no_less_than_is_needed(
    kind: int, reach: int, size: int, n: int, c: int
) -> None:
    assert customary(kind, reach, size, n, c) or not needed(kind, reach, size, n, c)


@given(KINDS, st.booleans(), SIZES, st.integers(1, 40))
def test_states_are_kept_for_the_ends_of_chunks(
    kind: int, undivided: bool, size: int, n: int
) -> None:
    assert can_go_on(kind, undivided, size, n) == (
        n % size == 0 or (kind != RECURRENT and not undivided))


@given(st.integers(1, 40))
def test_a_promise_is_where_the_request_goes_on(tokens: int) -> None:
    assert goes_on_at(tokens, longest(tokens)) == longest(tokens) < tokens
    assert goes_on_at(tokens, tokens) == tokens - 1


@pytest.mark.parametrize(("size", "limited", "n", "owed"), [
    (4, False, 4, True),
    (4, False, 3, False),  # less than a chunk
    (4, False, 6, True),  # where a smaller group's chunk ends
    (4, True, 6, False),  # limited: whole chunks only
    (4, True, 4, True),
])
def test_prefixes_that_are_looked_for(size: int, limited: bool, n: int, owed: bool) -> None:
    assert worth_it(size, limited, n) == owed


def _value(term: Any, values: dict[Term, int]) -> Any:
    """A term's value, its quantifiers ranging over the positions."""
    if isinstance(term, Literal):
        return term.value
    if isinstance(term, Bound):
        return values[term]
    if isinstance(term, Quantified):
        found = (_value(term.body, {**values, term.bounds[0]: p}) for p in range(45))
        return all(found) if term.every else any(found)
    assert isinstance(term, Op)
    return OPERATIONS[term.name](*(_value(a, values) for a in term.args))


@given(KINDS, st.booleans(), SIZES, SIZES, st.integers(1, 40), st.integers(0, 12))
def test_rules_on_terms_have_the_values_of_those_on_numbers(
    kind: int, undivided: bool, reach: int, size: int, n: int, c: int
) -> None:
    k, u, w, s, m, d = bounds = [Bound(name, NUMBER) for name in "kuwsmd"]
    values: dict[Term, int] = dict(zip(bounds, (kind, undivided, reach, size, n, c)))
    for rule in (needed, customary):
        assert _value(rule(k, w, s, m, d), values) == rule(kind, reach, size, n, c)
    assert _value(can_go_on(k, u, s, m), values) == can_go_on(kind, undivided, size, n)


def test_the_documented_rules_are_those_of_the_page() -> None:
    for field in fields(Seeking):
        assert getattr(DOCUMENTED, field.name) is getattr(kinds, field.name)


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("reach", range(1, 5))
def test_a_position_is_passed_if_no_later_one_reads_it(kind: int, reach: int) -> None:
    for n in range(12):
        for p in range(n):
            later = any(reads(kind, reach, m, p) for m in range(n, 24))
            assert bool(passed(kind, reach, n, p)) == (not later)
