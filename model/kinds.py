"""Kinds of groups, and what a lookup may promise: the arithmetic of going on behind a prefix.

A request that goes on at position ``n`` reads, in each group, the KV of some positions before
``n``.  Which ones is the whole difference between kinds of groups:

- full attention reads all of them;
- a sliding window reads the last ``reach`` (vLLM's ``sliding_window`` counts the position itself,
  so the reach is one less, or more where draft tokens are retained);
- chunked local attention reads those of its own local chunk of ``reach`` tokens: none where
  ``n`` is the first position of one (vLLM PR51161);
- a recurrent layer reads one state, and states are kept for the ends of chunks only, so that it
  can go on nowhere else (vLLM issues #46453, #51094).

A chunk is needed if it holds a position that is read; a window whose ends lie within chunks
touches one chunk more than its length says (vLLM issue #48959).  Chunks that are not needed are
neither loaded nor asked for.

A lookup asks for the chunks that are needed and, in a draft group, for the one behind them: the
drafter computed the last position of a chunk from the token that follows, and only the next
chunk's key names that token (vLLM issue #52735).  What it promises is a position at which every
group can go on.  The least of what the groups could promise each for itself is no such position:
a shorter prefix may need chunks that a longer one did not (vLLM issue #46453).

Every rule works on plain numbers and on terms of the notation alike.  `Seeking` gathers those
of lookups; a variant replaces one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .requests import GROUP, TOKENS
from .terms import Term, Value, enumeration, exists, forall, implies, ite, minimum, not_

KIND = enumeration("Kind", "full attention", "sliding window", "chunked local", "recurrent")
FULL, WINDOW, LOCAL, RECURRENT = range(4)


def reads(kind: Any, reach: Any, n: Any, p: Any) -> Any:
    """Whether a request that goes on at position ``n`` reads what was written for ``p``."""
    return (p < n) & ite(
        kind == FULL, True, ite(
            kind == WINDOW, n <= p + reach, ite(
                kind == LOCAL, p // reach == n // reach,
                p + 1 == n)))


def _some_position(n: Value, holds: Callable[[Any], Any]) -> Any:
    """Whether it holds of a position before ``n``."""
    if isinstance(n, Term):
        return exists(TOKENS, lambda p: (p < n) & holds(p))
    return any(holds(p) for p in range(n))


def needed(kind: Any, reach: Any, tokens_per_chunk: Any, n: Any, c: Any) -> Any:
    """Whether chunk ``c`` is needed to go on at ``n``: it holds a position that is read."""
    return _some_position(n, lambda p: reads(kind, reach, n, p) & (p // tokens_per_chunk == c))


def customary(kind: Any, reach: Any, tokens_per_chunk: Any, n: Any, c: Any) -> Any:
    """Whether chunk ``c`` is among those that lookups ask for as a rule: never fewer than needed,
    but a window's own position is counted, and a local chunk taken for a window (vLLM
    ``get_sliding_window_size_in_chunks``).  No lookup owes a prefix that lacks one of them."""
    exact = (kind == FULL) | (kind == RECURRENT)
    return _some_position(n, lambda p: (p // tokens_per_chunk == c) & ite(
        exact, reads(kind, reach, n, p), n <= p + reach + 1))


def can_go_on(kind: Any, undivided: Any, tokens_per_chunk: Any, n: Any) -> Any:
    """Whether a group can go on at ``n``, 1 or more, at all.  A state is kept for the end of a
    chunk, and a chunk that cannot be divided is loaded to its end (vLLM PR55168)."""
    ends_a_chunk = (n - 1) // tokens_per_chunk < n // tokens_per_chunk
    return implies((kind == RECURRENT) | undivided, ends_a_chunk)


def asks_one_more(drafter: Any) -> Any:
    """Whether the chunk behind the needed ones is asked for, and then dropped: in draft groups,
    and in no other (vLLM issue #52735: where no group was marked, all were)."""
    return drafter


def heeded(kind: Any) -> Any:
    """Whether a lookup asks a group of this kind: every one."""
    del kind
    return True


def longest(tokens: Any) -> Any:
    """The furthest position that a lookup may promise.  The last token is computed in any case,
    so a hit of all tokens is no use where going on one token earlier takes other chunks, or
    another state (vLLM issues #51094, #52617)."""
    return tokens - 1


def goes_on_at(tokens: Any, hit: Any) -> Any:
    """Where a request goes on behind a hit: its last token is computed, for its logits."""
    return minimum(hit, tokens - 1)


Serves = Callable[[Any, Any], Any]
Tail = Callable[[Any], Any]


def agreed(serves: Serves, tail: Tail, n: Any, most: Any) -> Any:
    """Whether the groups agree on going on at ``n``: each ``serves`` it.

    ``tail`` says how many tokens a draft group's last chunk has (other groups have none), and
    ``most`` is the furthest position that may be promised: some designs go by them.
    """
    del tail, most
    return forall(GROUP, lambda g: serves(g, n))


def worth_it(size: Any, limited: Any, n: Any) -> Any:
    """Whether a position is one that lookups look for, by a group's chunk size: no hits of less
    than a chunk, and whole chunks only where a limit of tokens to load cuts the prefix short
    (vLLM ``_lookup_complete_chunks``)."""
    return (size <= n) & (not_(limited) | ((n - 1) // size < n // size))


def asks_again(answered: Any) -> Any:
    """Whether a lookup may wait for a slower tier: until it has answered."""
    return answered == 0


def forgotten(verdict: Any) -> Any:
    """What is left of a verdict when its request is preempted: nothing, since what it was given
    for is gone (LMCache#1969)."""
    del verdict
    return 0


@dataclass(frozen=True)
class Seeking:
    """The rules of lookups in force."""

    needed: Callable[[Any, Any, Any, Any, Any], Any] = needed
    can_go_on: Callable[[Any, Any, Any, Any], Any] = can_go_on
    asks_one_more: Callable[[Any], Any] = asks_one_more
    heeded: Callable[[Any], Any] = heeded
    longest: Callable[[Any], Any] = longest
    agreed: Callable[[Serves, Tail, Any, Any], Any] = agreed
    asks_again: Callable[[Any], Any] = asks_again
    forgotten: Callable[[Any], Any] = forgotten


DOCUMENTED = Seeking()
