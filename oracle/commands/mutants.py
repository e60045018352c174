"""``kvoracle mutants``: faults put in on purpose; whatever is not caught is a gap in the oracle."""

from __future__ import annotations

import argparse

from .. import exits


def run(arguments: argparse.Namespace) -> int:
    """Mutants of an engine."""
    if arguments.engine is None:
        raise exits.UserError("name the engine to put faults into: --engine vllm==0.33.0")
    from . import engine_mutants

    return engine_mutants.run(arguments)
