"""Rules of a second tier: who holds what is copied there, and what a failure means.

Behind the host pool lies a larger, slower store (files, another machine).  Keys are copied
down to it, and brought back up into a slot when a request that waits asks for them.  `Tier`
gathers the rules; a variant replaces one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .terms import enumeration, ite

LOWER = enumeration("Lower", "absent", "being written", "present")
ABSENT_BELOW, BEING_WRITTEN, PRESENT_BELOW = range(3)


def written(failed: Any) -> Any:
    """What the second tier says of a key whose copy down has ended: nothing of one that failed
    (LMCache#4991)."""
    return ite(failed, ABSENT_BELOW, PRESENT_BELOW)


def unreadable(own: Any, any_of_them: Any) -> Any:
    """Whether a key is given up when reads of several have ended: if its ``own`` has failed, not
    if ``any_of_them`` has (vLLM PR50321)."""
    del any_of_them
    return own


def may_promote(spare: Any) -> Any:
    """Whether a key may be given a slot to be read into: if there is ``spare`` room beside it, so
    that requests which run can store (vLLM issue #49902)."""
    return spare


@dataclass(frozen=True)
class Tier:
    """The rules of the second tier in force.

    ``holds``: a key that is copied down is held until the copy has ended.  ``withdraws``: when a
    key could not be read, the answer that the second tier has it is taken back (vLLM issue
    #49176).
    """

    written: Callable[[Any], Any] = written
    unreadable: Callable[[Any, Any], Any] = unreadable
    may_promote: Callable[[Any], Any] = may_promote
    holds: bool = True
    withdraws: bool = True


TIERED = Tier()
