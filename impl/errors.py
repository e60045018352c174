"""What can go wrong in ``impl``, and what should the caller do about it?

Each class is one mistake of the caller or one broken promise; the message
quotes the values.  None of them is raised for a lack of room: a host pool
without room refuses, which is an answer, not an error.
"""

from __future__ import annotations


class OffloadError(Exception):
    """Base of everything ``impl`` raises on purpose."""


class BadConfig(OffloadError, ValueError):
    """A size is impossible: correct the configuration."""


class UnknownRequest(OffloadError, KeyError):
    """The request was never announced, or is forgotten already."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the message in quotes


class RequestExists(OffloadError, ValueError):
    """The request is tracked already: names are unique while tracked."""


class KeysBlocksMismatch(OffloadError, AssertionError):
    """A chunk that was to be stored lacks its key or some of its blocks.

    Never raised while the storable rule is right; it is the last guard before
    a transfer that would write one chunk's bytes under another chunk's key.
    """


class NotReady(OffloadError, LookupError):
    """A load was asked for a chunk that the pool does not hold ready."""


class UnbalancedPin(OffloadError, AssertionError):
    """A chunk was unpinned more often than pinned."""


class JobsInFlight(OffloadError, AssertionError):
    """A load was planned while other jobs of the request are in flight."""


class UnknownJob(OffloadError, KeyError):
    """A completion names a job that was never planned, or is complete already."""

    def __str__(self) -> str:
        return str(self.args[0])


class BadMove(OffloadError, IndexError):
    """A copy names a block, slot or offset outside the tensors: nothing was copied."""
