"""The catalogue of properties: what every engine that offloads KV cache must keep."""

from __future__ import annotations

from kvoracle.model.scopes import nearest

from .connecting import CONNECTING, CONNECTOR_LEMMAS
from .drafting import DRAFTING, DRAFTING_LEMMAS
from .liveness import LIVENESS, Duty, Liveness
from .looking import LOOKING, LOOKING_LEMMAS
from .property import Property, Seen, Witness
from .residing import LAG_LEMMAS, RESIDENT_LEMMAS
from .storing import LEMMAS, STORING
from .streaming import STREAM_LEMMAS, STREAMING
from .tiering import TIER_LEMMAS, TIERING
from .transferring import TRANSFER_LEMMAS, TRANSFERRING
from .windowing import WINDOW_LEMMAS

PLANNING: dict[str, Property] = {p.name: p for p in STORING}
"""The promises about planning, which the oracle's judge holds engines to."""

PROPERTIES: dict[str, Property] = {
    p.name: p for p in (*STORING, *TRANSFERRING, *CONNECTING, *TIERING, *STREAMING, *LOOKING,
                        *DRAFTING)}
"""The promises, in the order in which reports list them."""

EVERYTHING: dict[str, Property] = {
    p.name: p for p in (*STORING, *TRANSFERRING, *CONNECTING, *TIERING, *STREAMING, *LOOKING,
                        *DRAFTING,
                        *LEMMAS, *TRANSFER_LEMMAS, *STREAM_LEMMAS, *CONNECTOR_LEMMAS,
                        *TIER_LEMMAS, *LOOKING_LEMMAS, *RESIDENT_LEMMAS, *LAG_LEMMAS,
                        *DRAFTING_LEMMAS, *WINDOW_LEMMAS)}
"""The promises and the strengthening invariants that carry their proofs."""


def named(name: str) -> Property:
    """The property of this name; raises `UnknownName`."""
    if name not in EVERYTHING:
        raise nearest("property", name, EVERYTHING)
    return EVERYTHING[name]


__all__ = [
    "EVERYTHING", "LIVENESS", "PLANNING", "PROPERTIES", "Duty", "Liveness", "Property", "Seen",
    "Witness", "named",
]
