"""How do chunks get from GPU blocks into host slots and back?

Geometry.  Each group has layer tensors of shape ``(num_blocks, ...)`` whose
block rows all have the same size in bytes.  The host buffer has one *row* per
host slot and place in it: row ``slot * blocks_per_chunk + place`` holds one
block of all layers of a group, layer after layer.  Groups share the slots, so
a row is as wide as the widest group needs.

A move pairs GPU blocks with the places of one slot.  A job's moves of a group
are copied together: one gather (or scatter) per layer between blocks and a
contiguous staging buffer, and one copy per run of neighbouring host rows (on a
CPU straight between blocks and rows).
Nothing loops over layers *and* blocks in Python.

Order on CUDA.  Stores and loads have a stream each.  A store waits for what
was queued on the compute stream when it was submitted (vLLM PR31341: without
that it reads blocks before the kernel that fills them); a load waits for it
too, since an earlier kernel may still read the blocks it overwrites (vLLM
issue 47282), and kernels queued after :meth:`CopyEngine.load` wait for the
load.  :meth:`CopyEngine.fence` orders later kernels behind given jobs.  The two
copy streams do not wait for each other, so both directions of the link are used
at once: that a slot is not written while it is read is the pool's promise
(:mod:`kvoracle.impl.pool`).
On a CPU every copy happens inside the call that submits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from kvoracle.impl.config import _positive
from kvoracle.impl.errors import BadConfig, BadMove, UnknownJob

STAGING_BYTES = 64 << 20
"""Staging memory for one piece of a job: large enough that a piece takes about a
millisecond on a PCIe 5 link, so that starting it costs next to nothing."""


class Move(Protocol):
    """What is read of a move (:class:`kvoracle.impl.ChunkMove` has it)."""

    @property
    def group(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def blocks(self) -> tuple[int, ...]: ...
    @property
    def offset(self) -> int: ...


@dataclass
class _Transfer:
    done: torch.cuda.Event | None = None
    # Tensors that the copies in flight still read; dropped with the transfer.
    keep: list[Tensor] = field(default_factory=list)


class CopyEngine:
    """Copies jobs between ``layers`` and its own host buffer.

    ``layers[g]`` are the layer tensors of group ``g``, all on ``device``, each of shape
    ``(num_blocks, ...)``, the block's data contiguous.  ``slots`` host slots of
    ``blocks_per_chunk`` places each are allocated, pinned if ``device`` is CUDA.
    ``staged`` forces the path through a staging buffer, which CUDA always takes.
    Raises :class:`BadConfig` for tensors that do not fit together.
    """

    def __init__(
        self,
        layers: Sequence[Sequence[Tensor]],
        slots: int,
        blocks_per_chunk: int = 1,
        device: torch.device | str = "cpu",
        staged: bool | None = None,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        _positive("slots", slots)
        _positive("blocks_per_chunk", blocks_per_chunk)
        _positive("staging_bytes", staging_bytes)
        self.device = torch.device(device)
        self.slots = slots
        self.blocks_per_chunk = blocks_per_chunk
        self._cuda = self.device.type == "cuda"
        self._staged = self._cuda if staged is None else staged or self._cuda
        self._staging_bytes = staging_bytes
        if not layers or not all(layers):
            raise BadConfig("every group needs at least one layer tensor")
        self._layers: list[list[Tensor]] = []
        self._num_blocks: list[int] = []
        self._block_bytes: list[int] = []
        for g, group in enumerate(layers):
            as_bytes = [_as_bytes(t, self.device) for t in group]
            shapes = {tuple(t.shape) for t in as_bytes}
            if len(shapes) != 1:
                raise BadConfig(f"layers of group {g} differ in shape (in bytes): {sorted(shapes)}")
            self._num_blocks.append(as_bytes[0].shape[0])
            self._block_bytes.append(as_bytes[0].shape[1])
            word = _widest_word(as_bytes)
            self._layers.append([t.view(word) for t in as_bytes])
        self._row_bytes = [len(t) * n for t, n in zip(self._layers, self._block_bytes)]
        self.host = torch.zeros(
            (slots * blocks_per_chunk, -(-max(self._row_bytes) // 8) * 8),
            dtype=torch.uint8,
            pin_memory=self._cuda,
        )
        self._store_stream = _new_stream(self.device) if self._cuda else None
        self._load_stream = _new_stream(self.device) if self._cuda else None
        self._transfers: dict[int, _Transfer] = {}

    def host_rows(self, group: int) -> Tensor:
        """The host buffer as ``group`` sees it: ``(slots * places, layers, bytes per block)``."""
        count = len(self._layers[group])
        rows = self.host[:, : self._row_bytes[group]]
        return rows.view(rows.shape[0], count, self._block_bytes[group])

    def _host_words(self, group: int) -> Tensor:
        rows = self.host[:, : self._row_bytes[group]].view(self._layers[group][0].dtype)
        return rows.view(rows.shape[0], len(self._layers[group]), -1)

    # --- jobs ------------------------------------------------------------------

    def store(self, job: int, moves: Iterable[Move]) -> None:
        """Copy GPU blocks to host slots, after everything queued on the compute stream so far.

        Raises :class:`BadMove` and copies nothing if a move is out of bounds.
        """
        self._submit(job, moves, self._store_stream, to_host=True)

    def load(self, job: int, moves: Iterable[Move]) -> None:
        """Copy host slots to GPU blocks; kernels queued from now on see them."""
        self._submit(job, moves, self._load_stream, to_host=False)
        self.fence([job])

    def poll(self, job: int) -> bool:
        """Whether the job is complete.  Raises :class:`UnknownJob`."""
        event = self._transfer(job).done
        return event is None or bool(event.query())  # type: ignore[no-untyped-call]

    def wait(self, job: int) -> None:
        """Block until the job is complete, and forget it.  Raises :class:`UnknownJob`."""
        event = self._transfer(job).done
        if event is not None:
            event.synchronize()
        del self._transfers[job]

    def finished(self) -> list[int]:
        """Complete jobs, oldest first, each named once."""
        done = [job for job in self._transfers if self.poll(job)]
        for job in done:
            del self._transfers[job]
        return done

    def fence(self, jobs: Iterable[int]) -> None:
        """Kernels and copies queued from now on wait for ``jobs``; the host does not."""
        if not self._cuda:
            return
        compute = torch.cuda.current_stream(self.device)
        for job in jobs:
            transfer = self._transfers.get(job)
            if transfer is not None and transfer.done is not None:
                compute.wait_event(transfer.done)

    # --- the copies --------------------------------------------------------------

    def _transfer(self, job: int) -> _Transfer:
        try:
            return self._transfers[job]
        except KeyError:
            raise UnknownJob(f"copy job {job} is not in flight") from None

    def _submit(
        self, job: int, moves: Iterable[Move], stream: torch.cuda.Stream | None, to_host: bool
    ) -> None:
        if job in self._transfers:
            raise UnknownJob(f"copy job {job} is in flight already")
        per_group = self._flatten(moves)
        transfer = _Transfer()
        context: AbstractContextManager[Any] = nullcontext()
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(self.device))
            context = torch.cuda.stream(stream)
        with context:
            for group, (blocks, rows) in per_group.items():
                if self._staged:
                    self._copy_staged(group, blocks, rows, to_host, transfer)
                else:
                    self._copy_direct(group, blocks, rows, to_host)
            if stream is not None:
                transfer.done = stream.record_event()
        self._transfers[job] = transfer

    def _flatten(self, moves: Iterable[Move]) -> dict[int, tuple[list[int], list[int]]]:
        """Per group: GPU block ids, and the host row of each."""
        per_group: dict[int, tuple[list[int], list[int]]] = {}
        for move in moves:
            if not 0 <= move.group < len(self._layers):
                raise BadMove(f"group {move.group} of {len(self._layers)}")
            if not 0 <= move.slot < self.slots:
                raise BadMove(f"host slot {move.slot} of {self.slots}")
            if move.offset < 0 or move.offset + len(move.blocks) > self.blocks_per_chunk:
                raise BadMove(
                    f"places {move.offset} to {move.offset + len(move.blocks) - 1} "
                    f"of a chunk of {self.blocks_per_chunk} blocks"
                )
            blocks, rows = per_group.setdefault(move.group, ([], []))
            blocks.extend(move.blocks)
            first = move.slot * self.blocks_per_chunk + move.offset
            rows.extend(range(first, first + len(move.blocks)))
        for group, (blocks, _) in per_group.items():
            if blocks and (min(blocks) < 0 or max(blocks) >= self._num_blocks[group]):
                raise BadMove(
                    f"blocks {min(blocks)} to {max(blocks)} of {self._num_blocks[group]} "
                    f"in group {group}"
                )
        return per_group

    def _copy_direct(self, group: int, blocks: list[int], rows: list[int], to_host: bool) -> None:
        at, host_at = torch.tensor(blocks), torch.tensor(rows)
        host = self._host_words(group)
        for index, layer in enumerate(self._layers[group]):
            if to_host:
                host[:, index].index_copy_(0, host_at, layer.index_select(0, at))
            else:
                layer.index_copy_(0, at, host[:, index].index_select(0, host_at))

    def _copy_staged(
        self, group: int, blocks: list[int], rows: list[int], to_host: bool, transfer: _Transfer
    ) -> None:
        host, layers = self._host_words(group), self._layers[group]
        # Rows of a group narrower than the buffer are not contiguous together, and a copy of
        # such a stretch between devices would be neither direct nor asynchronous.
        merge = self._row_bytes[group] == self.host.shape[1]
        piece = max(1, self._staging_bytes // self._row_bytes[group])
        for begin in range(0, len(blocks), piece):
            part = rows[begin : begin + piece]
            index = torch.tensor(blocks[begin : begin + piece], pin_memory=self._cuda)
            transfer.keep.append(index)
            at = index.to(self.device, non_blocking=True)
            # Allocated and used on this stream only, so the allocator may hand the same
            # memory to the next piece without waiting.
            staging = torch.empty(
                (len(part), *host.shape[1:]), dtype=host.dtype, device=self.device
            )
            if to_host:
                for i, layer in enumerate(layers):
                    staging[:, i] = layer.index_select(0, at)
                for start, end in _runs(part, merge):
                    first = part[start]
                    host[first : first + end - start].copy_(staging[start:end], non_blocking=True)
            else:
                for start, end in _runs(part, merge):
                    first = part[start]
                    staging[start:end].copy_(host[first : first + end - start], non_blocking=True)
                for i, layer in enumerate(layers):
                    layer.index_copy_(0, at, staging[:, i])


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _runs(rows: Sequence[int], merge: bool) -> Iterator[tuple[int, int]]:
    """Stretches ``[start, end)`` of ``rows`` whose values are consecutive; without ``merge``
    each row by itself."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or not merge or rows[i] != rows[i - 1] + 1:
            yield start, i
            start = i


