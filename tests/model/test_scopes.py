"""Does a scope refuse what no engine could be, and say what was probably meant?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvoracle.model.scopes import SCOPES, ImpossibleConfig, Scope, UnknownName, nearest, scope
from kvoracle.model.terms import BOOL, enumeration

SEED, DRAFT = SCOPES["seed"], SCOPES["draft"]


@pytest.mark.parametrize("name", ["tokens_per_chunk", "blocks_per_chunk"])
def test_an_empty_chunk_is_impossible(name: str) -> None:
    with pytest.raises(ImpossibleConfig, match=f"scope seed: {name} is 0, must be >= 1"):
        replace(SEED, constants=dict(SEED.constants) | {name: (0,)})


def test_one_wrong_group_suffices() -> None:
    with pytest.raises(ImpossibleConfig, match="tokens_per_chunk is -2"):
        replace(SCOPES["groups"],
                constants=dict(SCOPES["groups"].constants) | {"tokens_per_chunk": (4, -2)})


def test_a_constant_has_a_value_for_every_group() -> None:
    with pytest.raises(ImpossibleConfig, match="tokens_per_chunk has 2 values, needs 1"):
        replace(SEED, constants=dict(SEED.constants) | {"tokens_per_chunk": (2, 2)})


def test_a_constant_that_no_part_declares_is_a_slip() -> None:
    with pytest.raises(UnknownName, match="no constant 'token_per_chunk'; did you mean tokens_per"):
        replace(SEED, constants={"token_per_chunk": (2,)})
    with pytest.raises(UnknownName, match="no constant 'draft'"):
        replace(SEED, constants=dict(DRAFT.constants))


def test_a_sort_without_members_is_impossible() -> None:
    with pytest.raises(ImpossibleConfig, match="scope seed: Request has 0 members, needs 1"):
        replace(SEED, sizes=dict(SEED.sizes) | {"Request": 0})


def test_sizes_of_sorts_that_need_none() -> None:
    assert SEED.size(BOOL) == 2
    assert SEED.size(enumeration("Colour", "red", "green", "blue")) == 3


def test_constants_have_their_defaults_where_the_scope_sets_none() -> None:
    variables = DRAFT.machine().variables
    bare = Scope("bare", "", DRAFT.parts, DRAFT.sizes, {})
    assert bare.constant(variables["tokens_per_chunk"], (0,)) == 1
    assert bare.constant(variables["draft"], (0,)) is False
    assert DRAFT.constant(variables["tokens_per_chunk"], (0,)) == 2
    assert [DRAFT.constant(variables["tokens_per_chunk"], (i,)) for i in (-1, 1)] == [1, 1]


def test_every_scope_is_found_by_its_name_and_says_what_it_is_for() -> None:
    for name, each in SCOPES.items():
        assert scope(name) is each and each.name == name and each.doc


def test_unknown_names_come_with_the_near_ones_or_all() -> None:
    with pytest.raises(UnknownName, match="no scope 'sed'; did you mean seed"):
        scope("sed")
    assert str(nearest("pet", "zzz", ["cat", "ant"])) == "no pet 'zzz'; there are: ant, cat"
