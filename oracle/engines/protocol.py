"""What must an engine be able to do, so that the oracle can drive it?

Three calls.  ``oracle/engines/impl.py`` answers them in this process,
``oracle/engines/process.py`` passes them to another one (``docs/protocol.md``).
"""

from __future__ import annotations

from typing import Protocol

from kvoracle.oracle.events import AnyObservation, AnyStimulus, Config


class Engine(Protocol):
    """One engine under test.  Serves many runs, one after the other.

    No call raises because of what the engine did: a failed assertion, an
    exception, a hang or a crash is the last observation, ``Died``.  After that
    only ``start`` and ``close`` may be called.
    """

    def start(self, config: Config) -> list[AnyObservation]:
        """Build a fresh engine, dropping the one before.  The first observation is ``Hello``."""
        ...

    def send(self, stimulus: AnyStimulus) -> list[AnyObservation]:
        """Do one thing to the engine; what it was seen to do, in the order it did it."""
        ...

    def close(self) -> None:
        """Give back what the engine holds.  May be called twice."""
        ...
