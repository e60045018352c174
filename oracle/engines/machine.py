"""The machine itself as an engine, under the reference design or a broken one.

The run reading plans as eagerly as its design permits, so that the same stimuli drive
the machine, ``impl`` and vLLM.  A variant as an engine is how the oracle is checked:
every broken design must be caught, the reference never.  Like vLLM, it asserts that a
job has as many keys as chunks' worth of blocks.

It never loads: what a lookup may promise is not part of the machine yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvoracle.impl import HostPool
from kvoracle.model.machine import Machine
from kvoracle.model.requests import ABORTED, FINISHED, PREEMPTED, RUNNING, WAITING
from kvoracle.model.rules import REFERENCE, Design
from kvoracle.model.run import Program, Run
from kvoracle.model.scopes import ALL_PARTS
from kvoracle.oracle.claims import claim
from kvoracle.oracle.engines.planner import Job, Known, Move, Offer
from kvoracle.oracle.engines.simulator import SimulatedEngine
from kvoracle.oracle.events import Chunks, Config
from kvoracle.oracle.judge import constants
from kvoracle.spec.variants import Variant

_PROGRAMS: dict[str | None, Program] = {}
"""Compiled once a process, by the variant's name."""


def _program(variant: Variant | None) -> Program:
    name = variant.name if variant else None
    if name not in _PROGRAMS:
        machine = Machine(ALL_PARTS, variant.design, variant.overrides) if variant \
            else Machine(ALL_PARTS, REFERENCE)
        _PROGRAMS[name] = Program(machine)
    return _PROGRAMS[name]


