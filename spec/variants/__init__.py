"""Broken and alternative designs, each with the verdict expected of it."""

from __future__ import annotations

from kvoracle.model.scopes import nearest

from .designs import ALL
from .variant import Variant

VARIANTS: dict[str, Variant] = {v.name: v for v in ALL}


def variant(name: str) -> Variant:
    """The variant of this name; raises `UnknownName`."""
    if name not in VARIANTS:
        raise nearest("variant", name, VARIANTS)
    return VARIANTS[name]


__all__ = ["VARIANTS", "Variant", "variant"]
