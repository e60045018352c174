"""Does every property speak of something, and does something break it?"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import (
    ALL_PARTS,
    CONNECTOR_PARTS,
    CORE,
    DRAFTED_PARTS,
    LAGGING_PARTS,
    LOOKUP_PARTS,
    RESIDENT_PARTS,
    SCOPES,
    STREAM_PARTS,
    TIER_PARTS,
    TRANSFER_PARTS,
    WINDOW_PARTS,
    UnknownName,
)
from kvoracle.spec.explore import Exploration
from kvoracle.spec.properties import EVERYTHING, PROPERTIES, Property, named
from kvoracle.spec.properties.connecting import CONNECTING, CONNECTOR_LEMMAS
from kvoracle.spec.properties.drafting import DRAFTING, DRAFTING_LEMMAS
from kvoracle.spec.properties.looking import LOOKING, LOOKING_LEMMAS
from kvoracle.spec.properties.residing import LAG_LEMMAS, RESIDENT_LEMMAS
from kvoracle.spec.properties.storing import LEMMAS, STORING
from kvoracle.spec.properties.streaming import STREAM_LEMMAS, STREAMING
from kvoracle.spec.properties.tiering import TIER_LEMMAS, TIERING
from kvoracle.spec.properties.transferring import TRANSFER_LEMMAS, TRANSFERRING
from kvoracle.spec.properties.windowing import WINDOW_LEMMAS
from kvoracle.spec.variants import VARIANTS

WITNESSES = [(p.name, w.name) for p in PROPERTIES.values() for w in p.witnesses]


@pytest.mark.parametrize(("name", "witness"), WITNESSES)
def test_every_witness_is_reached_in_some_scope(
    name: str, witness: str, reference_search: Callable[[str], Exploration]
) -> None:
    depths = {
        scope: depth for scope in SCOPES
        if (depth := reference_search(scope).witnesses.get(name, {}).get(witness)) is not None
    }
    assert depths, f"{name}: {witness!r} happens in no scope"
    assert all(depth > 0 for depth in depths.values()), "it holds at first: it witnesses nothing"


@pytest.mark.parametrize("prop", PROPERTIES.values(), ids=list(PROPERTIES))
def test_every_property_has_a_witness_and_a_variant_that_breaks_it(prop: Property) -> None:
    assert prop.witnesses
    assert any(prop.name in v.breaks for v in VARIANTS.values())


@pytest.mark.parametrize("prop", EVERYTHING.values(), ids=list(EVERYTHING))
def test_every_property_says_what_why_and_whence(prop: Property) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]+", prop.name)
    assert prop.statement and not prop.statement.endswith(".")
    assert prop.why.endswith(".") and len(prop.why) > 80
    assert prop.source
    assert bool(prop.supports) == prop.lemma
    assert not prop.supports or prop.supports in PROPERTIES


def test_promises_come_before_lemmas_and_are_all_of_them() -> None:
    assert list(EVERYTHING)[: len(PROPERTIES)] == list(PROPERTIES)
    assert all(p.lemma for n, p in EVERYTHING.items() if n not in PROPERTIES)
    assert not any(p.lemma for p in PROPERTIES.values())


def test_a_property_applies_only_where_its_parts_are() -> None:
    planned = {p.name for p in (*STORING, *LEMMAS)}
    moved = {p.name for p in (*TRANSFERRING, *TRANSFER_LEMMAS)}
    queued = {p.name for p in (*STREAMING, *STREAM_LEMMAS)}
    shared = {p.name for p in (*CONNECTING, *CONNECTOR_LEMMAS)}
    tiered = {p.name for p in (*TIERING, *TIER_LEMMAS)}
    looked = {p.name for p in (*LOOKING, *LOOKING_LEMMAS)}
    for parts, speaking in (
        (CORE, planned - {"TailNotHeld"}),
        (ALL_PARTS, planned),
        (TRANSFER_PARTS, planned - {"TailNotHeld"} | moved),
        (CONNECTOR_PARTS, planned - {"TailNotHeld"} | moved | shared),
        (RESIDENT_PARTS, planned - {"TailNotHeld"} | moved | {p.name for p in RESIDENT_LEMMAS}),
        (LAGGING_PARTS, planned - {"TailNotHeld"} | moved | {p.name for p in LAG_LEMMAS}),
        (TIER_PARTS, planned - {"TailNotHeld"} | moved | tiered),
        (DRAFTED_PARTS, planned | moved | {p.name for p in (*DRAFTING, *DRAFTING_LEMMAS)}),
        (WINDOW_PARTS, planned - {"TailNotHeld"} | moved | {p.name for p in WINDOW_LEMMAS}),
        (STREAM_PARTS, queued),
        (LOOKUP_PARTS, looked | {"CountsInOrder"}),
    ):
        machine = Machine(parts, REFERENCE)
        assert {n for n, p in EVERYTHING.items() if p.applies(machine)} == speaking


def test_an_unknown_property_names_the_near_ones() -> None:
    assert named("NoHole") is PROPERTIES["NoHole"]
    with pytest.raises(UnknownName, match="no property 'NoHoles'; did you mean NoHole"):
        named("NoHoles")
