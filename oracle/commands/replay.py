"""``kvoracle replay``: a scenario file, or a shipped scenario, on an engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import exits
from ..console import out, write_json
from ..engines.protocol import BadStimulus
from ..engines.registry import EngineUnavailable, open_engine
from ..explain import explain, text
from ..scenario import Scenario, named, perform, read


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


def run(arguments: argparse.Namespace) -> int:
    """Play it on the engine it names, or on ``--engine``."""
    scenario = find(arguments.file)
    recorded = scenario.header.found
    name = arguments.engine or (recorded.engine if recorded else "impl")
    try:
        engine = open_engine(name)
    except EngineUnavailable as missing:
        raise exits.UserError(str(missing), exits.UNJUDGED) from None
    try:
        outcome = perform(engine, scenario)
    except BadStimulus as bad:
        raise exits.UserError(f"{arguments.file}: {name} cannot do this run: {bad}",
                              exits.UNJUDGED) from None
    finally:
        engine.close()
    if outcome.finding is None:
        judge = outcome.judge
        assert judge is not None
        out(f"{outcome.engine}: scenario {scenario.name} holds, {judge.judged} events judged")
        if judge.unseen:
            out(f"not seen, and so not judged: {', '.join(sorted(judge.unseen))}")
        code = exits.HOLDS
    else:
        again = f"kvoracle replay {arguments.file} --engine {name}"
        out(text(explain(outcome, again, f"scenario {scenario.name}")))
        code = exits.VIOLATION
    if arguments.json:
        data = None if outcome.finding is None else explain(outcome, "", "").to_json()
        write_json(arguments.json, {"kvoracle": 1, "kind": "replay", "engine": outcome.engine,
                                    "scenario": scenario.name, "finding": data})
    return code
