"""Parts *streams* and *tables*: kernels and copies are queued now and run later.

The other parts let a kernel or a copy happen at one moment.  That moment is the one at which
the host queues it.  When it runs, it reads and writes what lies there then; the device goes
through each stream in order and heeds no order between two streams but the events that one
records and another waits for.  This part says what must be ordered so that nobody can tell:
if each two operations that conflict run in the order in which they were queued, each of them
reads what it would have read at the moment of queueing, and what the other parts promise of
that moment holds of the device.

Only operations under way are kept: queued, or run and not yet seen done by the host.  What is
queued next on a stream comes *behind* a set of them: those queued on that stream before, and
those that events waited for cover.  An event covers what its stream was behind when it was
recorded.  These sets are what vector clocks count, and need no numbers: an operation that the
host has seen done leaves all of them.

One device is looked at; with several workers each is ordered by itself.  The *batch* is the
blocks of all running requests.  A step's kernels read them all and write one of them.
"""

from __future__ import annotations

from typing import Annotated

from .machine import Part, View
from .ordering import Hazard, Who
from .pool import BLOCK, Block
from .slots import SLOT, Slot
from .terms import BOOL, Sort, Term, Value, enumeration, exists, forall, implies, ite, lift

OP = Sort("Operation", symmetric=True)
EVENT = Sort("Event", symmetric=True)
KV = Sort("KV", symmetric=True)
TABLE = Sort("Table", symmetric=True)
Operation = Annotated[Term, OP]
Event = Annotated[Term, EVENT]
Content = Annotated[Term, KV]
Table = Annotated[Term, TABLE]

STREAM = enumeration("Stream", "compute", "store", "load")
COMPUTE, STORE, LOAD = range(3)
Stream = Annotated[Term, STREAM]

STAGE = enumeration("Stage", "none", "queued", "run")
NONE, QUEUED, RUN = range(3)

FILL = enumeration("Fill", "free", "planned", "filling", "ready")
FREE, PLANNED, FILLING, READY = range(4)

part = Part("streams", "streams: operations queued, events, what lies in blocks and slots")

# What the host knows.
part.variable("batch", (BLOCK,), BOOL, "the block belongs to a running request")
part.variable("due", (BLOCK,), KV, "what lies in the block once all that is queued has run")
part.variable("fill", (SLOT,), FILL, "free; a store to it is planned, or queued; or it is ready")
part.variable("key", (SLOT,), KV, "the KV that the slot is to hold")
part.variable("source", (SLOT,), BLOCK, "the block that the planned store reads")
part.variable("aged", (SLOT,), BOOL, "a kernel was queued since the store was planned")

# Operations under way.
part.variable("stage", (OP,), STAGE, "queued, or run and not yet seen done by the host")
part.variable("on", (OP,), STREAM, "its stream: kernels compute, copies store or load")
part.variable("block", (OP,), BLOCK, "the block that it writes; a store: reads")
part.variable("slot", (OP,), SLOT, "the host slot that a copy writes or reads")
part.variable("context", (OP, BLOCK), BOOL, "the blocks that a kernel reads")
part.variable("carries", (OP,), KV, "the KV that it is to bring to where it writes")
part.variable("awaits", (OP, OP), BOOL, "it runs after the other one")
part.variable("behind", (STREAM, OP), BOOL, "what is queued next on the stream runs after it")
part.variable("covers", (EVENT, OP), BOOL, "the event has fired only when it has run")

# What lies on the device and in host memory.
part.variable("lies", (BLOCK,), KV, "what lies in the block")
part.variable("bytes", (SLOT,), KV, "what lies in the slot")

part.ghost("earlier", (OP, OP), BOOL, "the other one was under way when it was queued")
part.ghost("sought", (OP, BLOCK), KV, "what it is to find in the block that it reads")
part.ghost("overtaken", (OP,), BOOL,
           "the host wrote what it reads or writes and had not seen it done")
part.ghost("written", (BLOCK,), BOOL, "an operation under way writes the block")
part.ghost("writer", (BLOCK,), OP, "the last such operation")
part.ghost("fed", (OP, BLOCK), BOOL, "what it reads was written by an operation under way")
part.ghost("feeder", (OP, BLOCK), OP, "the last such operation before it")


