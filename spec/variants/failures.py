"""Designs that take a failed load for a load, by a rule of `kvoracle.model.fencing`."""

from __future__ import annotations

from kvoracle.model.fencing import Care
from kvoracle.model.rules import Design
from kvoracle.model.scopes import TRANSFER_PARTS

from .variant import Variant

FAILED_LOAD_STARTS = Variant(
    name="failed-load-starts",
    statement="a request starts when its load is over, whether or not a copy failed",
    lacks="computing anew what a failed load did not bring",
    source="LMCache#3388: a failed retrieve counts as finished; vLLM issue #49250: the count of "
           "what is computed is not taken back on the device",
    design=Design(care=Care(startable=lambda failed: True)),
    breaks=("LoadedBytes", "ReuseFence", "TrueBytes"),
    scope="workers",
    parts=TRANSFER_PARTS,
)

FAILING = (FAILED_LOAD_STARTS,)
