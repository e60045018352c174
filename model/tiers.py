"""Part *tiers*: a second tier below the host pool, keys copied down and brought up again.

A key that is ready may be copied down, and is held meanwhile.  A request that waits is told
of keys that only the second tier has, and remembers the answer; then the key may be given a
slot, pending, and is read into it.  A read may fail, for one key of several.
"""

from __future__ import annotations

from .fencing import MISSING, PENDING, READY
from .keys import CHUNK, Chunk
from .machine import Part, View
from .pool import TEXT, WORKER, Text
from .requests import GROUP, PREEMPTED, REQUEST, WAITING, Group, Request
from .slots import SLOT, Slot, give_slot, give_up, is_free, may_go, true_bytes
from .terms import BOOL, Term, exists, forall, ite, lift, not_
from .tiering import ABSENT_BELOW, BEING_WRITTEN, LOWER, PRESENT_BELOW

part = Part("tiers", "tiers: a second tier, copies down to it, reads back up")
part.variable("lower", (TEXT, GROUP, CHUNK), LOWER, "what the second tier says of the key")
part.variable("lower_true", (TEXT, GROUP, CHUNK), BOOL, "what lies there is the key's KV")
part.variable("lowered", (TEXT, GROUP, CHUNK), SLOT, "the slot that the copy down reads")
part.variable("held", (TEXT, GROUP, CHUNK), BOOL, "the copy down holds the key")
part.variable("told", (REQUEST, GROUP, CHUNK), BOOL,
              "the request was told that the second tier has the chunk's key")
part.variable("raising", (TEXT, GROUP, CHUNK), BOOL, "the key is being read into its slot")
part.variable("unread", (TEXT, GROUP, CHUNK), BOOL, "the key could not be read")


def room_beside(s: View, h: Term) -> Term:
    """Whether one more key can be given a slot besides this one, if need be after an eviction."""
    return exists(SLOT, lambda h2: (h2 != h) & is_free(s, h2)) | exists(
        TEXT, GROUP, CHUNK, lambda t, g, c: may_go(s, t, g, c))


@part.action("chunk {c} of text {t} in group {g} is to be copied to the second tier")
def lower_key(s: View, t: Text, g: Group, c: Chunk) -> None:
    """Which keys are copied down, and when, is the engine's choice."""
    s.require("ready", s.pooled[t, g, c] == READY)
    s.require("not there yet", s.lower[t, g, c] == ABSENT_BELOW)
    s.lower[t, g, c] = BEING_WRITTEN
    s.lowered[t, g, c] = s.slot[t, g, c]
    s.held[t, g, c] = s.rules.tier.holds


def _lowered(s: View, t: Term, g: Term, c: Term, failed: bool) -> None:
    s.require("being written", s.lower[t, g, c] == BEING_WRITTEN)
    s.lower[t, g, c] = s.rules.tier.written(failed)
    s.lowered[t, g, c] = 0
    s.held[t, g, c] = False


@part.action("chunk {c} of text {t} in group {g} is in the second tier")
def lower_ends(s: View, t: Text, g: Group, c: Chunk) -> None:
    """It was read from the slot at some moment until now, and this is the last one."""
    _lowered(s, t, g, c, failed=False)
    s.lower_true[t, g, c] = forall(
        WORKER, lambda w: true_bytes(s, s.lowered[t, g, c], w, t, g, c))


@part.action("chunk {c} of text {t} in group {g} could not be copied to the second tier",
             external=True)
def lower_fails(s: View, t: Text, g: Group, c: Chunk) -> None:
    """Half of it may be there."""
    _lowered(s, t, g, c, failed=True)
    s.lower_true[t, g, c] = False


@part.action("chunk {c} of text {t} in group {g} goes from the second tier", external=True)
def lose(s: View, t: Text, g: Group, c: Chunk) -> None:
    """Somebody deletes the file; whoever was told of it does not hear of that."""
    s.require("there, and not being read", s.lower[t, g, c] == PRESENT_BELOW,
              not_(s.raising[t, g, c]))
    s.lower[t, g, c] = ABSENT_BELOW
    s.lower_true[t, g, c] = False


