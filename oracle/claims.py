"""What a planner would count, in numbers: a design's claim read off a run of the machine."""

from __future__ import annotations

from kvoracle.model.requests import ABORTED, FINISHED
from kvoracle.model.rules import Claim, Design
from kvoracle.model.run import Run

from .events import Config


def claim(design: Design, run: Run, config: Config, slot: int, g: int) -> Claim:
    """The claim of request number ``slot`` in group ``g``, as `kvoracle.model.store` makes it."""
    get = run.get
    life = get("life", slot)
    tokens = design.tokens_counted(
        get("computed", slot), get("tokens", slot), life == FINISHED, life == ABORTED)
    if get("limited", slot):
        tokens = min(tokens, get("limit", slot))
    return Claim(tokens, get("prompt", slot), life in (FINISHED, ABORTED), config.groups[g].draft,
                 get("blocks", slot, g), get("keys", slot, g), config.tokens_per_chunk(g),
                 config.blocks_per_chunk)