def _widest_word(tensors: Sequence[Tensor]) -> torch.dtype:
    """The widest integer that all of them can be read in: an index copy moves one element
    at a time, so eight bytes each is several times quicker than one."""
    for word in (torch.int64, torch.int32, torch.int16):
        size = word.itemsize
        if all(
            t.shape[1] % size == 0 and t.stride(0) % size == 0 and t.data_ptr() % size == 0
            and t.storage_offset() % size == 0
            for t in tensors
        ):
            return word
    return torch.uint8


def _as_bytes(layer: Tensor, device: torch.device) -> Tensor:
    """``layer`` as ``(num_blocks, bytes per block)``, sharing its memory."""
    if layer.device.type != device.type:
        raise BadConfig(f"a layer tensor lies on {layer.device}, the engine copies on {device}")
    if layer.dim() < 2 or layer.shape[0] == 0 or not layer[0].is_contiguous():
        raise BadConfig(
            f"a layer tensor must be (num_blocks, ...) with contiguous blocks, "
            f"got shape {tuple(layer.shape)}, strides {layer.stride()}"
        )
    flat = layer.flatten(1) if layer.dim() > 2 else layer
    if flat.data_ptr() != layer.data_ptr():
        raise BadConfig(f"a layer tensor cannot be viewed by block: strides {layer.stride()}")
    return flat.view(torch.uint8)
