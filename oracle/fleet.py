"""A campaign in many processes: of this machine, or of many machines with Ray.

The runs of a seed are numbered.  Processes play them in batches, wherever there is room, and
tell which of them failed; what failed is then examined (repeated, shrunk, explained), of each
kind of failure the run with the lowest number.  So what is found does not depend on how many
processes there are, or on which of them was quicker.

Every batch that is done goes into a journal, from which a campaign that was interrupted goes on.
A process that dies takes nothing with it but the batch that it was playing, which another one
plays again.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

from .campaign import MOST_LOST, Campaign, Met, Reported, Runner, Unstable, given_up, write
from .engines.registry import open_engine
from .guide import FRESH, Corpus, Kept, changed
from .journal import Journal, Played
from .scenario import parse
from .session import Outcome
from .workload import Generated, Profile, label, numbered, profile

BATCH = 4
"""Runs that a process plays before it tells of them: some tenths of a second."""

ATTEMPTS = 3
"""Times that a batch is played whose process dies; then it is said and left out."""

ROUND = 8
"""Batches of a guided campaign that are made from one corpus."""

UNSTEADY = 3
"""Runs of one kind of failure that are examined until one of them repeats."""


@dataclass(frozen=True)
class Job:
    """What all the processes of a campaign do: play runs of these profiles against an engine.

    ``out`` is the folder that the findings' files will be in, as replay lines name it.
    """

    engine: str
    profiles: tuple[str, ...]
    seed: int
    out: str
    guided: bool = False


@dataclass(frozen=True)
class Examined:
    """A run that failed, examined: the finding, or that it does not repeat, and the files that
    are to be written of it."""

    finding: Reported | None
    unstable: tuple[Unstable, ...] = ()
    files: tuple[tuple[Path, str], ...] = ()


# --- in a process of the fleet -------------------------------------------------------------


class _Author(Runner):
    """Keeps what would be written: the files belong on the machine that gathers the findings."""

    def _write(self, outcome: Outcome, what: str) -> Path | None:
        named = self._named(outcome, what)
        if named is None:
            return None
        self.files.append(named)
        return named[0]

    @functools.cached_property
    def files(self) -> list[tuple[Path, str]]:
        """Paths, and what is to be written there."""
        return []


_engines: dict[str, Any] = {}


def _runner(job: Job) -> _Author:
    """A runner with this process's engine, which is opened once."""
    if job.guided:
        os.environ["KVORACLE_COVERAGE"] = "1"  # before the engine's own process begins
    if job.engine not in _engines:
        engine = _engines[job.engine] = open_engine(job.engine)
        atexit.register(engine.close)
    return _Author(job.engine, _engines[job.engine], Path(job.out))


def play_batch(job: Job, first: int, runs: int, corpus: Corpus | None = None) -> Played:
    """Play some runs, in order; with a corpus, runs made from it."""
    profiles = [profile(p) for p in job.profiles]
    runner = _runner(job)
    features = runner.features_for(profiles)
    batch = ((n, _run(job, profiles, n, corpus, features)) for n in range(first, first + runs))
    met, led = runner.meet(batch, corpus is not None)
    new = tuple(k for k in led if corpus is not None and not corpus.reached.keys() >= {*k.points})
    return Played(first, runs, runner.campaign, tuple(met), new)


def play_kept(job: Job, first: int, texts: Sequence[str]) -> Played:
    """Play runs that were kept, numbered from ``first``."""
    given = [parse(text, f"kept run {n}") for n, text in enumerate(texts, first)]
    batch = ((n, Generated("kept", n, one.header.config, one.stimuli))
             for n, one in enumerate(given, first))
    runner = _runner(job)
    met, led = runner.meet(batch, guided=True)
    return Played(first, len(texts), runner.campaign, tuple(met), tuple(led))


def _run(job: Job, profiles: Sequence[Profile], number: int, corpus: Corpus | None,
         features: Collection[str] | None) -> Generated:
    fresh = numbered(profiles, job.seed, number, features)
    if corpus is None or not corpus.kept:
        return fresh
    rng = random.Random(f"guided/{job.seed}/{number}")
    text = None if rng.random() < FRESH else changed(
        corpus, profiles[number % len(profiles)], rng, features)
    if text is None:
        return fresh
    made = parse(text, "changed")
    return Generated(fresh.profile, fresh.seed, made.header.config, made.stimuli)


def examine(job: Job, number: int, text: str = "") -> Examined:
    """Examine a run that failed, given by its number or as it is."""
    profiles = [profile(p) for p in job.profiles]
    runner = _runner(job)
    name = label(profiles, job.seed, number)
    if text:
        given = parse(text, "run")
        found = runner.examined(f"{name}, guided", given.header.config, given.stimuli)
    else:
        run = numbered(profiles, job.seed, number, runner.features_for(profiles))
        found = runner.examined(name, run.config, run.stimuli)
    return Examined(found, tuple(runner.campaign.unstable), tuple(runner.files))


# --- processes ------------------------------------------------------------------------------


