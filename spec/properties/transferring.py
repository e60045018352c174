"""What must hold of transfers: fences, true bytes, pins, workers, nothing left held."""

from __future__ import annotations

from typing import Any

from kvoracle.model.fencing import MISSING, PENDING, READY
from kvoracle.model.hits import chunks_touched
from kvoracle.model.keys import Chunk
from kvoracle.model.kinds import needed
from kvoracle.model.lag import NOTHING
from kvoracle.model.loads import loads
from kvoracle.model.machine import View
from kvoracle.model.pool import (
    HOLDS,
    LEFT,
    NONE,
    TEXT,
    Block,
    Text,
    Worker,
    held_alone,
    holds,
    lives,
)
from kvoracle.model.requests import (
    ABORTED,
    ABSENT,
    PREEMPTED,
    REQUEST,
    RUNNING,
    WAITING,
    Group,
    Request,
    ended,
)
from kvoracle.model.slots import SLOT, Slot, has_room, is_free, offers_several, true_bytes
from kvoracle.model.tails import unsettled
from kvoracle.model.terms import exists, forall, implies, not_
from kvoracle.model.tiering import BEING_WRITTEN, PRESENT_BELOW
from kvoracle.model.tiers import room_beside

from .property import Property, Seen, Witness

LOADS = ("pool", "slots", "transfers", "loads")
STORES = ("pool", "slots", "transfers")

TRANSFERS = "transfers"


def _loading(s: View, r: Any, g: Any, c: Any) -> Any:
    return loads(s, r, g, c) if s.has("loads") else False


def _no_load(s: View, r: Any) -> Any:
    return s.hit[r] == 0 if s.has("loads") else True


def _kept(s: View, r: Any, g: Any, c: Any) -> Any:
    """Whether the request's list has a block for the chunk, and not the null block."""
    return s.slid[r, g] <= c if s.has("windows") else True


def _computed(s: View, r: Any, g: Any) -> Any:
    return chunks_touched(s.computed[r], s.tokens_per_chunk[g])


def _in_place(s: View, r: Any, g: Any, c: Any, hold: int) -> Any:
    """Whether the request holds, or left, the block on its list, for this chunk of it."""
    b = s.table[r, g, c]
    return (s.hold[b, r] == hold) & (s.place_g[b] == g) & (s.place_c[b] == c)


def _given_to(s: View, h: Any, r: Any, g: Any, c: Any) -> Any:
    """Whether the slot is the key's of the request's chunk, if it is anybody's."""
    return implies(s.taken[h], (s.slot_text[h] == s.text[r]) & (s.slot_g[h] == g)
                   & (s.slot_c[h] == c))


def _chunk(seen: Seen) -> str:
    return f"chunk {seen.where['c']} of request {seen.request}{seen.group}"


def _key(seen: Seen) -> str:
    return f"the key of chunk {seen.where['c']} of text {seen.where['t']}{seen.group}"


def _bytes(text: int, end: int, none: str = "nobody's KV") -> str:
    return f"the KV of chunk {end - 1} of text {text}" if end else none


def _in_block(seen: Seen, b: int) -> str:
    w = seen.where["w"]
    return _bytes(seen.get("tag_text", b, w), seen.get("tag_end", b, w))


def _in_slot(seen: Seen, h: int) -> str:
    return f"the key of chunk {seen.get('slot_c', h)} of text {seen.get('slot_text', h)}"


def _goes_elsewhere(seen: Seen, h: int) -> bool:
    mine = seen.get("text", seen.where["r"]), seen.where["g"], seen.where["c"]
    given = tuple(seen.get(name, h) for name in ("slot_text", "slot_g", "slot_c"))
    return bool(seen.get("taken", h)) and given != mine


# --- ReuseFence ------------------------------------------------------------------


