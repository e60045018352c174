"""``kvoracle fuzz``: random runs against one engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import exits
from ..campaign import Campaign, Runner
from ..console import Status, out, write_json
from ..engines.registry import EngineUnavailable, open_engine
from ..explain import text
from ..workload import DEFAULT, profile

DEFAULT_STEPS = 5000


def run(arguments: argparse.Namespace) -> int:
    """Run a profile's workload until its steps or seconds are used up."""
    chosen = profile(arguments.profile or DEFAULT)
    steps = arguments.steps
    if steps is None and arguments.budget is None:
        steps = DEFAULT_STEPS
    try:
        engine = open_engine(arguments.engine)
    except EngineUnavailable as missing:
        raise exits.UserError(str(missing), exits.UNJUDGED) from None
    status = Status()
    runner = Runner(
        arguments.engine, engine, Path(arguments.out),
        lambda what, i, n, found: status.show(f"run {i}: {what}; {found} findings"))
    try:
        runner.generated([chosen], arguments.seed, None, steps, arguments.budget)
    finally:
        engine.close()
        status.clear()
    report(runner.campaign)
    if arguments.json:
        write_json(arguments.json, {"kvoracle": 1, "kind": "fuzz", **data(runner.campaign)})
    return code(runner.campaign)


def report(campaign: Campaign) -> None:
    """A campaign in words."""
    for found in campaign.reported:
        out(text(found.explanation))
        out(f"met {found.times} times" if found.times > 1 else "met once")
        out()
    out(f"{campaign.version or campaign.engine}: {campaign.runs} runs, {campaign.steps} steps, "
        f"{campaign.judged} events judged, {campaign.stored} stored and {campaign.read} read "
        f"positions compared: {_verdict(campaign)}")
    for reason, times in campaign.not_judged.items():
        out(f"not judged, {times} runs: {reason}")
    for label in campaign.unstable:
        out(f"not judged, a failure that does not repeat: {label}")
    if campaign.unseen:
        out(f"not seen, and so not judged: {', '.join(campaign.unseen)}")


def _verdict(campaign: Campaign) -> str:
    n = len(campaign.findings)
    return "nothing found" if n == 0 else f"{n} finding" + ("s" if n > 1 else "")


def code(campaign: Campaign) -> int:
    """The exit code of a campaign."""
    if campaign.findings:
        return exits.VIOLATION
    if campaign.unstable or campaign.runs == 0:
        return exits.UNJUDGED
    return exits.HOLDS


def data(campaign: Campaign) -> dict[str, Any]:
    """A campaign as plain data."""
    return {
        "engine": campaign.engine, "version": campaign.version, "runs": campaign.runs,
        "steps": campaign.steps, "judged": campaign.judged, "stored": campaign.stored,
        "read": campaign.read, "evaluated": campaign.evaluated,
        "not_judged": campaign.not_judged, "unstable": campaign.unstable,
        "unseen": list(campaign.unseen),
        "findings": [
            {**f.explanation.to_json(), "times": f.times, "found_in": f.found_in,
             "file": str(f.file) if f.file else None}
            for f in campaign.reported
        ],
    }
