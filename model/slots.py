"""Part *slots*: the host pool, the slots that it has, and what lies in them.

A key that is pending or ready has a slot, its own until the key goes.  A slot is a place
in the memory of every worker, and keeps what was written in it until it is written again.
Which free slot a key gets, and which key goes to make room, is the engine's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from .fencing import MISSING, POOLED
from .keys import CHUNK, CHUNKS, Chunk
from .machine import Part, View
from .pool import TEXT, WORKER, Text, Worker
from .requests import GROUP, REQUEST, Group, Request
from .store import claim
from .terms import BOOL, Sort, Term, Value, exists, forall, lift, not_

SLOT = Sort("Slot", symmetric=True)
Slot = Annotated[Term, SLOT]

part = Part("slots", "slots: the host pool, its room, what lies in it, eviction")
part.variable("pooled", (TEXT, GROUP, CHUNK), POOLED, "what the host pool says of the key")
part.variable("slot", (TEXT, GROUP, CHUNK), SLOT, "where a pending or ready key lies")
part.variable("taken", (SLOT,), BOOL, "the slot is given to a key")
part.variable("slot_text", (SLOT,), TEXT, "that key's text")
part.variable("slot_g", (SLOT,), GROUP, "that key's group")
part.variable("slot_c", (SLOT,), CHUNK, "that key's chunk")
part.variable("short", (SLOT, WORKER), BOOL, "the worker's memory ends before the slot")
part.variable("late", (SLOT, WORKER), BOOL,
              "the worker may still write the slot, for a store that a reset has dropped")
part.variable("byte_text", (SLOT, WORKER), TEXT, "whose KV lies in a worker's share of the slot")
part.variable("byte_g", (SLOT, WORKER), GROUP, "which group's KV lies there")
part.variable("byte_end", (SLOT, WORKER), CHUNKS,
              "the end of the chunk whose KV lies there; 0: of none")

Keys = Callable[[Term, Term, Term], Value]
"""Some keys: of which text, group and chunk."""


def true_bytes(s: View, h: Term, w: Term, t: Term, g: Term, c: Term) -> Term:
    """Whether what lies in the worker's share of the slot is the key's KV."""
    return (s.byte_text[h, w] == t) & (s.byte_g[h, w] == g) & (s.byte_end[h, w] == c + 1)


def pinned(s: View, t: Term, g: Term, c: Term) -> Value:
    """Whether a load, or a copy to the second tier, holds the key."""
    held = s.held[t, g, c] if s.has("tiers") else False
    if not s.has("loads"):
        return held
    return exists(REQUEST, lambda q: s.pin[q, g, c] & (s.text[q] == t)) | held


def may_go(s: View, t: Term, g: Term, c: Term) -> Term:
    """Whether the key may be evicted."""
    return lift(s.rules.care.evictable(s.pooled[t, g, c], pinned(s, t, g, c)))


def is_free(s: View, h: Term) -> Term:
    """Whether the slot can be given to a key."""
    there = s.rules.care.counts_slot(
        exists(WORKER, lambda w: not_(s.short[h, w])),
        forall(WORKER, lambda w: not_(s.short[h, w])))
    late = exists(WORKER, lambda w: s.late[h, w])
    return lift(there & s.rules.care.reusable(late) & not_(s.taken[h]))


def has_room(s: View) -> Term:
    """Whether one more key can be given a slot, after an eviction if need be."""
    return exists(SLOT, lambda h: is_free(s, h)) | exists(
        TEXT, GROUP, CHUNK, lambda t, g, c: may_go(s, t, g, c))


def offers_several(s: View, r: Term) -> Term:
    """Whether the request has more than one chunk to offer."""
    def left(g: Term, n: int) -> Term:
        return lift(s.cursor[r, g] + n <= s.rules.storable(claim(s, r, g)))

    return exists(GROUP, lambda g: left(g, 2)) | exists(
        GROUP, GROUP, lambda g, g2: (g != g2) & left(g, 1) & left(g2, 1))


def give_slot(s: View, h: Term, t: Term, g: Term, c: Term) -> None:
    """The slot is the key's from now on."""
    s.slot[t, g, c] = h
    s.taken[h] = True
    s.slot_text[h], s.slot_g[h], s.slot_c[h] = t, g, c


def give_up(s: View, gone: Keys, frees: Value = True) -> None:
    """These keys are missing from now on, and their slots are free, unless it ``frees`` none."""
    def freed(h: Term) -> Term:
        t, g, c = s.slot_text[h], s.slot_g[h], s.slot_c[h]
        return lift(s.taken[h] & (s.slot[t, g, c] == h) & gone(t, g, c) & frees)

    s.taken.where(freed, False)
    s.slot_text.where(freed, 0)
    s.slot_g.where(freed, 0)
    s.slot_c.where(freed, 0)
    s.pooled.where(gone, MISSING)
    s.slot.where(gone, 0)


@part.action("worker {w} has no memory for slot {h}", external=True)
def fall_short(s: View, h: Slot, w: Worker) -> None:
    """Workers need not have room for equally many chunks (vLLM PR50653)."""
    s.require("not in use", not_(s.taken[h]))
    s.require("not known yet", not_(s.short[h, w]))
    s.short[h, w] = True


@part.action("chunk {c} of text {t} in group {g} is evicted")
def evict(s: View, t: Text, g: Group, c: Chunk) -> None:
    """Which key goes is the engine's choice."""
    s.require("may go", may_go(s, t, g, c))
    give_up(s, lambda t2, g2, c2: (t2 == t) & (g2 == g) & (c2 == c))


@part.extend("refuse")
def _no_room(s: View, r: Request) -> None:
    s.require("no room for what is offered",
              s.rules.care.refusable(has_room(s), offers_several(s, r)))


@part.extend("reset")
def _drop(s: View) -> None:
    """What no load reads is gone."""
    give_up(s, lambda t, g, c: s.rules.care.droppable(s.pooled[t, g, c], pinned(s, t, g, c)))
