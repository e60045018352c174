"""``kvoracle explain``: one finding, from what is wrong to a picture of it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from .. import exits, page, picture
from ..console import out, write_json, write_text
from ..explain import explain, full_text, missed
from ..repro import NoScript, script
from .replay import played


def run(arguments: argparse.Namespace) -> int:
    """Play the file's run again, and tell what is found in it in full."""
    scenario, name, outcome = played(arguments)
    if outcome.finding is None:
        out(f"{outcome.engine}: nothing is wrong with scenario {scenario.name}, so there is "
            f"nothing to explain")
        return exits.HOLDS
    again = shlex.join(["kvoracle", "replay", arguments.file, "--engine", name])
    minimal = "as it was found and shrunk: every shorter run that was tried does not fail so" \
        if scenario.header.found else f"scenario {scenario.name}, as it is"
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