@part.action("request {r} is told that the second tier has chunk {c} in group {g}")
def tell(s: View, r: Request, g: Group, c: Chunk) -> None:
    """The answer is remembered, since asking is slow."""
    t = s.text[r]
    s.require("waits", (s.life[r] == WAITING) | (s.life[r] == PREEMPTED))
    s.require("its key is known", c < s.keys[r, g])
    s.require("only there", s.pooled[t, g, c] == MISSING, s.lower[t, g, c] == PRESENT_BELOW)
    s.require("not told yet", not_(s.told[r, g, c]))
    s.told[r, g, c] = True


@part.action("chunk {c} in group {g} is to be read into slot {h} for request {r}")
def promote(s: View, r: Request, g: Group, c: Chunk, h: Slot) -> None:
    """Its key is pending; whoever else asks for it waits for it as for a store."""
    t = s.text[r]
    s.require("waits", (s.life[r] == WAITING) | (s.life[r] == PREEMPTED))
    s.require("told", s.told[r, g, c])
    s.require("not in the pool", s.pooled[t, g, c] == MISSING)
    s.require("a free slot", is_free(s, h))
    s.require("room beside it", s.rules.tier.may_promote(room_beside(s, h)))
    s.pooled[t, g, c] = PENDING
    s.raising[t, g, c] = True
    give_slot(s, h, t, g, c)


@part.action("chunk {c} of text {t} in group {g} cannot be read from the second tier",
             external=True)
def read_fails(s: View, t: Text, g: Group, c: Chunk) -> None:
    """A slip, or the file is not there any more."""
    s.require("being read", s.raising[t, g, c], not_(s.unread[t, g, c]))
    s.unread[t, g, c] = True


@part.action("the read of chunk {c} of text {t} in group {g} is over")
def promote_ends(s: View, t: Text, g: Group, c: Chunk) -> None:
    """What could not be read is given up, and no request counts on it any longer."""
    failed = s.unread[t, g, c]
    given_up = s.rules.tier.unreadable(failed, exists(
        TEXT, GROUP, CHUNK, lambda t2, g2, c2: s.unread[t2, g2, c2]))
    s.require("being read", s.raising[t, g, c])
    s.require("read, or failed", failed | (s.lower[t, g, c] == PRESENT_BELOW))
    h, true = s.slot[t, g, c], s.lower_true[t, g, c] & not_(failed)
    s.byte_text.where(lambda h2, w: h2 == h, ite(true, t, 0))
    s.byte_g.where(lambda h2, w: h2 == h, ite(true, g, 0))
    s.byte_end.where(lambda h2, w: h2 == h, ite(true, c + 1, 0))
    s.raising[t, g, c] = False
    s.unread[t, g, c] = False
    s.told.where(lambda r, g2, c2: (s.text[r] == t) & (g2 == g) & (c2 == c)
                 & (not_(failed) | s.rules.tier.withdraws), False)
    s.pooled[t, g, c] = READY
    give_up(s, lambda t2, g2, c2: (t2 == t) & (g2 == g) & (c2 == c) & given_up)


@part.extend("reset")
def _drop_reads(s: View) -> None:
    """The reads that are under way end late, like copies; what a copy down holds stays."""
    def read_into(h: Term) -> Term:
        return lift(s.taken[h] & s.raising[s.slot_text[h], s.slot_g[h], s.slot_c[h]])

    s.late.where(lambda h, w: read_into(h), True)
    s.raising.where(lambda t, g, c: True, False)
    s.unread.where(lambda t, g, c: True, False)
    s.told.where(lambda r, g, c: True, False)


@part.extend("retire")
def _forget(s: View, r: Request) -> None:
    s.told.where(lambda r2, g, c: r2 == r, False)
