"""What is found in an engine by runs that know nothing of what they look for?

One engine meets the runs of each profile for some seconds.  A run ends at its first finding, and
whatever is found for the first time is kept with the steps and seconds that it took.  Every other
run goes on behind what was met before, so that a fault in every run does not hide one in a few.
Nothing is shrunk: that is for `fuzz`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvoracle.oracle.engines.process import EngineError
from kvoracle.oracle.engines.protocol import BadStimulus, Engine
from kvoracle.oracle.events import Config, Keys, Step
from kvoracle.oracle.explain import features
from kvoracle.oracle.judge import Finding
from kvoracle.oracle.observed import DIRECT
from kvoracle.oracle.session import Outcome, play
from kvoracle.oracle.shrink import FailureKey, failure_key
from kvoracle.oracle.workload import Generated, Profile
from kvoracle.oracle.workload import runs as runs_of

AT_REST = ("NoStall", "NoLeak")
BEHIND = (*DIRECT, *AT_REST)
"""What is seen directly, and no consequence of what was overlooked in the plans or the bytes."""


@dataclass(frozen=True)
class Met:
    """A failure met for the first time: how it was found, after how many steps and seconds of
    its profile's runs.  ``history``: the kinds of observation made of the request it is about."""

    finding: Finding
    config: Config
    profile: str
    run: int
    steps: int
    seconds: float
    history: frozenset[str] = frozenset()


@dataclass
class Hunt:
    """One engine's hunt through one profile.  ``refused``: runs that the engine cannot do, by
    reason; ``features``: what was special about those it did; ``failed``: why it ended early."""

    profile: str
    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    met: dict[FailureKey, Met] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)
    failed: str = ""

    @property
    def judged(self) -> int:
        """Runs that the engine did."""
        return self.runs - sum(self.refused.values())


def hunt(engine: Engine, profile: Profile, seed: int, seconds: float,
         enough: Callable[[Hunt], bool] = lambda _: False) -> Hunt:
    """Run one profile for ``seconds``, or until ``enough`` says so."""
    found = Hunt(profile.name)
    begun = time.monotonic()
    try:
        for run in runs_of([profile], seed):
            found.seconds = time.monotonic() - begun
            if found.seconds >= seconds or enough(found):
                break
            _one(engine, run, found, begun)
    except EngineError as gone:
        found.failed = str(gone)
    found.seconds = time.monotonic() - begun
    return found


def _one(engine: Engine, run: Generated, found: Hunt, begun: float) -> None:
    found.runs += 1
    # Behind a crash, or at rest, there is nothing more.
    overlook = frozenset(k.property or k.what for k in found.met
                         if k.kind != "crash" and k.property not in AT_REST) \
        if found.runs % 2 == 0 else frozenset()
    stimuli = run.stimuli
    if found.runs % 2 == 0 and any(k.kind == "crash" for k in found.met):
        # The surest way to die of a plan is a key that comes late.
        stimuli = tuple(s for s in stimuli if not isinstance(s, Keys))
    try:
        outcome = play(engine, run.config, stimuli, overlook=overlook)
    except BadStimulus as bad:
        reason = str(bad).splitlines()[0]
        found.refused[reason] = found.refused.get(reason, 0) + 1
        return
    found.steps += _steps(outcome)
    found.features |= features(run.config, stimuli)
    finding = outcome.finding
    if finding is None or (overlook and finding.property not in BEHIND):
        return
    key = failure_key(finding)
    if key not in found.met:
        found.met[key] = Met(finding, run.config, found.profile, found.runs - 1, found.steps,
                             time.monotonic() - begun, _history(outcome, finding.r))


def _history(outcome: Outcome, r: str) -> frozenset[str]:
    return frozenset(str(o.__struct_config__.tag) for _, seen in outcome.log for o in seen
                     if r and getattr(o, "r", None) == r)


def _steps(outcome: Outcome) -> int:
    return sum(s.n for s in outcome.stimuli if isinstance(s, Step))
