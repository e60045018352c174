"""``explore --backend rumur|tlc|apalache``: a scope searched by a checker with no code of ours.

The scope is exported, the other checker run on it, and what it saw held against our own
search: as many states, or the same depth of a violation, or the two disagree.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvoracle.model.scopes import Scope
from kvoracle.model.scopes import scope as find_scope
from kvoracle.spec.explore import Exploration, Violation, search
from kvoracle.spec.export import apalache, rumur, tlc
from kvoracle.spec.export.external import Disagreement, ToolFailed, ToolMissing, Verdict
from kvoracle.spec.properties import EVERYTHING, Property, named
from kvoracle.spec.variants import Variant
from kvoracle.spec.variants import variant as find_variant

from .. import exits
from ..console import Status, note, out, write_json
from ..verify import because, run_lines

OURS_ALONE = ("max_states", "max_memory", "symmetry", "checkpoint", "resume", "device")


@dataclass(frozen=True)
class Compared:
    """What the other checker saw of a scope, what we did, and where they differ ("": nowhere)."""

    scope: Scope
    variant: Variant | None
    theirs: Verdict
    ours: Exploration
    difference: str


def run(arguments: argparse.Namespace) -> int:
    """Have one scope, or several, searched by the other checker and by us."""
    for name in OURS_ALONE:
        if getattr(arguments, name, None):
            raise exits.UserError(
                f"--{name.replace('_', '-')} is not for the backend {arguments.backend}")
    variant = find_variant(arguments.variant) if arguments.variant else None
    names = dict.fromkeys(arguments.scope or [variant.scope if variant else "seed"])
    if "all" in names:
        raise exits.UserError(f"the backend {arguments.backend} takes scopes by their names")
    properties = [named(n) for n in dict.fromkeys(arguments.property or ())] or None
    if arguments.backend == "apalache":
        return _along_runs([find_scope(n) for n in names], variant, properties, arguments)
    results: list[Compared] = []
    status = Status()
    for name in names:
        status.show(f"{name}: {arguments.backend} is searching")
        try:
            results.append(_compared(find_scope(name), variant, properties, arguments))
        except (ToolMissing, ToolFailed) as error:
            raise exits.UserError(str(error), exits.UNJUDGED) from None
        except Disagreement as error:
            raise exits.UserError(f"the readings disagree: {error}", exits.UNJUDGED) from None
        finally:
            status.clear()
        _print(results[-1])
    code = _code(results)
    if arguments.json is not None:
        write_json(arguments.json, {"kvoracle": 1, "kind": "explore", "exit_code": code,
                                    "results": [_data(r) for r in results]})
    return code


def _compared(scope: Scope, variant: Variant | None, properties: list[Property] | None,
              arguments: argparse.Namespace) -> Compared:
    workers = arguments.jobs or 1
    if arguments.backend == "rumur":
        theirs = rumur.check(scope, variant, properties=properties, threads=workers)
    else:
        if arguments.tla2tools is None:
            raise exits.UserError("the backend tlc needs --tla2tools JAR: TLC is part of TLA+'s "
                                  "tools, which are in no package registry")
        theirs = tlc.check(scope, variant, Path(arguments.tla2tools), properties=properties,
                           workers=workers)
    ours = search(scope, variant, properties=properties)
    return Compared(scope, variant, theirs, ours, _difference(theirs, ours, workers))


def _along_runs(scopes: list[Scope], variant: Variant | None, properties: list[Property] | None,
                arguments: argparse.Namespace) -> int:
    """Ask Apalache, which follows some symbolic runs and sees no whole scope."""
    worst, results = exits.HOLDS, []
    for scope in scopes:
        try:
            client = apalache.connect(arguments.server or "localhost")
            found = apalache.check(scope, variant, client, properties=properties)
        except (ToolMissing, ToolFailed) as error:
            raise exits.UserError(str(error), exits.UNJUDGED) from None
        except Disagreement as error:
            raise exits.UserError(f"the readings disagree: {error}", exits.UNJUDGED) from None
        ours = search(scope, variant, properties=properties)
        design = f", variant {variant.name}" if variant else ""
        out(f"scope {scope.name}{design}, checked by Apalache: {scope.doc}")
        out(f"{found.runs} symbolic runs, {found.states} states of them"
            + (f"; {found.unknown} times its solver did not know" if found.unknown else ""))
        code = exits.HOLDS
        if found.broken is not None:
            machine = variant.machine(scope) if variant else scope.machine()
            out(f"{found.broken} is broken because "
                f"{because(machine, scope, Violation(found.broken, (), found.run))}.")
            out(f"Apalache's run, of {len(found.run)} steps:")
            for line in run_lines(machine, scope, found.run):
                out(line)
            code = exits.VIOLATION
            if ours.violation is None:
                out("the readings disagree: our search finds every property kept")
                code = exits.UNJUDGED
        elif ours.violation is not None:
            out(f"nothing found along these runs; our own search breaks "
                f"{ours.violation.property} in {len(ours.violation.run)} steps")
            code = exits.VIOLATION
        else:
            out(f"nothing found along these runs; our own search agrees: {ours.distinct:,} "
                "distinct states")
        out()
        worst = max(worst, code)
        results.append({
            "scope": scope.name, "variant": variant.name if variant else None,
            "backend": "apalache", "runs": found.runs, "states": found.states,
            "unknown": found.unknown, "seconds": found.seconds,
            "violations": {} if found.broken is None else {
                found.broken: [{"action": s.action, **s.values} for s in found.run]}})
    if arguments.json is not None:
        write_json(arguments.json, {"kvoracle": 1, "kind": "explore", "exit_code": worst,
                                    "results": results})
    return worst


def _difference(theirs: Verdict, ours: Exploration, workers: int) -> str:
    """In what the two searches differ that should not."""
    violation = ours.violation
    if (theirs.broken is None) != (violation is None):
        mine = f"{violation.property} broken" if violation else "every property kept"
        other = f"{theirs.broken} broken" if theirs.broken else "every property kept"
        return f"{theirs.checker} finds {other}, our search finds {mine}"
    if violation is not None:
        if workers == 1 and len(theirs.run) != len(violation.run):
            return (f"{theirs.checker}'s shortest run has {len(theirs.run)} steps, ours "
                    f"{len(violation.run)}")
        return ""
    if theirs.distinct != ours.distinct:
        return (f"{theirs.checker} finds {theirs.distinct:,} distinct states, our search "
                f"{ours.distinct:,}")
    if theirs.depth is not None and workers == 1 and theirs.depth != ours.depth:
        return f"{theirs.checker} finds a depth of {theirs.depth}, our search {ours.depth}"
    return ""


def _code(results: list[Compared]) -> int:
    if any(r.difference for r in results):
        return exits.UNJUDGED
    if any(r.theirs.broken for r in results):
        return exits.VIOLATION
    judged = all(r.theirs.complete and r.ours.complete and r.ours.evaluated for r in results)
    return exits.HOLDS if judged else exits.UNJUDGED


def _print(r: Compared) -> None:
    theirs = r.theirs
    design = f", variant {r.variant.name}" if r.variant else ""
    out(f"scope {r.scope.name}{design}, checked by {theirs.checker}: {r.scope.doc}")
    depth = f", depth {theirs.depth}" if theirs.depth is not None else ""
    out(f"{theirs.distinct:,} distinct states, {theirs.generated:,} generated{depth}")
    note(f"{theirs.seconds:.2f} s, {theirs.distinct / max(theirs.seconds, 1e-9):,.0f} distinct/s")
    if theirs.broken is not None:
        machine = r.variant.machine(r.scope) if r.variant else r.scope.machine()
        why = because(machine, r.scope, Violation(theirs.broken, (), theirs.run))
        out(f"{theirs.broken} is broken because {why}.")
        out(f"{theirs.broken}: {EVERYTHING[theirs.broken].statement}.")
        out(f"{theirs.checker}'s run, of {len(theirs.run)} steps:")
        for line in run_lines(machine, r.scope, theirs.run):
            out(line)
    else:
        out(f"kept: {', '.join(r.ours.evaluated) or 'nothing was asked for'}")
    violation = r.ours.violation
    if r.difference:
        out(f"the readings disagree: {r.difference}")
    elif violation is not None:
        out(f"our own search agrees: {violation.property} after {len(violation.run)} steps")
    else:
        out(f"our own search agrees: {r.ours.distinct:,} distinct states")
    out()


def _data(r: Compared) -> dict[str, Any]:
    theirs = r.theirs
    return {
        "scope": r.scope.name, "variant": r.variant.name if r.variant else None,
        "backend": theirs.checker.lower(), "distinct": theirs.distinct,
        "generated": theirs.generated, "depth": theirs.depth, "seconds": theirs.seconds,
        "complete": theirs.complete, "difference": r.difference or None,
        "violations": {} if theirs.broken is None else {
            theirs.broken: [{"action": s.action, **s.values} for s in theirs.run]},
    }
