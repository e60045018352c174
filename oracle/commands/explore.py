"""``kvoracle explore``: every state of a scope, and which property was evaluated how often."""

from __future__ import annotations

import argparse
from typing import Any

from kvoracle.model.scopes import SCOPES
from kvoracle.model.scopes import scope as find_scope
from kvoracle.spec.explore import Exploration, search
from kvoracle.spec.properties import EVERYTHING, named
from kvoracle.spec.variants import variant as find_variant

from .. import exits
from ..console import Status, note, out, table, write_json
from ..verify import because, run_lines


def run(arguments: argparse.Namespace) -> int:
    """Search one scope, or each of them."""
    variant = find_variant(arguments.variant) if arguments.variant else None
    names = dict.fromkeys(arguments.scope or [variant.scope if variant else "seed"])
    scopes = [find_scope(n) for n in (SCOPES if "all" in names else names)]
    properties = [named(n) for n in dict.fromkeys(arguments.property or ())] or None
    status = Status()
    results = []
    for scope in scopes:
        results.append(search(
            scope, variant, arguments.backend,
            properties=properties, max_states=arguments.max_states,
            progress=lambda r, frontier: status.show(
                f"{r.scope}: {r.distinct:,} states, {r.generated / max(r.seconds, 1e-9):,.0f} "
                f"generated/s, depth {r.depth}, frontier {frontier:,}"),
        ))
        status.clear()
        _print(results[-1], arguments.max_states)
    code = _code(results)
    if arguments.json is not None:
        write_json(arguments.json, {"kvoracle": 1, "kind": "explore", "exit_code": code,
                                    "results": [_data(r) for r in results]})
    return code


def _code(results: list[Exploration]) -> int:
    if any(r.violations for r in results):
        return exits.VIOLATION
    judged = all(r.complete and r.evaluated for r in results)
    return exits.HOLDS if judged else exits.UNJUDGED


def replay_line(scope: str, variant: str | None, name: str) -> str:
    """The command that finds the same run again: the search is deterministic."""
    design = f" --variant {variant}" if variant else ""
    return f"kvoracle explore --scope {scope}{design} --property {name}"


def _print(r: Exploration, limit: int | None) -> None:
    design = f", variant {r.variant}" if r.variant else ""
    out(f"scope {r.scope}{design}, backend {r.backend}: {SCOPES[r.scope].doc}")
    out(f"{r.distinct:,} distinct states, {r.generated:,} generated, {r.cut:,} cut by the scope's "
        f"bounds, depth {r.depth}")
    note(f"{r.seconds:.2f} s, {r.generated / max(r.seconds, 1e-9):,.0f} generated/s")
    rows = []
    for name, count in r.evaluated.items():
        witnesses = r.witnesses.get(name, {})
        seen = sum(depth is not None for depth in witnesses.values())
        verdict = "broken" if name in r.violations else "holds" if r.complete else "holds so far"
        rows.append((name, verdict, f"{count:,}", f"{seen} of {len(witnesses)}"))
    if rows:
        out(table(("property", "verdict", "evaluated", "situations seen"), rows))
    else:
        out("not judged: the properties asked for say nothing about this scope")
    for violation in r.violations.values():
        scope = SCOPES[r.scope]
        out()
        also = f" (and {', '.join(violation.also)})" if violation.also else ""
        machine = find_variant(r.variant).machine(scope) if r.variant else scope.machine()
        out(f"{violation.property} is broken{also} because "
            f"{because(machine, scope, violation)}.")
        out(f"{violation.property}: {EVERYTHING[violation.property].statement}.")
        out(f"A shortest run, of {len(violation.run)} steps:")
        for line in run_lines(machine, scope, violation.run):
            out(line)
        out(f"replay: {replay_line(r.scope, r.variant, violation.property)}")
    if not r.complete and not r.violations:
        out(f"not everything was searched: the limit of {limit:,} states was reached")
    out()


def _data(r: Exploration) -> dict[str, Any]:
    return {
        "scope": r.scope, "variant": r.variant, "backend": r.backend, "distinct": r.distinct,
        "generated": r.generated, "cut": r.cut, "depth": r.depth, "seconds": r.seconds,
        "complete": r.complete, "evaluated": r.evaluated, "situations": r.witnesses,
        "violations": {
            name: [{"action": s.action, **s.values} for s in v.run]
            for name, v in r.violations.items()
        },
    }
