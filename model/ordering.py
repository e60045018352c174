"""Rules of streams: what is queued behind what, and what the host may do meanwhile.

The host queues kernels and copies and goes on; the device runs them later, each stream in its
own order, two streams in any order but for events.  Where two of them touch one place and one
of them writes it, something must order them: an event on which the later one's stream waits,
or the host, which waits until it has seen the earlier one done.  `Order` says which pairs an
engine orders; a variant leaves one out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Who = Literal["kernel", "store", "load", "planned store", "host"]
Hazard = Literal["RAW", "WAR", "WAW"]


def waits(later: Who, earlier: Who, hazard: Hazard, aged: Any) -> Any:
    """Whether what is queued later waits for what conflicts with it and came earlier.

    The hazard is what the later one does to a place after what the earlier one does to it:
    read after write, write after read, write after write.  A *planned store* is not queued
    yet; what it reads must stay until it is.  The *host* writes at once, so it must have seen
    the earlier one done.  ``aged``: another kernel was queued since the later one was planned.

    All pairs, always: copies run beside kernels, in either direction and before or after them
    (vLLM PR31341, issues #45704 and #47282; SGLang PR36738), and that some steps have passed
    since says nothing of what the device has done.
    """
    del later, earlier, hazard, aged
    return True


def ready(queued: Any, seen: Any) -> Any:
    """Whether a store counts as done, when it is ``queued`` or was ``seen`` done by the host."""
    del queued
    return seen


@dataclass(frozen=True)
class Order:
    """The rules of streams in force."""

    waits: Callable[[Who, Who, Hazard, Any], Any] = waits
    ready: Callable[[Any, Any], Any] = ready


ORDERLY = Order()
