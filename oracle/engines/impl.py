"""The engine ``impl``: our own offload implementation, checked like any other.

:class:`OffloaderPlanner` answers the simulator's planner calls with
``impl``'s :class:`Offloader`; :class:`TensorMemory` is GPU and host memory on
real torch tensors, copied by ``impl``'s :class:`CopyEngine`, so a wrong index
moves the wrong bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvoracle.impl import Grant, GroupSpec, HostPool, OffloadConfig, Offloader, StorePlanner
from kvoracle.impl import Job as ImplJob
from kvoracle.impl.copy import CopyEngine
from kvoracle.impl.planner import Chunk
from kvoracle.oracle.engines.planner import Job, Known, Move, Offer
from kvoracle.oracle.engines.simulator import SimulatedEngine
from kvoracle.oracle.events import Chunks, Config

LAYERS = 2
"""Layer tensors per group: two are enough to see layers mixed up."""

TORN = -(1 << 62)
"""The tag of a position whose layers disagree."""


class RefusingPool(HostPool):
    """A pool that can be told to refuse, since a full pool is rare in a small run."""

    refusals = 0

    def prepare_store(self, keys: Sequence[bytes]) -> Grant | None:
        if keys and self.refusals:
            self.refusals -= 1
            return None
        return super().prepare_store(keys)


class OffloaderPlanner:
    """The simulator's ``Planner``, answered by an :class:`Offloader`."""

    def __init__(
        self, config: Config, store_planner: Callable[[OffloadConfig], StorePlanner] = StorePlanner
    ) -> None:
        sizes = OffloadConfig(
            groups=tuple(GroupSpec(g.tokens_per_block, g.draft) for g in config.groups),
            host_slots=config.host_chunks,
            blocks_per_chunk=config.blocks_per_chunk,
            prompt_only=config.prompt_only,
        )
        self.pool = RefusingPool(sizes.host_slots)
        self.offloader = Offloader(sizes, self.pool, store_planner(sizes))

    def arrive(self, r: str, prompt: int) -> None:
        self.offloader.on_request(r, prompt)

    def keys(self, r: str, g: int, new: Sequence[bytes]) -> None:
        self.offloader.on_keys(r, g, new)

    def blocks(self, r: str, g: int, new: Sequence[int]) -> None:
        self.offloader.on_blocks(r, g, new)

    def tokens(self, r: str, n: int) -> None:
        self.offloader.on_tokens(r, n)

    def known(self, r: str, g: int) -> Known:
        state = self.offloader.planner[r].groups[g]
        return Known(len(state.keys), len(state.blocks), state.cursor)

    def lookup(self, r: str) -> int:
        return self.offloader.lookup(r).tokens

    def load(self, r: str, upto: int) -> Job:
        hit = self.offloader.lookup(r)
        job = self.offloader.plan_load(r, hit)
        if job is None or hit.tokens != upto:
            raise AssertionError(f"lookup promised {upto} tokens of {r!r}, now {hit.tokens}")
        return _job(job)

    def plan(self, r: str, computed: int) -> Offer | None:
        if r not in self.offloader.finished:
            self.offloader.on_scheduled(r, computed)
        offer = self.offloader.plan_store(r)
        if offer is None:
            return None
        return Offer(
            self._chunks(offer.chunks, offer.present, offer.job),
            None if offer.job is None else _job(offer.job),
            self._chunks(offer.refused, frozenset(), None),
        )

    def fence(self) -> Sequence[int]:
        return self.offloader.take_fences()

    def retire(self) -> Sequence[str]:
        return self.offloader.retire()

    def done(self, job: int) -> None:
        self.offloader.complete(job)

    def preempt(self, r: str) -> None:
        self.offloader.preempt(r)

    def finish(self, r: str, computed: int, aborted: bool) -> None:
        if aborted:
            self.offloader.abort(r, computed)
        else:
            self.offloader.finish(r, computed)

    def refuse(self, n: int) -> None:
        self.pool.refusals += n

    def reset(self) -> None:
        self.offloader.reset()

    def held(self) -> str:
        held = {
            "jobs in flight": len(self.offloader.jobs),
            "chunks pinned": self.pool.pinned,
            "chunks pending": self.pool.pending,
        }
        return ", ".join(f"{count} {what}" for what, count in held.items() if count)

    def _chunks(
        self, chunks: Sequence[Chunk], present: frozenset[bytes], job: ImplJob | None
    ) -> tuple[Chunks, ...]:
        return tuple(
            Chunks(
                g,
                offered=tuple(c.index for c in chunks if c.group == g),
                declined=tuple(c.index for c in chunks if c.group == g and c.key in present),
                blocks=None
                if job is None
                else sum(len(m.blocks) for m in job.moves if m.group == g),
            )
            for g in sorted({c.group for c in chunks})
        )