class Died(Exception):
    """The process that had the task is gone, and with it the task."""


class Workers(Protocol):
    """Processes that do tasks.  A task that is given in is told of once, when it is done."""

    size: int

    def give(self, task: object, call: Callable[..., Any], *arguments: Any) -> None:
        """Have ``call`` done by some process."""
        ...

    def done(self, seconds: float) -> list[tuple[object, Any]]:
        """The tasks that are done by now, or soon, with what came of them: a result or an
        exception, `Died` where the process did."""
        ...

    def close(self) -> None:
        """Let the processes go, whatever they are doing."""
        ...


class Inline:
    """No further process: this one does each task when it is asked what is done."""

    size = 1

    def __init__(self) -> None:
        self._given: list[tuple[object, Callable[..., Any], tuple[Any, ...]]] = []

    def give(self, task: object, call: Callable[..., Any], *arguments: Any) -> None:
        self._given.append((task, call, arguments))

    def done(self, seconds: float) -> list[tuple[object, Any]]:
        task, call, arguments = self._given.pop(0)
        return [(task, call(*arguments))]

    def close(self) -> None:
        for engine in _engines.values():
            engine.close()
        _engines.clear()


class LocalWorkers:
    """Processes of this machine."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._given: dict[Future[Any], object] = {}
        self._pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.size, multiprocessing.get_context("spawn"), _deaf)

    def give(self, task: object, call: Callable[..., Any], *arguments: Any) -> None:
        self._given[self._pool.submit(call, *arguments)] = task

    def done(self, seconds: float) -> list[tuple[object, Any]]:
        ready, _ = wait(self._given, timeout=seconds, return_when=FIRST_COMPLETED)
        results: list[tuple[object, Any]] = []
        broken = False
        for future in [f for f in self._given if f in ready]:  # in the order they were given
            task, error = self._given.pop(future), future.exception()
            gone = isinstance(error, BrokenProcessPool)
            broken |= gone
            results.append((task, Died() if gone else error or future.result()))
        if broken:  # one process takes all the tasks of its pool with it
            results += [(task, Died()) for task in self._given.values()]
            self._given.clear()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._new()
        return results

    def close(self) -> None:
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _deaf() -> None:
    """An interrupt is for the process that gathers; it lets the others go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # closes the engine on its way


# --- the campaign -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """How far a campaign is: batches done and under way, failures told apart."""

    runs: int
    steps: int
    under_way: int
    failures: int
    phase: str


