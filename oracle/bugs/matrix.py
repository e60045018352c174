"""Bugs by releases: what the code of a release says, held against what is found in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial

from kvoracle.oracle.engines.process import EngineError
from kvoracle.oracle.engines.protocol import BadStimulus
from kvoracle.oracle.engines.registry import EngineUnavailable, open_engine
from kvoracle.oracle.engines.vllm import environment
from kvoracle.oracle.events import Config, Group
from kvoracle.oracle.workload import profile

from . import BUGS, PRESENT, Bug, Source, named
from .hunt import Hunt, Met, hunt

FOUND, MISSED, CLEAN, ALARM = "found", "not found", "clean", "alarm"
NOT_EXPRESSIBLE, CANNOT_RUN = "not expressible", "cannot run"


@dataclass(frozen=True)
class Cell:
    """One bug in one release.  ``code``: what the release's text says; ``verdict``: what came of
    looking for it; ``steps`` and ``seconds``: what that took, where it was found."""

    bug: str
    release: str
    code: str
    verdict: str
    steps: int = 0
    seconds: float = 0.0
    because: str = ""

    @property
    def right(self) -> bool:
        """Whether what was found is what the code says."""
        return self.verdict in (FOUND, CLEAN)


@dataclass
class Release:
    """What came of hunting through one release."""

    version: str
    hunts: list[Hunt] = field(default_factory=list)
    failed: str = ""
    started: float = 0.0

    def unexplained(self, bugs: Iterable[Bug]) -> list[Met]:
        """What was met and is none of the bugs."""
        every = list(bugs)
        return [m for h in self.hunts for m in h.met.values() if not any(b.met(m) for b in every)]


def _all_met(names: Sequence[str], found: Hunt) -> bool:
    return all(any(named(n).met(m) for m in found.met.values()) for n in names)


def drive(version: str, names: Sequence[str], seed: int, seconds: float) -> Release:
    """Hunt through one release with the profiles of the bugs.

    A profile ends early when each of the bugs that it is for has been met: nothing in it depends
    on what the release's code says.
    """
    result = Release(version)
    profiles = list(dict.fromkeys(p for n in names for p in named(n).profiles))
    try:
        engine = open_engine(f"vllm=={version}")
    except EngineUnavailable as missing:
        result.failed = str(missing)
        return result
    try:
        try:
            engine.start(Config((Group(4),)))  # importing vLLM is nothing that a bug takes
        except BadStimulus as refused:
            result.failed = str(refused)
            return result
        for name in profiles:
            mine = [n for n in names if name in named(n).profiles]
            result.hunts.append(hunt(engine, profile(name), seed, seconds,
                                     partial(_all_met, mine)))
    except EngineError as gone:
        result.failed = str(gone)
    finally:
        engine.close()
    return result


def drive_all(versions: Sequence[str], names: Sequence[str], seed: int, seconds: float, jobs: int,
              told: Callable[[Release], None]) -> list[Release]:
    """Every release, ``jobs`` at a time."""
    results = {}
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {pool.submit(drive, v, list(names), seed, seconds): v for v in versions}
        for done in as_completed(waiting):
            results[waiting[done]] = done.result()
            told(results[waiting[done]])
    return [results[v] for v in versions]


def cell(bug: Bug, release: Release) -> Cell:
    """One bug in one release."""
    code = bug.code(Source(environment.overlay(release.version)))
    mine = [h for h in release.hunts if h.profile in bug.profiles]
    every = [m for h in release.hunts for m in h.met.values()]
    alike = any(named(other).met(m) for other in bug.unless for m in every)
    met = min((m for h in mine for m in h.met.values() if bug.met(m) and not alike),
              key=lambda m: m.seconds, default=None)
    verdict = FOUND if code == PRESENT else ALARM
    if met is not None:
        return Cell(bug.name, release.version, code, verdict, met.steps, met.seconds,
                    met.finding.because)
    if release.failed and not any(h.judged for h in mine):
        return Cell(bug.name, release.version, code, CANNOT_RUN, because=release.failed)
    able = any(set(bug.needs) <= h.features for h in mine)
    if not able:
        return Cell(bug.name, release.version, code,
                    CLEAN if code != PRESENT else NOT_EXPRESSIBLE,
                    because=f"no run with {', '.join(bug.needs)} could be made" if bug.needs
                    else "no run could be made")
    return Cell(bug.name, release.version, code, MISSED if code == PRESENT else CLEAN)


def cells(bugs: Sequence[Bug], releases: Sequence[Release]) -> list[list[Cell]]:
    """Bugs by releases."""
    return [[cell(b, r) for r in releases] for b in bugs]


__all__ = ["BUGS", "Cell", "Release", "cell", "cells", "drive", "drive_all"]
