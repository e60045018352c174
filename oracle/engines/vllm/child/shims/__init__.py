"""What differs between releases: one class for each range, each a small change of the next newer.

``release.Release`` drives the newest contract.  A class beside it names the first release of its
range and overrides only what the fact in its docstring forced.  A release newer than all of them
is tried with the newest; what it must have for that is checked once by ``lacking``, so that a
contract that moved shows as one clear sentence.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from .release import Release

RANGES: tuple[tuple[tuple[int, int, int], str], ...] = (
    ((0, 31, 0), "release:Release"),
    ((0, 30, 0), "since_0_26:Since030"),
    ((0, 28, 0), "since_0_26:Since028"),
    ((0, 26, 0), "since_0_26:Since026"),
    ((0, 25, 0), "since_0_25:Since025"),
    ((0, 24, 0), "since_0_21:Since024"),
    ((0, 23, 0), "since_0_21:Since023"),
    ((0, 22, 0), "since_0_21:Since022"),
    ((0, 21, 0), "since_0_21:Since021"),
    ((0, 20, 0), "since_0_19:Since020"),
    ((0, 19, 0), "since_0_19:Since019"),
    ((0, 18, 0), "since_0_11:Since018"),
    ((0, 17, 0), "since_0_11:Since017"),
    ((0, 16, 0), "since_0_11:Since016"),
    ((0, 14, 0), "since_0_11:Since014"),
    ((0, 12, 0), "since_0_11:Since012"),
    ((0, 11, 1), "since_0_11:Since0111"),
    ((0, 11, 0), "since_0_11:Since011"),
)
"""First release of each range and its class, newest first.  Imported when picked: what a class
imports from vLLM exists in its own range only."""

NEWEST_KNOWN = "0.33"
"""The newest minor release that the newest class was written for."""


def numbers(version: str) -> tuple[int, ...]:
    """``0.33.0rc1+cpu`` as ``(0, 33, 0)``; a checkout, which has no release's number, is newest."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    found = tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    return found if found > (0, 1) else (9999, 0, 0)


def pick(version: str) -> Release | None:
    """What drives a release; None if it is older than all of them."""
    mine = numbers(version)
    for since, where in RANGES:
        if mine >= since:
            module, name = where.split(":")
            found: type[Release] = getattr(
                importlib.import_module(f"{__package__}.{module}"), name)
            return found()
    return None


def is_newest(release: Release) -> bool:
    """Whether this is the class that unknown releases are tried with."""
    return type(release) is Release


SCHEDULER = ("requests", "running", "has_requests", "finish_requests", "update_draft_token_ids")


def lacking(release: Release, scheduler: Any) -> list[str]:
    """Names this adapter reads that a built engine does not have."""
    connector = getattr(scheduler, "connector", None)
    planner = getattr(connector, "connector_scheduler", None)
    if planner is None:
        return ["Scheduler.connector.connector_scheduler"]
    wanted = [(planner, release.PLANNER), (scheduler, SCHEDULER),
              (release.mixin(), release.MIXIN)]
    return [f"{getattr(thing, '__name__', type(thing).__name__)}.{name}"
            for thing, names in wanted for name in names if not hasattr(thing, name)]


def lacking_state(release: Release, status: Any) -> list[str]:
    """The same of the planner's state of one request."""
    missing = [f"{type(status).__name__}.{name}" for name in release.REQUEST_STATE
               if not hasattr(status, name)]
    for group in getattr(status, "group_states", ())[:1]:
        missing += [f"{type(group).__name__}.{name}"
                    for name in ("offload_keys", "block_ids", release.CURSOR)
                    if not hasattr(group, name)]
    return missing
