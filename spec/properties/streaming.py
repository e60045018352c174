"""What must hold of streams: conflicting operations in order, and nothing read too early or late.

The lemmas are the argument why order is enough.  Each block has a last writer under way, or
holds what is due in it; each reader has a last writer before it, or finds what it seeks
already.  When a writer runs, all writers before it have run, because they conflict; no reader
before it is left, because they conflict; and what is due behind it is what it wrote.
"""

from __future__ import annotations

from typing import Any

from kvoracle.model.machine import View
from kvoracle.model.pool import Block
from kvoracle.model.slots import Slot
from kvoracle.model.streams import (
    COMPUTE,
    FILLING,
    LOAD,
    PLANNED,
    QUEUED,
    READY,
    RUN,
    STORE,
    Event,
    Operation,
    Stream,
    conflict,
    conflict_in_slot,
    reads,
    under_way,
    writes,
)
from kvoracle.model.terms import implies, not_

from .property import Property, Seen, Witness

STREAMS = ("streams",)
FAMILY = "streams"

KIND = {COMPUTE: "launch", STORE: "store", LOAD: "load"}


def _operation(seen: Seen, name: str) -> str:
    o = seen.where[name]
    return f"{KIND[seen.get('on', o)]} {o}"


# --- StreamOrder -----------------------------------------------------------------


def _stream_order(s: View, o: Operation, p: Operation) -> Any:
    return (
        not_(s.overtaken[o])
        & implies(s.earlier[o, p] & conflict(s, o, p), s.awaits[o, p])
        & implies(s.earlier[o, p] & conflict_in_slot(s, o, p), s.awaits[o, p])
    )


def _no_edge(seen: Seen) -> str:
    if seen.get("overtaken", seen.where["o"]):
        return f"the host writes what {_operation(seen, 'o')} is to read and has not seen done"
    return (f"nothing keeps {_operation(seen, 'o')} behind {_operation(seen, 'p')}, which was "
            "queued before it and touches the same place")


def _across(s: View, o: Operation, p: Operation) -> Any:
    return under_way(s, o) & s.awaits[o, p] & (s.on[o] != s.on[p])


def _behind_a_kernel(s: View, o: Operation, p: Operation, b: Block) -> Any:
    return _across(s, o, p) & (s.on[p] == COMPUTE) & reads(s, o, b) & writes(s, p, b)


def _into_what_is_read(s: View, o: Operation, p: Operation, b: Block) -> Any:
    return _across(s, o, p) & (s.on[o] == LOAD) & writes(s, o, b) & reads(s, p, b) \
        & not_(writes(s, p, b))


def _into_what_is_written(s: View, o: Operation, p: Operation, b: Block) -> Any:
    return _across(s, o, p) & (s.on[o] == LOAD) & writes(s, o, b) & writes(s, p, b)


def _two_tables(s: View, o: Operation, p: Operation) -> Any:
    return (s.stage[o] == QUEUED) & (s.stage[p] == QUEUED) & (s.table[o] != s.table[p])


def _seen_instead(s: View, o: Operation, b: Block) -> Any:
    return (s.stage[o] == QUEUED) & (s.on[o] == LOAD) & (s.due[b] != s.lies[b])


STREAM_ORDER = Property(
    name="StreamOrder",
    statement="every read-after-write, write-after-read and write-after-write across streams has "
              "an event edge",
    why="The host's word that something is computed, freed or copied says only that it was "
        "queued. Another stream runs when it likes: a copy reads a block before the kernels have "
        "written it, or a load overwrites what kernels of the step before still read. It goes "
        "wrong only under load, and no assertion sees it.",
    source="vLLM PR31341, issues #45704 and #47282; SGLang PR36738; CUDA's stream semantics",
    function=_stream_order,
    because=_no_edge,
    witnesses=(
        Witness("a store waits for the kernels that write its block", _behind_a_kernel),
        Witness("a load waits for the kernels that read its block", _into_what_is_read),
        Witness("a load waits for the kernels that write its block", _into_what_is_written),
        Witness("a load is queued while a block still holds something else", _seen_instead),
        Witness("kernels are queued while the table of others is yet to be read", _two_tables,
                ("tables",)),
    ),
    bugs=("vLLM PR31341", "vLLM#45704", "vLLM#47282", "SGLang PR36738", "SGLang PR20611",
          "vLLM PR35831", "SGLang PR22811", "TensorRT-LLM PR15546"),
    parts=STREAMS,
    family=FAMILY,
)


