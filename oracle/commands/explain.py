"""``kvoracle explain``: one finding, from what is wrong to a picture of it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from kvoracle.model.scopes import UnknownName

from .. import exits, page, picture
from ..console import out, write_json, write_text
from ..engines.process import EngineNotFound
from ..engines.protocol import BadStimulus
from ..engines.registry import EngineUnavailable, open_engine
from ..explain import explain, full_text, missed
from ..repro import NoScript, script
from ..scenario import perform
from .replay import find


def run(arguments: argparse.Namespace) -> int:
    """Play the file's run again, and tell what is found in it in full."""
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
    if outcome.finding is None:
        out(f"{outcome.engine}: nothing is wrong with scenario {scenario.name}, so there is "
            f"nothing to explain")
        return exits.HOLDS
    again = shlex.join(["kvoracle", "replay", arguments.file, "--engine", name])
    minimal = "as it was found and shrunk: every shorter run that was tried does not fail so" \
        if recorded else f"scenario {scenario.name}, as it is"
    told = explain(outcome, again, minimal, name)
    drawn = picture.draw(outcome)
    if arguments.repro is not None:
        try:
            text = script(outcome, told)
        except NoScript as why:
            raise exits.UserError(str(why), exits.UNJUDGED) from None
        if arguments.repro == "-":
            sys.stdout.write(text)
            return exits.VIOLATION
        write_text(arguments.repro, text)
    if arguments.svg is not None:
        write_text(arguments.svg, picture.svg(drawn))
    if arguments.html is not None:
        write_text(arguments.html, page.finding(told, drawn, missed(told, outcome)))
    out(full_text(told, outcome))
    for what, path in (("script", arguments.repro), ("picture", arguments.svg),
                       ("page", arguments.html)):
        if path is not None:
            out(f"{what}: {Path(path)}")
    if arguments.json is not None:
        write_json(arguments.json, {"kvoracle": 1, "kind": "explain",
                                    "exit_code": exits.VIOLATION, "finding": told.to_json(),
                                    "picture": drawn.to_json()})
    return exits.VIOLATION
