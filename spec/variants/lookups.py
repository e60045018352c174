"""Designs that promise what cannot be loaded, or less than could be, each by one rule of
`kvoracle.model.kinds`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvoracle.model.hits import chunks_touched
from kvoracle.model.kinds import FULL, RECURRENT, Seeking, Serves, Tail, can_go_on
from kvoracle.model.requests import GROUP, TOKENS
from kvoracle.model.rules import Design
from kvoracle.model.scopes import LOOKUP_PARTS
from kvoracle.model.terms import exists, forall, implies, not_

from .variant import Variant


def _mistaken(name: str, statement: str, lacks: str, source: str, scope: str,
              breaks: tuple[str, ...], starves: tuple[str, ...] = (), **rules: Any) -> Variant:
    return Variant(name=name, statement=statement, lacks=lacks, source=source,
                   design=Design(seeking=Seeking(**rules)), breaks=breaks, scope=scope,
                   starves=starves, parts=LOOKUP_PARTS)


# --- groups disagree --------------------------------------------------------------------


def _each_as_far(serves: Serves, tail: Tail, n: Any, most: Any) -> Any:
    del tail
    return forall(GROUP, lambda g: exists(
        TOKENS, lambda m: (n <= m) & (m <= most) & serves(g, m)))


MINIMUM_OF_GROUPS = _mistaken(
    "minimum-of-groups",
    "a lookup promises the least of what the groups could serve each for itself",
    "one position at which every group can go on",
    "vLLM issue #46453: a late state, early attention blocks, and the two lengths compared",
    "lookups", ("HitSound",),
    agreed=_each_as_far,
)

GROUP_IGNORED = _mistaken(
    "group-ignored",
    "a lookup does not ask for the states of recurrent layers",
    "asking every group",
    "SGLang#39830 and its kind: attention KV restored, the recurrent state not",
    "lookups", ("HitSound",),
    heeded=lambda kind: kind != RECURRENT,
)

FINER_THAN_SPAN = _mistaken(
    "finer-than-span",
    "a lookup promises a position within a chunk that can only be loaded whole",
    "cutting a hit down to the spans of all groups",
    "vLLM PR55168: aligned to the recurrent group, not to the span of context parallelism",
    "spans", ("HitSound",),
    can_go_on=lambda kind, undivided, size, n: can_go_on(kind, False, size, n),
)

# --- draft groups -----------------------------------------------------------------------

ALL_MARKED_DRAFT = _mistaken(
    "all-marked-draft",
    "every group is asked for one chunk more, as if all held drafter layers",
    "telling draft groups from others",
    "vLLM issue #52735: a fall-back where no group was marked",
    "draft-lookups", ("HitMaximal",),
    asks_one_more=lambda drafter: True,
)

DRAFT_ASKS_NO_MORE = _mistaken(
    "draft-asks-no-more",
    "a draft group is served up to its last chunk, whatever follows it",
    "asking a draft group for one chunk more",
    "vLLM issue #52735, PR52771: what the extra chunk is asked for",
    "draft-lookups", ("ProvenTail",),
    asks_one_more=lambda drafter: False,
)


def _popped(serves: Serves, tail: Tail, n: Any, most: Any) -> Any:
    def all_serve(m: Any) -> Any:
        return (m <= most) & forall(GROUP, lambda h: serves(h, m))

    def agreed_before(m: Any) -> Any:
        return all_serve(m) & not_(exists(TOKENS, lambda k: (m < k) & (k <= most) & all_serve(k)))

    return all_serve(n) & forall(
        GROUP, lambda g: implies(tail(g) > 0, agreed_before(n + tail(g))))


TAIL_POPPED_LATE = _mistaken(
    "tail-popped-late",
    "a draft group's last chunk is dropped from the position that all groups agreed on",
    "asking for the extra chunk before the groups agree",
    "vLLM issue #51761: the boundary moves to where groups with small windows stored nothing",
    "draft-lookups", ("HitMaximal",),
    asks_one_more=lambda drafter: False, agreed=_popped,
)

# --- how much a group needs -------------------------------------------------------------


def _last_chunks(count: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """So many chunks before the position, by reach and size, but for full attention."""
    def needs(kind: Any, reach: Any, size: Any, n: Any, c: Any) -> Any:
        touched = chunks_touched(n, size)
        return (c < touched) & ((kind == FULL) | (touched <= c + count(reach, size)))

    return needs


WINDOW_ROUNDED_DOWN = _mistaken(
    "window-rounded-down",
    "the chunks of a window or local chunk are its tokens by a chunk's, rounded down",
    "rounding the chunks of a window up",
    "vLLM PR51161: bounds are rounded up so that the tail is never stored too short",
    "windows", ("HitSound",),
    needed=_last_chunks(lambda reach, size: reach // size),
)

WINDOW_TAKEN_AS_ALIGNED = _mistaken(
    "window-taken-as-aligned",
    "the chunks of a window are counted as if the position were the end of one",
    "the chunk more that a window touches whose ends lie within chunks",
    "vLLM issue #48959: 129 blocks where the bound said 128",
    "windows", ("HitSound",),
    needed=_last_chunks(chunks_touched),
)

HIT_OF_ALL_TOKENS = _mistaken(
    "hit-of-all-tokens",
    "a lookup promises all tokens, and the request goes on one token earlier",
    "the cap at all tokens but the last",
    "vLLM issues #51094 (the state of N used at N-1), #52617 (N-1 counted, N loaded)",
    "lookups", ("HitSound",),
    longest=lambda tokens: tokens,
)

# --- verdicts ---------------------------------------------------------------------------

VERDICT_KEPT = _mistaken(
    "verdict-kept",
    "a request that comes back after preemption goes by the verdict from before",
    "looking up anew after preemption",
    "LMCache#1969: the result is kept by the request's name, so the load is skipped",
    "verdicts", ("HitMaximal",),
    forgotten=lambda verdict: verdict,
)

RETRY_FOR_EVER = _mistaken(
    "retry-for-ever",
    "a lookup may say 'ask again' when everything has answered",
    "telling what is on its way from what is not known",
    "vLLM PR51840, issue #49176: a promotion that has failed, looked for in every step",
    "verdicts", ("EventuallyAnswered",), ("EventuallyAnswered",),
    asks_again=lambda answered: True,
)

MISTAKEN = (
    MINIMUM_OF_GROUPS, GROUP_IGNORED, FINER_THAN_SPAN, ALL_MARKED_DRAFT, DRAFT_ASKS_NO_MORE,
    TAIL_POPPED_LATE, WINDOW_ROUNDED_DOWN, WINDOW_TAKEN_AS_ALIGNED, HIT_OF_ALL_TOKENS,
    VERDICT_KEPT, RETRY_FOR_EVER,
)
