"""Scenario files: named runs as lines of JSON, to keep, to replay, to send to somebody.

The first line says what the file is; each further line is a stimulus (``do``) or an
expectation (``expect``) about what was seen until then::

    {"kvoracle": 1, "name": "seed", "about": "...", "config": {"groups": [...]}}
    {"do": "arrive", "r": "a", "prompt": [[0, 7]]}
    {"do": "step"}
    {"expect": {"r": "a", "jobs": 1, "cursor": [1]}}

A failing run is written in the same form, with what was found in its first line.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from kvoracle.model.scopes import nearest

from . import events as e
from .engines.protocol import Engine
from .judge import Finding
from .session import Outcome, play

FORMAT = 1

LARGEST = 1_000_000
"""Steps of one stimulus, and positions of a pool: a run is small, or it tells nobody anything."""


class MalformedScenario(ValueError):
    """A scenario file that cannot be read; says the file, the line and what was expected."""

    def __init__(self, source: str, line: int, problem: str) -> None:
        super().__init__(f"{source}:{line}: {problem}")
        self.source, self.line = source, line


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of request ``r``: store jobs planned so far, and the cursor of each group."""

    r: e.Name
    jobs: e.Count | None = None
    cursor: tuple[e.Count, ...] | None = None


UNMET = "expectation"
"""The rule of a finding that is an expectation of the scenario's, not the machine's."""


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a recorded run led to: the property broken, and by which engine."""

    engine: str
    property: str
    because: str


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a scenario file."""

    kvoracle: int
    name: e.Name
    config: e.Config
    about: str = ""
    found: Found | None = None


@dataclass(frozen=True)
class Scenario:
    """A run with a name.  ``expectations`` pairs each with the number of stimuli before it."""

    header: Header
    stimuli: tuple[e.AnyStimulus, ...]
    expectations: tuple[tuple[int, Expect], ...] = ()

    @property
    def name(self) -> str:
        return self.header.name

    def text(self) -> str:
        """The file's content."""
        lines = [msgspec.json.encode(self.header).decode()]
        waiting = list(self.expectations)
        for i, stimulus in enumerate(self.stimuli):
            lines += self._expected(waiting, i)
            lines.append(e.encode(stimulus))
        return "\n".join([*lines, *self._expected(waiting, len(self.stimuli)), ""])

    @staticmethod
    def _expected(waiting: list[tuple[int, Expect]], at: int) -> list[str]:
        lines = []
        while waiting and waiting[0][0] <= at:
            expect = msgspec.json.encode({"expect": waiting.pop(0)[1]})
            lines.append(expect.decode())
        return lines


_STIMULI = frozenset(str(t.__struct_config__.tag) for t in get_args(e.AnyStimulus))


def parse(text: str, source: str) -> Scenario:
    """Read a scenario; raises `MalformedScenario` with file, line and what was expected."""
    # Not splitlines(), which splits at characters that JSON has inside of strings.
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise MalformedScenario(source, 1, "the file is empty; expected a first line like "
                                '{"kvoracle": 1, "name": "...", "config": {"groups": [...]}}')
    at, first = lines[0]
    raw = _json(source, at, first)
    if "kvoracle" not in raw:
        raise MalformedScenario(source, at, 'expected a first line with "kvoracle": 1, "name" and '
                                '"config"; this is no scenario file')
    if raw["kvoracle"] != FORMAT:
        raise MalformedScenario(source, at, f"format {raw['kvoracle']!r} is not known; this "
                                f"version reads format {FORMAT}")
    header = _convert(source, at, raw, Header)
    arrived: set[str] = set()
    problem = _too_large(header.config)
    if problem:
        raise MalformedScenario(source, at, problem)
    stimuli: list[e.AnyStimulus] = []
    expectations: list[tuple[int, Expect]] = []
    for at, line in lines[1:]:
        raw = _json(source, at, line)
        if "do" in raw:
            stimuli.append(_stimulus(source, at, raw))
            problem = _impossible(stimuli[-1], header.config, arrived)
        elif "expect" in raw:
            expect = _convert(source, at, raw["expect"], Expect)
            expectations.append((len(stimuli), expect))
            problem = _pointless(expect, header.config, arrived)
        else:
            raise MalformedScenario(source, at, 'expected a stimulus ("do") or an expectation '
                                    '("expect"), found neither')
        if problem:
            raise MalformedScenario(source, at, problem)
    return Scenario(header, tuple(stimuli), tuple(expectations))


def _too_large(config: e.Config) -> str:
    """What is wrong with the sizes of a pool; "" if nothing is."""
    largest = max(config.tokens_per_chunk(g) for g in range(len(config.groups)))
    for name, blocks in (("gpu_blocks", config.gpu_blocks), ("host_chunks", config.host_chunks)):
        if blocks * largest > LARGEST:
            return (f"expected pools of at most {LARGEST:,} token positions, and {name} is "
                    f"{blocks:,} with chunks of {largest:,} tokens")
    return ""


