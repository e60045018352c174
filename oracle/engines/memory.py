"""Where does the content of KV positions live, and how is it read and copied?

:class:`Memory` is what simulated kernels write and read and what copies move:
tags, not numbers.  :class:`ListMemory` keeps them in plain lists; the engine
``impl`` keeps them in torch tensors and copies them with its own copy path.
"""

from __future__ import annotations

from typing import Protocol

from kvoracle.oracle.engines.planner import Job
from kvoracle.oracle.events import Config

UNWRITTEN = 0
"""The tag of memory that no kernel wrote."""


class Memory(Protocol):
    """GPU blocks and host slots, by tags.  An address is ``block * tokens_per_block + offset``."""

    def write(self, g: int, at: list[int], tags: list[int]) -> None:
        """A kernel writes group ``g``."""
        ...

    def read(self, g: int, at: list[int]) -> list[int]:
        """What a kernel would read."""
        ...

    def host(self, g: int, slot: int) -> list[int]:
        """The chunk of group ``g`` in a host slot."""
        ...

    def store(self, job: Job) -> None:
        """Copy GPU blocks to host slots, now."""
        ...

    def load(self, job: Job) -> None:
        """Copy host slots to GPU blocks, now."""
        ...


class ListMemory:
    """:class:`Memory` in plain Python: exact, and quick for small sizes."""

    def __init__(self, config: Config) -> None:
        self._sizes = [group.tokens_per_block for group in config.groups]
        # Groups share the blocks, as in vLLM: reuse by another group overwrites.
        width = max(self._sizes)
        self._gpu = [[UNWRITTEN] * width for _ in range(config.gpu_blocks + 1)]
        places = config.blocks_per_chunk
        self._host = [
            [[UNWRITTEN] * width for _ in range(places)] for _ in range(config.host_chunks)
        ]

    def write(self, g: int, at: list[int], tags: list[int]) -> None:
        size = self._sizes[g]
        for address, tag in zip(at, tags):
            self._gpu[address // size][address % size] = tag

    def read(self, g: int, at: list[int]) -> list[int]:
        size = self._sizes[g]
        return [self._gpu[address // size][address % size] for address in at]

    def host(self, g: int, slot: int) -> list[int]:
        return [tag for place in self._host[slot] for tag in place[: self._sizes[g]]]

    def store(self, job: Job) -> None:
        for move in job.moves:
            for i, block in enumerate(move.blocks):
                self._host[move.slot][move.offset + i] = list(self._gpu[block])

    def load(self, job: Job) -> None:
        for move in job.moves:
            for i, block in enumerate(move.blocks):
                self._gpu[block] = list(self._host[move.slot][move.offset + i])
