"""Runs stimuli through an engine under the judge: one run, one outcome.

A run ends at the first finding.  Everything said and seen until then is kept, so that it can
be shrunk, explained and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from .diagnose import Diagnosis, with_diagnosis
from .engines.protocol import BadStimulus, Engine
from .events import AnyObservation, AnyStimulus, Config, Hello, Rejected
from .judge import Finding, Judge


@dataclass
class Outcome:
    """What a run came to.  ``log`` pairs each stimulus given with what was seen of it."""

    config: Config
    log: list[tuple[AnyStimulus, list[AnyObservation]]] = field(default_factory=list)
    finding: Finding | None = None
    diagnoses: list[Diagnosis] = field(default_factory=list)
    judge: Judge | None = None
    engine: str = ""

    @property
    def stimuli(self) -> tuple[AnyStimulus, ...]:
        """The stimuli given, up to the one that led to the finding."""
        return tuple(s for s, _ in self.log)


AHEAD = 32
"""Stimuli sent before their answers are judged: saves waiting between two processes."""


Watch = Callable[[Judge], None]
"""Shown the judge after each answer that it judged."""


def play(engine: Engine, config: Config, stimuli: Iterable[AnyStimulus],
         watch: Watch | None = None, overlook: frozenset[str] = frozenset()) -> Outcome:
    """Start the engine afresh, give it the stimuli, judge each answer but for ``overlook``.

    Raises `BadStimulus` for a run that makes no sense for the engine.
    """
    every = list(stimuli)
    try:
        return _play(engine, config, every, AHEAD, watch, overlook)
    except BadStimulus:
        # Sent ahead, it may come after what the run is about: one at a time, then.
        return _play(engine, config, every, 1, watch, overlook)


def _play(engine: Engine, config: Config, stimuli: Iterable[AnyStimulus], ahead: int,
          watch: Watch | None, overlook: frozenset[str]) -> Outcome:
    judge = Judge(config)
    judge.overlook = overlook
    outcome = Outcome(config, judge=judge)
    hello = engine.start(config)
    outcome.engine = " ".join(
        f"{o.engine} {o.version}".strip() for o in hello if isinstance(o, Hello))
    finding = judge.judge(hello, -1)
    waiting = iter(stimuli)
    while finding is None:
        batch = list(islice(waiting, ahead))
        if not batch:
            break
        for stimulus, seen in zip(batch, engine.send_all(batch)):
            before = judge.judged
            finding = judge.judge(seen, len(outcome.log))
            outcome.log.append((stimulus, _told(seen, judge.judged - before)))
            if watch is not None:
                watch(judge)
            if finding is not None:
                break
    if finding is not None:
        outcome.finding, outcome.diagnoses = with_diagnosis(
            finding, judge, outcome.log[-1][0] if outcome.log else None)
    return outcome


def _told(seen: Sequence[AnyObservation], judged: int) -> list[AnyObservation]:
    """What was seen up to the finding.  A rejection that comes with it was judged with it."""
    rest = seen[judged:judged + 1]
    return [*seen[:judged], *(o for o in rest if isinstance(o, Rejected))]