def under_way(s: View, o: Term) -> Term:
    """Whether the operation is queued, or has run and the host does not know."""
    return s.stage[o] != NONE


def writes(s: View, o: Term, b: Term) -> Term:
    """Whether the operation writes the block."""
    return (s.block[o] == b) & (s.on[o] != STORE)


def reads(s: View, o: Term, b: Term) -> Term:
    """Whether the operation reads the block."""
    return ((s.on[o] == STORE) & (s.block[o] == b)) | ((s.on[o] == COMPUTE) & s.context[o, b])


def conflict(s: View, o: Term, p: Term) -> Term:
    """Whether both touch a block and one of them writes it."""
    return (
        (writes(s, o, s.block[p]) & writes(s, p, s.block[o]))
        | (reads(s, o, s.block[p]) & (s.on[p] != STORE))
        | (reads(s, p, s.block[o]) & (s.on[o] != STORE))
    )


def conflict_in_slot(s: View, o: Term, p: Term) -> Term:
    """Whether both copy to or from one host slot and one of them stores to it."""
    copies = (s.on[o] != COMPUTE) & (s.on[p] != COMPUTE) & (s.slot[o] == s.slot[p])
    return copies & ((s.on[o] == STORE) | (s.on[p] == STORE))


def _ordered(s: View, later: Who, earlier: Who, hazard: Hazard, met: Term, done: Value,
             aged: Value = True) -> Term:
    """Wherever the conflict is ``met`` and the design heeds it, it is ``done`` what orders it."""
    return lift(implies(met & s.rules.order.waits(later, earlier, hazard, aged), done))


def _queue(s: View, o: Term, stream: int, b: Term, carries: Term) -> None:
    s.require("nothing of that name is under way", s.stage[o] == NONE)
    s.stage[o] = QUEUED
    s.on[o] = stream
    s.block[o] = b
    s.carries[o] = carries
    s.awaits.where(lambda o2, p: o2 == o, lambda o2, p: s.behind[stream, p])
    s.earlier.where(lambda o2, p: o2 == o, lambda o2, p: under_way(s, p))
    s.behind[stream, o] = True
    s.sought.where(lambda o2, c: o2 == o, lambda o2, c: ite(stream == COMPUTE, s.due[c], carries))
    s.fed.where(lambda o2, c: o2 == o, lambda o2, c: s.written[c])
    s.feeder.where(lambda o2, c: o2 == o, lambda o2, c: s.writer[c])


def _write(s: View, o: Term, b: Term, carries: Term) -> None:
    s.due[b] = carries
    s.written[b] = True
    s.writer[b] = o


def _not_planned(s: View, later: Who, b: Term) -> Term:
    """Whether no store that is planned and not queued is yet to read the block."""
    return forall(SLOT, lambda h: _ordered(
        s, later, "planned store", "WAR", (s.fill[h] == PLANNED) & (s.source[h] == b), False))


# --- what the scheduler does ---------------------------------------------------------


@part.action("block {b} joins the batch")
def join(s: View, b: Block) -> None:
    """It is given to a request that runs, or that was being loaded into it and starts; the
    host has only queued that load, and the kernels wait for it."""
    s.require("not in it", s.batch[b] == 0)
    s.batch[b] = True


@part.action("block {b} leaves the batch")
def leave(s: View, b: Block) -> None:
    """Its request has finished, was preempted, or its window slid on; kernels that read or
    write the block may still be queued."""
    s.require("in it", s.batch[b])
    s.batch[b] = False


@part.action("launch {o} is queued: its kernels read the batch, write KV {v} in block {b}")
def launch(s: View, o: Operation, b: Block, v: Content) -> None:
    """A step's forward pass."""
    s.require("of the batch", s.batch[b])
    s.require("behind the loads of what it reads", forall(OP, lambda p: _ordered(
        s, "kernel", "load", "RAW",
        under_way(s, p) & (s.on[p] == LOAD) & s.batch[s.block[p]], s.behind[COMPUTE, p])))
    s.require("behind the stores of what it writes", forall(OP, lambda p: _ordered(
        s, "kernel", "store", "WAR",
        under_way(s, p) & (s.on[p] == STORE) & (s.block[p] == b), s.behind[COMPUTE, p])))
    s.require("nor is what it writes yet to be stored", _not_planned(s, "kernel", b))
    _queue(s, o, COMPUTE, b, v)
    _write(s, o, b, v)
    s.context.where(lambda o2, c: o2 == o, lambda o2, c: s.batch[c])
    s.aged.where(lambda h: s.fill[h] == PLANNED, True)


