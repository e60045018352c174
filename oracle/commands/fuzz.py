"""``kvoracle fuzz``: random runs against one engine."""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import exits
from ..campaign import Campaign
from ..cluster import NoCluster, RayWorkers
from ..console import Status, need_writable, note, out, write_json
from ..engines.registry import EngineUnavailable, open_engine
from ..explain import text
from ..fleet import Fleet, Inline, Job, LocalWorkers, OtherEngine, Seen, Workers
from ..journal import Journal, JournalRefused
from ..scenario import read
from ..workload import DEFAULT, PROFILES, profile

DEFAULT_STEPS = 5000


def run(arguments: argparse.Namespace) -> int:
    """Run the workloads of the profiles until their steps or seconds are used up."""
    chosen = dict.fromkeys(arguments.profile or [DEFAULT])
    names = tuple(PROFILES) if "all" in chosen else tuple(profile(p).name for p in chosen)
    steps = arguments.steps
    if steps is None and arguments.budget is None:
        steps = DEFAULT_STEPS
    available(arguments.engine)
    guided = arguments.guided or arguments.corpus is not None
    job = Job(arguments.engine, names, arguments.seed, arguments.out, guided)
    before = _corpus(arguments.corpus)
    status = Status()
    live = Live(status)
    try:
        journal = None if arguments.journal is None else Journal(
            Path(arguments.journal), job.engine, job.profiles, job.seed, guided)
        workers = _workers(arguments)
    except (JournalRefused, NoCluster) as refused:
        raise exits.UserError(str(refused)) from None
    interrupted = False
    try:
        fleet = Fleet(job, workers, journal, live.show, before)
        try:
            fleet.play(None, steps, arguments.budget)
        except KeyboardInterrupt:  # what was found until then is not thrown away
            interrupted = True
            workers.close()
            workers = fleet.workers = _workers(arguments)
            fleet.forget_under_way()
            fleet.campaign.stopped = "interrupted"
            status.clear()
            note("interrupted; what was found until now is examined")
        fleet.examine()
    except (JournalRefused, OtherEngine) as refused:
        raise exits.UserError(str(refused)) from None
    except EngineUnavailable as missing:  # on another machine than this
        raise exits.UserError(str(missing), exits.UNJUDGED) from None
    finally:
        status.clear()
        workers.close()
    if arguments.corpus is not None:
        _keep(arguments.corpus, fleet)
    report(fleet.campaign)
    ends = code(fleet.campaign)
    if interrupted and ends != exits.VIOLATION:
        ends = exits.INTERRUPTED
    if arguments.json is not None:
        write_json(arguments.json, {
            "kvoracle": 1, "kind": "fuzz", "exit_code": ends, **data(fleet.campaign)})
    return ends


def _corpus(folder: str | None) -> list[str]:
    """The runs kept in a folder, by name."""
    if folder is None:
        return []
    need_writable(folder, folder=True)
    files = sorted(Path(folder).glob("*.jsonl")) if Path(folder).is_dir() else []
    return [read(file).text() for file in files]


def _keep(folder: str, fleet: Fleet) -> None:
    """Write the runs that led to something new, each under a name of its content."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for kept in fleet.led_somewhere():
            name = hashlib.sha256(kept.text.encode()).hexdigest()[:16]
            Path(folder, f"{name}.jsonl").write_text(kept.text, "utf-8")
    except OSError as error:
        fleet.campaign.unwritten.append(f"{error.filename}: {error.strerror}")


def available(engine: str) -> None:
    """Before any work: raises `UserError` for an engine that is not there."""
    try:
        open_engine(engine).close()
    except EngineUnavailable as missing:
        raise exits.UserError(str(missing), exits.UNJUDGED) from None


def _workers(arguments: argparse.Namespace) -> Workers:
    if arguments.ray is not None:
        return RayWorkers(arguments.ray)
    return Inline() if arguments.jobs == 1 else LocalWorkers(arguments.jobs)


class Live:
    """The line that shows how a campaign goes on, once a second."""

    def __init__(self, status: Status) -> None:
        self._status, self._started = status, time.monotonic()
        self._steps: int | None = None

    def show(self, seen: Seen) -> None:
        """Runs and steps done, how quick that is, and the failures told apart."""
        if self._steps is None:
            self._steps = seen.steps  # those of the journal took no time now
        rate = (seen.steps - self._steps) / max(time.monotonic() - self._started, 1e-9)
        self._status.show(
            f"{seen.phase}: {count(seen.runs, 'run')}, {count(seen.steps, 'step')}, "
            f"{rate:,.0f} steps/s, {seen.under_way} batches under way, "
            f"{count(seen.failures, 'kind')} of failure")


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
        runs = f", {count(times, 'run')}" if times else ""
        out(f"not judged{runs}: {' '.join(reason.split())}")
    for failure in campaign.unstable:
        again = f"; to play it again: {failure.replay}" if failure.replay else ""
        out(f"not judged, a failure that did not repeat in {failure.found_in}: "
            f"{' '.join(failure.what.split())}{again}")
    if campaign.stopped:
        out(f"not everything was run: {campaign.stopped}")
    if campaign.unfollowed:
        out("judged by bytes, deaths and leftovers alone: " + ", ".join(campaign.unfollowed))
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
        "unseen": list(campaign.unseen), "unfollowed": list(campaign.unfollowed),
        "findings": [
            {**f.explanation.to_json(), "times": f.times, "found_in": f.found_in,
             "file": str(f.file) if f.file else None}
            for f in campaign.reported
        ],
    }
