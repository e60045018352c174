"""Designs that misjudge what a window has left behind, each by one rule of
`kvoracle.model.sliding`."""

from __future__ import annotations

from typing import Any

from kvoracle.model.kinds import reads
from kvoracle.model.rules import Design
from kvoracle.model.scopes import WINDOW_PARTS
from kvoracle.model.sliding import Sliding
from kvoracle.model.terms import not_

from .variant import Variant


def _misslid(name: str, statement: str, lacks: str, source: str, breaks: tuple[str, ...],
             scope: str = "slides", **rules: Any) -> Variant:
    return Variant(name=name, statement=statement, lacks=lacks, source=source,
                   design=Design(sliding=Sliding(**rules)), breaks=breaks, scope=scope,
                   parts=WINDOW_PARTS)


SLIDES_UNFENCED = _misslid(
    "slides-unfenced",
    "a block that slid out of a window is written while a store still reads it",
    "a fence where a window slides, as where a request ends",
    "vLLM issue #47282, PR47653: a request that runs frees blocks; fences at ends see none of it",
    ("ReuseFence", "TrueBytes"),
    still_waits=not_,
)

NULL_STORED = _misslid(
    "null-stored",
    "a chunk is offered and stored although its table has the null block",
    "passing over null blocks",
    "vLLM issue #53084: a key is published for block 0",
    ("NoVolatileStore", "ReuseFence", "TrueBytes"),
    offers=lambda null: True,
)

NULL_LOADED = _misslid(
    "null-loaded",
    "a load brings what its table has no block for, into the null block",
    "leaving out of a load what has the null block",
    "vLLM issue #48959 and its kind: a load of more chunks than the table has blocks for",
    ("ReuseFence", "LoadedBytes"), scope="window-loads",
    brings=lambda null: True,
)

SLIDES_TOO_EARLY = _misslid(
    "slides-too-early",
    "a block is freed one position before its window has left it",
    "counting a window's reach from the position that is computed next",
    "vLLM: `sliding_window` counts the position itself; off by one where it is taken for the reach",
    ("LoadedBytes",),
    passed=lambda kind, reach, n, p: (p < n) & not_(reads(kind, reach, n + 1, p)),
)

MISSLID = (SLIDES_UNFENCED, NULL_STORED, NULL_LOADED, SLIDES_TOO_EARLY)