class MachinePlanner:
    """The simulator's ``Planner``, answered by a run of the machine."""

    def __init__(self, config: Config, variant: Variant | None = None) -> None:
        self.config = config
        self.design: Design = variant.design if variant else REFERENCE
        groups = len(config.groups)
        self.run = Run(_program(variant), constants(config), {"Group": groups})
        self.pool = HostPool(config.host_chunks)
        self.refusals = 0
        self._groups = range(groups)
        self._slots: dict[str, int] = {}
        self._keys: dict[str, list[list[bytes]]] = {}
        self._blocks: dict[str, list[list[int]]] = {}
        self._jobs: dict[int, tuple[Job, list[bytes]]] = {}
        self._next_job = 0
        self._fresh: set[int] = set()
        self._filling: set[int] = set()
        self._stale: set[int] = set()

    # --- what the scheduler tells ----------------------------------------------------

    def arrive(self, r: str, prompt: int) -> None:
        taken = set(self._slots.values())
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        self._slots[r] = slot
        self._keys[r] = [[] for _ in self._groups]
        self._blocks[r] = [[] for _ in self._groups]
        self.run.step("arrive", r=slot, p=prompt)
        if self.config.prompt_only:
            self.run.step("set_limit", r=slot, n=prompt)

    def keys(self, r: str, g: int, new: Sequence[bytes]) -> None:
        self._keys[r][g] += new
        self.run.step("keys_arrive", r=self._slots[r], g=g, n=len(self._keys[r][g]))

    def blocks(self, r: str, g: int, new: Sequence[int]) -> None:
        self._start(r)
        self._blocks[r][g] += new
        self._fresh.update(new)
        self.run.step("blocks_told", r=self._slots[r], g=g, n=len(self._blocks[r][g]))

    def _start(self, r: str) -> None:
        if self.run.get("life", self._slots[r]) in (WAITING, PREEMPTED):
            self.run.step("start", r=self._slots[r], n=0)

    def tokens(self, r: str, n: int) -> None:
        slot = self._slots[r]
        self.run.step("sample", r=slot, a=n - self.run.get("tokens", slot) - 1)

    def preempt(self, r: str) -> None:
        self._blocks[r] = [[] for _ in self._groups]
        self.run.step("preempt", r=self._slots[r])

    def finish(self, r: str, computed: int, aborted: bool) -> None:
        self.run.step("abort" if aborted else "finish", r=self._slots[r])

    def refuse(self, n: int) -> None:
        self.refusals += n

    def reset(self) -> None:
        self.run.step("reset")
        self.pool.reset()
        self._stale.update(self._jobs)

    # --- what it answers ----------------------------------------------------------------

    def known(self, r: str, g: int) -> Known:
        slot = self._slots[r]
        get = self.run.get
        return Known(get("keys", slot, g), get("blocks", slot, g), get("cursor", slot, g))

    def lookup(self, r: str) -> int:
        return 0

    def load(self, r: str, upto: int) -> Job:
        raise AssertionError("the machine as an engine promises no hits")

    def _storable(self, slot: int, g: int) -> int:
        storable: int = self.design.storable(claim(self.design, self.run, self.config, slot, g))
        return storable

    def plan(self, r: str, computed: int) -> Offer | None:
        slot, run = self._slots[r], self.run
        self._start(r)
        if run.get("life", slot) == RUNNING and computed > run.get("computed", slot):
            run.step("compute", r=slot, n=computed)
        ranges = {
            g: (run.get("cursor", slot, g), self._storable(slot, g)) for g in self._groups
        }
        offered = {g: range(a, n) for g, (a, n) in ranges.items() if a < n}
        for g in self._groups:
            if g not in offered:
                run.step("settle", r=slot, g=g)
        if not offered:
            return None
        if self.refusals:
            self.refusals -= 1
            return self._refused(slot, offered)
        # A planner that pairs slices of unequal length stops here, as vLLM's does.
        for g, chunks in offered.items():
            blocks = len(self._blocks[r][g]) // self.config.blocks_per_chunk
            keys = len(self._keys[r][g][chunks.start:chunks.stop])
            assert keys == max(0, min(blocks, chunks.stop) - chunks.start), \
                "a job has as many keys as chunks' worth of blocks"
        named = {(g, c): self._keys[r][g][c] for g, chunks in offered.items() for c in chunks}
        grant = self.pool.prepare_store(list(named.values()))
        if grant is None or grant.taken < len(named):
            if grant is not None:
                self.pool.complete_store(list(grant.slots), ok=False)
            return self._refused(slot, offered)
        return self._taken(r, offered, named, grant.slots)

    def _refused(self, slot: int, offered: dict[int, range]) -> Offer:
        self.run.step("refuse", r=slot)
        return Offer(refused=tuple(Chunks(g, tuple(c)) for g, c in offered.items()))

    def _taken(self, r: str, offered: dict[int, range], named: dict[tuple[int, int], bytes],
               slots: dict[bytes, int]) -> Offer:
        per = self.config.blocks_per_chunk
        moves, parts = [], []
        for g, chunks in offered.items():
            declined = tuple(c for c in chunks if named[g, c] not in slots)
            for n, d in [*((c + 1, c) for c in declined), (chunks.stop, chunks.stop)]:
                # A broken design's cursor may be past it already.
                if self.run.get("cursor", self._slots[r], g) < n:
                    self.run.step("plan_store", r=self._slots[r], g=g, n=n, d=d)
            new = [
                Move(g, c, slots[named[g, c]], tuple(self._blocks[r][g][c * per:(c + 1) * per]))
                for c in chunks if c not in declined
            ]
            moves += new
            parts.append(Chunks(g, tuple(chunks), declined, sum(len(m.blocks) for m in new)))
        if not moves:
            return Offer(tuple(parts))
        job = Job(self._next_job, tuple(moves))
        self._next_job += 1
        self._jobs[job.id] = (job, list(slots))
        if self.run.get("life", self._slots[r]) == RUNNING:
            self._filling.add(job.id)
        return Offer(tuple(parts), job)

    def fence(self) -> Sequence[int]:
        """Stores whose blocks were given out again in this step, but for those that this step's
        kernels fill first; after a reset all stores, since their slots may be given out."""
        fenced = [
            i for i, (job, _) in self._jobs.items()
            if i in self._stale
            or (i not in self._filling and any(self._fresh & set(m.blocks) for m in job.moves))
        ]
        self._fresh.clear()
        self._filling.clear()
        return fenced

    def retire(self) -> Sequence[str]:
        gone = [
            r for r, slot in self._slots.items()
            if self.run.get("life", slot) in (FINISHED, ABORTED)
            and self.run.unmet("retire", r=slot) is None
        ]
        for r in gone:
            self.run.step("retire", r=self._slots[r])
            del self._slots[r], self._keys[r], self._blocks[r]
        return gone

    def done(self, job: int) -> None:
        _, keys = self._jobs.pop(job)
        if job in self._stale:
            self._stale.discard(job)
        else:
            self.pool.complete_store(keys)

    def held(self) -> str:
        return f"{len(self._jobs)} jobs in flight" if self._jobs else ""


def machine_engine(variant: Variant | None = None) -> SimulatedEngine:
    """The engine ``model``, or ``model:NAME`` for a variant."""
    name = f"model:{variant.name}" if variant else "model"
    return SimulatedEngine(name, lambda config: MachinePlanner(config, variant))
