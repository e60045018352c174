"""Many runs against one engine: found, repeated, shrunk, told apart, written down.

What does not repeat is not reported as a finding but as what it is: something that does
not repeat.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .engines.process import EngineNotFound, EngineProcess
from .engines.protocol import BadStimulus, Engine
from .events import BASIC, AnyObservation, AnyStimulus, Checked, Config, Group, Hello
from .explain import Explanation, explain
from .guide import Kept, Situations, text_of
from .judge import Finding
from .scenario import UNMET, Scenario, perform, recorded
from .session import Outcome, play
from .shrink import BUDGET, NotRepeatable, Shrunk, failure_key, shrink
from .workload import PROFILES, Generated, Profile
from .workload import label as label_of
from .workload import runs as runs_of

Progress = Callable[[str, int, int, int], None]
"""Called with what is going on, runs done, runs in all (0: unknown), findings."""

MOST_LOST = 3
"""Runs in which the engine hung or did not even start, after which it is given up: each of
them may take minutes."""

CONFIRMED = 5
"""Times that a shrunk run is played again: of an engine that fails only sometimes, shrinking
picks the runs that happen to fail.  Four times as often where the same failure was met before
and did not repeat."""

HUNG_ATTEMPTS = 20
"""Attempts at shrinking a run that hangs."""

PATIENCE = 5.0
"""Seconds for an answer in these attempts: a thousand times what an answer takes."""


@dataclass
class Reported:
    """A finding as it is reported: shrunk, explained, written to a file."""

    explanation: Explanation
    found_in: str
    file: Path | None
    times: int = 1


@dataclass(frozen=True)
class Unstable:
    """A failure that was not met again when the run was played again."""

    found_in: str
    what: str
    replay: str


@dataclass
class Campaign:
    """What a campaign against one engine came to.  ``rested`` counts runs seen to the end,
    ``lost`` those in which the engine hung or did not start.

    ``not_judged`` counts the runs that the engine refused, by its reason.  ``stopped`` says why
    the campaign ended before its time, ``unwritten`` which findings could not be written.
    """

    engine: str
    version: str = ""
    runs: int = 0
    steps: int = 0
    judged: int = 0
    stored: int = 0
    read: int = 0
    rested: int = 0
    lost: int = 0
    evaluated: dict[str, int] = field(default_factory=dict)
    findings: dict[object, Reported] = field(default_factory=dict)
    not_judged: dict[str, int] = field(default_factory=dict)
    unstable: list[Unstable] = field(default_factory=list)
    unseen: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()
    stopped: str = ""
    unwritten: list[str] = field(default_factory=list)

    @property
    def reported(self) -> list[Reported]:
        """The findings, in the order in which they were met."""
        return list(self.findings.values())

    def count(self, outcome: Outcome, steps: int) -> None:
        """Add a run's figures."""
        judge = outcome.judge
        assert judge is not None
        self.version = self.version or outcome.engine
        self.runs += 1
        self.steps += steps
        self.judged += judge.judged
        self.stored += judge.stored
        self.read += judge.read
        self.rested += any(isinstance(o, Checked) for _, seen in outcome.log[-1:] for o in seen)
        self.unseen = tuple(sorted({*self.unseen, *judge.unseen}))
        self.unfollowed = tuple(sorted({*self.unfollowed, *judge.unfollowed}))
        for name, n in judge.evaluated.items():
            self.evaluated[name] = self.evaluated.get(name, 0) + n


    def add(self, other: Campaign) -> None:
        """Add the figures of another part of the same campaign, its findings aside."""
        self.version = self.version or other.version
        for name in ("runs", "steps", "judged", "stored", "read", "rested", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.evaluated, other.evaluated),
                             (self.not_judged, other.not_judged)):
            for name, n in theirs.items():
                mine[name] = mine.get(name, 0) + n
        self.unseen = tuple(sorted({*self.unseen, *other.unseen}))
        self.stopped = self.stopped or other.stopped


@dataclass(frozen=True)
class Met:
    """A run of a workload, by its number, that failed; ``key`` tells failures apart.  ``text``
    is the run as a scenario, where its number alone does not say which run it is."""

    number: int
    key: tuple[object, ...]
    text: str = ""


