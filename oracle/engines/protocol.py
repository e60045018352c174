"""What must an engine be able to do, so that the oracle can drive it?

Three calls.  ``oracle/engines/impl.py`` answers them in this process,
``oracle/engines/process.py`` passes them to another one (``docs/protocol.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kvoracle.oracle.events import AnyObservation, AnyStimulus, Config


class BadStimulus(ValueError):
    """The config or stimulus makes no sense for this engine, which is not to blame for it."""


class Engine(Protocol):
    """One engine under test.  Serves many runs, one after the other.

    No call raises because of what the engine did: a failed assertion, an
    exception, a hang or a crash is the last observation, ``Died``.  After that
    only ``start`` and ``close`` may be called.
    """

    def start(self, config: Config) -> Sequence[AnyObservation]:
        """Build a fresh engine, dropping the one before.  The first observation is ``Hello``.

        Raises :class:`BadStimulus` for a config that the engine cannot have.
        """
        ...

    def send(self, stimulus: AnyStimulus) -> Sequence[AnyObservation]:
        """Do one thing to the engine; what it was seen to do, in the order it did it.

        Raises :class:`BadStimulus` for what makes no sense at this point.
        """
        ...

    def send_all(self, stimuli: Iterable[AnyStimulus]) -> Sequence[Sequence[AnyObservation]]:
        """Do several things, without waiting for each answer; ends early where it died."""
        ...

    def close(self) -> None:
        """Give back what the engine holds.  May be called twice."""
        ...
