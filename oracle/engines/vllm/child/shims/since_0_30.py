"""0.30 and later."""

from __future__ import annotations

from typing import Any

SINCE = (0, 30, 0)


def pool_size(host_chunks: int) -> dict[str, Any]:
    """Arguments of ``CPUOffloadingManager``: ``num_blocks`` became ``num_chunks`` in 0.30."""
    return {"num_chunks": host_chunks}
