"""``kvoracle prove``: every obligation with its time; for a broken design, where it breaks."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from kvoracle.model.scopes import SCOPES
from kvoracle.spec.explore import Lasting, Violation, lasting
from kvoracle.spec.properties import LIVENESS, PROPERTIES, Property, named
from kvoracle.spec.variants import Variant
from kvoracle.spec.variants import variant as find_variant

from .. import exits
from ..console import Status, note, out, table, write_json
from ..verify import ProofResult, Shown, because, counterexample, prove, run_lines
from . import future
from .explore import replay_line

Examples = dict[str, tuple[str, Violation] | None]
"""By property that is not proved: the scope and the run that break it, if any does."""


def run(arguments: argparse.Namespace) -> int:
    """Prove the named properties, or all of them."""
    variant = find_variant(arguments.variant) if arguments.variant else None
    properties = [named(n) for n in dict.fromkeys(arguments.property)] or None
    status = Status()
    started = time.perf_counter()
    result = prove(variant, properties, lambda name: status.show(f"proving {name}"))
    status.clear()
    seconds = time.perf_counter() - started
    judged = {o.property for o in result.obligations}
    wanted = [p.name for p in properties] if properties else [n for n in PROPERTIES if n in judged]
    broken = {o.property for o in result.failed}
    found: Examples = {}
    for name in [n for n in PROPERTIES if n in broken or (variant and n in variant.breaks)]:
        if name in wanted:
            status.show(f"searching for a run that breaks {name}")
            found[name] = counterexample(name, variant)
    status.clear()
    endless = _endless(result, variant, properties, status)
    _print(result, seconds)
    if result.failed or endless is not None:
        _print_failures(result, found, variant)
        if endless is not None and variant is not None:
            bounds = SCOPES[endless.scope]
            out()
            future.show(endless, bounds, variant.machine(bounds))
    else:
        out(f"proved for all sizes: {len(result.obligations)} obligations, "
            f"{', '.join(wanted)}")
    if result.responses:
        out(_under_fairness(result))
    code = exits.VIOLATION if endless is not None and endless.violations else _code(result, found)
    if arguments.json is not None:
        write_json(arguments.json, _data(result, found, seconds, code))
    return code


def _endless(result: ProofResult, variant: Variant | None, properties: list[Property] | None,
             status: Status) -> Lasting | None:
    """The runs of a variant that wait for ever, if it is one that has them."""
    if variant is None or not variant.starves:
        return None
    asked = [LIVENESS[n] for n in variant.starves
             if properties is None or n in {p.name for p in properties}]
    status.show(f"looking for runs of {variant.scope} that wait for ever")
    found = lasting(SCOPES[variant.scope], variant, properties=asked)
    status.clear()
    return found if found.violations else None


def _under_fairness(result: ProofResult) -> str:
    """What ends, in one line for each response, by its compositions."""
    kinds: dict[str, dict[str, bool]] = {}
    for o in result.responses:
        machines = kinds.setdefault(o.property.split(":")[0], {})
        machines[o.machine] = machines.get(o.machine, True) and o.verdict == "proved"
    lines = []
    for what, machines in kinds.items():
        count = sum(o.property.startswith(f"{what}:") for o in result.responses)
        parts = [f"{verdict} of {', '.join(of)}" for verdict, of in (
            ("proved", [m for m, proved in machines.items() if proved]),
            ("NOT PROVED", [m for m, proved in machines.items() if not proved])) if of]
        lines.append(f"under fairness, {what}: {'; '.join(parts)} ({count} obligations)")
    return "\n".join(lines)


def _code(result: ProofResult, found: Examples) -> int:
    if not result.failed:
        return exits.HOLDS
    return exits.VIOLATION if any(found.values()) else exits.UNJUDGED


def _print(result: ProofResult, seconds: float) -> None:
    rows = [
        (o.machine, o.property, o.action, _verdict(o), f"{o.seconds:.3f} s")
        for o in result.obligations
    ]
    out(table(("machine", "property", "kept by", "verdict", "time"), rows))
    out()
    note(f"solver {result.seconds:.2f} s, with translation {seconds:.2f} s")


def _verdict(o: Shown) -> str:
    if o.by_frame:
        return "proved (writes nothing it reads)"
    return f"{o.verdict} (as in {o.as_in})" if o.as_in else o.verdict


def _print_failures(result: ProofResult, found: Examples, variant: Variant | None) -> None:
    design = variant.name if variant else "the reference design"
    if variant:
        out(f"{variant.name}: {variant.statement} ({variant.source})")
    for o in result.failed:
        out(f"not proved: {o.property} / {o.action} ({o.verdict})")
    for name, example in found.items():
        if example is None:
            out(f"{name}: not proved, and no run within the bounds of the scopes breaks it")
            continue
        scope, violation = example
        out()
        bounds = SCOPES[scope]
        machine = variant.machine(bounds) if variant else bounds.machine()
        out(f"{design} breaks {name} because {because(machine, bounds, violation)}.")
        out(f"{name}: {PROPERTIES[name].statement}.")
        out(f"A shortest run, of {len(violation.run)} steps, in scope {scope}:")
        for line in run_lines(machine, bounds, violation.run):
            out(line)
        out(f"replay: {replay_line(scope, variant.name if variant else None, name)}")


def _data(result: ProofResult, found: Examples, seconds: float, code: int) -> dict[str, Any]:
    return {
        "kvoracle": 1, "kind": "prove", "exit_code": code, "variant": result.variant,
        "seconds": seconds,
        "proved": not result.failed,
        "obligations": [asdict(o) for o in result.obligations],
        "under_fairness": [asdict(o) for o in result.responses],
        "counterexamples": {
            name: None if example is None else {
                "scope": example[0],
                "run": [{"action": s.action, **s.values} for s in example[1].run],
            }
            for name, example in found.items()
        },
    }
