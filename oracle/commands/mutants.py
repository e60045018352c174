"""``kvoracle mutants``: faults put in on purpose; whatever is not noticed is a gap."""

from __future__ import annotations

import argparse

from .. import exits


def run(arguments: argparse.Namespace) -> int:
    """Mutants of the machine, or with ``--engine`` faults put into a release of vLLM."""
    if arguments.engine is None:
        _only("--engine", arguments, ("fault", "profile", "runs"))
        from . import machine_mutants

        return machine_mutants.run(arguments)
    _only("the machine", arguments, ("scope", "all"))
    from . import engine_mutants

    return engine_mutants.run(arguments)


def _only(what: str, arguments: argparse.Namespace, options: tuple[str, ...]) -> None:
    for option in options:
        if getattr(arguments, option):
            raise exits.UserError(f"--{option} is for mutants of {what.removeprefix('--')}"
                                  f"{': name it with --engine' if what[0] == '-' else ''}")