@part.action("a store of block {b} in slot {h} is planned")
def plan(s: View, b: Block, h: Slot) -> None:
    """Of the KV that the block is to hold by then; the copy is queued later."""
    s.require("free", s.fill[h] == FREE)
    s.fill[h] = PLANNED
    s.key[h] = s.due[b]
    s.source[h] = b
    s.aged[h] = False


@part.action("store {o} to slot {h} is queued")
def store(s: View, o: Operation, h: Slot) -> None:
    """It may have waited for a step, so as not to delay that step's kernels."""
    b = s.source[h]
    s.require("planned", s.fill[h] == PLANNED)
    s.require("behind the kernels that write what it reads", forall(OP, lambda p: _ordered(
        s, "store", "kernel", "RAW",
        under_way(s, p) & (s.on[p] == COMPUTE) & (s.block[p] == b), s.behind[STORE, p],
        s.aged[h])))
    s.require("behind the loads of what it reads", forall(OP, lambda p: _ordered(
        s, "store", "load", "RAW",
        under_way(s, p) & (s.on[p] == LOAD) & (s.block[p] == b), s.behind[STORE, p])))
    s.require("behind the loads of what was in the slot", forall(OP, lambda p: _ordered(
        s, "store", "load", "WAR",
        under_way(s, p) & (s.on[p] == LOAD) & (s.slot[p] == h), s.behind[STORE, p])))
    _queue(s, o, STORE, b, s.key[h])
    s.slot[o] = h
    s.fill[h] = ite(s.rules.order.ready(True, False), READY, FILLING)
    s.source[h] = 0
    s.aged[h] = False


@part.action("load {o} of slot {h} into block {b} is queued")
def load(s: View, o: Operation, h: Slot, b: Block) -> None:
    """Into a block whose request waits; whoever had it before may have ended just now."""
    s.require("ready", s.fill[h] == READY)
    s.require("not in the batch", s.batch[b] == 0)
    s.require("behind the kernels that read what it writes", forall(OP, lambda p: _ordered(
        s, "load", "kernel", "WAR",
        under_way(s, p) & (s.on[p] == COMPUTE) & s.context[p, b] & (s.block[p] != b),
        s.behind[LOAD, p])))
    s.require("behind the kernels that write what it writes", forall(OP, lambda p: _ordered(
        s, "load", "kernel", "WAW",
        under_way(s, p) & (s.on[p] == COMPUTE) & (s.block[p] == b), s.behind[LOAD, p])))
    s.require("behind the stores of what it writes", forall(OP, lambda p: _ordered(
        s, "load", "store", "WAR",
        under_way(s, p) & (s.on[p] == STORE) & (s.block[p] == b), s.behind[LOAD, p])))
    s.require("nor is what it writes yet to be stored", _not_planned(s, "load", b))
    _queue(s, o, LOAD, b, s.key[h])
    _write(s, o, b, s.key[h])
    s.slot[o] = h


@part.action("slot {h} is evicted")
def evict(s: View, h: Slot) -> None:
    """Loads of it may still be queued: the next to write it comes behind them."""
    s.require("ready", s.fill[h] == READY)
    s.fill[h] = FREE


@part.action("the host itself writes KV {v} into slot {h}")
def promote(s: View, h: Slot, v: Content) -> None:
    """From a second tier, a peer, a staging buffer: no stream orders what the host does."""
    def touches(p: Term) -> Term:
        return under_way(s, p) & (s.on[p] != COMPUTE) & (s.slot[p] == h)

    s.require("free", s.fill[h] == FREE)
    s.require("has seen the loads done of what was in the slot", forall(OP, lambda p: _ordered(
        s, "host", "load", "WAR", touches(p), False)))
    s.fill[h] = READY
    s.key[h] = v
    s.bytes[h] = v
    s.overtaken.where(lambda p: touches(p), True)


