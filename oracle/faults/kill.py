"""Is each fault caught, by which property, and how soon?  The same runs for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from kvoracle.oracle.engines.process import EngineError
from kvoracle.oracle.engines.protocol import BadStimulus, Engine
from kvoracle.oracle.events import Step
from kvoracle.oracle.judge import Finding
from kvoracle.oracle.session import Outcome, play
from kvoracle.oracle.shrink import failure_key
from kvoracle.oracle.workload import Generated, Profile
from kvoracle.oracle.workload import runs as runs_of

Open = Callable[[], Engine]


@dataclass(frozen=True)
class Trial:
    """What came of driving one engine until something was found.

    ``runs`` and ``steps``: until then, the run in which it was found included; ``seconds`` from
    a standing start.  ``steady``: it was found again when the run was played again.
    """

    name: str
    runs: int
    steps: int
    seconds: float
    finding: Finding | None = None
    found_in: str = ""
    steady: bool = True
    not_judged: int = 0
    failed: str = ""

    @property
    def killed(self) -> bool:
        """Whether the fault was caught, and is caught whenever it is looked for so."""
        return self.finding is not None and self.steady and not self.failed


def workload(profiles: Sequence[Profile], seed: int, runs: int) -> Iterator[tuple[str, Generated]]:
    """The runs that every fault meets, in turn of the profiles."""
    for i, run in enumerate(islice(runs_of(profiles, seed), runs)):
        yield f"{run.profile} {seed}/{i // len(profiles)}", run


def trial(name: str, start: Open, runs: Iterable[tuple[str, Generated]]) -> Trial:
    """Drive one engine with the runs until something is found."""
    begun = time.monotonic()
    done = steps = refused = 0
    try:
        engine = start()
    except EngineError as missing:
        return Trial(name, 0, 0, 0.0, failed=str(missing))
    try:
        for label, run in runs:
            done += 1
            try:
                outcome = play(engine, run.config, run.stimuli)
            except BadStimulus:
                refused += 1
                continue
            steps += _steps(outcome)
            if outcome.finding is not None:
                seconds = time.monotonic() - begun
                again = play(engine, run.config, run.stimuli)
                steady = again.finding is not None and again.stimuli == outcome.stimuli \
                    and failure_key(again.finding) == failure_key(outcome.finding)
                return Trial(name, done, steps, seconds, outcome.finding, label, steady, refused)
    except EngineError as gone:
        return Trial(name, done, steps, time.monotonic() - begun, not_judged=refused,
                     failed=str(gone))
    finally:
        engine.close()
    return Trial(name, done, steps, time.monotonic() - begun, not_judged=refused)


def _steps(outcome: Outcome) -> int:
    return sum(s.n for s in outcome.stimuli if isinstance(s, Step))


def trials(engines: Sequence[tuple[str, Open]], runs: Callable[[], Iterable[tuple[str, Generated]]],
           jobs: int, told: Callable[[Trial], None]) -> list[Trial]:
    """Each engine's trial, ``jobs`` at a time, in the order given; ``told`` as they end."""

    def one(named: tuple[str, Open]) -> Trial:
        result = trial(*named, runs())
        told(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, engines))