class Stopped(Exception):
    """Somebody wants the campaign to end now."""


class _GivenUp(Exception):
    """The engine is of no more use; the campaign says why."""


class _Stoppable:
    """The engine, until somebody wants the campaign to end."""

    def __init__(self, engine: Engine, stop: threading.Event) -> None:
        self._engine, self._stop = engine, stop

    def start(self, config: Config) -> Sequence[AnyObservation]:
        if self._stop.is_set():
            raise Stopped
        return self._engine.start(config)

    def send(self, stimulus: AnyStimulus) -> Sequence[AnyObservation]:
        return self._engine.send(stimulus)

    def send_all(self, stimuli: Iterable[AnyStimulus]) -> Sequence[Sequence[AnyObservation]]:
        if self._stop.is_set():
            raise Stopped
        return self._engine.send_all(stimuli)

    def close(self) -> None:
        self._engine.close()


class Runner:
    """Runs scenarios and generated runs against one engine and gathers what comes of it.

    Setting ``stop`` ends it from another thread: what it does then raises `Stopped`.
    """

    def __init__(self, name: str, engine: Engine, out: Path | None = None,
                 progress: Progress | None = None, stop: threading.Event | None = None) -> None:
        self.name, self.out = name, out
        self.engine = _Stoppable(engine, stop or threading.Event())
        self.campaign = Campaign(name)
        self._process = engine if isinstance(engine, EngineProcess) else None
        self._progress = progress or (lambda *_: None)
        self._unsteady: set[object] = set()
        self._features: set[str] | None = None

    def scenarios(self, scenarios: Iterable[Scenario]) -> None:
        """Play named scenarios."""
        every = list(scenarios)
        with contextlib.suppress(_GivenUp):
            for i, scenario in enumerate(every):
                label = f"scenario {scenario.name}"
                self._progress(label, i, len(every), self._found())
                self._try(label, partial(perform, self.engine, scenario), 0, scenario.name)

    def generated(self, profiles: Iterable[Profile], seed: int, runs: int | None,
                  steps: int | None = None, seconds: float | None = None) -> None:
        """Runs of the profiles in turn until ``runs``, ``steps`` or ``seconds`` are used up,
        those that the engine refuses included."""
        ends = None if seconds is None else time.monotonic() + seconds
        asked = 0
        with contextlib.suppress(_GivenUp):
            for i, (label, run) in enumerate(self._labelled(self._suited(profiles), seed)):
                if self.campaign.stopped or (runs is not None and i >= runs) \
                        or (steps is not None and asked >= steps) \
                        or (ends is not None and time.monotonic() >= ends):
                    break
                self._progress(label, i, runs or 0, self._found())
                self._try(label, partial(play, self.engine, run.config, run.stimuli), run.steps)
                asked += run.steps

    def _suited(self, profiles: Iterable[Profile]) -> list[Profile]:
        """Those that the engine has the features for; what it lacks is said."""
        profiles = list(profiles)
        features = self.features_for(profiles)
        suited = []
        for profile in profiles:
            if profile.suits(features):
                suited.append(profile)
            else:
                self._unsuited(profile, 0)
        return suited

    def _unsuited(self, profile: Profile, runs: int) -> None:
        lacks = ", ".join(sorted(set(profile.needs) - (self.supported() or set())))
        reason = f"profile {profile.name} needs {lacks}, which {self.name} has not"
        self.campaign.not_judged[reason] = self.campaign.not_judged.get(reason, 0) + runs

    def features_for(self, profiles: Iterable[Profile]) -> set[str] | None:
        """The features to generate runs of these profiles for; None: whatever they ask for."""
        if self._process is None and all(p.suits(BASIC) and p.plain for p in profiles):
            return None  # nothing that any engine lacks: it need not be started to be asked
        return self.supported()

    def supported(self) -> set[str] | None:
        """The features that the engine says it has; None where it does not start."""
        if self._features is None:
            try:
                hello = self.engine.start(Config(groups=(Group(4),)))
            except (BadStimulus, EngineNotFound):
                return None
            self._features = {f for o in hello if isinstance(o, Hello) for f in o.features}
        return self._features

    def _labelled(self, profiles: list[Profile], seed: int) -> Iterator[tuple[str, Generated]]:
        for i, run in enumerate(runs_of(profiles, seed, self._features) if profiles else ()):
            yield label_of(profiles, seed, i), run

    def meet(self, numbered: Iterable[tuple[int, Generated]], guided: bool = False,
             ) -> tuple[list[Met], list[Kept]]:
        """Play the runs of these numbers; which of them fail is told, and no more is done about
        it until one of them is to be `examined`.  If ``guided``, also told is where each led."""
        met: list[Met] = []
        led: list[Kept] = []
        with contextlib.suppress(_GivenUp):
            for number, run in numbered:
                made_for = PROFILES.get(run.profile)
                if made_for is not None and made_for.needs \
                        and not made_for.suits(self.supported()):
                    self._unsuited(made_for, 1)
                    continue
                seen = Situations() if guided else None
                outcome = self._play(partial(play, self.engine, run.config, run.stimuli,
                                             seen.watch if seen else None))
                if outcome is None:
                    continue
                self.campaign.count(outcome, run.steps)
                text = text_of(run.config, run.stimuli) if seen else ""
                if outcome.finding is not None:
                    met.append(Met(number, tuple(failure_key(outcome.finding)), text))
                    self._may_be_lost(outcome)
                elif seen is not None:
                    code = (p for _, a in outcome.log[-1:] for o in a if isinstance(o, Checked)
                            for p in o.covered)
                    led.append(Kept(number, text, tuple(sorted({*seen.points, *code}))))
        return met, led

    def examined(self, label: str, config: Config,
                 stimuli: Sequence[AnyStimulus]) -> Reported | None:
        """Play a run that failed again and again, and shrink it; None where it does not repeat,
        which the campaign tells."""
        again = partial(play, self.engine, config, stimuli)
        outcome = self._play(again)
        if outcome is None or outcome.finding is None:
            self.campaign.unstable.append(Unstable(label, "it failed once, and not again", ""))
            return None
        key = failure_key(outcome.finding)
        self._new(label, key, outcome, again, None)
        return self.campaign.findings.get(key)

    def _found(self) -> int:
        return len(self.campaign.findings)

    def _try(self, label: str, run: Callable[[], Outcome], steps: int,
             scenario: str | None = None) -> None:
        """Play a run; what it finds is played again, and shrunk if it is new.  ``scenario`` is
        the name by which the run can be replayed as it is."""
        outcome = self._play(run)
        if outcome is None:
            return
        self.campaign.count(outcome, steps)
        if outcome.finding is None:
            return
        key = failure_key(outcome.finding)
        if key in self.campaign.findings:
            self.campaign.findings[key].times += 1
        else:
            self._new(label, key, outcome, run, scenario)
        self._may_be_lost(outcome)

    def _play(self, run: Callable[[], Outcome]) -> Outcome | None:
        """None where the engine refuses the run."""
        try:
            return run()
        except BadStimulus as bad:
            reason = str(bad)
            self.campaign.not_judged[reason] = self.campaign.not_judged.get(reason, 0) + 1
        except EngineNotFound as missing:
            self.campaign.stopped = str(missing)
            raise _GivenUp from None
        return None

    def _new(self, label: str, key: object, outcome: Outcome, run: Callable[[], Outcome],
             scenario: str | None) -> None:
        assert outcome.finding is not None
        again: Outcome | None
        try:
            again = run()
        except BadStimulus:
            again = None
        if again is None or _key(again) != key or again.stimuli != outcome.stimuli:
            self._does_not_repeat(label, outcome)
            return
        self._progress(f"shrinking what {label} found", 0, 0, self._found())
        if outcome.finding.rule == UNMET:
            self.campaign.findings[key] = self._report(
                label, outcome, f"{label} up to where it is not met", scenario)
            return
        try:
            shrunk = self._shrunk(outcome)
            times = 4 * CONFIRMED if key in self._unsteady else CONFIRMED
            confirmed = self._confirmed(shrunk.outcome, 1 if _hung(outcome) else times)
        except NotRepeatable:
            confirmed = False
        if not confirmed:
            self._does_not_repeat(label, outcome)
            return
        given, left = len(outcome.log), len(shrunk.outcome.log)
        minimal = f"shrunk from {given} events to {left}, found in {label}" if given > left \
            else f"found in {label}"
        if shrunk.exhausted:
            minimal += "; shrinking stopped at its budget, a shorter run may exist"
        self.campaign.findings[key] = self._report(label, shrunk.outcome, minimal)

    def _shrunk(self, outcome: Outcome) -> Shrunk:
        if not _hung(outcome) or self._process is None:
            return shrink(self.engine, outcome)
        if not outcome.log:  # it hung at its start
            return Shrunk(outcome, 0, False)
        patience = self._process.answer_timeout
        self._process.answer_timeout = min(patience, PATIENCE)
        try:
            return shrink(self.engine, outcome, attempts=min(HUNG_ATTEMPTS, BUDGET))
        finally:
            self._process.answer_timeout = patience

    def _confirmed(self, outcome: Outcome, times: int) -> bool:
        """Whether the run fails in the same way whenever it is played, with all patience."""
        for _ in range(times):
            again = play(self.engine, outcome.config, outcome.stimuli)
            if again.stimuli != outcome.stimuli or _key(again) != _key(outcome):
                return False
        return True

    def _may_be_lost(self, outcome: Outcome) -> None:
        if not _hung(outcome) and outcome.engine:
            return
        self.campaign.lost += 1
        if self.campaign.lost >= MOST_LOST:
            self.campaign.stopped = given_up(self.campaign.lost)
            raise _GivenUp

    def _does_not_repeat(self, label: str, outcome: Outcome) -> None:
        assert outcome.finding is not None
        self._unsteady.add(failure_key(outcome.finding))
        what = (outcome.finding.property or outcome.finding.kind) + \
            f" because {outcome.finding.because}"
        file = self._write(outcome, "unstable")
        self.campaign.unstable.append(Unstable(label, what, self._replay(file)))

    def _report(self, label: str, outcome: Outcome, minimal: str,
                scenario: str | None = None) -> Reported:
        assert outcome.finding is not None
        file = None if scenario else self._write(
            outcome, outcome.finding.property or outcome.finding.kind)
        explanation = explain(outcome, self._replay(scenario or file), minimal, self.name)
        return Reported(explanation, label, file)

    def _replay(self, what: Path | str | None) -> str:
        return shlex.join(["kvoracle", "replay", str(what), "--engine", self.name]) if what else ""

    def _named(self, outcome: Outcome, what: str) -> tuple[Path, str] | None:
        """The run as a file's path and text; None where nothing is to be written."""
        if self.out is None:
            return None
        name = _file_name(self.name, what, outcome)
        return self.out / f"{name}.jsonl", recorded(outcome, self.name, name).text()

    def _write(self, outcome: Outcome, what: str) -> Path | None:
        """The run as a file; None where nothing is to be written, or it cannot be."""
        named = self._named(outcome, what)
        return named[0] if named and write(self.campaign, *named) else None


def given_up(lost: int) -> str:
    """Why a campaign ends whose engine is of no use."""
    return f"given up after {lost} runs in which the engine hung or did not start"


def write(campaign: Campaign, file: Path, text: str) -> bool:
    """Write a finding; what cannot be written is told with the campaign."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        campaign.unwritten.append(f"{file}: {error.strerror}")
        return False
    return True


def _key(outcome: Outcome) -> object:
    return failure_key(outcome.finding) if outcome.finding is not None else None


def _hung(outcome: Outcome) -> bool:
    finding: Finding | None = outcome.finding
    return finding is not None and finding.died is not None and finding.died.error == "hung"


def _file_name(engine: str, what: str, outcome: Outcome) -> str:
    content = repr((outcome.config, outcome.stimuli)).encode()
    plain = "".join(c if c.isalnum() or c in ".-" else "-" for c in engine)
    short = plain[-32:].lstrip("-.")  # a scenario's name has 64 characters at most
    return f"{short}-{what}-{hashlib.sha256(content).hexdigest()[:8]}"
