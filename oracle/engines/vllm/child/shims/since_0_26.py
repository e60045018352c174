"""0.26 to 0.29."""

from __future__ import annotations

from typing import Any

SINCE = (0, 26, 0)


def pool_size(host_chunks: int) -> dict[str, Any]:
    """Arguments of ``CPUOffloadingManager``: the pool is counted in ``num_blocks`` here."""
    return {"num_blocks": host_chunks}
