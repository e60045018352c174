"""What sizes does the offload engine work with, and which of them are impossible?"""

from __future__ import annotations

from dataclasses import dataclass

from kvoracle.impl.errors import BadConfig


def _positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadConfig(f"{name} must be a whole number of at least 1, got {value!r}")


@dataclass(frozen=True)
class GroupSpec:
    """One KV-cache group: layers that share a block table.

    ``tokens_per_block`` is in tokens.  ``draft`` marks a group of drafter
    (EAGLE/MTP) layers, whose last position also depends on the next token.
    """

    tokens_per_block: int
    draft: bool = False

    def __post_init__(self) -> None:
        _positive("tokens_per_block", self.tokens_per_block)


@dataclass(frozen=True)
class OffloadConfig:
    """Sizes of one offload engine.

    ``blocks_per_chunk`` GPU blocks of a group make one chunk, the unit of
    offloading; ``host_slots`` counts chunks.  With ``prompt_only`` nothing
    behind the prompt is stored.  Raises :class:`BadConfig` for sizes below 1.
    """

    groups: tuple[GroupSpec, ...]
    host_slots: int
    blocks_per_chunk: int = 1
    prompt_only: bool = False

    def __post_init__(self) -> None:
        if not self.groups:
            raise BadConfig("at least one KV-cache group is needed")
        _positive("blocks_per_chunk", self.blocks_per_chunk)
        _positive("host_slots", self.host_slots)

    def tokens_per_chunk(self, group: int) -> int:
        """Tokens in one chunk of ``group``."""
        return self.groups[group].tokens_per_block * self.blocks_per_chunk
