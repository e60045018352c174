"""What does a serving engine call to keep its KV cache on the host as well?

:class:`Offloader` is the scheduler side: it decides, the engine's worker copies
(:mod:`kvoracle.impl.copy`) and reports back.  One step of the engine is::

    on_request / on_keys / on_blocks / on_tokens     as things become known
    lookup, plan_load                                for each request admitted
    on_scheduled(request, computed)                  for each request with work in this step
    plan_stores()                                    once
    take_fences()                                    once, after planning
    -- the worker: runs the fenced jobs, the loads, the kernels, then the stores --
    complete(job)                                    for each job the worker reports
    finish / abort / preempt                         as they happen
    retire()                                         once

A finished request gives its blocks back at once.  What it still has to store
(its last keys may be late) is planned in later steps, until the first block it
needs for that is given to another request.  That step is the last chance: what
it plans is fenced, so that it runs before the step's kernels write, and then
the request is given up.
No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvoracle.impl.config import OffloadConfig
from kvoracle.impl.errors import JobsInFlight, NotReady, UnknownJob
from kvoracle.impl.planner import Chunk, StorePlanner
from kvoracle.impl.pool import ChunkState, HostPool


@dataclass(frozen=True, slots=True)
class ChunkMove:
    """One chunk of a job: ``blocks[i]`` pairs with place ``offset + i`` of host ``slot``."""

    group: int
    index: int
    key: bytes
    slot: int
    blocks: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One transfer of several chunks, GPU to host (``store``) or back."""

    id: int
    request: str
    store: bool
    moves: tuple[ChunkMove, ...]


