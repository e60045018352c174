"""How does a config become an engine?  The real Scheduler and both sides of the connector.

There is no model: vLLM's config classes want one, so they get a folder with the config of a
tiny Llama.  No KV tensor is allocated either; the worker side is told of its (ghost) worker
the way ``register_kv_caches`` would tell it.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.structured_output import StructuredOutputManager

from . import plugin
from .config import Config, Group, needs
from .serve import BadInput
from .shims.release import Release

MAX_TOKENS = 65536
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
    "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1,
    "intermediate_size": 16, "vocab_size": 512, "max_position_embeddings": MAX_TOKENS,
    "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}


@dataclass
class Built:
    """The engine's objects; ``workers`` are the workers' sides of the connector, ``hasher`` is the
    one the engine core would give its requests."""

    vllm_config: Any
    scheduler: Any
    workers: list[Any]
    hasher: Any
    tokens_per_hash: int


def model_folder() -> str:
    """A folder with nothing but the tiny model's config, in vLLM's own cache folder.

    A fixed place, since vLLM keeps what it finds out about a model's class in that cache:
    eleven seconds the first time, nothing later.
    """
    root = os.environ.get("VLLM_CACHE_ROOT") or os.path.join(tempfile.gettempdir(), "kvoracle")
    folder = os.path.join(root, "kvoracle-tiny-llama")
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            json.dump(TINY_LLAMA, file)
        os.replace(file.name, path)
    return folder


def speculative(config: Config, model: Any) -> Any:
    """The speculative config the Scheduler needs to schedule ``draft_tokens`` drafts.

    With a draft group it is EAGLE (any model will do as its draft here), which reserves
    blocks for the drafter's look-ahead.  Without one it must not be: releases before 0.30
    take EAGLE without a marked group to mean that every group is a draft group.
    """
    if not config.draft_tokens:
        return None
    eagle = any(group.draft for group in config.groups)
    return SpeculativeConfig(
        method="eagle" if eagle else "ngram", model=model_folder() if eagle else None,
        num_speculative_tokens=config.draft_tokens,
        target_model_config=model, target_parallel_config=ParallelConfig(),
    )


def configure(config: Config, release: Release) -> Any:
    model = ModelConfig(model=model_folder(), dtype="float32", seed=0, skip_tokenizer_init=True,
                        max_model_len=MAX_TOKENS)
    cache = CacheConfig(block_size=config.groups[0].tokens_per_block,
                        enable_prefix_caching=config.gpu_prefix_caching)
    cache.num_gpu_blocks = config.gpu_blocks + 1
    vllm_config = VllmConfig(
        model_config=model,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=config.max_running, max_num_batched_tokens=config.tokens_per_step,
            max_model_len=MAX_TOKENS, enable_chunked_prefill=True,
            async_scheduling=config.async_scheduling,
            long_prefill_token_threshold=config.longest_piece, **release.scheduler_config(),
        ),
        speculative_config=speculative(config, model),
        kv_transfer_config=KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "HeadlessSpec", "spec_module_path": plugin.__name__,
                **release.extra_config(config),
            },
        ),
    )
    # Set afterwards: there are no accelerators to spread ranks over, and nobody starts them.
    parallel = vllm_config.parallel_config
    parallel.tensor_parallel_size = parallel.world_size = config.workers
    if config.context_parallel > 1:
        parallel.decode_context_parallel_size = config.context_parallel
    return vllm_config


def spec_of(group: Group) -> Any:
    """What vLLM calls the layers of a group."""
    shape = {"block_size": group.tokens_per_block, "num_kv_heads": 1, "head_size": 1,
             "dtype": torch.float32}
    if group.kind == "window":
        from vllm.v1.kv_cache_interface import SlidingWindowSpec

        return SlidingWindowSpec(**shape, sliding_window=group.reach)
    if group.kind == "chunked":
        from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec

        return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=group.reach)
    if group.kind == "mamba":
        from vllm.v1.kv_cache_interface import MambaSpec

        return MambaSpec(block_size=group.tokens_per_block, shapes=((1,),),
                         dtypes=(torch.float32,), mamba_cache_mode="align")
    return FullAttentionSpec(**shape)


def cache_config(config: Config, release: Release) -> Any:
    """Block 0 is vLLM's null block, on top of ``gpu_blocks``."""
    groups = [release.group([f"layer{index}"], spec_of(group), group.draft and group.marked)
              for index, group in enumerate(config.groups)]
    return KVCacheConfig(num_blocks=config.gpu_blocks + 1, kv_cache_tensors=[],
                         kv_cache_groups=groups)


def build(config: Config, release: Release, offers: plugin.Offers,
          workers: list[plugin.Copies]) -> Built:
    """A fresh engine; vLLM's own refusal of a config becomes :class:`BadInput`."""
    lacks = [name for name, needed in needs(config).items()
             if needed and name not in release.features]
    if lacks:
        raise BadInput(f"this release has no such thing as, or is not driven with: "
                       f"{', '.join(lacks)}")
    if config.async_scheduling and config.draft_tokens:
        raise BadInput("drafts are not driven together with async scheduling")
    release.begin()
    plugin.HeadlessSpec = release.spec_class(plugin.parts)
    plugin.parts.append(plugin.Parts(
        plugin.watched_pool(release, release.pool(config), offers)))
    try:
        vllm_config = configure(config, release)
        caches = cache_config(config, release)
        block_size, hash_size = release.block_sizes(caches, vllm_config)
        scheduler = release.scheduler_class(config.async_scheduling)(
            vllm_config=vllm_config, kv_cache_config=caches, log_stats=False,
            structured_output_manager=StructuredOutputManager(vllm_config),
            **release.scheduler_arguments(block_size, hash_size),
        )
        connectors = []
        for rank, copies in enumerate(workers):
            plugin.parts[-1].worker = release.ghost_worker(copies)
            own = copy.copy(vllm_config)
            own.parallel_config = copy.copy(vllm_config.parallel_config)
            own.parallel_config.rank = rank
            connectors.append(release.connector(own, caches))
            release.attach(connectors[-1])
    except (ValueError, AssertionError, NotImplementedError) as error:
        first = str(error).strip().splitlines()[:1] or ["(no message)"]
        raise BadInput(
            f"vllm refuses this config: {type(error).__name__}: {first[0]}"
        ) from error
    finally:
        plugin.parts.pop()
    hash_fn = release.hash_function(vllm_config)
    init_none_hash(hash_fn)
    return Built(vllm_config, scheduler, connectors,
                 get_request_block_hasher(hash_size, hash_fn), hash_size)
