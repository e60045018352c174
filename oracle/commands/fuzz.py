"""``kvoracle fuzz``: random runs against one engine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
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
    interrupted = False
    try:
        runner.generated([chosen], arguments.seed, None, steps, arguments.budget)
    except KeyboardInterrupt:  # what was found until then is not thrown away
        interrupted = True
        runner.campaign.stopped = "interrupted"
    finally:
        status.clear()
        engine.close()
    report(runner.campaign)
    ends = code(runner.campaign)
    if interrupted and ends != exits.VIOLATION:
        ends = exits.INTERRUPTED
    if arguments.json is not None:
        write_json(arguments.json, {
            "kvoracle": 1, "kind": "fuzz", "exit_code": ends, **data(runner.campaign)})
    return ends


def report(campaign: Campaign) -> None:
    """A campaign in words."""
    for found in campaign.reported:
        out(text(found.explanation))
        out(f"met {found.times} times" if found.times > 1 else "met once")
        out()
    for problem in campaign.unwritten:
        out(f"cannot write {problem}")
    out(summary(campaign))
    if campaign.runs == 0 and not campaign.not_judged and not campaign.stopped:
        out("not judged: not one run was made; the budget is too small")
    for reason, times in campaign.not_judged.items():
        out(f"not judged, {count(times, 'run')}: {' '.join(reason.split())}")
    for failure in campaign.unstable:
        again = f"; to play it again: {failure.replay}" if failure.replay else ""
        out(f"not judged, a failure that did not repeat in {failure.found_in}: "
            f"{' '.join(failure.what.split())}{again}")
    if campaign.stopped:
        out(f"not everything was run: {campaign.stopped}")
    if campaign.unseen:
        out(f"not seen, and so not judged: {', '.join(campaign.unseen)}")


def summary(campaign: Campaign) -> str:
    """A campaign in one line."""
    return (f"{campaign.version or campaign.engine}: {count(campaign.runs, 'run')}, "
            f"{count(campaign.steps, 'step')}, {count(campaign.judged, 'event')} judged, "
            f"{campaign.stored:,} stored and {campaign.read:,} read positions compared: "
            f"{_verdict(campaign)}")


def count(n: int, what: str) -> str:
    """``1 run``, ``1,200 runs``."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _verdict(campaign: Campaign) -> str:
    n = len(campaign.findings)
    if campaign.runs == 0:
        return "nothing judged"
    return "nothing found" if n == 0 else count(n, "finding")


def code(campaign: Campaign) -> int:
    """The exit code of a campaign."""
    if campaign.findings:
        return exits.VIOLATION
    if campaign.unstable or campaign.stopped or campaign.runs == 0:
        return exits.UNJUDGED
    return exits.HOLDS


def data(campaign: Campaign) -> dict[str, Any]:
    """A campaign as plain data."""
    return {
        "engine": campaign.engine, "version": campaign.version, "runs": campaign.runs,
        "steps": campaign.steps, "judged": campaign.judged, "stored": campaign.stored,
        "read": campaign.read, "evaluated": campaign.evaluated,
        "not_judged": campaign.not_judged, "unstable": [asdict(u) for u in campaign.unstable],
        "stopped": campaign.stopped, "unwritten": campaign.unwritten,
        "unseen": list(campaign.unseen),
        "findings": [
            {**f.explanation.to_json(), "times": f.times, "found_in": f.found_in,
             "file": str(f.file) if f.file else None}
            for f in campaign.reported
        ],
    }
