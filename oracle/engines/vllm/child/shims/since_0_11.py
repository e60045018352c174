"""0.11 to 0.18: the connector is one file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .since_0_19 import Since019


class Since018(Since019):
    """The workers were told of preempted requests, and not in every step; each policy was a
    manager of its own, around a backend."""

    features = Since019.features - {"arc"}

    def manager_class(self) -> Any:
        from vllm.v1.kv_offload.lru_manager import LRUOffloadingManager

        return LRUOffloadingManager

    def pool(self, config: Any) -> dict[str, Any]:
        from vllm.v1.kv_offload.backends.cpu import CPUBackend

        return {"backend": CPUBackend(config.tokens_per_chunk(0), config.host_chunks)}

    def attach(self, connector: Any) -> None:
        connector.connector_worker._register_handlers({}, {})

    def prepare(self, connector: Any, output: Any) -> None:
        if output.preempted_req_ids:
            connector.handle_preemptions(output.preempted_req_ids)


class Since017(Since018):
    """Saving was not put off until after the drafter (0.18 does: ``defer_finalize``), and while
    a request was loaded into, the scheduler counted nothing as computed."""

    MIXIN = ("kv_connector_no_forward", "maybe_get_kv_connector_output")

    def begin(self) -> None:
        # A model's class is inspected in a process of its own, where torch's question that
        # moved (session.py) is asked again.
        from vllm.model_executor.models import registry

        registry._run_in_subprocess = lambda inspect: inspect()

    def forward(self, output: Any, drafts: bool) -> Any:
        return self.mixin().maybe_get_kv_connector_output(output)

    def after_drafts(self) -> None:
        pass

    def loaded(self, request: Any, status: Any, tokens_per_chunk: int) -> int:
        chunks: int = status.group_states[0].next_stored_block_idx
        return chunks * tokens_per_chunk


class Since016(Since017):
    """A request was told of the end token."""

    def begin(self) -> None:
        pass

    def request(self, **arguments: Any) -> Any:
        from vllm.v1.request import Request

        return Request(pooling_params=None, eos_token_id=None, **arguments)


class Since014(Since016):
    """A finished transfer was a pair."""

    def ghost_worker(self, copies: Any) -> Any:
        from vllm.v1.kv_offload.worker.worker import OffloadingHandler

        class GhostHandler(OffloadingHandler):  # type: ignore[misc]
            def transfer_async(self, job_id: int, spec: Any) -> bool:
                source, target = spec
                store = source.medium() == "GPU"
                copies.submit(job_id, store, *((source, target) if store else (target, source)))
                return True

            def get_finished(self) -> list[Any]:
                return [(job, True) for job in copies.finished()]

            def wait(self, job_ids: set[int]) -> None:
                copies.wait(job_ids)

        return GhostHandler()

    def catch_up(self, request: Any) -> None:
        if request.get_hash_new_full_blocks is not None:
            request.block_hashes.extend(request.get_hash_new_full_blocks())


class Since012(Since014):
    """Nothing was flushed: workers were not told of preemptions."""

    def prepare(self, connector: Any, output: Any) -> None:
        pass


class Since0111(Since012):
    """Preempted requests were not named, handlers were registered with the caches, sampled tokens
    were arrays, and a load skipped blocks on the wrong side (vLLM #28950)."""

    def sampled(self, tokens: list[list[int]]) -> Any:
        import numpy

        return [numpy.array(row, dtype=numpy.int64) for row in tokens]

    def preempted(self, output: Any, admitted: Iterable[Any]) -> set[str]:
        return {request.request_id for request in admitted if request.status.name == "PREEMPTED"}

    def aggregator(self, connector: Any, workers: int) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

        return KVOutputAggregator(workers)

    def attach(self, connector: Any) -> None:
        worker = connector.connector_worker
        for source, target, handler in worker.spec.get_handlers({}):
            worker.worker.register_handler(source, target, handler)

    def connector(self, vllm_config: Any, caches: Any) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
            OffloadingConnector,
        )

        return OffloadingConnector(vllm_config, KVConnectorRole.WORKER)

    def layout(self, gpu: Any, host: Any, store: bool, blocks_per_chunk: int
               ) -> tuple[list[int], list[int]]:
        blocks, chunks = len(gpu.block_ids), len(host.block_ids)
        skip = -blocks % blocks_per_chunk if store else 0
        assert blocks == chunks * blocks_per_chunk - skip, (
            f"a transfer names {blocks} blocks for {chunks} host chunks")
        return [blocks], [skip]


class Since011(Since0111):
    """Resumed requests were marked in a list, sampled tokens were lists, and a Scheduler knew its
    block size itself."""

    def begin(self) -> None:
        # The CPU backend's kernels want another package for blocks of other sizes than 16;
        # none of them runs here.
        from vllm.platforms import cpu

        cpu.find_spec = lambda name: True

    def sampled(self, tokens: list[list[int]]) -> Any:
        return tokens

    def scheduler_arguments(self, block_size: int, hash_size: int) -> dict[str, int]:
        return {}

    def scheduler_config(self) -> dict[str, Any]:
        return {}

    def resumed(self, cached: Any) -> set[str]:
        return {name for name, again in zip(cached.req_ids, cached.resumed_from_preemption)
                if again}

    def hash_function(self, vllm_config: Any) -> Any:
        from vllm.utils import get_hash_fn_by_name

        return get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