# --- TrueReads -------------------------------------------------------------------


def _true_reads(s: View, t: View, action: str, o: Operation, b: Block) -> Any:
    del action
    runs = (s.stage[o] == QUEUED) & (t.stage[o] == RUN)
    found = implies(reads(s, o, b), s.lies[b] == s.sought[o, b]) \
        & implies(s.on[o] == LOAD, s.bytes[s.slot[o]] == s.carries[o])
    if s.has("tables"):
        found &= implies(s.on[o] == COMPUTE, s.says[s.table[o]] == s.block[o])
    return implies(runs, found)


def _misread(seen: Seen) -> str:
    assert seen.before is not None
    o, b = seen.where["o"], seen.where["b"]
    on = seen.before("on", o)
    who = f"{KIND[on]} {o}"
    if on == LOAD:
        h = seen.before("slot", o)
        return (f"{who} is to bring KV {seen.before('carries', o)}, and reads KV "
                f"{seen.before('bytes', h)} in slot {h}")
    if seen.before("lies", b) != seen.before("sought", o, b):
        return (f"{who} is to read KV {seen.before('sought', o, b)} in block {b}, and reads KV "
                f"{seen.before('lies', b)}")
    return f"{who} reads a table that another step has filled"


def _reads_what_was_queued(s: View, o: Operation, p: Operation, b: Block) -> Any:
    return (s.stage[o] == QUEUED) & (s.stage[p] == QUEUED) & s.fed[o, b] & (s.on[p] == LOAD) \
        & (s.on[o] == COMPUTE) & reads(s, o, b) & writes(s, p, b) & s.earlier[o, p]


def _slot_used_again(s: View, o: Operation, p: Operation) -> Any:
    return (s.stage[o] == QUEUED) & (s.stage[p] == QUEUED) & (s.on[o] == STORE) \
        & (s.on[p] == LOAD) & (s.slot[o] == s.slot[p])


TRUE_READS = Property(
    name="TrueReads",
    statement="an operation reads, when it runs, what the order of queueing put there",
    why="This is what lets all other promises be made at the moment of queueing. A store that "
        "reads too early or too late keeps other bytes under the key, kernels that do so compute "
        "on another's KV.",
    source="vLLM issue #45704, PR48596; data-race-free programs run as if in one order",
    function=_true_reads,
    because=_misread,
    is_step=True,
    witnesses=(
        Witness("kernels are queued that read what a load is yet to bring",
                _reads_what_was_queued),
        Witness("a slot is to be written again while a load of it is queued", _slot_used_again),
    ),
    bugs=("vLLM#45704", "vLLM#47282", "vLLM PR48596", "TensorRT-LLM PR15546"),
    parts=STREAMS,
    family=FAMILY,
)


# --- strengthening invariants ----------------------------------------------------


def _lemma(name: str, statement: str, why: str, function: Any, because: Any,
           supports: str = "TrueReads", parts: tuple[str, ...] = STREAMS) -> Property:
    return Property(name=name, statement=statement, why=why,
                    source="the machine's own bookkeeping", function=function, because=because,
                    lemma=True, supports=supports, parts=parts, family=FAMILY)


def _done_is_forgotten(s: View, o: Operation, q: Stream, e: Event) -> Any:
    return implies(s.behind[q, o], under_way(s, o)) & implies(s.covers[e, o], under_way(s, o))


DONE_IS_FORGOTTEN = _lemma(
    "DoneIsForgotten", "nothing waits for an operation that the host has seen done",
    "No stream is behind it and no event covers it any more, so what is queued under its name "
    "next is not taken for it.",
    _done_is_forgotten,
    lambda seen: f"something is behind operation {seen.where['o']}, which is not under way",
    supports="StreamOrder")


def _waits_go_back(s: View, o: Operation, p: Operation) -> Any:
    return implies(s.awaits[o, p], s.earlier[o, p]) \
        & implies(s.earlier[o, p], under_way(s, o) & under_way(s, p))


WAITS_GO_BACK = _lemma(
    "WaitsGoBack", "what waits, waits for something queued before it",
    "So waiting never goes round in a circle, and of what is queued something can always run.",
    _waits_go_back,
    lambda seen: f"operation {seen.where['o']} waits for {seen.where['p']}, which was not queued "
                 "before it",
    supports="StreamOrder")


