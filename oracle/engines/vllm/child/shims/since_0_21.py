"""0.21 to 0.24."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .release import Transfer
from .since_0_25 import Since025

if TYPE_CHECKING:
    from ..config import Config
    from ..plugin import Copies, Parts


class Since024(Since025):
    """A worker was made of handlers, one for each direction, and a job's two ends were one tuple
    (``worker/worker.py``)."""

    def spec_class(self, parts: list[Parts]) -> Any:
        from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingSpec
        from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

        class HeadlessSpec(OffloadingSpec):  # type: ignore[misc]
            def get_manager(self) -> Any:
                return parts[-1].manager

            def get_handlers(self, *caches: Any) -> Any:
                yield GPULoadStoreSpec, CPULoadStoreSpec, parts[-1].worker
                yield CPULoadStoreSpec, GPULoadStoreSpec, parts[-1].worker

        return HeadlessSpec

    def ghost_worker(self, copies: Copies) -> Any:
        from vllm.v1.kv_offload.worker.worker import OffloadingHandler, TransferResult

        class GhostHandler(OffloadingHandler):  # type: ignore[misc]
            def transfer_async(self, job_id: int, spec: Any) -> bool:
                source, target = spec
                store = source.medium() == "GPU"
                copies.submit(job_id, store, *((source, target) if store else (target, source)))
                return True

            def get_finished(self) -> list[Any]:
                return [TransferResult(job_id=job, success=True) for job in copies.finished()]

            def wait(self, job_ids: set[int]) -> None:
                copies.wait(job_ids)

        return GhostHandler()

    def attach(self, connector: Any) -> None:
        connector.connector_worker._register_handlers(None)

    def jobs(self, jobs: Any) -> Iterator[Transfer]:
        for number, job in jobs.items():
            yield Transfer(number, job.req_id, *job.transfer_spec)


class Since023(Since024):
    """Requests that read no cache were not heeded."""

    features = Since024.features - {"no read"}


class Since022(Since023):
    """There was no offloading of prompts only, and no bound on what a request offloads."""

    features = Since023.features - {"prompt only", "limits"}

    def extra_config(self, config: Config) -> dict[str, Any]:
        extra = super().extra_config(config)
        del extra["offload_prompt_only"]
        return extra


class Since021(Since022):
    """The pool was not told which request an offer is for, counted no offers, and could not be
    reset."""

    features = Since022.features - {"resets", "thresholds"}

    def pool(self, config: Config) -> dict[str, Any]:
        arguments = super().pool(config)
        del arguments["store_threshold"]
        return arguments

    def offerer(self, arguments: tuple[Any, ...]) -> str:
        return calling_request()


def calling_request() -> str:
    """The request in the planner's loop that called the pool: its ``req_id``."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_locals.get("req_id")
        if isinstance(name, str) and "kv_connector" in frame.f_code.co_filename:
            return name
        frame = frame.f_back  # type: ignore[assignment]
    raise LookupError("prepare_store was not called from the planner's loop over requests")
