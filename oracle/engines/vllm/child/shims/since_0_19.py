"""0.19 and 0.20."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .release import Names, Transfer
from .since_0_21 import Since021


class Since020(Since021):
    """Jobs were numbered by each worker for itself; the scheduler knew transfers by request, and
    heard of stores only when their request had ended (``_reqs_being_stored``).  A request was
    known from its first lookup on and forgotten when it ended.  There was one group: the
    connector did not support several (``SupportsHMA``).  The abstractions lived in ``abstract.py``
    and ``mediums.py``."""

    features = Since021.features - {
        "groups", "draft groups", "unmarked drafts", "windows", "mamba"}

    PLANNER: Names = (
        "_req_status", "manager", "_reqs_to_load", "_reqs_being_stored", "_reqs_being_loaded")
    REQUEST_STATE: Names = ("group_states", "req", "num_locally_computed_tokens")
    unseen = ("stored",)
    failed_in = ("reqs_to_store", "_get_reqs_to_store")

    def spec_class(self, parts: list[Any]) -> Any:
        from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec
        from vllm.v1.kv_offload.spec import OffloadingSpec

        class HeadlessSpec(OffloadingSpec):  # type: ignore[misc]
            def get_manager(self) -> Any:
                return parts[-1].manager

            def get_handlers(self, *caches: Any) -> Any:
                yield GPULoadStoreSpec, CPULoadStoreSpec, parts[-1].worker
                yield CPULoadStoreSpec, GPULoadStoreSpec, parts[-1].worker

        return HeadlessSpec

    def stores(self, metadata: Any) -> Iterator[Transfer]:
        return self.jobs(metadata.reqs_to_store)

    def loads(self, metadata: Any, planner: Any) -> Iterator[Transfer]:
        found = metadata.reqs_to_load if metadata is not None else planner._reqs_to_load
        for job in self.jobs(found):
            yield job._replace(gpu=job.host, host=job.gpu)

    def jobs(self, jobs: Any) -> Iterator[Transfer]:
        for name, (source, target) in jobs.items():
            yield Transfer(None, name, source, target)

    def completed(self, report: Any, planner: Any) -> Iterator[int]:
        return iter(())

    def holders(self, planner: Any) -> tuple[Counter[bytes], set[bytes]]:
        loaded: Counter[bytes] = Counter()
        for keys in planner._reqs_being_loaded.values():
            loaded.update(keys)
        return loaded, set().union(*planner._reqs_being_stored.values())

    def held(self, planner: Any) -> list[tuple[str, list[Any]]]:
        return [("requests the planner keeps", list(self.known(planner))),
                ("requests being stored", [r for r, keys in planner._reqs_being_stored.items()
                                           if keys]),
                ("requests being loaded", [r for r, keys in planner._reqs_being_loaded.items()
                                           if keys])]


class Since019(Since020):
    """The group was known by its blocks' hashes: no keys that name a group."""

    PLANNER: Names = (
        "_requests", "_request_block_ids", "_next_stored_block_idx", "manager",
        "_reqs_to_load", "_reqs_being_stored", "_reqs_being_loaded")
    REQUEST_STATE: Names = ("group_states",)

    def pool(self, config: Any) -> dict[str, Any]:
        return {"block_size": config.tokens_per_chunk(0), **super().pool(config)}

    def group(self, layers: list[str], spec: Any, draft: bool) -> Any:
        from vllm.v1.kv_cache_interface import KVCacheGroupSpec

        return KVCacheGroupSpec(layers, spec)

    def block_sizes(self, caches: Any, vllm_config: Any) -> tuple[int, int]:
        size = vllm_config.cache_config.block_size
        return size, size

    def scheduler_arguments(self, block_size: int, hash_size: int) -> dict[str, int]:
        return {"block_size": block_size}

    def taken(self, answer: Any) -> list[bytes]:
        return list(answer.block_hashes_to_store)

    def known(self, planner: Any) -> Any:
        return planner._requests

    def status(self, planner: Any, name: str) -> Any:
        request = planner._requests.get(name)
        return _Status(planner, request) if request is not None else None

    def layout(self, gpu: Any, host: Any, store: bool, blocks_per_chunk: int
               ) -> tuple[list[int], list[int]]:
        # The worker skipped blocks at the start of the first host chunk of a load, as many as
        # the last one's end would need (cpu_gpu.py, src_sub_blocks_to_skip).
        blocks = len(gpu.block_ids)
        skip = 0 if store else -blocks % blocks_per_chunk
        expected = len(host.block_ids) * blocks_per_chunk - skip
        assert blocks == expected, (
            f"a transfer names {blocks} blocks for {len(host.block_ids)} host chunks")
        return [blocks], [skip]

    def sizes(self, gpu: Any) -> list[int]:
        return [len(gpu.block_ids)]

    def cached(self, status: Any, upto: int, load: Transfer, tokens_per_block: int) -> int:
        return upto - len(load.gpu.block_ids) * tokens_per_block


class _Status:
    """A request's state as later releases keep it, read from the planner's tables."""

    def __init__(self, planner: Any, request: Any) -> None:
        self.group_states = (_GroupState(planner, request),)


class _GroupState:
    def __init__(self, planner: Any, request: Any) -> None:
        self._planner = planner
        self._request = request
        self._name = request.request_id
        self._keys: list[bytes] = []
        self._blocks: list[int] = []
        self._cursor = 0

    @property
    def offload_keys(self) -> list[bytes]:
        factor = self._planner.block_size_factor
        hashes = self._request.block_hashes
        keys = self._keys
        if (len(keys) + 1) * factor <= len(hashes):
            keys += hashes[(len(keys) + 1) * factor - 1::factor]
        return keys

    # A request that has ended is in no table any more: what it ended with stays.

    @property
    def block_ids(self) -> list[int]:
        self._blocks = self._planner._request_block_ids.get(self._name, self._blocks)
        return self._blocks

    @property
    def next_stored_block_idx(self) -> int:
        if self._name in self._planner._requests:
            self._cursor = self._planner._next_stored_block_idx.get(self._name, 0)
        return self._cursor