class Fleet:
    """Plays a campaign with workers and gathers what comes of it in `campaign`.

    ``before`` are runs that were kept of earlier campaigns, as scenarios' texts: they are played
    first.  A guided campaign goes in rounds: all the runs of one are made from the corpus as it
    was when the round began, so that it does not matter who plays what when.
    """

    def __init__(self, job: Job, workers: Workers, journal: Journal | None = None,
                 progress: Callable[[Seen], None] | None = None,
                 before: Sequence[str] = ()) -> None:
        self.job, self.workers, self.journal = job, workers, journal
        self.campaign = Campaign(job.engine)
        self._progress = progress or (lambda _: None)
        self._profiles = [profile(p) for p in job.profiles]
        self._failed: dict[tuple[object, ...], list[Met]] = {}
        self.before = tuple(before)
        self.corpus = Corpus() if job.guided else None
        self._led: list[Kept] = []
        self._round = -len(self.before) // (BATCH * ROUND) - 1
        self._known: set[tuple[int, int]] = set()
        self._under_way = 0
        for played in journal.played if journal is not None else ():
            self._add(played)

    # --- playing ---------------------------------------------------------------------------

    def play(self, runs: int | None, steps: int | None = None,
             seconds: float | None = None) -> None:
        """Play until ``runs``, ``steps`` or ``seconds`` are used up."""
        ends = None if seconds is None else time.monotonic() + seconds
        for batches in (self._kept_batches(), self._batches(runs, steps)):
            self._play((b for b in batches if b not in self._known), ends)

    def _play(self, waiting: Iterator[tuple[int, int]], ends: float | None) -> None:
        attempts: dict[object, int] = {}
        batch = next(waiting, None)
        while True:
            while batch is not None and self._has_room_for(batch, ends):
                self._give(batch)
                batch = next(waiting, None)
            if self._under_way == 0:
                return
            for task, result in self._done("playing"):
                if isinstance(result, Played):
                    self._add(result)
                    if self.journal is not None:
                        self.journal.append(result)
                    continue
                attempts[task] = attempts.get(task, 0) + 1
                if isinstance(result, Died) and attempts[task] < ATTEMPTS:
                    self._give(task)
                else:
                    self._give_up(task, result)

    def _has_room_for(self, batch: tuple[int, int], ends: float | None) -> bool:
        """Whether the batch is to be given to somebody now: not before its round."""
        if self.campaign.stopped or (ends is not None and time.monotonic() >= ends):
            return False
        if self.corpus is not None and self._round_of(batch[0]) > self._round:
            if self._under_way:
                return False
            self._round = self._round_of(batch[0])
            early = [k for k in self._led if self._round_of(k.number) < self._round]
            self._led = [k for k in self._led if self._round_of(k.number) >= self._round]
            for kept in sorted(early, key=lambda k: k.number):
                self.corpus.offer(kept)
        return self._under_way < 2 * self.workers.size

    @staticmethod
    def _round_of(number: int) -> int:
        return number // (BATCH * ROUND)

    def _kept_batches(self) -> Iterator[tuple[int, int]]:
        """The runs that were kept before, numbered below 0, the first of them lowest."""
        for first in range(-len(self.before), 0, BATCH):
            yield first, min(BATCH, -first)

    def led_somewhere(self) -> list[Kept]:
        """The runs of the corpus, those of the last round included."""
        assert self.corpus is not None
        for kept in sorted(self._led, key=lambda k: k.number):
            self.corpus.offer(kept)
        self._led = []
        return self.corpus.kept

    def forget_under_way(self) -> None:
        """The workers are gone with what they were doing."""
        self._under_way = 0

    def _batches(self, runs: int | None, steps: int | None) -> Iterator[tuple[int, int]]:
        """The first run and the number of runs of each batch, until there are so many runs or
        steps."""
        asked = 0
        for first in count(0, BATCH):
            size = 0
            while size < BATCH and (runs is None or first + size < runs) \
                    and (steps is None or asked < steps):
                if steps is not None:
                    asked += numbered(self._profiles, self.job.seed, first + size).steps
                size += 1
            if size == 0:
                return
            yield first, size

    def _give(self, batch: Any) -> None:
        self._under_way += 1
        first, runs = batch
        if first < 0:
            texts = self.before[first:first + runs or None]
            self.workers.give(batch, play_kept, self.job, first, texts)
        else:
            self.workers.give(batch, play_batch, self.job, first, runs, self.corpus)

    def _done(self, phase: str) -> list[tuple[object, Any]]:
        results = self.workers.done(seconds=1.0)
        self._under_way -= len(results)
        self._progress(Seen(self.campaign.runs, self.campaign.steps, self._under_way,
                            len(self._failed), phase))
        return results

    def _add(self, played: Played) -> None:
        known, new = self.campaign.version, played.figures.version
        if known and new and known != new:
            raise OtherEngine(f"{self.job.engine} was {known} and is {new} now: the runs before "
                              "and after are not one campaign; start a new journal")
        self.campaign.add(played.figures)
        if self.campaign.lost >= MOST_LOST:
            self.campaign.stopped = self.campaign.stopped or given_up(self.campaign.lost)
        self._known.add((played.first, played.runs))
        for met in played.met:
            self._failed.setdefault(met.key, []).append(met)
        self._led += played.led

    def _give_up(self, task: Any, result: Any) -> None:
        _, runs = task
        if not isinstance(result, Died):
            raise result
        reason = f"the process that played it died, {ATTEMPTS} times"
        self.campaign.not_judged[reason] = self.campaign.not_judged.get(reason, 0) + runs
        if self.campaign.not_judged[reason] >= MOST_LOST * BATCH:
            self.campaign.stopped = "given up: the processes that play the runs die"

    # --- examining --------------------------------------------------------------------------

    def examine(self) -> None:
        """Of each kind of failure, examine the first run that repeats."""
        waiting = {key: sorted(met, key=lambda m: m.number)[:UNSTEADY]
                   for key, met in self._failed.items()}
        found: dict[tuple[object, ...], tuple[int, Examined]] = {}
        unstable: list[tuple[int, Unstable]] = []
        for key in waiting:
            self._examine(key, 0, waiting[key])
        while self._under_way:
            for task, result in self._done("examining what was found"):
                key, n = cast("tuple[tuple[object, ...], int]", task)
                number = waiting[key][n].number
                if isinstance(result, Died):
                    result = Examined(None, (Unstable(
                        label(self._profiles, self.job.seed, number),
                        "the process that examined it died", ""),))
                elif not isinstance(result, Examined):
                    raise result
                for path, text in result.files:
                    write(self.campaign, path, text)
                if result.finding is not None:
                    found[key] = number, result
                    continue
                unstable += [(number, u) for u in result.unstable]
                if n + 1 < len(waiting[key]):
                    self._examine(key, n + 1, waiting[key])
        for key, (_, examined) in sorted(found.items(), key=lambda item: item[1][0]):
            self._gather(key, examined)
        self.campaign.unstable += [u for _, u in sorted(unstable, key=lambda each: each[0])]

    def _examine(self, key: tuple[object, ...], n: int, met: Sequence[Met]) -> None:
        self._under_way += 1
        self.workers.give((key, n), examine, self.job, met[n].number, met[n].text)

    def _gather(self, key: tuple[object, ...], examined: Examined) -> None:
        finding = examined.finding
        assert finding is not None
        self.campaign.findings[key] = replace(finding, times=len(self._failed[key]))


class OtherEngine(Exception):
    """The engine is not the one that the earlier runs of the campaign were played on."""
