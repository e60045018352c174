"""What differs between releases, one module for each range, side by side.

A module states its range as ``SINCE`` and defines the same few functions as the others.
A release newer than the newest range is tried with the newest module; what it must have for
that is checked once by ``lacking``, so that a change shows as one clear sentence.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from . import since_0_26, since_0_30

RANGES: tuple[ModuleType, ...] = (since_0_30, since_0_26)
"""Newest first."""


def numbers(version: str) -> tuple[int, ...]:
    """``0.33.0rc1+cpu`` as ``(0, 33, 0)``; a checkout, which has no release's number, is newest."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    found = tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    return found if found > (0, 1) else (9999, 0, 0)


def pick(version: str) -> ModuleType | None:
    """The shim for a release; None if it is older than all of them."""
    mine = numbers(version)
    for shim in RANGES:
        if mine >= shim.SINCE:
            return shim
    return None


CONNECTOR_SCHEDULER = ("_req_status", "_jobs", "manager", "config")
REQUEST_STATE = ("group_states", "req", "transfer_jobs", "num_locally_computed_tokens")
GROUP_STATE = ("offload_keys", "block_ids", "next_stored_chunk_idx")


def lacking(scheduler: Any, mixin: Any) -> list[str]:
    """Names this adapter reads that a built engine does not have."""
    planner = getattr(getattr(scheduler, "connector", None), "connector_scheduler", None)
    if planner is None:
        return ["Scheduler.connector.connector_scheduler"]
    missing = [f"{type(planner).__name__}.{name}" for name in CONNECTOR_SCHEDULER
               if not hasattr(planner, name)]
    missing += [f"{mixin.__name__}.{name}"
                for name in ("kv_connector_no_forward", "maybe_get_kv_connector_output",
                             "finalize_kv_connector") if not hasattr(mixin, name)]
    missing += [f"Scheduler.{name}"
                for name in ("requests", "running", "has_requests", "finish_requests",
                             "reset_connector_cache", "update_draft_token_ids")
                if not hasattr(scheduler, name)]
    return missing


def lacking_state(status: Any) -> list[str]:
    """The same of the planner's state of one request."""
    missing = [f"{type(status).__name__}.{name}" for name in REQUEST_STATE
               if not hasattr(status, name)]
    for group in getattr(status, "group_states", ())[:1]:
        missing += [f"{type(group).__name__}.{name}" for name in GROUP_STATE
                    if not hasattr(group, name)]
    return missing