# --- events --------------------------------------------------------------------------


@part.action("event {e} is recorded on the {q} stream")
def record(s: View, q: Stream, e: Event) -> None:
    """It covers what is queued there so far, and what that waits for."""
    s.covers.where(lambda e2, p: e2 == e, lambda e2, p: s.behind[q, p])


@part.action("the {q} stream waits for event {e}")
def wait(s: View, q: Stream, e: Event) -> None:
    """What is queued on the stream from now on; what is queued already does not."""
    s.behind.where(lambda q2, p: (q2 == q) & s.covers[e, p], True)


@part.action("the host sees that event {e} has fired")
def see(s: View, e: Event) -> None:
    """It asks, or waits; what the event covers is done, as far as the host knows from now on."""
    def done(p: Term) -> Term:
        return s.covers[e, p]

    s.require("something to see", exists(OP, done))
    s.require("fired", forall(OP, lambda p: implies(done(p), s.stage[p] == RUN)))
    s.fill.where(lambda h: (s.fill[h] == FILLING) & exists(
        OP, lambda p: done(p) & (s.on[p] == STORE) & (s.slot[p] == h)), READY)
    s.stage.where(lambda p: done(p), NONE)
    s.on.where(lambda p: done(p), COMPUTE)
    s.block.where(lambda p: done(p), 0)
    s.slot.where(lambda p: done(p), 0)
    s.carries.where(lambda p: done(p), 0)
    s.overtaken.where(lambda p: done(p), False)
    s.context.where(lambda p, b: done(p), False)
    s.sought.where(lambda p, b: done(p), 0)
    s.behind.where(lambda q, p: done(p), False)
    s.covers.where(lambda e2, p: done(p), False)
    s.awaits.where(lambda o, p: done(o) | done(p), False)
    s.earlier.where(lambda o, p: done(o) | done(p), False)
    s.written.where(lambda b: done(s.writer[b]), False)
    s.writer.where(lambda b: done(s.writer[b]), 0)
    s.fed.where(lambda o, b: done(o) | done(s.feeder[o, b]), False)
    s.feeder.where(lambda o, b: done(o) | done(s.feeder[o, b]), 0)


# --- the device ----------------------------------------------------------------------


@part.action("operation {o} runs")
def run(s: View, o: Operation) -> None:
    """When what it waits for has run; what it reads is what lies there now."""
    b, h = s.block[o], s.slot[o]
    s.require("queued", s.stage[o] == QUEUED)
    s.require("all that it waits for has run",
              forall(OP, lambda p: implies(s.awaits[o, p], s.stage[p] != QUEUED)))
    s.stage[o] = RUN
    s.lies.where(lambda c: (c == b) & (s.on[o] != STORE),
                 lambda c: ite(s.on[o] == LOAD, s.bytes[h], s.carries[o]))
    s.bytes.where(lambda i: (i == h) & (s.on[o] == STORE), s.lies[b])


# --- metadata ------------------------------------------------------------------------

tables = Part("tables", "tables: the host's buffers that tell kernels where to read and write")
tables.variable("table", (OP,), TABLE, "the buffer that the kernels' metadata is copied from")
tables.variable("says", (TABLE,), BLOCK, "the block that the buffer names")


@tables.extend("launch", ", as table {k} says")
def _fill_table(s: View, o: Operation, b: Block, v: Content, k: Table) -> None:
    """The host writes the buffer now; the device reads it when it gets there."""
    def pending(p: Term) -> Term:
        return under_way(s, p) & (s.on[p] == COMPUTE) & (s.table[p] == k)

    s.require("has seen the step done that read the table", forall(OP, lambda p: _ordered(
        s, "host", "kernel", "WAR", pending(p), False)))
    s.table[o] = k
    s.says[k] = b
    s.overtaken.where(lambda p: pending(p), True)


@tables.extend("see")
def _forget_table(s: View, e: Event) -> None:
    s.table.where(lambda p: s.covers[e, p], 0)
