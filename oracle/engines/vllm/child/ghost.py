"""What would be in memory?  GPU blocks and host slots that hold tags, and copies between them.

The ghost copy reads a job as the release's own worker does
(``vllm/v1/kv_offload/cpu/gpu_worker.py``, ``transfer_async``; the same from 0.26 to 0.33):
a group's block ids are laid flat over host chunks, starting inside the first one at
``block_indices[g] % blocks_per_chunk``, whatever the planner meant.  A copy moves tags when
it runs, not when it is planned or submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .config import Group
from .content import Cell, Text, agrees_but_for_next

Emit = Callable[[dict[str, Any]], None]

REJECTED = 0
"""The tag of what a drafter wrote beyond the tokens that were then accepted."""


@dataclass
class Chunk:
    """What a host slot is meant to hold: chunk ``index`` of a group of ``text``."""

    text: Text
    group: int
    index: int


@dataclass
class Job:
    """One transfer, from the moment the worker is told of it."""

    id: int
    store: bool
    gpu: list[int]
    host: list[int]
    sizes: list[int]
    firsts: list[int]
    meant: dict[int, Chunk] = field(default_factory=dict)
    written: set[tuple[int, int]] = field(default_factory=set)
    reader: tuple[str, Text] | None = None
    plan: int = 0
    """The number `InFlight` knows it by; 0 if it was never told of the job."""


@dataclass
class _Planned:
    """A job from its plan on, until its copy has run."""

    r: str
    store: bool
    blocks: list[int]
    slots: list[int]


class InFlight:
    """Who may write what, while jobs are planned that have still to run?

    A block that a store has still to read is nobody's to write, but for the step that plans the
    store: the chunk's own kernels run in it.  A slot is written in the order of plans, and read
    by a load after the stores planned before it and before those planned later.
    """

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.jobs: dict[int, _Planned] = {}
        self.reads: dict[int, int] = {}
        """The job that has still to read a block."""
        self._new: list[int] = []
        self._last = 0
        self._written: dict[int, int] = {}

    def plan(self, r: str, store: bool, blocks: list[int], slots: list[int], ended: bool) -> int:
        """A job is planned; returns its number.  Of a request that has ended no kernel runs."""
        self._last += 1
        self.jobs[self._last] = _Planned(r, store, blocks, slots)
        if store and ended:
            self._fence(self._last)
        elif store:
            self._new.append(self._last)
        return self._last

    def step_over(self) -> None:
        """The kernels of the step have run."""
        for job in self._new:
            if job in self.jobs:
                self._fence(job)
        self._new.clear()

    def _fence(self, job: int) -> None:
        for block in self.jobs[job].blocks:
            self.reads[block] = job

    def block_written(self, block: int, by: str) -> None:
        """Called for a block in ``reads``."""
        r = self.jobs[self.reads[block]].r
        self._forget(self.reads[block])
        self.emit({"saw": "overwritten", "what": "block", "r": r, "by": by})

    def runs(self, job: int) -> None:
        """The copy runs now."""
        mine = self.jobs.get(job)
        if mine is None:
            return
        self._forget(job)
        del self.jobs[job]
        if mine.store:
            self._stores(job, mine)
        elif any(other < job and theirs.store and not set(theirs.slots).isdisjoint(mine.slots)
                 for other, theirs in self.jobs.items()):
            self.emit({"saw": "unready", "r": mine.r})

    def _stores(self, job: int, mine: _Planned) -> None:
        for slot in mine.slots:
            if self._written.get(slot, 0) > job:
                self.emit({"saw": "overwritten", "what": "slot", "r": mine.r,
                           "by": "a store planned later"})
                return
            self._written[slot] = job
        for other, theirs in self.jobs.items():
            if other < job and not theirs.store and not set(theirs.slots).isdisjoint(mine.slots):
                self.emit({"saw": "overwritten", "what": "slot", "r": theirs.r,
                           "by": f"a store of request {mine.r}"})
                return

    def _forget(self, job: int) -> None:
        """Its blocks may be written."""
        for block in self.jobs[job].blocks:
            if self.reads.get(block) == job:
                del self.reads[block]


class Memory:
    """GPU blocks and host slots of one engine, and what was compared in them."""

    def __init__(self, groups: tuple[Group, ...], tokens_per_block: tuple[int, ...],
                 blocks_per_chunk: int, texts: dict[str, Text], emit: Emit) -> None:
        self.groups = groups
        self.sizes = tokens_per_block
        self.whole = tuple(group.kind == "full" for group in groups)
        self.per_chunk = blocks_per_chunk
        self.gpu: dict[int, Cell] = {}
        self.host: dict[int, list[Cell]] = {}
        self.texts = texts
        self.stored_positions = 0
        self.read_positions = 0
        self.acceptance_only = 0
        self.in_flight = InFlight(emit)
        self._emit = emit
        self._reported: set[tuple[str, int, int]] = set()

    # --- kernels ---------------------------------------------------------------

    def write(self, table: list[int], group: int, start: int, tags: Cell, by: str) -> None:
        """A kernel of request ``by`` writes ``tags`` at positions from ``start`` of its blocks."""
        size = self.sizes[group]
        end = start + len(tags)
        gpu = self.gpu
        position = start
        while position < end:
            index, offset = divmod(position, size)
            count = min(size - offset, end - position)
            if index >= len(table):
                return
            if table[index] in self.in_flight.reads:
                self.in_flight.block_written(table[index], f"a kernel of request {by}")
            new = tags[position - start:position - start + count]
            if count < size:
                old = gpu.get(table[index], ())
                head = old[:offset]
                if len(head) < offset:
                    head += (None,) * (offset - len(head))
                new = head + new + old[offset + count:size]
            gpu[table[index]] = new
            position += count

    def read(self, text: Text, table: list[int], group: int, upto: int) -> None:
        """Attention reads what it sees of the first ``upto`` positions: each must hold the
        request's prefix."""
        size = self.sizes[group]
        gpu = self.gpu
        whole = text.block
        full, rest = divmod(upto, size)
        first = 0
        if not self.whole[group]:
            start = self._sees_from(group, upto)
            first, inside = divmod(start, size)
            if inside and first < full:
                want = text.tags(group, start, (first + 1) * size)
                got = gpu.get(table[first], ())[inside:]
                if got != want:
                    self._compare("read", text, group, start, want, got)
                first += 1
        self.read_positions += upto - first * size
        for index in range(first, full):
            want = whole(group, index, size)
            block = table[index]
            got = gpu.get(block, ())
            if got is not want:
                if got == want:
                    gpu[block] = want
                else:
                    self._compare("read", text, group, index * size, want, got)
        if rest:
            start = full * size
            if not self.whole[group]:
                start = max(start, self._sees_from(group, upto))
            want = text.tags(group, start, upto)
            got = gpu.get(table[full], ())[start - full * size:rest]
            if got != want:
                self._compare("read", text, group, start, want, got)

    def _sees_from(self, group: int, position: int) -> int:
        """The first position that the token at ``position`` attends to."""
        spec = self.groups[group]
        if spec.kind == "window":
            return max(0, position - spec.reach + 1)
        return position // spec.reach * spec.reach

    # --- copies ------------------------------------------------------------------

    def run(self, job: Job) -> None:
        """The copy of ``job`` runs now."""
        self.in_flight.runs(job.plan)
        if not job.store:
            for block in job.gpu:
                if block in self.in_flight.reads:
                    self.in_flight.block_written(block, "a load")
        gpu_at = host_at = 0
        per_chunk = self.per_chunk
        for group, (size, first) in enumerate(zip(job.sizes, job.firsts)):
            if size == 0:
                continue
            skip = first % per_chunk
            chunks = -(-(size + skip) // per_chunk)
            # The real worker asserts the same of both sides (dst_end_offset <= num_dst_blocks).
            assert host_at + chunks <= len(job.host), (
                f"job {job.id} names {len(job.host)} host chunks, "
                f"its {size} blocks of group {group} need {host_at + chunks}"
            )
            for i in range(size):
                chunk, sub = divmod(skip + i, per_chunk)
                slot = job.host[host_at + chunk]
                block = job.gpu[gpu_at + i]
                cells = self.host.setdefault(slot, [()] * per_chunk)
                if job.store:
                    cells[sub] = self.gpu.get(block, ())
                    job.written.add((slot, sub))
                else:
                    self.gpu[block] = cells[sub]
            if not job.store and job.reader is not None and self.whole[group]:
                self._check_load(job, group, job.gpu[gpu_at:gpu_at + size], first)
            gpu_at += size
            host_at += chunks
        assert host_at == len(job.host) and gpu_at == len(job.gpu), (
            f"job {job.id} names {len(job.host)} host chunks and {len(job.gpu)} blocks, "
            f"of which its groups use {host_at} and {gpu_at}"
        )
        if job.store:
            self._check_store(job)

    def _check_store(self, job: Job) -> None:
        for slot, chunk in job.meant.items():
            size = self.sizes[chunk.group]
            cells = self.host.get(slot, [()] * self.per_chunk)
            whole = self.whole[chunk.group]
            for sub, got in enumerate(cells):
                # Of a window's chunk, blocks that nobody will read any more are left out.
                if not whole and (slot, sub) not in job.written:
                    continue
                self.stored_positions += size
                block = chunk.index * self.per_chunk + sub
                want = chunk.text.block(chunk.group, block, size)
                if got is not want and got[:size] != want:
                    self._compare("store", chunk.text, chunk.group, block * size, want, got,
                                  job=job.id, chunk=chunk.index)

    def _check_load(self, job: Job, group: int, blocks: list[int], first: int) -> None:
        assert job.reader is not None
        text = job.reader[1]
        size = self.sizes[group]
        for i, block in enumerate(blocks):
            want = text.block(group, first + i, size)
            got = self.gpu.get(block, ())
            if got is not want and got != want:
                self._compare("load", text, group, (first + i) * size, want, got, job=job.id)

    # --- verdicts ----------------------------------------------------------------

    def _compare(self, where: str, text: Text, group: int, start: int, want: Cell, got: Cell,
                 job: int | None = None, chunk: int | None = None) -> None:
        """Report the first position that is wrong, once for a request and position."""
        size = self.sizes[group]
        for i, wanted in enumerate(want):
            found = got[i] if i < len(got) else None
            if found == wanted:
                continue
            position = start + i
            # Only at the end of what one hash covers can the next token differ: that is a
            # chunk in a copy, and a block where the GPU's own prefix cache shares one.
            span = size if where == "read" else size * self.per_chunk
            if (position + 1) % span == 0 and agrees_but_for_next(wanted, found):
                self.acceptance_only += 1
                continue
            if where != "store":
                if (text.name, group, position) in self._reported:
                    continue
                self._reported.add((text.name, group, position))
            event: dict[str, Any] = {
                "saw": "bad_bytes", "where": where, "r": text.name, "g": group,
                "want": f"{text.name}[{position}]", "got": self._name(found),
                "position": position,
            }
            if chunk is not None:
                event["chunk"] = chunk
            if job is not None:
                event["job"] = job
            self._emit(event)
            return

    def _name(self, tag: Any) -> str:
        """Words for a tag: whose text it is, and where in it."""
        if tag is None:
            return "nothing"
        if tag == REJECTED:
            return "a rejected draft"
        for text in reversed(self.texts.values()):
            position = text.find(tag)
            if position is not None:
                return f"{text.name}[{position}]"
        return "a text no longer known"


class Transfers:
    """The worker's queue: jobs submitted, run when told to, reported when asked for."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.queue: dict[int, Job] = {}
        self.finished: list[int] = []
        self.budget: int | None = None
        self.newest = False

    def submit(self, job: Job) -> None:
        self.queue[job.id] = job

    def wait(self, jobs: Iterable[int]) -> None:
        """Run these now: the caller goes on only when they are done."""
        for job in sorted(jobs):
            if job in self.queue:
                self._run(job)

    def collect(self) -> list[int]:
        """Run as many as this step may complete, and hand over all that are done.

        Copies run here, as late as a copy that is reported now can: after the step's
        kernels, so a block written again without a fence is caught.
        """
        ready = list(self.queue)
        if self.newest:
            ready.reverse()
        for job in ready if self.budget is None else ready[:self.budget]:
            self._run(job)
        done = self.finished
        self.finished = []
        return done

    def _run(self, job: int) -> None:
        self.memory.run(self.queue.pop(job))
        self.finished.append(job)
