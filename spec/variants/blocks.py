"""Designs that lose track of the GPU's blocks, each by one rule of `kvoracle.model.holding`."""

from __future__ import annotations

from typing import Any

from kvoracle.model.holding import Holding
from kvoracle.model.machine import Part
from kvoracle.model.rules import Design
from kvoracle.model.scopes import LAGGING_PARTS, RESIDENT_PARTS, TRANSFER_PARTS

from .variant import Variant


def _unsound(name: str, statement: str, lacks: str, source: str, scope: str,
             breaks: tuple[str, ...], parts: tuple[Part, ...] = RESIDENT_PARTS,
             **rules: Any) -> Variant:
    return Variant(name=name, statement=statement, lacks=lacks, source=source,
                   design=Design(holding=Holding(**rules)), breaks=breaks, scope=scope,
                   parts=parts)


# --- blocks of several requests ---------------------------------------------------------

FIRST_HOLDER_FREES = _unsound(
    "first-holder-frees",
    "a block that several requests hold is free when the first of them lets go",
    "counting the holders of a block",
    "SGLang (sglang-jax#1618): the end of a request frees blocks that the prefix cache has adopted",
    "sharing", ("ReuseFence", "TrueBytes", "LoadedBytes", "RefExact"),
    counts_holders=False,
)

FINDER_NOT_COUNTED = _unsound(
    "finder-not-counted",
    "a request that finds a block by its name does not hold it",
    "holding what was found, so that it is not given away before it is used",
    "vLLM PR33377 and its kind: a count one too low, and the block goes to another",
    "sharing", ("ReuseFence", "TrueBytes", "LoadedBytes", "RefExact"),
    counts_finders=False,
)

LOAD_OVER_FOUND = _unsound(
    "load-over-found",
    "a load brings the whole hit, over blocks that were found on the GPU",
    "leaving out of a load what was found on the GPU",
    "LMCache#2206; vLLM PR35831 (LMCache PR2671): others read the block meanwhile",
    "found-loads", ("ReuseFence", "LoadedBytes"),
    skips_found=False,
)

NAME_KEPT_AT_REUSE = _unsound(
    "name-kept-at-reuse",
    "a block is still found by its old name when it was given to another request",
    "taking the name from a block that is given away",
    "vLLM BlockPool: a block that is given away is evicted from the prefix cache",
    "residue", ("LoadedBytes",),
    forgets_name=False,
)

NAMED_BEFORE_LOADED = _unsound(
    "named-before-loaded",
    "blocks get their names when their load begins",
    "naming blocks only when their KV is there",
    "vLLM KVCacheManager, `delay_cache_blocks`: not cached before an asynchronous load has ended",
    "found-loads", ("ReuseFence", "LoadedBytes"),
    names_computed=False,
)

# --- siblings of a failed copy ------------------------------------------------------------

FIRST_FAILURE_ENDS = _unsound(
    "first-failure-ends",
    "a load is over as soon as one of its copies has failed, while others still write its blocks",
    "waiting for the siblings of a failed copy",
    "vLLM PR56104: the first failed handle frees blocks that other handles still write",
    "workers", ("WorkerAgreement",), TRANSFER_PARTS,
    failure_waits=False,
)

# --- steps dispatched ahead ---------------------------------------------------------------

FREED_UNDER_A_STEP = _unsound(
    "freed-under-a-step",
    "a freed block is given away while a step that was dispatched still writes it",
    "keeping a freed block until the steps dispatched before have run",
    "vLLM PR45357 (vllm-ascend#14055): the output of one step ends the request, the next one runs",
    "lag", ("ReuseFence", "LoadedBytes"), LAGGING_PARTS,
    waits_for_steps=False,
)

ENDED_TWICE = _unsound(
    "ended-twice",
    "output that comes after a request's end ends it again, and its blocks are freed twice",
    "passing over late output of a request that has ended",
    "vLLM PR33377: aborted, and the output of the step in flight frees it once more",
    "lag", ("ReuseFence", "TrueBytes", "LoadedBytes", "RefExact"), LAGGING_PARTS,
    frees_once=False,
)

UNSOUND = (
    FIRST_HOLDER_FREES, FINDER_NOT_COUNTED, LOAD_OVER_FOUND, NAME_KEPT_AT_REUSE,
    NAMED_BEFORE_LOADED, FIRST_FAILURE_ENDS, FREED_UNDER_A_STEP,
    ENDED_TWICE,
)
