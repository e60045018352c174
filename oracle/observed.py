"""Properties that are judged on what an engine shows, not on the machine's state.

The machine of `kvoracle.spec.properties` carries the promises about planning.  These
are seen directly: bytes compared, a process that died, work left at rest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ObservedProperty:
    """A promise that an observation by itself can show to be broken."""

    name: str
    statement: str
    why: str


OBSERVED: dict[str, ObservedProperty] = {
    p.name: p
    for p in (
        ObservedProperty(
            "NoCrash",
            "the engine survives every event sequence its contract permits",
            "An assertion in the scheduler takes down every request of the engine, and nothing "
            "the client sent was wrong.",
        ),
        ObservedProperty(
            "TrueBytes",
            "the bytes under a key are the KV of that key's tokens",
            "Whoever asks for the key later computes on another prefix's KV: wrong text, and "
            "maybe somebody else's.",
        ),
        ObservedProperty(
            "LoadedBytes",
            "attention reads only positions that hold the request's own prefix",
            "The request's own output is wrong, silently.",
        ),
        ObservedProperty(
            "NoLeak",
            "at rest nothing is held",
            "What is never given back is missing for ever; the pool shrinks until nothing fits.",
        ),
    )
}
