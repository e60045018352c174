"""Designs that take a draft group for any other, in the machine where bytes are copied."""

from __future__ import annotations

from typing import Any

from kvoracle.model.fencing import Care
from kvoracle.model.rules import Claim, Design, storable
from kvoracle.model.scopes import DRAFTED_PARTS

from .variant import Variant


def _drafters_unknown(claim: Claim) -> Any:
    return storable(claim._replace(draft=False))


TAIL_COPIED = Variant(
    name="tail-copied",
    statement="a draft group is not known as one, and its tail is copied while a step decides it",
    lacks="telling which groups hold drafter layers",
    source="vLLM before PR #44784; PR55055",
    design=Design(storable=_drafters_unknown),
    breaks=("NoVolatileStore", "TrueTails"),
    scope="tail",
    parts=DRAFTED_PARTS,
)

TAIL_COPIED_LATE = Variant(
    name="tail-copied-late",
    statement="a draft group's tail is offered, and submitted once it is decided",
    lacks="the exclusion of the tail from what is planned (the bytes it copies are right)",
    source="an alternative to vLLM PR #44784, which leaves the tail out of what is planned",
    design=Design(storable=_drafters_unknown, care=Care(holds_tails=True)),
    breaks=("NoVolatileStore",),
    scope="tail",
    parts=DRAFTED_PARTS,
)

UNTOLD = (TAIL_COPIED, TAIL_COPIED_LATE)
