"""What is asked for: ``Config`` of ``oracle/events.py``, as the child reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .serve import BadInput


@dataclass(frozen=True)
class Group:
    tokens_per_block: int
    draft: bool = False
    kind: str = "full"
    reach: int = 0
    marked: bool = True


@dataclass(frozen=True)
class Config:
    """The engine to build; the fields are explained there."""

    groups: tuple[Group, ...]
    blocks_per_chunk: int = 1
    gpu_blocks: int = 64
    host_chunks: int = 64
    tokens_per_step: int = 64
    max_running: int = 8
    prompt_only: bool = False
    gpu_prefix_caching: bool = False
    draft_tokens: int = 0
    async_scheduling: bool = False
    workers: int = 1
    context_parallel: int = 1
    policy: str = "lru"
    store_threshold: int = 0
    longest_piece: int = 0

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Config:
        try:
            groups = tuple(Group(**group) for group in raw["groups"])
            config = cls(**{**raw, "groups": groups})
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"this is not a config: {type(error).__name__}: {error}") from error
        if not groups:
            raise BadInput("a config needs at least one group")
        for number, group in enumerate(groups):
            if group.kind in ("window", "chunked") and group.reach < 1:
                raise BadInput(f"group {number} is a {group.kind} group and needs a reach")
        if config.workers % config.context_parallel:
            raise BadInput(f"{config.workers} workers cannot share the tokens of a block "
                           f"{config.context_parallel} ways")
        return config

    def tokens_per_block(self, group: int) -> int:
        """Tokens that one block spans: its ranks share them."""
        return self.groups[group].tokens_per_block * self.context_parallel

    def tokens_per_chunk(self, group: int) -> int:
        return self.tokens_per_block(group) * self.blocks_per_chunk


def needs(config: Config) -> dict[str, bool]:
    """The features that a config needs (``config_needs`` of ``oracle/events.py``)."""
    groups = config.groups
    return {
        "groups": len(groups) > 1,
        "draft groups": any(g.draft for g in groups),
        "unmarked drafts": any(g.draft and not g.marked for g in groups),
        "windows": any(g.kind == "window" for g in groups),
        "chunked": any(g.kind == "chunked" for g in groups),
        "mamba": any(g.kind == "mamba" for g in groups),
        "drafts": config.draft_tokens > 0,
        "prompt only": config.prompt_only,
        "async": config.async_scheduling,
        "workers": config.workers > 1,
        "context parallel": config.context_parallel > 1,
        "arc": config.policy == "arc",
        "thresholds": config.store_threshold > 1,
        "pieces": config.longest_piece > 0,
    }
