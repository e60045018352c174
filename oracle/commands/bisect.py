"""``kvoracle bisect``: the first release that has a bug, or that has it no more."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from kvoracle.model.scopes import nearest

from .. import exits
from ..bugs import BUGS, Bug, named
from ..bugs.bisect import BAD, GOOD, bisect
from ..bugs.hunt import hunt
from ..console import Status, out, write_json
from ..engines.process import EngineError
from ..engines.protocol import BadStimulus, Engine
from ..engines.registry import EngineUnavailable, expand, open_engine
from ..engines.vllm import environment
from ..scenario import Scenario, perform, shipped
from ..workload import profile
from .replay import find

SECONDS = 20.0
"""For each profile of a known bug, in each release asked."""

CANNOT_TELL = 125
"""What ``git bisect run`` takes as: this one cannot be tested."""

Verdict = Callable[[Engine], "str | None"]


def run(arguments: argparse.Namespace) -> int:
    """Over releases, or (``vllm@PATH``) of one checkout, for ``git bisect run``."""
    verdict = _verdict(arguments)
    if arguments.engine.startswith("vllm@"):
        return _one(arguments.engine, verdict)
    versions = _versions(arguments.engine)
    status = Status()

    def ask(version: str) -> str | None:
        status.show(f"vllm {version}")
        answer = _asked(f"vllm=={version}", verdict)[0]
        out(f"{version}: {answer or 'cannot tell'}")
        return answer

    try:
        found = bisect(versions, ask)
    finally:
        status.clear()
    if found.changed:
        what = "first bad" if found.asked[found.after] == BAD else "first good"
        out(f"{what}: {found.after} (after {found.before})")
    elif any(found.asked.values()):
        same = next(v for v in found.asked.values() if v)
        out(f"no change: all that can tell are {same}")
    else:
        out("not judged: no release can tell")
    code = exits.HOLDS if found.changed else exits.UNJUDGED
    if arguments.json is not None:
        write_json(arguments.json, {
            "kvoracle": 1, "kind": "bisect", "exit_code": code, "asked": found.asked,
            "before": found.before, "after": found.after,
            "after_is": found.asked.get(found.after)})
    return code


def _versions(engine: str) -> list[str]:
    if engine == "vllm":
        return [one.version for one in environment.installed()]
    try:
        return [name.removeprefix("vllm==") for name in expand([engine])]
    except EngineUnavailable as missing:
        raise exits.UserError(str(missing), exits.UNJUDGED) from None


def _verdict(arguments: argparse.Namespace) -> Verdict:
    """A scenario is played; a known bug is hunted for."""
    given = arguments.what
    if given in BUGS:
        bug = named(given)
        return lambda engine: _hunted(engine, bug, arguments.seed, arguments.budget or SECONDS)
    if not Path(given).suffix and not Path(given).exists() and given not in shipped():
        raise nearest("bug or scenario", given, [*BUGS, *shipped()])
    scenario = find(given)
    return lambda engine: _played(engine, scenario)


def _played(engine: Engine, scenario: Scenario) -> str | None:
    outcome = perform(engine, scenario)
    if outcome.finding is None:
        return GOOD
    wanted = scenario.header.found
    # Something else that fails hides whether this would.
    return BAD if wanted is None or outcome.finding.property == wanted.property else None


def _hunted(engine: Engine, bug: Bug, seed: int, seconds: float) -> str | None:
    able = False
    for name in bug.profiles:
        found = hunt(engine, profile(name), seed, seconds,
                     lambda h: any(bug.met(m) for m in h.met.values()))
        if any(bug.met(m) for m in found.met.values()):
            return BAD
        able |= not found.failed and set(bug.needs) <= found.features
    return GOOD if able else None


def _asked(name: str, verdict: Verdict) -> tuple[str | None, str]:
    """The verdict, or why there is none."""
    try:
        engine = open_engine(name)
    except EngineUnavailable as missing:
        return None, str(missing)
    try:
        return verdict(engine), ""
    except (BadStimulus, EngineError) as cannot:
        return None, str(cannot)
    finally:
        engine.close()


def _one(name: str, verdict: Verdict) -> int:
    answer, why = _asked(name, verdict)
    out(f"{name}: {answer or 'cannot tell'}{why and f': {why}'}")
    return {GOOD: exits.HOLDS, BAD: exits.VIOLATION}.get(answer or "", CANNOT_TELL)
