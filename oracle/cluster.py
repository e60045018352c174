"""The processes of a campaign on many machines, by Ray.

Each machine needs kvoracle and the engine under test; Ray finds the machines, hands out the
tasks, and gives those of a machine that is gone to another one.
"""

from __future__ import annotations

import importlib
import logging
import socket
from collections.abc import Callable
from typing import Any

from .fleet import ATTEMPTS, Died


class NoCluster(Exception):
    """There is no Ray, or no cluster at the address; the message says what to do."""


SECONDS = 5.0
"""For an answer from the cluster's head: Ray itself would wait for minutes."""


def _reach(address: str) -> None:
    """Whether somebody listens at ``host:port``; other addresses are Ray's to resolve."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), SECONDS).close()
        except (OSError, OverflowError) as error:
            raise NoCluster(f"no Ray cluster at {address!r}: {error}") from None


class RayWorkers:
    """As many processes as the cluster at ``address`` has processors.

    ``address`` is Ray's ("auto": the cluster that this machine belongs to; "local": a new one,
    of this machine alone).  Raises `NoCluster`.
    """

    def __init__(self, address: str) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError:
            raise NoCluster("campaigns on a cluster need Ray: pip install 'kvoracle[ray]'") \
                from None
        self._ray = ray
        _reach(address)
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise NoCluster(f"no Ray cluster at {address!r}: {reason}") from None
        self.size = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._given: dict[Any, object] = {}

    def give(self, task: object, call: Callable[..., Any], *arguments: Any) -> None:
        remote = self._ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(call)
        self._given[remote.remote(*arguments)] = task

    def done(self, seconds: float) -> list[tuple[object, Any]]:
        ready, _ = self._ray.wait(list(self._given), timeout=seconds)
        return [(self._given.pop(one), self._result(one)) for one in ready]

    def _result(self, one: Any) -> Any:
        try:
            return self._ray.get(one)
        except self._ray.exceptions.RayTaskError as error:
            return error.cause if isinstance(error.cause, Exception) else error
        except self._ray.exceptions.RayError:  # the worker or its machine is gone, again and again
            return Died()

    def close(self) -> None:
        self._ray.shutdown()