def _own_stream(s: View, o: Operation) -> Any:
    return implies(under_way(s, o), s.behind[s.on[o], o])


OWN_STREAM = _lemma(
    "OwnStream", "what is queued on a stream comes behind all that is under way on it",
    "A stream runs in the order of queueing, so conflicts between two of its operations need no "
    "event.",
    _own_stream,
    lambda seen: f"the stream of operation {seen.where['o']} is not behind it",
    supports="StreamOrder")


def _one_order(s: View, o: Operation, p: Operation) -> Any:
    both = under_way(s, o) & under_way(s, p)
    return implies(both & (o != p), s.earlier[o, p] | s.earlier[p, o]) \
        & not_(s.earlier[o, p] & s.earlier[p, o])


ONE_ORDER = _lemma(
    "OneOrder", "of two operations under way one was queued first",
    "The host queues one after the other, whatever the streams make of it; that order is what "
    "each operation is to see.",
    _one_order,
    lambda seen: f"operations {seen.where['o']} and {seen.where['p']} are both first or neither")


def _last_writer(s: View, p: Operation, b: Block) -> Any:
    w = s.writer[b]
    return implies(s.written[b], under_way(s, w) & writes(s, w, b)) \
        & implies((s.stage[p] == QUEUED) & writes(s, p, b), s.written[b] & (
            (p == w) | (s.earlier[w, p] & (s.stage[w] == QUEUED))))


LAST_WRITER = _lemma(
    "LastWriter", "of the writers of a block that have not run, the last is known",
    "What is due in a block is what its last writer brings. The writers before it conflict with "
    "it, so while one of them has not run, it has not either.",
    _last_writer,
    lambda seen: f"operation {seen.where['p']} writes block {seen.where['b']} after its "
                 "last writer")


def _last_writer_before(s: View, o: Operation, p: Operation, b: Block) -> Any:
    f = s.feeder[o, b]
    return implies(s.fed[o, b], s.earlier[o, f] & writes(s, f, b)) \
        & implies(s.earlier[o, p] & (s.stage[p] == QUEUED) & writes(s, p, b), s.fed[o, b] & (
            (p == f) | (s.earlier[f, p] & (s.stage[f] == QUEUED))))


LAST_WRITER_BEFORE = _lemma(
    "LastWriterBefore", "of the writers of a block queued before an operation, the last is known",
    "A reader is to find what the last writer before it brings, whoever writes the block after "
    "that and however soon.",
    _last_writer_before,
    lambda seen: f"operation {seen.where['p']} writes block {seen.where['b']} between operation "
                 f"{seen.where['o']} and the one that it reads from")


def _due_comes(s: View, b: Block) -> Any:
    w = s.writer[b]
    waiting = s.written[b] & (s.stage[w] == QUEUED)
    return implies(waiting, s.carries[w] == s.due[b]) \
        & implies(not_(waiting), s.lies[b] == s.due[b])


DUE_COMES = _lemma(
    "DueComes", "what is due in a block lies there, or its last writer brings it",
    "The host counts a block as written when it has queued the writer; this is what it may "
    "rely on.",
    _due_comes,
    lambda seen: f"nothing brings what is due in block {seen.where['b']}")


def _sought_comes(s: View, o: Operation, b: Block) -> Any:
    f = s.feeder[o, b]
    waiting = s.fed[o, b] & (s.stage[f] == QUEUED)
    return implies(
        (s.stage[o] == QUEUED) & reads(s, o, b),
        implies(waiting, s.carries[f] == s.sought[o, b])
        & implies(not_(waiting), s.lies[b] == s.sought[o, b]))


SOUGHT_COMES = _lemma(
    "SoughtComes",
    "what an operation is to read lies there, or the last writer before it brings it",
    "And it stays there until the operation has run, because later writers conflict with it and "
    "wait for it.",
    _sought_comes,
    lambda seen: f"operation {seen.where['o']} is to find the KV of "
                 f"{seen.get('sought', seen.where['o'], seen.where['b'])} in block "
                 f"{seen.where['b']}, and nothing keeps or brings it")


def _planned_is_kept(s: View, h: Slot) -> Any:
    return implies(s.fill[h] == PLANNED, s.due[s.source[h]] == s.key[h])


