"""Runs stimuli through an engine under the judge: one run, one outcome.

A run ends at the first finding.  Everything said and seen is kept, so that it can be
shrunk, explained and replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .diagnose import Diagnosis, with_diagnosis
from .engines.protocol import Engine
from .events import AnyObservation, AnyStimulus, Config
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


def play(engine: Engine, config: Config, stimuli: Iterable[AnyStimulus]) -> Outcome:
    """Start the engine afresh, give it the stimuli, judge each answer."""
    judge = Judge(config)
    outcome = Outcome(config, judge=judge)
    hello = engine.start(config)
    outcome.engine = " ".join(
        f"{o.engine} {o.version}".strip() for o in hello if hasattr(o, "engine"))
    finding = judge.judge(hello, -1)
    for at, stimulus in enumerate(stimuli):
        if finding is not None:
            break
        seen = engine.send(stimulus)
        outcome.log.append((stimulus, seen))
        finding = judge.judge(seen, at)
    if finding is not None:
        outcome.finding, outcome.diagnoses = with_diagnosis(finding, judge)
    return outcome


def same(a: Sequence[AnyObservation], b: Sequence[AnyObservation]) -> bool:
    """Whether two answers are the same, as they must be for the same stimuli."""
    return list(a) == list(b)