def _impossible(stimulus: e.AnyStimulus, config: e.Config, arrived: set[str]) -> str:
    """What no engine could do, with the requests that have arrived; "" if one could."""
    if isinstance(stimulus, e.Step) and stimulus.n > LARGEST:
        return f"expected at most {LARGEST:,} steps, found {stimulus.n:,}"
    if not isinstance(stimulus, e.Arrive):
        return ""
    if stimulus.r in arrived:
        return f"expected another name: a request {stimulus.r!r} has arrived before"
    arrived.add(stimulus.r)
    # What it repeats of another request may be shorter than it says, and the last token
    # sampled needs no place.
    tokens = sum(n for source, n in stimulus.prompt if isinstance(source, int))
    least = sum(-(-(tokens + stimulus.output - 1) // config.tokens_per_block(g))
                for g in range(len(config.groups)))
    if least > config.gpu_blocks:
        return (f"request {stimulus.r!r} never fits: its {tokens} tokens of prompt and "
                f"{stimulus.output} of output need {least} blocks, and gpu_blocks is "
                f"{config.gpu_blocks}")
    return ""


def _pointless(expect: Expect, config: e.Config, arrived: set[str]) -> str:
    """Why an expectation can never be met; "" if it can."""
    if expect.r not in arrived:
        return f"expected a request that has arrived by then, found {expect.r!r}"
    if expect.cursor is not None and len(expect.cursor) != len(config.groups):
        return (f"expected a cursor for each group, {len(config.groups)} in all, found "
                f"{len(expect.cursor)}")
    return ""


def _json(source: str, at: int, line: str) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(line)
    except RecursionError:
        raise MalformedScenario(source, at, "expected one JSON object on the line: it is nested "
                                "too deeply") from None
    except msgspec.DecodeError as error:
        raise MalformedScenario(source, at, f"expected one JSON object on the line: {error}") \
            from None
    if not isinstance(raw, dict):
        raise MalformedScenario(source, at, "expected a JSON object, found "
                                f"{type(raw).__name__}")
    return raw


def _convert(source: str, at: int, raw: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).replace("`", "").partition(" - at ")
        place = where.removeprefix("$").removeprefix(".")
        expected = ""
        if "field" in problem and not place:
            expected = f"; expected {_fields(raw, kind)}"
        raise MalformedScenario(
            source, at, f"{problem}{f', at {place}' if place else ''}{expected}") from None


def _fields(raw: Any, kind: Any) -> str:
    """The fields that the object could have had."""
    if kind == e.AnyStimulus:
        kind = next(t for t in get_args(kind) if t.__struct_config__.tag == raw["do"])
    return ", ".join(
        name if field.required else f"{name} (optional)"
        for field in msgspec.structs.fields(kind) for name in [field.encode_name]
    )


def _stimulus(source: str, at: int, raw: dict[str, Any]) -> e.AnyStimulus:
    if not isinstance(raw["do"], str) or raw["do"] not in _STIMULI:
        raise MalformedScenario(source, at, f'no stimulus {raw["do"]!r}; expected one of '
                                f"{', '.join(sorted(_STIMULI))}")
    stimulus: e.AnyStimulus = _convert(source, at, raw, e.AnyStimulus)
    return stimulus


def read(path: Path) -> Scenario:
    """Read a scenario file; raises `MalformedScenario` or `OSError`."""
    # Some editors begin a file with a mark that is none of its text.
    return parse(path.read_text(encoding="utf-8-sig"), str(path))


def shipped() -> dict[str, Scenario]:
    """The scenarios that come with the package, by name, the seed first."""
    folder = importlib.resources.files("kvoracle.scenarios")
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda f: (f.name != "seed.jsonl", f.name)):
        if entry.name.endswith(".jsonl"):
            scenario = parse(entry.read_text(encoding="utf-8"), entry.name)
            found[scenario.name] = scenario
    return found


def named(name: str) -> Scenario:
    """A shipped scenario; raises `UnknownName`."""
    found = shipped()
    if name not in found:
        raise nearest("scenario", name, found)
    return found[name]


def perform(engine: Engine, scenario: Scenario) -> Outcome:
    """Play a scenario; an expectation that is not met is a finding like any other."""
    outcome = play(engine, scenario.header.config, scenario.stimuli)
    if outcome.finding is None:
        for before, expect in scenario.expectations:
            because = _unmet(outcome, before, expect)
            if because:
                outcome.finding = Finding(
                    "departure", "", because, before - 1, expect.r, rule=UNMET)
                del outcome.log[before:]
                break
    return outcome


def _unmet(outcome: Outcome, before: int, expect: Expect) -> str:
    """Why an expectation was not met after so many stimuli; "" if it was."""
    assert outcome.judge is not None
    seen = [o for _, answer in outcome.log[:before] for o in answer]
    jobs = sum(isinstance(o, e.Planned) and o.r == expect.r and o.job is not None for o in seen)
    if expect.jobs is not None and jobs != expect.jobs:
        return (f"{jobs} store job{'' if jobs == 1 else 's'} of request {expect.r} "
                f"{'was' if jobs == 1 else 'were'} planned "
                f"by then, and the scenario expects {expect.jobs}")
    if expect.cursor is None or "cursor" in outcome.judge.unseen:
        return ""
    cursor = [0] * len(outcome.config.groups)
    for o in seen:
        if isinstance(o, e.Cursor) and o.r == expect.r:
            cursor[o.g] = o.n
    if tuple(cursor) == expect.cursor:
        return ""
    return (f"the cursor of request {expect.r} is then at {cursor}, and the scenario expects "
            f"{list(expect.cursor)}")


def recorded(outcome: Outcome, engine: str, name: str) -> Scenario:
    """A failing run as a scenario."""
    assert outcome.finding is not None
    found = Found(engine, outcome.finding.property, outcome.finding.because)
    header = Header(FORMAT, name, outcome.config, found=found)
    return Scenario(header, outcome.stimuli)
