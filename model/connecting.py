"""Rules of several connectors: what they have to know of each other's transfers.

An engine may have another way to move KV beside this one: a peer's, a remote store's.  Who
wins the lookup loads; the others are told of the request's blocks with nothing to load.  What
is under way for a request is then what is under way in any of them.  `Sharing` gathers what
that asks for; a variant leaves one thing out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .terms import not_


def borrow_waits(copied: Any) -> Any:
    """Whether another connector waits, before it writes a block, for a store of ours that reads
    it on some worker: though we load nothing into the block (vLLM issue #46951)."""
    return not_(copied)


def frees(others: Any) -> Any:
    """Whether the end of one transfer frees the blocks of an ended request, when ``others`` are
    under way for it: one flag for all of them is lowered by the first (vLLM issue #46240)."""
    return not_(others)


def frees_at_end(used: Any) -> Any:
    """Whether the end of a request frees its blocks, when they are ``used`` by another connector
    (vLLM PR25067)."""
    return not_(used)


def cursor_after_borrowing(cursor: Any, end: Any) -> Any:
    """The cursor when another connector has brought the chunks before ``end``: where it was, since
    our pool does not have them (vLLM PR46865)."""
    del end
    return cursor


@dataclass(frozen=True)
class Sharing:
    """The rules between connectors in force.

    ``waits_for_bytes``: what another connector brings counts as computed when it is there, not
    when it is on its way.
    """

    borrow_waits: Callable[[Any], Any] = borrow_waits
    frees: Callable[[Any], Any] = frees
    frees_at_end: Callable[[Any], Any] = frees_at_end
    cursor_after_borrowing: Callable[[Any, Any], Any] = cursor_after_borrowing
    waits_for_bytes: bool = True


AWARE = Sharing()
