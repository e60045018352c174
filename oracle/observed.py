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

OBSERVED: dict[str, ObservedProperty] = {
    NO_CRASH.name: NO_CRASH,
    **{
        name: ObservedProperty(name, PROPERTIES[name].statement, PROPERTIES[name].why)
        for name in ("TrueBytes", "LoadedBytes", "NoLeak")
    },
}
"""What the machine proves of bytes and leftovers, engines are seen to keep or not."""
