"""Many runs against one engine: found, repeated, shrunk, told apart, written down.

What does not repeat is not reported as a finding but as what it is: something that does
not repeat.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .engines.protocol import BadStimulus, Engine
from .explain import Explanation, explain
from .scenario import Scenario, perform, recorded
from .session import Outcome, play
from .shrink import failure_key, shrink
from .workload import Generated, Profile, generate

Progress = Callable[[str, int, int, int], None]
"""Called with what is going on, runs done, runs in all (0: unknown), findings."""


@dataclass
class Reported:
    """A finding as it is reported: shrunk, explained, written to a file."""

    explanation: Explanation
    outcome: Outcome
    found_in: str
    file: Path | None
    times: int = 1


@dataclass
class Campaign:
    """What a campaign against one engine came to."""

    engine: str
    version: str = ""
    runs: int = 0
    steps: int = 0
    judged: int = 0
    stored: int = 0
    read: int = 0
    evaluated: dict[str, int] = field(default_factory=dict)
    findings: dict[object, Reported] = field(default_factory=dict)
    not_judged: dict[str, int] = field(default_factory=dict)
    unstable: list[str] = field(default_factory=list)
    unseen: tuple[str, ...] = ()

    @property
    def reported(self) -> list[Reported]:
        """The findings, in the order in which they were met."""
        return list(self.findings.values())

    def count(self, outcome: Outcome, steps: int) -> None:
        """Add a run's figures."""
        judge = outcome.judge
        assert judge is not None
        self.version = outcome.engine
        self.runs += 1
        self.steps += steps
        self.judged += judge.judged
        self.stored += judge.stored
        self.read += judge.read
        self.unseen = tuple(sorted(judge.unseen))
        for name, n in judge.evaluated.items():
            self.evaluated[name] = self.evaluated.get(name, 0) + n


class Runner:
    """Runs scenarios and generated runs against one engine and gathers what comes of it."""

    def __init__(self, name: str, engine: Engine, out: Path | None = None,
                 progress: Progress | None = None) -> None:
        self.name, self.engine, self.out = name, engine, out
        self.campaign = Campaign(name)
        self._progress = progress or (lambda *_: None)

    def scenarios(self, scenarios: Iterable[Scenario]) -> None:
        """Play named scenarios."""
        every = list(scenarios)
        for i, scenario in enumerate(every):
            self._progress(f"scenario {scenario.name}", i, len(every), self._found())
            self._try(f"scenario {scenario.name}", partial(perform, self.engine, scenario), 0)

    def generated(self, profiles: Iterable[Profile], seed: int, runs: int | None,
                  steps: int | None = None, seconds: float | None = None) -> None:
        """Runs of the profiles in turn, from consecutive seeds, until ``runs``, ``steps`` or
        ``seconds`` are used up."""
        ends = None if seconds is None else time.monotonic() + seconds
        begun = self.campaign.steps
        for i, run in enumerate(self._seeds(list(profiles), seed)):
            if runs is not None and i >= runs:
                break
            if steps is not None and self.campaign.steps - begun >= steps:
                break
            if ends is not None and time.monotonic() >= ends:
                break
            label = f"profile {run.profile} seed {run.seed}"
            self._progress(label, i, runs or 0, self._found())
            self._try(label, partial(play, self.engine, run.config, run.stimuli), run.steps)

    @staticmethod
    def _seeds(profiles: list[Profile], seed: int) -> Iterator[Generated]:
        i = 0
        while True:
            yield generate(profiles[i % len(profiles)], seed + i // len(profiles))
            i += 1

    def _found(self) -> int:
        return len(self.campaign.findings)

    def _try(self, label: str, run: Callable[[], Outcome], steps: int) -> None:
        try:
            outcome = run()
        except BadStimulus as bad:
            reason = str(bad)
            self.campaign.not_judged[reason] = self.campaign.not_judged.get(reason, 0) + 1
            return
        self.campaign.count(outcome, steps)
        if outcome.finding is None:
            return
        key = _key(outcome)
        if key in self.campaign.findings:
            self.campaign.findings[key].times += 1
            return
        again = run()
        if _key(again) != key or again.stimuli != outcome.stimuli:
            self.campaign.unstable.append(label)
            return
        self._progress(f"shrinking what {label} found", 0, 0, self._found())
        self.campaign.findings[key] = self._report(label, outcome)

    def _report(self, label: str, outcome: Outcome) -> Reported:
        shrunk = shrink(self.engine, outcome)
        name = _file_name(self.name, shrunk.outcome)
        scenario = recorded(shrunk.outcome, self.name, name)
        file = None
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            file = self.out / f"{name}.jsonl"
            file.write_text(scenario.text(), encoding="utf-8")
        replay = f"kvoracle replay {file or name + '.jsonl'} --engine {self.name}"
        given, left = len(outcome.log), len(shrunk.outcome.log)
        minimal = f"shrunk from {given} events to {left}, found in {label}" if given > left \
            else f"found in {label}"
        if shrunk.exhausted:
            minimal += "; shrinking stopped at its budget, a shorter run may exist"
        return Reported(explain(shrunk.outcome, replay, minimal), shrunk.outcome, label, file)


def _key(outcome: Outcome) -> object:
    return None if outcome.finding is None else failure_key(outcome.finding)


def _file_name(engine: str, outcome: Outcome) -> str:
    assert outcome.finding is not None
    content = repr((outcome.config, outcome.stimuli)).encode()
    plain = "".join(c if c.isalnum() or c in ".-" else "-" for c in engine)
    what = outcome.finding.property or outcome.finding.kind
    return f"{plain}-{what}-{hashlib.sha256(content).hexdigest()[:8]}"