PLANNED_IS_KEPT = _lemma(
    "PlannedIsKept", "a block whose store is planned keeps what is to be stored",
    "Until the copy is queued no stream orders anything against it: whoever writes the block "
    "must wait for that. vLLM queues stores a step late (PR31341), and what that cost was the "
    "window of PR48596.",
    _planned_is_kept,
    lambda seen: f"the store to slot {seen.where['h']} is planned, and its block is to hold "
                 "something else")


def _one_store(s: View, o: Operation, p: Operation) -> Any:
    storing = under_way(s, o) & (s.on[o] == STORE)
    return implies(storing, (s.fill[s.slot[o]] == FILLING) & (s.carries[o] == s.key[s.slot[o]])) \
        & implies(storing, s.sought[o, s.block[o]] == s.carries[o]) \
        & implies(storing & under_way(s, p) & (s.on[p] == STORE) & (s.slot[o] == s.slot[p]),
                  o == p)


ONE_STORE = _lemma(
    "OneStore", "a slot is filled by one store, with its key's KV",
    "And it is not ready before the host has seen the store done, so that nobody else fills it "
    "meanwhile.",
    _one_store,
    lambda seen: f"the store {seen.where['o']} fills a slot that is not its own to fill")


def _slot_bytes(s: View, h: Slot, o: Operation) -> Any:
    done = (s.stage[o] == RUN) & (s.on[o] == STORE) & (s.slot[o] == h)
    return implies((s.fill[h] == READY) | done, s.bytes[h] == s.key[h])


SLOT_BYTES = _lemma(
    "SlotBytes", "a slot that is ready, or whose store has run, holds its key's KV",
    "What TrueBytes promises of keys, said of the bytes that streams have really moved.",
    _slot_bytes,
    lambda seen: f"slot {seen.where['h']} holds the KV of {seen.get('bytes', seen.where['h'])}, "
                 f"its key's is {seen.get('key', seen.where['h'])}")


def _load_source(s: View, o: Operation) -> Any:
    return implies((s.on[o] == LOAD) & (s.stage[o] == QUEUED),
                   s.bytes[s.slot[o]] == s.carries[o])


LOAD_SOURCE = _lemma(
    "LoadSource", "a slot keeps what a queued load is to read",
    "Whoever fills the slot again comes behind the load, on whichever stream, and the host waits "
    "until it has seen it done.",
    _load_source,
    lambda seen: f"the load {seen.where['o']} is to read what its slot does not hold")


def _load_before_store(s: View, o: Operation, p: Operation) -> Any:
    loads, stores = under_way(s, o) & (s.on[o] == LOAD), under_way(s, p) & (s.on[p] == STORE)
    return implies(loads & stores & (s.slot[o] == s.slot[p]), s.awaits[p, o])


LOAD_BEFORE_STORE = _lemma(
    "LoadBeforeStore", "of a load and a store that meet in a slot the store waits for the load",
    "A load reads a slot that is ready, and it is ready when the host has seen the store done. "
    "So the store that a load meets is that of the slot's next key.",
    _load_before_store,
    lambda seen: f"the store {seen.where['p']} does not wait for the load {seen.where['o']} of "
                 "what was in its slot")


def _table_is_kept(s: View, o: Operation, p: Operation) -> Any:
    kernels = under_way(s, o) & (s.on[o] == COMPUTE)
    return implies(kernels, s.says[s.table[o]] == s.block[o]) \
        & implies(kernels & under_way(s, p) & (s.on[p] == COMPUTE) & (s.table[o] == s.table[p]),
                  o == p)


TABLE_IS_KEPT = _lemma(
    "TableIsKept", "a table keeps what it says until the kernels that read it are seen done",
    "The copy of the table reads the host's memory when it runs, a step or more after it was "
    "queued.",
    _table_is_kept,
    lambda seen: f"the table of the kernels {seen.where['o']} says something else",
    parts=("streams", "tables"))

STREAMING = (STREAM_ORDER, TRUE_READS)
STREAM_LEMMAS = (
    DONE_IS_FORGOTTEN, WAITS_GO_BACK, OWN_STREAM, ONE_ORDER, LAST_WRITER, LAST_WRITER_BEFORE,
    DUE_COMES, SOUGHT_COMES, PLANNED_IS_KEPT, ONE_STORE, SLOT_BYTES, LOAD_SOURCE,
    LOAD_BEFORE_STORE, TABLE_IS_KEPT,
)
