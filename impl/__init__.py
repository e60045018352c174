"""KV-cache offloading, implemented: what is checked, not what checks.

Independent of the formal model on purpose.  Planner, pool and offloader are
pure Python; :mod:`kvoracle.impl.copy` needs torch and is imported only when
:class:`CopyEngine` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvoracle.impl.config import GroupSpec, OffloadConfig
from kvoracle.impl.errors import (
    BadConfig,
    BadMove,
    JobsInFlight,
    KeysBlocksMismatch,
    NotReady,
    OffloadError,
    RequestExists,
    UnbalancedPin,
    UnknownJob,
    UnknownRequest,
)
from kvoracle.impl.offload import ChunkMove, Hit, Job, Offloader, StoreOffer
from kvoracle.impl.planner import Chunk, StorePlanner
from kvoracle.impl.pool import ChunkState, Grant, HostPool

if TYPE_CHECKING:
    from kvoracle.impl.copy import CopyEngine

__all__ = [
    "BadConfig", "BadMove", "Chunk", "ChunkMove", "ChunkState", "CopyEngine", "Grant", "GroupSpec",
    "Hit", "HostPool", "Job", "JobsInFlight", "KeysBlocksMismatch", "NotReady", "OffloadConfig",
    "OffloadError", "Offloader", "RequestExists", "StoreOffer", "StorePlanner", "UnbalancedPin",
    "UnknownJob", "UnknownRequest",
]


def __getattr__(name: str) -> object:
    if name == "CopyEngine":
        from kvoracle.impl.copy import CopyEngine

        return CopyEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
