"""What carries the promises where another connector moves the same requests' KV.

The promises are those of transfers.  These lemmas say how its copies stand to ours: never two
writers of a block, no store of ours that reads what it writes, no block let go before it is
done.
"""

from __future__ import annotations

from typing import Any

from kvoracle.model.connector import brings
from kvoracle.model.hits import chunks_touched
from kvoracle.model.keys import Chunk
from kvoracle.model.machine import View
from kvoracle.model.pool import NONE, Worker, holds
from kvoracle.model.requests import (
    ABORTED,
    PREEMPTED,
    REQUEST,
    WAITING,
    Group,
    Request,
    ended,
)
from kvoracle.model.terms import forall, implies, not_

from .property import Property, Seen, Witness
from .transferring import TRANSFERS

CONNECTOR = ("pool", "slots", "transfers", "loads", "connector")


def _lemma(name: str, statement: str, why: str, supports: str, function: Any, because: Any,
           source: str = "the machine's own bookkeeping") -> Property:
    return Property(name=name, statement=statement, why=why, source=source, function=function,
                    because=because, lemma=True, supports=supports, parts=CONNECTOR,
                    family=TRANSFERS)


# --- ConnectorFence --------------------------------------------------------------


def _connector_fence(s: View, r: Request, g: Group, c: Chunk) -> Any:
    b = s.table[r, g, c]
    used = brings(s, r, g, c) | (s.sending[r] & (c < s.allocated[r, g]))
    return implies(used, (s.hold[b, r] != NONE) & (s.place_g[b] == g) & (s.place_c[b] == c)
                   & forall(REQUEST, lambda q: (s.hold[b, q] == NONE) | (q == r)))


def _given_away(seen: Seen) -> str:
    r = seen.where["r"]
    b = seen.get("table", r, seen.where["g"], seen.where["c"])
    does = "sends" if seen.get("sending", r) else "writes"
    return (f"another connector still {does} chunk {seen.where['c']} of request {seen.request}"
            f"{seen.group}, in block {b}, which the request does not have any more")


def _sent_while_loaded(s: View, r: Request) -> Any:
    return s.sending[r] & (s.hit[r] > 0)


def _sent_while_brought(s: View, r: Request) -> Any:
    return s.sending[r] & (s.borrowed[r] > 0)


CONNECTOR_FENCE = Property(
    name="ConnectorFence",
    statement="no block goes to another request while any connector still reads or writes it",
    why="Each connector reports its own transfers. An engine that takes the first report for the "
        "last gives the blocks away: a late load writes into another request's KV, a late send "
        "ships it to a peer.",
    source="vLLM issue #46240, PR18246, PR25067",
    function=_connector_fence,
    because=_given_away,
    witnesses=(
        Witness("an aborted request is sent while we still load it", _sent_while_loaded),
        Witness("an aborted request is sent while it is still brought", _sent_while_brought),
    ),
    bugs=("vLLM#46240", "vLLM PR18246", "vLLM PR25067", "vLLM PR33377"),
    parts=CONNECTOR,
    family=TRANSFERS,
)


# --- strengthening invariants ----------------------------------------------------


def _borrowing_waits(s: View, r: Request, g: Group) -> Any:
    waiting = (s.life[r] == WAITING) | (s.life[r] == PREEMPTED) | (s.life[r] == ABORTED)
    nothing = (s.computed[r] == 0) & (s.blocks[r, g] == 0)
    touched = chunks_touched(s.borrowed[r], s.tokens_per_chunk[g])
    return implies(s.borrowed[r] > 0, waiting & nothing & (s.hit[r] == 0) & (
        touched <= s.allocated[r, g])) & (s.borrowed[r] <= s.tokens[r])


BORROWING_WAITS = _lemma(
    "BorrowingWaits", "while another connector brings a request it waits, and we load nothing",
    "One connector wins the lookup. Until it has brought what it promised nothing counts as "
    "computed, so nothing of it is offered to our pool.",
    "TrueBytes", _borrowing_waits,
    lambda seen: f"another connector brings request {seen.request}, which does not wait for it",
    "vLLM issue #34526")


def _brought_is_there(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    done = s.filled[r, g, c, w]
    return implies(done, holds(s, s.table[r, g, c], w, r, g, c)) \
        & implies(done, brings(s, r, g, c))


BROUGHT_IS_THERE = _lemma(
    "BroughtIsThere", "what another connector has brought is in the block",
    "Its workers come one at a time, while the request waits; each share stays as it is until "
    "the last has come.",
    "LoadedBytes", _brought_is_there,
    lambda seen: f"chunk {seen.where['c']} of request {seen.request} was brought, and its block "
                 "holds something else")


def _borrowed_targets(s: View, r: Request, g: Group, c: Chunk, q: Request, h: Group, d: Chunk,
                      w: Worker) -> Any:
    reading = s.flight[q, h, d] & (s.copied[q, h, d, w] == 0)
    return not_(brings(s, r, g, c) & reading & (s.source[q, h, d] == s.table[r, g, c]))


BORROWED_TARGETS = _lemma(
    "BorrowedTargets", "no store of ours reads a block that another connector writes",
    "Blocks given to a request for another connector's load are as fresh as those for ours: the "
    "fence asks who writes next, not for whom.",
    "ReuseFence", _borrowed_targets,
    lambda seen: f"another connector brings chunk {seen.where['c']} of request {seen.request} into "
                 "a block that a store still reads",
    "vLLM issue #46951")


def _used_is_kept(s: View, r: Request) -> Any:
    left = s.sending[r] | ((s.borrowed[r] > 0) & ended(s, r))
    return implies(left, s.kept[r]) & implies(s.sending[r] | s.kept[r], ended(s, r))


USED_IS_KEPT = _lemma(
    "UsedIsKept", "what an ended request left is kept while another connector uses it",
    "One flag says so for all that is under way: it goes up with the first transfer and down "
    "only with the last.",
    "ConnectorFence", _used_is_kept,
    lambda seen: f"another connector uses the blocks of request {seen.request}, and they are not "
                 "kept for it",
    "vLLM issue #46240")

CONNECTING = (CONNECTOR_FENCE,)
CONNECTOR_LEMMAS = (BORROWING_WAITS, BROUGHT_IS_THERE, BORROWED_TARGETS, USED_IS_KEPT)