@dataclass(frozen=True, slots=True)
class StoreOffer:
    """What was offered to the pool for one request, and what came of it.

    The pool took ``chunks``; those whose key is in ``present`` it held already, the
    others are stored by ``job`` (``None`` if there are none).  It had no room for the
    ``refused`` ones: their cursors stay, so they are offered again.
    """

    request: str
    chunks: tuple[Chunk, ...] = ()
    present: frozenset[bytes] = frozenset()
    job: Job | None = None
    refused: tuple[Chunk, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """What can be loaded: the first ``tokens`` tokens, from ``chunks[g]`` leading chunks."""

    tokens: int
    chunks: tuple[int, ...]


class Offloader:
    """The scheduler side of KV offloading: one per engine.

    ``pool`` and ``planner`` may be given to replace the parts (tests break them on
    purpose).  Methods that name a request raise :class:`UnknownRequest` for one
    that is not tracked.
    """

    def __init__(
        self,
        config: OffloadConfig,
        pool: HostPool | None = None,
        planner: StorePlanner | None = None,
    ) -> None:
        self.config = config
        self.pool = pool if pool is not None else HostPool(config.host_slots)
        self.planner = planner if planner is not None else StorePlanner(config)
        self._next_job = 0
        self._jobs: dict[int, Job] = {}
        # Jobs dropped by a reset whose reports may still come; they change nothing.
        self._stale: set[int] = set()
        self._jobs_of: dict[str, dict[int, None]] = {}
        self._users: dict[int, dict[int, None]] = {}  # block id -> jobs in flight on it
        self._finished: dict[str, None] = {}
        # Blocks that finished requests may still store from: id -> (request, group, chunk).
        self._residue: dict[int, tuple[str, int, int]] = {}
        self._given_up: dict[str, None] = {}
        # This step's news, consumed by plan_stores and take_fences.
        self._scheduled: dict[str, None] = {}
        self._allocated: dict[int, None] = {}
        self._to_fence: dict[int, None] = {}
        self._first_job_of_step = 0

    # --- what the engine tells ---------------------------------------------

    def on_request(self, request: str, prompt: int) -> None:
        """A request of ``prompt`` tokens arrived.  Raises :class:`RequestExists`."""
        self.planner.arrive(request, prompt)
        self._jobs_of[request] = {}

    def on_keys(self, request: str, group: int, keys: Iterable[bytes]) -> None:
        """Further keys became known, in chunk order; a key names prefix *and* group."""
        self.planner.add_keys(request, group, keys)

    def on_blocks(self, request: str, group: int, blocks: Sequence[int]) -> None:
        """Further GPU blocks were allocated to the request, in order of position."""
        self.planner.add_blocks(request, group, blocks)
        self._allocated.update(dict.fromkeys(blocks))

    def on_tokens(self, request: str, tokens: int) -> None:
        """``tokens`` tokens are known, prompt and accepted output; drafts do not count."""
        self.planner.set_tokens(request, tokens)

    def on_scheduled(self, request: str, computed: int) -> None:
        """The request has work in this step, after which ``computed`` tokens have their KV."""
        self.planner.set_computed(request, computed)
        self._scheduled[request] = None

    def preempt(self, request: str) -> None:
        """The request loses its blocks and waits again; its cursor stays.

        Its jobs are fenced in this step, so that none is in flight when it comes back and
        loads (vLLM flushes them likewise).
        """
        self.planner.preempt(request)
        self._scheduled.pop(request, None)
        self._to_fence.update(self._jobs_of[request])

    def finish(self, request: str, computed: int) -> None:
        """The request ended with KV of ``computed`` tokens; its blocks may be freed now.

        Every accepted position counts, so ``computed`` may exceed what the last step
        planned with.  The request stays tracked until :meth:`retire` names it.
        """
        self.planner.finish(request, computed)
        self._finished[request] = None
        self._scheduled.pop(request, None)
        per_chunk = self.config.blocks_per_chunk
        for group, state in enumerate(self.planner[request].groups):
            for index in range(state.cursor, self.planner.storable_at_most(request, group)):
                for block in state.blocks[index * per_chunk : (index + 1) * per_chunk]:
                    self._residue[block] = (request, group, index)

    def abort(self, request: str, computed: int = 0) -> None:
        """The client went away, in whatever state; also before the request ever ran.

        What is computed, allocated and keyed is stored like at a finish (vLLM PR49146).
        """
        self.finish(request, computed)

    def reset(self) -> None:
        """Empty the pool; store progress starts again; jobs in flight lose their meaning.

        They are fenced in the next step, before their slots can be written anew, and
        their reports are ignored.  Finished requests are forgotten by the next
        :meth:`retire`: their blocks may be gone.
        """
        self._to_fence.update(dict.fromkeys(self._jobs))
        self._stale.update(self._jobs)
        self._jobs.clear()
        for jobs in self._jobs_of.values():
            jobs.clear()
        self._users.clear()
        self._residue.clear()
        self.pool.reset()
        self.planner.reset()
        self._given_up.update(self._finished)

    # --- loads ----------------------------------------------------------------

    def lookup(self, request: str) -> Hit:
        """How much of the request's prefix the host holds ready, at one position for all groups.

        Of a draft group the last chunk found is dropped: the KV of its last position
        depends on a token its key does not cover.  The last known token is never part
        of a hit, since something must be computed to sample from.
        """
        state = self.planner[request]
        tokens = state.tokens - 1
        for group, spec in enumerate(self.config.groups):
            found = 0
            for key in state.groups[group].keys:
                if self.pool.state(key) is not ChunkState.READY:
                    break
                found += 1
            if spec.draft:
                found = max(0, found - 1)
            tokens = min(tokens, found * self.config.tokens_per_chunk(group))
        tokens = max(tokens, 0)
        sizes = [self.config.tokens_per_chunk(g) for g in range(len(self.config.groups))]
        return Hit(tokens, tuple(-(-tokens // size) for size in sizes))

    def plan_load(self, request: str, hit: Hit, local: int = 0) -> Job | None:
        """Load ``hit`` into the request's blocks, but for the blocks of its first ``local`` tokens.

        All blocks up to ``hit.tokens`` must be known.  The chunks are pinned until the
        job completes, and the cursors move to the hit.  ``None`` if there is nothing to
        load.  Raises :class:`NotReady` if the pool has lost a chunk since the lookup or
        blocks are missing, :class:`JobsInFlight` if the request has other jobs: a request
        has one load in flight or stores, never both.
        """
        if self._jobs_of[self.planner[request].name]:
            raise JobsInFlight(
                f"request {request!r} has jobs {list(self._jobs_of[request])} in flight"
            )
        per_chunk = self.config.blocks_per_chunk
        wanted: list[tuple[int, int, bytes, tuple[int, ...], int]] = []
        for group, state in enumerate(self.planner[request].groups):
            size = self.config.groups[group].tokens_per_block
            first, end = local // size, -(-hit.tokens // size)
            if len(state.blocks) < end:
                raise NotReady(
                    f"request {request!r} has {len(state.blocks)} blocks in group {group}, "
                    f"a load of {hit.tokens} tokens needs {end}"
                )
            for index in range(first // per_chunk, -(-end // per_chunk)):
                # A local hit may end inside a chunk (vLLM PR28951): start at its block.
                start = max(first, index * per_chunk)
                stop = min(end, (index + 1) * per_chunk)
                if start < stop:
                    blocks = tuple(state.blocks[start:stop])
                    wanted.append(
                        (group, index, state.keys[index], blocks, start - index * per_chunk)
                    )
        if not wanted:
            return None
        slots = self.pool.pin([key for _, _, key, _, _ in wanted])
        self.pool.touch([key for _, _, key, _, _ in wanted])
        self.planner.loaded(request, hit.tokens)
        return self._start(
            request,
            False,
            tuple(
                ChunkMove(group, index, key, slot, blocks, offset)
                for (group, index, key, blocks, offset), slot in zip(wanted, slots)
            ),
        )

    # --- stores ---------------------------------------------------------------

    def plan_stores(self) -> list[StoreOffer]:
        """Offer every storable chunk of the requests scheduled in this step, then of the
        finished ones; one offer per request with something to offer."""
        offers = []
        for request in [*self._scheduled, *self._finished]:
            offer = self.plan_store(request)
            if offer is not None:
                offers.append(offer)
        return offers

    def plan_store(self, request: str) -> StoreOffer | None:
        """The same for one request; ``None`` if nothing is due."""
        chunks = self.planner.due(request)
        if not chunks:
            return None
        grant = self.pool.prepare_store([chunk.key for chunk in chunks])
        if grant is None:
            return StoreOffer(request, refused=tuple(chunks))
        taken = chunks[: grant.taken]
        self.planner.taken(request, taken)
        slots = dict(grant.slots)
        moves = []
        for chunk in taken:
            slot = slots.pop(chunk.key, None)
            if slot is not None:
                moves.append(ChunkMove(chunk.group, chunk.index, chunk.key, slot, chunk.blocks))
        job = self._start(request, True, tuple(moves)) if moves else None
        present = frozenset(c.key for c in taken if c.key not in grant.slots)
        return StoreOffer(request, tuple(taken), present, job, tuple(chunks[grant.taken :]))

    def _start(self, request: str, store: bool, moves: tuple[ChunkMove, ...]) -> Job:
        job = Job(self._next_job, request, store, moves)
        self._next_job += 1
        self._jobs[job.id] = job
        self._jobs_of[request][job.id] = None
        for move in moves:
            for block in move.blocks:
                self._users.setdefault(block, {})[job.id] = None
        return job

    def take_fences(self) -> list[int]:
        """Jobs that must have run before this step's loads and kernels write; ends the step.

        A job is fenced when a block it uses was allocated in this step, unless the job was
        planned in this step for the very request that was given the block (vLLM PR48596
        met the late store of a finished request here).
        """
        for block in self._allocated:
            for job_id in self._users.get(block, ()):
                job = self._jobs[job_id]
                if job_id < self._first_job_of_step or job.request in self._finished:
                    self._to_fence[job_id] = None
            request, group, index = self._residue.pop(block, ("", 0, 0))
            if request and index >= self.planner[request].groups[group].cursor:
                self._given_up[request] = None
        fences = list(self._to_fence)
        self._to_fence.clear()
        self._allocated.clear()
        self._scheduled.clear()
        self._first_job_of_step = self._next_job
        return fences

    def complete(self, job_id: int, ok: bool = True) -> None:
        """The worker finished the job.  A report from before a reset is ignored.

        Raises :class:`UnknownJob` for a job never planned or reported twice.
        """
        self._to_fence.pop(job_id, None)
        if job_id in self._stale:
            self._stale.remove(job_id)
            return
        job = self._jobs.pop(job_id, None)
        if job is None:
            raise UnknownJob(f"job {job_id} is not in flight")
        self._jobs_of.get(job.request, {}).pop(job_id, None)
        for move in job.moves:
            for block in move.blocks:
                users = self._users[block]
                users.pop(job_id, None)
                if not users:
                    del self._users[block]
        keys = [move.key for move in job.moves]
        if job.store:
            self.pool.complete_store(keys, ok)
        else:
            self.pool.unpin(keys)

    def retire(self) -> list[str]:
        """Forget, and name, the finished requests that nothing more will be planned for.

        Jobs of theirs that are in flight complete all the same.
        """
        gone = [
            request
            for request in self._finished
            if request in self._given_up or self.planner.exhausted(request)
        ]
        if gone:
            names = set(gone)
            self._residue = {
                block: owner for block, owner in self._residue.items() if owner[0] not in names
            }
        for request in gone:
            self.planner.forget(request)
            del self._finished[request]
            del self._jobs_of[request]
        self._given_up.clear()
        return gone

    # --- questions --------------------------------------------------------------

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Jobs in flight, oldest first."""
        return tuple(self._jobs.values())

    @property
    def finished(self) -> tuple[str, ...]:
        """Finished requests still tracked, in the order they finished."""
        return tuple(self._finished)
