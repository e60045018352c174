"""Broken and alternative designs, each with the verdict expected of it."""

from __future__ import annotations

from kvoracle.model.scopes import nearest

from .blocks import UNSOUND
from .connectors import UNAWARE
from .designs import ALL
from .failures import FAILING
from .lookups import MISTAKEN
from .streams import UNORDERED
from .tails import UNTOLD
from .tiers import MISTIERED
from .transfers import CARELESS
from .variant import Variant
from .waiting import STARVING
from .windows import MISSLID

PLANNERS: dict[str, Variant] = {v.name: v for v in ALL}
"""Designs of planning: those that the oracle can drive as engines and diagnose by."""

VARIANTS: dict[str, Variant] = {
    v.name: v for v in (*ALL, *CARELESS, *FAILING, *UNAWARE, *MISTIERED, *UNORDERED, *MISTAKEN,
                        *UNSOUND, *UNTOLD, *STARVING, *MISSLID)}


def variant(name: str) -> Variant:
    """The variant of this name; raises `UnknownName`."""
    if name not in VARIANTS:
        raise nearest("variant", name, VARIANTS)
    return VARIANTS[name]


__all__ = ["PLANNERS", "VARIANTS", "Variant", "variant"]
