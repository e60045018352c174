"""The newest contract, 0.31 to 0.33: what is imported, built, called and read of a release.

Everything that reaches into vLLM by a name which some release spells differently goes through
here.  vLLM is imported inside the methods, since older ranges derive from this class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..config import Config
    from ..plugin import Copies, Parts


Names = tuple[str, ...]


class Transfer(NamedTuple):
    """One job of the scheduler's message: its number (None where only workers number jobs), the
    request, and the two ends as the release describes them."""

    number: int | None
    r: str
    gpu: Any
    host: Any


class Release:
    """0.31 and later."""

    CURSOR = "next_stored_chunk_idx"
    PLANNER: Names = ("_req_status", "_jobs", "manager", "_current_batch_load_jobs")
    REQUEST_STATE: Names = ("group_states", "req", "transfer_jobs", "num_locally_computed_tokens")
    MIXIN: Names = (
        "kv_connector_no_forward", "maybe_get_kv_connector_output", "finalize_kv_connector")
    unseen: Names = ()
    eager = True
    """The docstring of ``storable_chunks`` says that whatever is storable is offered."""
    features: frozenset[str] = frozenset((
        "groups", "draft groups", "unmarked drafts", "drafts", "late keys", "resets",
        "prompt only", "async", "workers", "context parallel", "windows", "chunked", "arc",
        "thresholds", "limits", "load limits", "no read", "salts", "pieces"))
    """What is driven of the release (``FEATURES`` of ``oracle/events.py``)."""

    # --- building ------------------------------------------------------------------

    def begin(self) -> None:
        """Whatever must be so before a config can be made."""

    def manager_class(self) -> Any:
        """The host pool that is driven."""
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        return CPUOffloadingManager

    def pool(self, config: Config) -> dict[str, Any]:
        """Arguments of the host pool."""
        return {"num_chunks": config.host_chunks, "cache_policy": config.policy,
                "store_threshold": config.store_threshold}

    def scheduler_class(self, lagging: bool) -> Any:
        """The scheduler; ``lagging``: the one that plans before the last output is known."""
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        return AsyncScheduler if lagging else Scheduler

    def aggregator(self, connector: Any, workers: int) -> Any:
        """What makes one report of those of all workers."""
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator

        return KVOutputAggregator.from_connector(connector, workers)

    def spec_class(self, parts: list[Parts]) -> Any:
        """The out-of-tree ``OffloadingSpec`` that hands out what ``parts`` ends with."""
        from vllm.v1.kv_offload.base import OffloadingSpec

        class HeadlessSpec(OffloadingSpec):  # type: ignore[misc]
            def get_manager(self) -> Any:
                return parts[-1].manager

            def get_worker(self, kv_caches: Any) -> Any:
                return parts[-1].worker

        return HeadlessSpec

    def ghost_worker(self, copies: Copies) -> Any:
        """The release's worker interface around ghost copies."""
        from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

        class GhostWorker(OffloadingWorker):  # type: ignore[misc]
            def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
                copies.submit(job_id, True, src_spec, dst_spec)
                return True

            def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any,
                            expedited: bool = False) -> bool:
                copies.submit(job_id, False, dst_spec, src_spec)
                return True

            def get_finished(self) -> list[Any]:
                return [TransferResult(job_id=job, success=True) for job in copies.finished()]

            def wait(self, job_ids: set[int]) -> None:
                copies.wait(job_ids)

            def shutdown(self) -> None:
                pass

        return GhostWorker()

    def attach(self, connector: Any) -> None:
        """What ``register_kv_caches`` ends in, had there been tensors to register."""
        connector.connector_worker._init_worker(None)

    def connector(self, vllm_config: Any, caches: Any) -> Any:
        """The worker's side of the connector."""
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
            OffloadingConnector,
        )

        return OffloadingConnector(vllm_config, KVConnectorRole.WORKER, caches)

    def extra_config(self, config: Config) -> dict[str, Any]:
        """``kv_connector_extra_config`` beside the spec's name."""
        return {"blocks_per_chunk": config.blocks_per_chunk,
                # Its default changed to True; the config says which.
                "offload_prompt_only": config.prompt_only}

    def scheduler_config(self) -> dict[str, Any]:
        """Arguments of ``SchedulerConfig`` that not every release has."""
        return {"is_encoder_decoder": False}

    def group(self, layers: list[str], spec: Any, draft: bool) -> Any:
        from vllm.v1.kv_cache_interface import KVCacheGroupSpec

        return KVCacheGroupSpec(layers, spec, is_eagle_group=draft)

    def block_sizes(self, caches: Any, vllm_config: Any) -> tuple[int, int]:
        """Tokens per scheduler block, and tokens per hash."""
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

        found: tuple[int, int] = resolve_kv_cache_block_sizes(caches, vllm_config)
        return found

    def scheduler_arguments(self, block_size: int, hash_size: int) -> dict[str, int]:
        return {"block_size": block_size, "hash_block_size": hash_size}

    def hash_function(self, vllm_config: Any) -> Any:
        from vllm.utils.hashing import get_hash_fn_by_name

        return get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)

    def request(self, **arguments: Any) -> Any:
        from vllm.v1.request import Request

        return Request(pooling_params=None, **arguments)

    # --- a step ----------------------------------------------------------------------

    def mixin(self) -> Any:
        from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

        return KVConnectorModelRunnerMixin

    def prepare(self, connector: Any, output: Any) -> None:
        """What ``execute_model`` does with the connector before anything else."""
        connector.handle_preemptions(output.kv_connector_metadata)

    def forward(self, output: Any, drafts: bool) -> Any:
        """The context that the forward pass runs in."""
        return self.mixin().maybe_get_kv_connector_output(output, defer_finalize=drafts)

    def after_drafts(self) -> None:
        """What comes after the drafter has run."""
        self.mixin().finalize_kv_connector()

    def sampled(self, tokens: list[list[int]]) -> Any:
        """Sampled tokens as a ``ModelRunnerOutput`` holds them."""
        return tokens

    def resumed(self, cached: Any) -> set[str]:
        """Requests whose whole block table the message brings."""
        found: set[str] = cached.resumed_req_ids
        return found

    def preempted(self, output: Any, admitted: Iterable[Any]) -> set[str]:
        """Requests that lost their blocks in this step, of those ``admitted`` before."""
        return output.preempted_req_ids or set()

    def catch_up(self, request: Any) -> None:
        """Make the hashes that the request could not have before."""
        request.update_block_hashes()

    # --- the host pool -----------------------------------------------------------------

    def offerer(self, arguments: tuple[Any, ...]) -> str:
        """The request that ``prepare_store`` is called for, from its arguments after the keys."""
        name: str = arguments[0].req_id
        return name

    def taken(self, answer: Any) -> list[bytes]:
        return list(answer.keys_to_store)

    # --- the planner -----------------------------------------------------------------

    def status(self, planner: Any, name: str) -> Any:
        """The planner's state of a request, None while it has none."""
        return planner._req_status.get(name)

    def known(self, planner: Any) -> Any:
        """Names of the requests the planner remembers."""
        return planner._req_status

    def cursor(self) -> Callable[[Any], int]:
        """The cursor of a group's state."""
        return attrgetter(self.CURSOR)

    def layout(self, gpu: Any, host: Any, store: bool, blocks_per_chunk: int
               ) -> tuple[list[int], list[int]]:
        """Blocks of each group in a transfer, and the index of each group's first block."""
        return list(gpu.group_sizes), list(gpu.block_indices)

    def sizes(self, gpu: Any) -> list[int]:
        """Blocks of each group that a transfer names."""
        return list(gpu.group_sizes)

    def stores(self, metadata: Any) -> Iterator[Transfer]:
        """The stores that a step's message plans."""
        return self.jobs(metadata.store_jobs)

    def loads(self, metadata: Any, planner: Any) -> Iterator[Transfer]:
        """The loads; ``metadata`` is None where the step failed before it was made."""
        jobs = metadata.load_jobs if metadata is not None else planner._current_batch_load_jobs
        for job in self.jobs(jobs):
            yield job._replace(gpu=job.host, host=job.gpu)

    def jobs(self, jobs: Any) -> Iterator[Transfer]:
        """Source first: of a load, ``gpu`` is the host's end."""
        for number, job in jobs.items():
            yield Transfer(number, job.req_id, job.src_spec, job.dst_spec)

    failed_in: tuple[str, str] = ("store_jobs", "_build_store_jobs")
    """Variable and function that hold the stores planned before a step failed."""

    def failed_stores(self, found: Any) -> Iterator[Transfer]:
        return self.jobs(found or {})

    def loaded(self, request: Any, status: Any, tokens_per_chunk: int) -> int:
        """Tokens that a waiting request has when its load is done."""
        found: int = request.num_computed_tokens
        return found

    def cached(self, status: Any, upto: int, load: Transfer, tokens_per_block: int) -> int:
        """Tokens that needed no loading, of a request that loads up to ``upto``."""
        found: int = status.num_locally_computed_tokens
        return found

    def completed(self, report: Any, planner: Any) -> Iterator[int]:
        """Jobs that a report ended: every worker has told of them."""
        reports = report.kv_connector_worker_meta if report is not None else None
        if reports is not None:
            for job in reports.completed_jobs:
                if job not in planner._jobs:
                    yield job

    def holders(self, planner: Any) -> tuple[Counter[bytes], set[bytes]]:
        """Keys that loads under way read, and how many loads; keys that stores fill."""
        loaded: Counter[bytes] = Counter()
        stored: set[bytes] = set()
        for job in planner._jobs.values():
            (stored if job.is_store else loaded).update(job.keys)
        return loaded, stored

    def held(self, planner: Any) -> list[tuple[str, list[Any]]]:
        """What the planner holds, in words."""
        return [("requests the planner keeps", list(planner._req_status)),
                ("transfer jobs", list(planner._jobs)),
                ("blocks fenced", list(getattr(planner, "_block_id_to_pending_jobs", ())))]
