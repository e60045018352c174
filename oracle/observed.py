"""Promises that are judged on what an engine shows, not on the machine's state.

The judge follows planning on the machine.  These are seen directly: bytes compared, a
process that died, work left at rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvoracle.spec.properties import PROPERTIES


@dataclass(frozen=True)
class ObservedProperty:
    """A promise that an observation by itself can show to be broken."""

    name: str
    statement: str
    why: str


NO_CRASH = ObservedProperty(
    "NoCrash",
    "the engine survives every event sequence its contract permits",
    "An assertion in the scheduler takes down every request of the engine, and nothing the client "
    "sent was wrong.",
)

NO_STALL = ObservedProperty(
    "NoStall",
    "something can run whenever something waits and room suffices",
    "An engine that neither fails nor answers looks alive to whoever watches over it; its clients "
    "wait until somebody restarts it.",
)

_MODELLED = ("TrueBytes", "LoadedBytes", "NoLeak")
DIRECT = ("ReuseFence", "LoadReady", "JobExclusive", "RefExact", "NoStall", "HitSound",
          "HitMaximal")
"""Promises that only an engine which lets transfers and lookups be watched is held to."""

OBSERVED: dict[str, ObservedProperty] = {
    p.name: p for p in (
        NO_CRASH,
        *(ObservedProperty(name, PROPERTIES[name].statement, PROPERTIES[name].why)
          for name in (*_MODELLED, *DIRECT) if name in PROPERTIES),
        # The machine's own promise of that name is about transfers; requests it does not queue.
        NO_STALL,
    )
}
"""What the machine proves of bytes and leftovers, engines are seen to keep or not."""