def _job(job: ImplJob) -> Job:
    moves = tuple(Move(m.group, m.index, m.slot, m.blocks, m.offset) for m in job.moves)
    return Job(job.id, moves)


class _TensorMove:
    """A simulator move as ``CopyEngine`` reads it."""

    __slots__ = ("blocks", "group", "offset", "slot")

    def __init__(self, move: Move) -> None:
        self.group, self.slot = move.g, move.slot
        self.blocks, self.offset = move.blocks, move.offset


class TensorMemory:
    """The simulator's ``Memory`` on torch tensors: one element per position and layer.

    Layer ``i`` holds the tag plus ``i``.  Groups are views of the same storage, as in
    vLLM, so a block reused by another group is overwritten.
    """

    def __init__(self, config: Config, staged: bool = False) -> None:
        width = max(group.tokens_per_block for group in config.groups)
        storage = [
            torch.zeros((config.gpu_blocks + 1, width), dtype=torch.int64) for _ in range(LAYERS)
        ]
        self._sizes = [group.tokens_per_block for group in config.groups]
        self._layers = [[s[:, :size] for s in storage] for size in self._sizes]
        self._copier = CopyEngine(
            self._layers, config.host_chunks, config.blocks_per_chunk, staged=staged
        )
        self._places = config.blocks_per_chunk

    def write(self, g: int, at: list[int], tags: list[int]) -> None:
        size = self._sizes[g]
        address, values = torch.tensor(at), torch.tensor(tags)
        block, offset = address // size, address % size
        for i, layer in enumerate(self._layers[g]):
            layer[block, offset] = values + i

    def read(self, g: int, at: list[int]) -> list[int]:
        size = self._sizes[g]
        address = torch.tensor(at)
        block, offset = address // size, address % size
        return _tags([layer[block, offset] for layer in self._layers[g]])

    def host(self, g: int, slot: int) -> list[int]:
        rows = self._copier.host_rows(g)[slot * self._places : (slot + 1) * self._places]
        values = rows.contiguous().view(torch.int64)
        return _tags([values[:, i].flatten() for i in range(LAYERS)])

    def store(self, job: Job) -> None:
        self._copier.store(job.id, [_TensorMove(move) for move in job.moves])
        self._copier.wait(job.id)

    def load(self, job: Job) -> None:
        self._copier.load(job.id, [_TensorMove(move) for move in job.moves])
        self._copier.wait(job.id)


def _tags(layers: list[torch.Tensor]) -> list[int]:
    """The tags that the layers agree on; memory that was never written is zero in all."""
    first = layers[0]
    torn = torch.zeros_like(first, dtype=torch.bool)
    for i, layer in enumerate(layers):
        torn |= (layer != first + i) & ((layer != 0) | (first != 0))
    tags: list[int] = torch.where(torn, TORN, first).tolist()
    return tags


def impl_engine(
    store_planner: Callable[[OffloadConfig], StorePlanner] = StorePlanner,
) -> SimulatedEngine:
    """The engine ``impl``; ``store_planner`` replaces its storable rule by a broken one."""
    return SimulatedEngine(
        "impl", lambda config: OffloaderPlanner(config, store_planner), TensorMemory
    )
