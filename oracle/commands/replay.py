"""``kvoracle replay``: a scenario file, or a shipped scenario, on an engine."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from kvoracle.model.scopes import UnknownName

from .. import exits
from ..console import out, write_json
from ..engines.process import EngineNotFound
from ..engines.protocol import BadStimulus
from ..engines.registry import EngineUnavailable, open_engine
from ..explain import explain, text
from ..scenario import Scenario, named, perform, read
from ..session import Outcome


def find(given: str) -> Scenario:
    """A scenario by file or by name; raises `UnknownName`, `MalformedScenario`."""
    path = Path(given)
    if path.suffix or path.exists() or "/" in given:
        try:
            return read(path)
        except OSError as error:
            raise exits.UserError(f"cannot read {given}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise exits.UserError(f"{given}:1: expected lines of JSON in UTF-8") from None
    return named(given)


def played(arguments: argparse.Namespace) -> tuple[Scenario, str, Outcome]:
    """The file's scenario, played on the engine that it names or on ``--engine``, and that
    engine's name."""
    scenario = find(arguments.file)
    recorded = scenario.header.found
    name = arguments.engine or (recorded.engine if recorded else "impl")
    try:
        engine = open_engine(name)
    except EngineUnavailable as missing:
        raise exits.UserError(str(missing), exits.UNJUDGED) from None
    except UnknownName as unknown:
        if arguments.engine:
            raise
        raise UnknownName(f"{arguments.file}:1: {unknown}; or name one with --engine") from None
    try:
        outcome = perform(engine, scenario)
    except BadStimulus as bad:
        raise exits.UserError(f"{arguments.file}: {name} cannot do this run: {bad}",
                              exits.UNJUDGED) from None
    except EngineNotFound as missing:
        raise exits.UserError(f"{name}: {missing}", exits.UNJUDGED) from None
    finally:
        engine.close()
    return scenario, name, outcome


def run(arguments: argparse.Namespace) -> int:
    """Play it on the engine it names, or on ``--engine``."""
    scenario, name, outcome = played(arguments)
    found = None
    judge = outcome.judge
    assert judge is not None
    code = exits.HOLDS if outcome.finding is None else exits.VIOLATION
    if outcome.finding is None:
        out(f"{outcome.engine}: scenario {scenario.name} holds, {judge.judged} events judged")
        if judge.unseen:
            out(f"not seen, and so not judged: {', '.join(sorted(judge.unseen))}")
    else:
        again = shlex.join(["kvoracle", "replay", arguments.file, "--engine", name])
        found = explain(outcome, again, f"scenario {scenario.name}", name)
        out(text(found))
    if arguments.json is not None:
        write_json(arguments.json, {
            "kvoracle": 1, "kind": "replay", "exit_code": code, "engine": name,
            "version": outcome.engine, "scenario": scenario.name, "judged": judge.judged,
            "unseen": sorted(judge.unseen), "finding": found and found.to_json()})
    return code