def _reuse_fence(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    reading = s.flight[r, g, c] & (s.copied[r, g, c, w] == 0)
    kept = implies(reading, holds(s, s.source[r, g, c], w, r, g, c)
                   & _given_to(s, s.target[r, g, c], r, g, c)
                   & not_(s.late[s.target[r, g, c], w]))
    if not s.has("loads"):
        return kept
    kept = kept & implies(loads(s, r, g, c), _in_place(s, r, g, c, HOLDS)
                          & _given_to(s, s.origin[r, g, c], r, g, c))
    if s.has("sharing"):
        kept = kept & implies(loads(s, r, g, c), held_alone(s, s.table[r, g, c], r))
    if s.has("lag"):
        kept = kept & implies(s.ahead[r] != NOTHING, held_alone(s, s.aimed[r, g], r))
    return kept


def _not_fenced(seen: Seen) -> str:
    at = tuple(seen.where[k] for k in "rgc")
    if seen.get("flight", *at) and not seen.get("copied", *at, seen.where["w"]):
        h = seen.get("target", *at)
        if _goes_elsewhere(seen, h):
            return (f"the store of {_chunk(seen)} still writes slot {h}, which was given to "
                    f"{_in_slot(seen, h)}")
        if seen.get("late", h, seen.where["w"]):
            return (f"the store of {_chunk(seen)} writes slot {h}, and so may worker "
                    f"{seen.where['w']} for a store that was dropped")
        b = seen.get("source", *at)
        return (f"the store of {_chunk(seen)} still reads block {b}, which now holds "
                f"{_in_block(seen, b)}")
    h, b = seen.get("origin", *at), seen.get("table", *at)
    if _goes_elsewhere(seen, h):
        return (f"the load of {_chunk(seen)} still reads slot {h}, which was given to "
                f"{_in_slot(seen, h)}")
    if not seen.get("hit", seen.where["r"]):
        b = seen.get("aimed", *at[:2])
        return (f"a step of request {seen.request} that was dispatched still writes block {b}, "
                "which another request holds")
    if seen.get("hold", b, seen.where["r"]) == HOLDS:
        return f"the load of {_chunk(seen)} writes block {b}, which another request holds as well"
    return f"the load of {_chunk(seen)} still writes block {b}, which the request holds no more"


def _reads_a_freed_block(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.flight[r, g, c] & ended(s, r) & (s.hold[s.source[r, g, c], r] != HOLDS)


def _reads_anothers_block(s: View, r: Request, g: Group, c: Chunk) -> Any:
    b = s.source[r, g, c]
    return s.flight[r, g, c] & exists(REQUEST, lambda q: (s.hold[b, q] == HOLDS) & (q != r))


def _reads_while_preempted(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.flight[r, g, c] & (s.life[r] == PREEMPTED)


def _ended_before_its_step(s: View, r: Request) -> Any:
    return ended(s, r) & (s.ahead[r] != NOTHING)


def _reads_behind_a_window(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.flight[r, g, c] & (s.life[r] == RUNNING) & (c < s.slid[r, g])


def _aborted_while_loading(s: View, r: Request) -> Any:
    return (s.life[r] == ABORTED) & (s.hit[r] > 0)


REUSE_FENCE = Property(
    name="ReuseFence",
    statement="a block or slot is not written while a transfer may still read or write it",
    why="A block is freed when its request ends, not when the copy of it is done. Whoever gets "
        "it next may write while a worker still reads: the host then keeps one request's KV "
        "under another's key. Every path that frees blocks needs the fence, and each was "
        "forgotten once. The same goes for the host's slots.",
    source="vLLM jobs_to_flush; issues #46951, #52360; PR48596; SGLang PR31427",
    function=_reuse_fence,
    because=_not_fenced,
    witnesses=(
        Witness("a store reads a block that its request has freed", _reads_a_freed_block),
        Witness("a store reads a block that another request holds", _reads_anothers_block),
        Witness("a store is under way while its request is preempted", _reads_while_preempted),
        Witness("a client goes away while its load is under way", _aborted_while_loading,
                ("loads",)),
        Witness("a request has ended before its next step has run", _ended_before_its_step,
                ("lag",)),
        Witness("a store reads a block that its request's window has left", _reads_behind_a_window,
                ("windows",)),
    ),
    bugs=("vLLM#46951", "vLLM#52360", "vLLM PR48596", "vLLM PR41956", "SGLang PR28468",
          "vLLM PR45357", "LMCache#2206"),
    parts=STORES,
    family=TRANSFERS,
)


# --- TrueBytes -------------------------------------------------------------------


def _true_bytes(s: View, t: Text, g: Group, c: Chunk, w: Worker) -> Any:
    above = implies(s.pooled[t, g, c] == READY, true_bytes(s, s.slot[t, g, c], w, t, g, c))
    if not s.has("tiers"):
        return above
    return above & implies(s.lower[t, g, c] == PRESENT_BELOW, s.lower_true[t, g, c])


def _false_bytes(seen: Seen) -> str:
    at = tuple(seen.where[k] for k in "tgc")
    h, w = seen.get("slot", *at), seen.where["w"]
    if seen.get("pooled", *at) != READY:
        return f"{_key(seen)} is in the second tier, and what lies there is not its KV"
    return (f"{_key(seen)} is ready, and in its slot {h} worker {w} holds "
            f"{_bytes(seen.get('byte_text', h, w), seen.get('byte_end', h, w))}")


def _ready_after_its_request(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return (s.pooled[s.text[r], g, c] == READY) & ended(s, r)


def _slot_of_another(s: View, h: Slot, w: Worker) -> Any:
    return s.taken[h] & (s.byte_end[h, w] > 0) & (s.byte_text[h, w] != s.slot_text[h])


TRUE_BYTES = Property(
    name="TrueBytes",
    statement="the bytes under a key are the KV of that key's tokens",
    why="Whoever asks for the key later computes on another prefix's KV: wrong text, and maybe "
        "somebody else's.",
    source="vLLM issue #46951; PR48596; LMCache#4991",
    function=_true_bytes,
    because=_false_bytes,
    witnesses=(
        Witness("a key is ready whose request has ended", _ready_after_its_request),
        Witness("a key's slot still holds another key's KV", _slot_of_another),
    ),
    bugs=("vLLM#46951", "vLLM PR48596", "LMCache#4991"),
    parts=STORES,
    family=TRANSFERS,
)


# --- LoadReady -------------------------------------------------------------------


def _load_ready(s: View, r: Request, g: Group, c: Chunk) -> Any:
    def ready_at(t: Any, h: Any) -> Any:
        return (s.pooled[t, g, c] == READY) & (s.slot[t, g, c] == h)

    loaded = implies(loads(s, r, g, c), ready_at(s.text[r], s.origin[r, g, c]))
    if not s.has("tiers"):
        return loaded
    return loaded & forall(TEXT, lambda t: implies(
        s.lower[t, g, c] == BEING_WRITTEN, ready_at(t, s.lowered[t, g, c])))


def _not_ready(seen: Seen) -> str:
    at = (seen.get("text", seen.where["r"]), seen.where["g"], seen.where["c"])
    if not seen.get("pin", seen.where["r"], *at[1:]) and seen.get("pooled", *at) != PENDING:
        return f"chunk {at[2]}{seen.group} is copied down to the second tier, and its key is gone"
    stand = {PENDING: "still pending", READY: "in another slot"}.get(
        seen.get("pooled", *at), "not in the pool any more")
    return f"a load of {_chunk(seen)} is under way, and its key is {stand}"


def _two_load_one_key(s: View, r: Request, q: Request, g: Group, c: Chunk) -> Any:
    return loads(s, r, g, c) & loads(s, q, g, c) & (r != q) & (s.text[r] == s.text[q])


LOAD_READY = Property(
    name="LoadReady",
    statement="a load, or a copy to a second tier, reads only keys whose store is complete, until "
              "it ends",
    why="A key that is pending has no bytes yet, and the place of one that was evicted belongs "
        "to another key: the load brings whatever lies there, and nothing complains.",
    source="vLLM CPUOffloadingManager.prepare_load; SGLang PR31427",
    function=_load_ready,
    because=_not_ready,
    witnesses=(Witness("two requests load one key", _two_load_one_key),),
    bugs=("SGLang PR31427", "LMCache#4133"),
    parts=LOADS,
    family=TRANSFERS,
)


# --- LoadedBytes -----------------------------------------------------------------


def _loaded_bytes(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    mine = holds(s, s.table[r, g, c], w, r, g, c)
    behind = (s.life[r] == RUNNING) & (c < _computed(s, r, g))
    if s.has("windows"):
        read = needed(s.kind[g], s.reach[g], s.tokens_per_chunk[g], s.computed[r], c)
        return implies(behind, implies(read, _kept(s, r, g, c)) & implies(_kept(s, r, g, c), mine))
    return implies(behind, mine)


def _not_its_own(seen: Seen) -> str:
    at = tuple(seen.where[k] for k in "rgc")
    b = seen.get("table", *at)
    if seen.has("windows") and at[2] < seen.get("slid", *at[:2]):
        return (f"request {seen.request} runs, and reads chunk {at[2]}{seen.group}, which has no "
                "block any more")
    return (f"request {seen.request} runs, and where it reads chunk {seen.where['c']}{seen.group}, "
            f"in block {b} of worker {seen.where['w']}, lies {_in_block(seen, b)}")


def _loaded_in_part(s: View, r: Request, g: Group) -> Any:
    return (s.hit[r] > 0) & (s.slid[r, g] > 0)


def _second_half(s: View, r: Request) -> Any:
    return (s.life[r] == RUNNING) & (s.computed[r] > 0) & (s.tokens[r] > s.prompt[r])


LOADED_BYTES = Property(
    name="LoadedBytes",
    statement="attention reads only positions that hold the request's own prefix",
    why="A request that reads another's KV, or KV that nobody wrote, goes on as if nothing were "
        "wrong. Its own output is wrong, silently.",
    source="vLLM PR31341; SGLang PR31427",
    function=_loaded_bytes,
    because=_not_its_own,
    witnesses=(
        Witness("a request decodes", _second_half),
        Witness("a request is loaded without what it will not read", _loaded_in_part,
                ("windows",)),
    ),
    bugs=("SGLang PR31427", "vLLM PR42959"),
    parts=("pool",),
    family=TRANSFERS,
)


# --- JobExclusive ----------------------------------------------------------------


def _job_exclusive(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return not_((s.hit[r] > 0) & s.flight[r, g, c])


def _both(seen: Seen) -> str:
    return f"{_chunk(seen)} is being stored while the request's load is under way"


def _store_then_load(s: View, r: Request) -> Any:
    return (s.hit[r] > 0) & (s.life[r] == PREEMPTED)


JOB_EXCLUSIVE = Property(
    name="JobExclusive",
    statement="a request has one load in flight, or stores, never both",
    why="Load and store of one request share its blocks and its bookkeeping; an engine that "
        "takes the end of one for the end of the other frees or reads blocks too early.",
    source="vLLM offloading scheduler: a request has a load job or store jobs; PR42959",
    function=_job_exclusive,
    because=_both,
    witnesses=(Witness("a request that was preempted is loaded", _store_then_load),),
    bugs=("vLLM PR42959",),
    parts=LOADS,
    family=TRANSFERS,
)


# --- WorkerAgreement -------------------------------------------------------------


def _worker_agreement(s: View, t: View, action: str, r: Request, g: Group, c: Chunk,
                      w: Worker) -> Any:
    if action == "reset":  # what is dropped is not over
        return True
    stored = implies(s.flight[r, g, c] & (t.flight[r, g, c] == 0), s.copied[r, g, c, w]) \
        & implies(t.flight[r, g, c] & (s.flight[r, g, c] == 0), not_(s.short[t.target[r, g, c], w]))
    if not s.has("loads"):
        return stored
    ends = loads(s, r, g, c) & (t.hit[r] == 0)
    return stored & implies(ends, s.loaded[r, g, c, w])


def _too_early(seen: Seen) -> str:
    at = tuple(seen.where[k] for k in "rgc")
    h = seen.get("target", *at)
    if seen.get("flight", *at) and seen.get("short", h, seen.where["w"]):
        return f"{_chunk(seen)} goes to slot {h}, and worker {seen.where['w']} has no such slot"
    return (f"the transfer of {_chunk(seen)} counts as over, and worker {seen.where['w']} is not "
            "done with it")


def _one_is_late(s: View, r: Request, g: Group, c: Chunk, w: Worker, v: Worker) -> Any:
    return s.flight[r, g, c] & s.copied[r, g, c, w] & (s.copied[r, g, c, v] == 0)


def _one_fails(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    return s.flight[r, g, c] & s.failed[r, g, c] & (s.copied[r, g, c, w] == 0)


WORKER_AGREEMENT = Property(
    name="WorkerAgreement",
    statement="a transfer is over when every worker is done with it, and goes to a slot that "
              "every worker has",
    why="With tensor parallelism each worker copies its share. If the first report counts as "
        "the end, the others' shares are read, evicted or overwritten while they are copied.",
    source="tpu-inference PR3152; vLLM KVOutputAggregator",
    function=_worker_agreement,
    because=_too_early,
    is_step=True,
    witnesses=(
        Witness("one worker has copied, another has not", _one_is_late),
        Witness("one worker has failed, another is not done", _one_fails),
    ),
    bugs=("tpu-inference PR3152", "tpu-inference PR3332", "vLLM#46240"),
    parts=STORES,
    family=TRANSFERS,
)


# --- NoLeak ----------------------------------------------------------------------


def _no_leak(s: View, b: Block, r: Request, t: Text, g: Group, c: Chunk, h: Slot) -> Any:
    kept = implies(s.hold[b, r] == HOLDS, lives(s, r) | not_(_no_load(s, r)))
    if s.has("sharing"):
        i, j = s.place_g[b], s.place_c[b]
        kept = kept & implies(s.hold[b, r] == HOLDS,
                              (j < s.allocated[r, i]) & (s.table[r, i, j] == b))
    left = implies(s.hold[b, r] == LEFT, ended(s, r))
    q = s.filler[t, g, c]
    raised = s.raising[t, g, c] if s.has("tiers") else False
    filled = implies(s.pooled[t, g, c] == PENDING, s.flight[q, g, c] & (s.text[q] == t) | raised)
    u, i, j = s.slot_text[h], s.slot_g[h], s.slot_c[h]
    stored = implies(s.taken[h], (s.pooled[u, i, j] != MISSING) & (s.slot[u, i, j] == h))
    return kept & left & filled & stored


def _held_for_nobody(seen: Seen) -> str:
    h = seen.where["h"]
    of = tuple(seen.get(name, h) for name in ("slot_text", "slot_g", "slot_c"))
    if seen.get("taken", h) and (
            seen.get("pooled", *of) == MISSING or seen.get("slot", *of) != h):
        return f"slot {h} is not free, and no key lies in it"
    at = tuple(seen.where[k] for k in "tgc")
    if seen.get("pooled", *at) == PENDING \
            and not seen.get("flight", seen.get("filler", *at), *at[1:]):
        return f"{_key(seen)} is pending, and no store is under way that would fill it"
    b, r = seen.where["b"], seen.where["r"]
    if seen.get("life", r) in (WAITING, PREEMPTED, RUNNING):
        return f"block {b} is held by request {seen.request}, which does not list it"
    return f"block {b} is held, and its request has ended"


def _rest_with_residue(s: View, b: Block, w: Worker, r: Request) -> Any:
    return (s.hold[b, r] == NONE) & (s.tag_end[b, w] > 0) & (s.life[r] == ABSENT)


def _pending_of_the_ended(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return (s.pooled[s.text[r], g, c] == PENDING) & ended(s, r) & s.flight[r, g, c]


NO_LEAK = Property(
    name="NoLeak",
    statement="at rest nothing is held",
    why="What is never given back is missing for ever; the pool shrinks until nothing fits.",
    source="LMCache#4991 and its kind; vLLM PR45357",
    function=_no_leak,
    because=_held_for_nobody,
    witnesses=(
        Witness("a freed block keeps what was written in it", _rest_with_residue),
        Witness("a key is pending whose request has ended", _pending_of_the_ended),
    ),
    bugs=("vLLM PR45357", "vLLM#49674"),
    parts=STORES,
    family=TRANSFERS,
)


# --- RefExact --------------------------------------------------------------------


def _ref_exact(s: View, r: Request, g: Group, c: Chunk) -> Any:
    loading = loads(s, r, g, c)
    exact = implies(loading, s.pin[r, g, c]) & implies(s.pin[r, g, c], loading)
    if s.has("sharing") or s.has("lag"):
        exact &= _counted(s, r, g, c)
    if s.has("tiers"):
        exact &= forall(TEXT, lambda t: (s.lower[t, g, c] == BEING_WRITTEN) == s.held[t, g, c])
    return exact


def _counted(s: View, r: Any, g: Any, c: Any) -> Any:
    """Whether the request counts among the holders of the block that it lists for the chunk."""
    listed = (lives(s, r) | not_(_no_load(s, r))) & (c < s.allocated[r, g])
    return implies(listed, s.hold[s.table[r, g, c], r] == HOLDS)


def _wrong_pin(seen: Seen) -> str:
    r, g, c = (seen.where[k] for k in "rgc")
    pinned = seen.get("pin", r, g, c)
    if pinned and not seen.get("hit", r):
        return f"the key of {_chunk(seen)} is pinned, and no load reads it"
    if not pinned and c * seen.constant("tokens_per_chunk") < seen.get("hit", r):
        return f"a load reads {_chunk(seen)}, and its key is not pinned"
    if c < seen.get("allocated", r, g) and seen.get("hold", seen.get("table", r, g, c), r) != HOLDS:
        return f"request {seen.request} lists a block for {_chunk(seen)} that it does not hold"
    return f"chunk {c}{seen.group} is copied to the second tier, and its key is not held"


def _pins_outlive_the_client(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.pin[r, g, c] & (s.life[r] == ABORTED)


def _two_hold_one_block(s: View, b: Block, r: Request, q: Request) -> Any:
    return (s.hold[b, r] == HOLDS) & (s.hold[b, q] == HOLDS) & (r != q)


def _residue_is_found(s: View, b: Block, r: Request, q: Request) -> Any:
    return (s.hold[b, r] == HOLDS) & (s.hold[b, q] == LEFT)


REF_EXACT = Property(
    name="RefExact",
    statement="pins and reference counts equal their holders",
    why="A pin too few lets a key go while it is read; a pin too many keeps it for ever; so with "
        "the count of a block's holders. Either is written here as the set of requests that "
        "hold: the count is that set's size.",
    source="SGLang PR31427 and its kind; LMCache#4133",
    function=_ref_exact,
    because=_wrong_pin,
    witnesses=(
        Witness("a pin outlives its client", _pins_outlive_the_client),
        Witness("two requests hold one block", _two_hold_one_block, ("sharing",)),
        Witness("a request holds a block that another has left", _residue_is_found, ("sharing",)),
    ),
    bugs=("SGLang PR31427", "LMCache#4133", "sglang-jax#1618", "vLLM PR33377"),
    parts=LOADS,
    family=TRANSFERS,
)


# --- NoStall ---------------------------------------------------------------------


def _can(s: View, action: str, **what: Any) -> Any:
    return s.possible(action, **what) if action in s.machine.actions else False


def _no_stall(s: View, r: Request, g: Group, c: Chunk) -> Any:
    at = {"r": r, "g": g, "c": c}
    goes_on = _can(s, "submit", **at) | _can(s, "copy_out", **at) | _can(s, "report_store", **at)
    if s.has("tails") and s.rules.care.holds_tails:
        goes_on |= unsettled(s, r, g, c) & _can(s, "sample", r=r, a=0)
    refused = implies(_can(s, "refuse", r=r), offers_several(s, r) | not_(has_room(s)))
    going = implies(s.flight[r, g, c], goes_on) & refused
    if not s.has("tiers"):
        return going
    return going & forall(SLOT, lambda h: implies(
        _can(s, "promote", r=r, g=g, c=c, h=h), room_beside(s, h)))


def _stalled(seen: Seen) -> str:
    at = tuple(seen.where[k] for k in "rgc")
    if seen.get("flight", *at) and not seen.get("submitted", *at):
        return f"the store of {_chunk(seen)} is planned, and nobody submits it"
    if seen.get("life", at[0]) in (WAITING, PREEMPTED):
        return (f"{_chunk(seen)} may be read from the second tier into the last slot that there "
                "is room in")
    return (f"the one chunk that request {seen.request} has to offer may be refused, and there is "
            "room for it")


def _refused(s: View, r: Request) -> Any:
    return s.excused[r] & (s.life[r] == RUNNING) & not_(exists(SLOT, lambda h: is_free(s, h)))


def _planned_last(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.flight[r, g, c] & not_(s.submitted[r, g, c]) & not_(
        exists(REQUEST, lambda q: s.life[q] == RUNNING))


NO_STALL = Property(
    name="NoStall",
    statement="a planned store goes on, an offer is refused only where room lacks, and reads from "
              "a second tier leave room",
    why="A pool that counts its room wrongly, or keeps what nobody will use, refuses for ever; a "
        "store that waits for a step that never comes keeps its block and its slot. Nothing "
        "fails; it just never pays.",
    source="vLLM PR42611, issue #49902; SGLang PR30203; vLLM CPUOffloadingManager.prepare_store",
    function=_no_stall,
    because=_stalled,
    witnesses=(
        Witness("an offer is refused for want of room", _refused),
        Witness("a store is planned, and no request runs", _planned_last),
    ),
    bugs=("vLLM PR42611", "SGLang PR30203", "LMCache#987"),
    derived=True,
    parts=STORES,
    family=TRANSFERS,
)


# --- strengthening invariants ----------------------------------------------------


def _lemma(name: str, statement: str, why: str, supports: str, function: Any, because: Any,
           parts: tuple[str, ...], source: str = "the machine's own bookkeeping",
           family: str = TRANSFERS) -> Property:
    return Property(name=name, statement=statement, why=why, source=source, function=function,
                    because=because, lemma=True, supports=supports, parts=parts, family=family)


def _own_blocks(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return implies((lives(s, r) | not_(_no_load(s, r))) & (c < s.allocated[r, g])
                   & _kept(s, r, g, c), _in_place(s, r, g, c, HOLDS))


OWN_BLOCKS = _lemma(
    "OwnBlocks", "a request that may still compute or is being loaded holds the blocks on its list",
    "Two requests never write one block, and one never writes two chunks into it: what a list "
    "says and what a block says are inverse to each other.",
    "LoadedBytes", _own_blocks,
    lambda seen: f"request {seen.request} lists a block for {_chunk(seen)} that it does not hold",
    ("pool",))


def _sole_owner(s: View, b: Block, r: Request, q: Request) -> Any:
    several = s.named[b] if s.has("sharing") else False
    return implies((s.hold[b, r] != NONE) & (s.hold[b, q] != NONE), (r == q) | several)


SOLE_OWNER = _lemma(
    "SoleOwner", "a block is held, or left for the planner, by one request",
    "Whoever is given a block takes it from all who had it, so that nobody else writes it, frees "
    "it or stores from it.",
    "ReuseFence", _sole_owner,
    lambda seen: f"block {seen.where['b']} belongs to two requests, {seen.where['r']} and "
                 f"{seen.where['q']}",
    ("pool",))


def _left_blocks(s: View, r: Request, g: Group, c: Chunk) -> Any:
    told = s.blocks[r, g] // s.blocks_per_chunk[g]
    return implies(ended(s, r) & _no_load(s, r) & (c < told) & _kept(s, r, g, c),
                   _in_place(s, r, g, c, LEFT))


LEFT_BLOCKS = _lemma(
    "LeftBlocks", "the blocks that the planner knows of an ended request went to nobody else",
    "Stores are planned after the end too. A block on the planner's list that another request "
    "has been given since would be stored under the wrong key.",
    "TrueBytes", _left_blocks,
    lambda seen: f"the planner lists a block for {_chunk(seen)}, which has ended, and the block "
                 "went elsewhere",
    ("pool",), "vLLM PR48596: the window in which a freed block is reused")


def _left_bytes(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    told = s.blocks[r, g] // s.blocks_per_chunk[g]
    return implies(
        ended(s, r) & _no_load(s, r) & (c < told) & (c < _computed(s, r, g))
        & _kept(s, r, g, c),
        holds(s, s.table[r, g, c], w, r, g, c))


LEFT_BYTES = _lemma(
    "LeftBytes", "the blocks that the planner knows of an ended request hold what it computed",
    "This is what lets a store be planned after the end: nobody has written the block since.",
    "TrueBytes", _left_bytes,
    lambda seen: f"{_chunk(seen)}, which has ended, is still offered, and its block holds "
                 "something else",
    ("pool",), "vLLM PR48596: the window in which a freed block is reused")


def _told_is_allocated(s: View, r: Request, g: Group) -> Any:
    return s.blocks[r, g] // s.blocks_per_chunk[g] <= s.allocated[r, g]


TOLD_IS_ALLOCATED = _lemma(
    "ToldIsAllocated", "the planner knows of no block that was not allocated",
    "A store names the blocks on the list. A list longer than what was allocated would name "
    "blocks of others.",
    "TrueBytes", _told_is_allocated,
    lambda seen: f"the planner knows {seen.of('blocks')} blocks of request {seen.request}, "
                 f"allocated are {seen.of('allocated')} chunks' worth",
    ("pool",))


def _touched_is_allocated(s: View, r: Request, g: Group) -> Any:
    running = implies(s.life[r] == RUNNING, _computed(s, r, g) <= s.allocated[r, g])
    if not s.has("loads"):
        return running
    touched = chunks_touched(s.hit[r], s.tokens_per_chunk[g])
    return running & implies(s.hit[r] > 0, touched <= s.allocated[r, g])


TOUCHED_IS_ALLOCATED = _lemma(
    "TouchedIsAllocated", "what a request has computed, or loads, lies in allocated blocks",
    "Kernels and copies write where the block list says; beyond its end it says nothing.",
    "LoadedBytes", _touched_is_allocated,
    lambda seen: f"request {seen.request} has {seen.of('allocated')} chunks allocated, fewer than "
                 "it computed or loads",
    ("pool",))


def _waiting_has_computed_nothing(s: View, r: Request, g: Group) -> Any:
    waits = (s.life[r] == WAITING) | (s.life[r] == PREEMPTED) | (s.life[r] == ABSENT)
    nothing = (s.computed[r] == 0) & (s.blocks[r, g] == 0)
    kept = implies(waits, nothing) & implies(s.life[r] == ABSENT, s.allocated[r, g] == 0)
    if not s.has("loads"):
        return kept
    return kept & implies(s.hit[r] > 0, nothing)


WAITING_HAS_COMPUTED_NOTHING = _lemma(
    "WaitingHasComputedNothing",
    "a request that waits or is being loaded has nothing that could be stored",
    "Preemption takes the blocks and the count, and a load goes on while the request waits; so "
    "no store of it is planned before it runs again.",
    "TrueBytes", _waiting_has_computed_nothing,
    lambda seen: f"request {seen.request} waits with {seen.get('computed', seen.where['r'])} "
                 f"tokens computed and {seen.of('blocks')} blocks known",
    ("pool",))


def _flight_has_its_key(s: View, r: Request, g: Group, c: Chunk) -> Any:
    t = s.text[r]
    return implies(
        s.flight[r, g, c],
        (s.pooled[t, g, c] == PENDING) & (s.filler[t, g, c] == r) & (s.life[r] != ABSENT)
        & (s.slot[t, g, c] == s.target[r, g, c]))


FLIGHT_HAS_ITS_KEY = _lemma(
    "FlightHasItsKey", "a store under way fills a pending key, which no other store fills",
    "Two stores of one key would write one place, and the first to end would make it ready while "
    "the other still writes.",
    "TrueBytes", _flight_has_its_key,
    lambda seen: f"{_chunk(seen)} is being stored, and its key is not its own to fill",
    STORES)


def _slot_has_its_key(s: View, t: Text, g: Group, c: Chunk) -> Any:
    h = s.slot[t, g, c]
    return implies(s.pooled[t, g, c] != MISSING, s.taken[h] & (s.slot_text[h] == t)
                   & (s.slot_g[h] == g) & (s.slot_c[h] == c))


SLOT_HAS_ITS_KEY = _lemma(
    "SlotHasItsKey", "a key that is pending or ready has a slot, which is no other key's",
    "What is written for one key is then written over no other: keys and slots are inverse to "
    "each other.",
    "TrueBytes", _slot_has_its_key,
    lambda seen: f"{_key(seen)} is in the pool, and its slot is not its own",
    STORES)


def _slot_is_there(s: View, h: Slot, w: Worker) -> Any:
    return implies(s.taken[h], not_(s.short[h, w]))


SLOT_IS_THERE = _lemma(
    "SlotIsThere", "every worker has the slots that are in use",
    "A copy to a slot that a worker does not have goes nowhere, or over memory that is "
    "somebody else's.",
    "TrueBytes", _slot_is_there,
    lambda seen: f"slot {seen.where['h']} is in use, and worker {seen.where['w']} does not have it",
    STORES, "vLLM PR50653: ranks with different numbers of slots")


def _slot_is_settled(s: View, h: Slot, w: Worker) -> Any:
    return not_(s.taken[h] & s.late[h, w])


SLOT_IS_SETTLED = _lemma(
    "SlotIsSettled", "nothing is written late to a slot that is in use",
    "A store that a reset dropped is copied all the same. What it writes is nobody's KV any more, "
    "and must not come over another's.",
    "TrueBytes", _slot_is_settled,
    lambda seen: f"slot {seen.where['h']} is in use, and worker {seen.where['w']} may still write "
                 "it for a store that was dropped",
    STORES, "vLLM PR41956, review")


def _done_is_copied(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    done = s.copied[r, g, c, w]
    return implies(done & (s.failed[r, g, c] == 0), true_bytes(
        s, s.target[r, g, c], w, s.text[r], g, c))


def _done_is_under_way(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    return implies(s.copied[r, g, c, w], s.flight[r, g, c]) \
        & implies(s.submitted[r, g, c], s.flight[r, g, c])


DONE_IS_UNDER_WAY = _lemma(
    "DoneIsUnderWay", "what was submitted, or copied by a worker, is a store under way",
    "A store begins with nobody done: what is left of an earlier one would count as its end.",
    "WorkerAgreement", _done_is_under_way,
    lambda seen: f"a worker is done with {_chunk(seen)}, and no store of it is under way",
    STORES)


DONE_IS_COPIED = _lemma(
    "DoneIsCopied", "what a worker has copied lies in the slot, unless a copy failed",
    "The bytes come one worker at a time, while the others still copy; each share must stay as "
    "it is until the last has come.",
    "TrueBytes", _done_is_copied,
    lambda seen: f"worker {seen.where['w']} has copied {_chunk(seen)}, and something else lies "
                 "in its slot",
    STORES)


def _fresh_targets(s: View, r: Request, g: Group, c: Chunk, q: Request, h: Group, d: Chunk,
                   w: Worker) -> Any:
    reading = s.flight[q, h, d] & (s.copied[q, h, d, w] == 0)
    return not_(loads(s, r, g, c) & reading & (s.source[q, h, d] == s.table[r, g, c]))


FRESH_TARGETS = _lemma(
    "FreshTargets", "no store reads a block that a load writes",
    "Transfers exclude each other on a block unless both only read it: a store that met a load "
    "would copy the load's bytes under its own key.",
    "ReuseFence", _fresh_targets,
    lambda seen: f"a load of {_chunk(seen)} writes a block that the store of chunk "
                 f"{seen.where['d']} of request {seen.where['q']} still reads",
    LOADS, "vLLM PR31341, PR48596")


def _done_is_loaded(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    done = s.loaded[r, g, c, w]
    return implies(done & (s.load_failed[r] == 0), holds(s, s.table[r, g, c], w, r, g, c)) \
        & implies(done, loads(s, r, g, c))


DONE_IS_LOADED = _lemma(
    "DoneIsLoaded", "what a worker has loaded is in the block, unless a copy failed",
    "The shares come one worker at a time, while the request waits; each must stay as it is until "
    "the last has come.",
    "LoadedBytes", _done_is_loaded,
    lambda seen: f"worker {seen.where['w']} has loaded {_chunk(seen)}, and its block holds "
                 "something else",
    LOADS)


def _load_is_within(s: View, r: Request) -> Any:
    loading = (s.life[r] == WAITING) | (s.life[r] == PREEMPTED) | (s.life[r] == ABORTED)
    return (s.hit[r] <= s.tokens[r]) & implies(s.hit[r] > 0, loading)


LOAD_IS_WITHIN = _lemma(
    "LoadIsWithin", "a request is loaded while it waits, and no more tokens than it has",
    "A request counts what was loaded as computed, but for its last token, whose logits are "
    "needed.",
    "LoadedBytes", _load_is_within,
    lambda seen: f"request {seen.request} loads {seen.of('hit')} of {seen.of('tokens')} tokens",
    LOADS, family="")

TRANSFERRING = (
    REUSE_FENCE, TRUE_BYTES, LOAD_READY, LOADED_BYTES, JOB_EXCLUSIVE, WORKER_AGREEMENT, NO_LEAK,
    REF_EXACT, NO_STALL,
)
TRANSFER_LEMMAS = (
    OWN_BLOCKS, SOLE_OWNER, LEFT_BLOCKS, LEFT_BYTES, TOLD_IS_ALLOCATED, TOUCHED_IS_ALLOCATED,
    WAITING_HAS_COMPUTED_NOTHING, SLOT_IS_THERE, SLOT_IS_SETTLED, SLOT_HAS_ITS_KEY,
    FLIGHT_HAS_ITS_KEY,
    DONE_IS_UNDER_WAY, DONE_IS_COPIED, FRESH_TARGETS, DONE_IS_LOADED, LOAD_IS_WITHIN,
)
