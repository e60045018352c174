"""How is the engine watched?  Through vLLM's own extension points, without patching it.

``OffloadingConnector`` loads the spec named in its config from any module
(``spec_module_path``).  This one hands it the release's real ``CPUOffloadingManager``, with
``prepare_store`` overridden to write down each offer and its answer, and a worker whose
copies are ghosts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_offload.base import OffloadingSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from .ghost import Job, Transfers


@dataclass
class Offer:
    """One ``prepare_store`` call: what was offered, and what the pool answered."""

    r: str
    keys: list[bytes]
    taken: list[bytes] | None
    """Keys to transfer, or None: refused."""
    slots: list[int]
    target: Any
    """The answer's ``store_spec``: the job made of this offer names the same object."""
    cursors: list[int]
    """``next_stored_chunk_idx`` of each group at the time of the offer."""


class WatchedManager(CPUOffloadingManager):  # type: ignore[misc]
    """The release's host pool; keeps a list of the offers put to it."""

    def watch(self, cursors: Callable[[str], list[int]]) -> None:
        self.offers: list[Offer] = []
        self.refuse_next = 0
        self.cursors = cursors

    def prepare_store(self, keys: Any, req_context: Any) -> Any:
        r = req_context.req_id
        offered = list(keys)
        offer = Offer(r, offered, None, [], None, self.cursors(r))
        if self.refuse_next > 0:
            # The contract: None "is returned if the blocks cannot be stored".
            self.refuse_next -= 1
            self.offers.append(offer)
            return None
        answer = super().prepare_store(offered, req_context)
        if answer is not None:
            offer.taken = list(answer.keys_to_store)
            offer.target = answer.store_spec
            offer.slots = [int(slot) for slot in answer.store_spec.block_ids]
        self.offers.append(offer)
        return answer


class GhostWorker(OffloadingWorker):  # type: ignore[misc]
    """A worker whose transfers move tags; see ``ghost``."""

    def __init__(self, transfers: Transfers, describe: Callable[[Job, Any], None]) -> None:
        self.transfers = transfers
        self.describe = describe

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._submit(job_id, True, src_spec, dst_spec, dst_spec)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any,
                    expedited: bool = False) -> bool:
        self._submit(job_id, False, dst_spec, src_spec, src_spec)
        return True

    def _submit(self, job_id: int, store: bool, gpu: Any, host: Any, spec: Any) -> None:
        job = Job(job_id, store, gpu.block_ids.tolist(), host.block_ids.tolist(),
                  list(gpu.group_sizes), list(gpu.block_indices))
        self.describe(job, spec)
        self.transfers.submit(job)

    def get_finished(self) -> list[Any]:
        return [TransferResult(job_id=job, success=True) for job in self.transfers.collect()]

    def wait(self, job_ids: set[int]) -> None:
        self.transfers.wait(job_ids)

    def shutdown(self) -> None:
        pass


@dataclass
class Parts:
    """What the spec hands out; set by ``build`` just before vLLM asks for it."""

    manager: WatchedManager
    worker: GhostWorker


parts: list[Parts] = []


class HeadlessSpec(OffloadingSpec):  # type: ignore[misc]
    """Named in ``kv_connector_extra_config``; made once for each side of the connector."""

    def get_manager(self) -> Any:
        return parts[-1].manager

    def get_worker(self, kv_caches: Any) -> Any:
        return parts[-1].worker
