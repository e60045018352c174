"""0.25."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .since_0_26 import Since026

if TYPE_CHECKING:
    from ..config import Config


class Since025(Since026):
    """Chunks were called offloaded blocks, the cursor ``next_stored_block_idx``, and the size of
    a chunk was given in tokens; storing in the first possible step was not promised in words."""

    CURSOR = "next_stored_block_idx"
    eager = False

    def extra_config(self, config: Config) -> dict[str, Any]:
        extra: dict[str, Any] = {"offload_prompt_only": config.prompt_only}
        if config.blocks_per_chunk > 1:
            # Only where it is needed: it demands that all groups have blocks of one size.
            extra["block_size"] = config.tokens_per_chunk(0)
        return extra
