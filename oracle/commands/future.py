"""What is said of promises about the future: tables, and runs that wait for ever."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope
from kvoracle.spec.explore import Lasting, MachineStep
from kvoracle.spec.properties import LIVENESS

from .. import exits
from ..console import note, out, table
from ..verify import run_lines


def code(results: Iterable[Lasting]) -> int:
    """The exit code that they come to."""
    found = list(results)
    if any(r.violations for r in found):
        return exits.VIOLATION
    return exits.UNJUDGED if any(r.stopped for r in found) else exits.HOLDS


def show(r: Lasting, scope: Scope, machine: Machine) -> None:
    """A scope's verdicts, and a run for each promise that is broken."""
    design = f", variant {r.variant}" if r.variant else ""
    if r.stopped:
        out(f"scope {r.scope}{design}, under fairness: not judged: {r.stopped}")
        return
    if not r.judged:
        out(f"scope {r.scope}{design}: no promise about the future says anything here")
        return
    out(f"scope {r.scope}{design}, under fairness, backend {r.backend}: {r.states:,} states, "
        f"{r.steps:,} steps")
    note(f"{r.seconds:.2f} s")
    rows = [
        (name, "broken" if name in r.violations else "holds",
         f"{sum(j.waiting for j in duties.values()):,}", _beyond(r, name))
        for name, duties in r.judged.items()
    ]
    out(table(("property", "verdict", "waits in", "not known of"), rows))
    for name, lasso in r.violations.items():
        out()
        out(f"{name} is broken under fairness because for ever {lasso.waits}.")
        out(f"{name}: {LIVENESS[name].statement}.")
        lines = run_lines(machine, scope, (*lasso.stem, *lasso.cycle))
        out(f"These {len(lasso.stem)} steps:")
        for line in lines[:2 * len(lasso.stem)]:
            out(line)
        if lasso.cycle:
            out("and from then on, for ever, these:")
            for line in lines[2 * len(lasso.stem):]:
                out(line)
        else:
            out("and from then on nothing more need happen, for ever.")
        out(f"replay: {replay_line(r, name)}")
    out()


def _beyond(r: Lasting, name: str) -> str:
    """From how many states nobody knows, since a run that goes on waiting leaves the scope."""
    n = sum(j.unjudged for j in r.judged[name].values())
    return f"{n:,}: runs leave the scope" if n else "-"


def replay_line(r: Lasting, name: str) -> str:
    """The command that finds the same run again."""
    design = f" --variant {r.variant}" if r.variant else ""
    return f"kvoracle explore --liveness --scope {r.scope}{design} --property {name}"


def data(r: Lasting) -> dict[str, Any]:
    """The same for machines."""
    return {
        "scope": r.scope, "variant": r.variant, "backend": r.backend, "states": r.states,
        "steps": r.steps, "seconds": r.seconds, "stopped": r.stopped,
        "judged": {name: {duty: asdict(j) for duty, j in duties.items()}
                   for name, duties in r.judged.items()},
        "violations": {
            name: {"waits": v.waits, "stem": _steps(v.stem), "cycle": _steps(v.cycle)}
            for name, v in r.violations.items()
        },
    }


def _steps(run: Iterable[MachineStep]) -> list[dict[str, Any]]:
    return [{"action": s.action, **s.values} for s in run]
