"""How is the engine watched?  Through vLLM's own extension points, without patching it.

``OffloadingConnector`` loads the spec named in its config from any module
(``spec_module_path``).  This one hands it the release's real host pool, with ``prepare_store``
overridden to write down each offer and its answer, and a worker whose copies are ghosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .ghost import Job, Transfers
from .shims.release import Release


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
    """The cursor of each group at the time of the offer."""


class Offers:
    """What is put to the host pool, and how often it shall refuse."""

    def __init__(self, cursors: Callable[[str], list[int]]) -> None:
        self.made: list[Offer] = []
        self.refuse_next = 0
        self.cursors = cursors


def watched_pool(release: Release, arguments: dict[str, Any], offers: Offers) -> Any:
    """The release's host pool; each offer put to it is written down."""

    class WatchedPool(release.manager_class()):  # type: ignore[misc]
        def prepare_store(self, keys: Any, *rest: Any) -> Any:
            r = release.offerer(rest)
            offered = list(keys)
            offer = Offer(r, offered, None, [], None, offers.cursors(r))
            if offers.refuse_next > 0:
                # The contract: None "is returned if the blocks cannot be stored".
                offers.refuse_next -= 1
                offers.made.append(offer)
                return None
            answer = super().prepare_store(offered, *rest)
            if answer is not None:
                offer.taken = release.taken(answer)
                offer.target = answer.store_spec
                offer.slots = [int(slot) for slot in answer.store_spec.block_ids]
            offers.made.append(offer)
            return answer

    return WatchedPool(**arguments)


class Copies:
    """One worker's transfers, told in the release's words and done by ghosts (``ghost``)."""

    def __init__(self, release: Release, transfers: Transfers, blocks_per_chunk: int,
                 describe: Callable[[Job, Any], None]) -> None:
        self.release = release
        self.transfers = transfers
        self.blocks_per_chunk = blocks_per_chunk
        self.describe = describe

    def submit(self, job_id: int, store: bool, gpu: Any, host: Any) -> None:
        sizes, firsts = self.release.layout(gpu, host, store, self.blocks_per_chunk)
        job = Job(job_id, store, gpu.block_ids.tolist(), host.block_ids.tolist(), sizes, firsts)
        self.describe(job, host)
        self.transfers.submit(job)

    def finished(self) -> list[int]:
        return self.transfers.collect()

    def wait(self, jobs: Iterable[int]) -> None:
        self.transfers.wait(jobs)


@dataclass
class Parts:
    """What the spec hands out; set by ``build`` just before vLLM asks for it."""

    manager: Any
    worker: Any = None


parts: list[Parts] = []

HeadlessSpec: Any = None
"""Named in ``kv_connector_extra_config``; made for the release by ``build``."""
