"""``kvoracle mutants --engine E``: faults by the property that catches them, and how soon."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from .. import exits
from ..console import Status, note, out, table, write_json
from ..engines.registry import EngineUnavailable, open_engine
from ..faults import FAULTS, Fault, named
from ..faults.kill import Open, Trial, trials, workload
from ..workload import CHECKED, Generated, profile

RUNS = 60
"""Runs in which a fault has to be met: half a minute for one that never is."""


def run(arguments: argparse.Namespace) -> int:
    """Drive the engine with each fault in turn, then without, on the same runs."""
    faults = [named(name) for name in dict.fromkeys(arguments.fault or FAULTS)]
    profiles = [profile(name) for name in arguments.profile or CHECKED]
    runs = arguments.runs or RUNS
    engines: list[tuple[str, Open]] = []
    for fault in faults:
        engine = f"{arguments.engine}:{fault.name}"
        try:
            open_engine(engine).close()  # all of them fit, before any is driven
        except EngineUnavailable as missing:
            raise exits.UserError(str(missing), exits.UNJUDGED) from None
        engines.append((fault.name, partial(open_engine, engine)))
    status = Status()
    done: list[Trial] = []

    def told(result: Trial) -> None:
        done.append(result)
        status.show(f"{len(done)} of {len(engines)} faults, "
                    f"{sum(t.killed for t in done)} caught; last {result.name}")

    def same(n: int) -> Iterator[tuple[str, Generated]]:
        return workload(profiles, arguments.seed, n)

    try:
        results = trials(engines, lambda: same(runs), arguments.jobs or 2, told)
        most = max(t.runs for t in results)
        sound = trials([("", partial(open_engine, arguments.engine))], lambda: same(most), 1,
                       lambda _: None)[0]
    finally:
        status.clear()
    code = _code(faults, results, sound)
    _report(arguments.engine, faults, results, sound)
    note(f"{sum(t.seconds for t in results) + sound.seconds:.0f} s of runs")
    if arguments.json is not None:
        write_json(arguments.json, {
            "kvoracle": 1, "kind": "mutants", "exit_code": code, "engine": arguments.engine,
            "seed": arguments.seed, "profiles": [p.name for p in profiles], "runs": runs,
            "faults": [_data(f, t) for f, t in zip(faults, results)],
            "without_fault": _trial(sound),
        })
    return code


def _code(faults: list[Fault], results: list[Trial], sound: Trial) -> int:
    if sound.finding is not None or any(
            not t.killed and not t.failed and not f.harmless for f, t in zip(faults, results)):
        return exits.VIOLATION
    if sound.failed or sound.runs == sound.not_judged or any(t.failed for t in results):
        return exits.UNJUDGED
    return exits.HOLDS


def _report(engine: str, faults: list[Fault], results: list[Trial], sound: Trial) -> None:
    rows = [[f.name, _caught(t), _expected(f, t), t.found_in, f"{t.steps:,}", f"{t.seconds:.1f}"]
            for f, t in zip(faults, results)]
    out(table(["fault", "caught as", "expected", "in run", "steps", "seconds"], rows))
    out()
    for fault, result in zip(faults, results):
        if result.failed:
            out(f"not judged: {fault.name}: {result.failed}")
        elif not result.killed:
            why = "does not repeat" if result.finding else f"not met in {result.runs} runs"
            if fault.harmless and not result.finding:
                out(f"not caught, and no fault today: {fault.name}: {fault.harmless}")
                continue
            needs = f" (it needs {fault.needs})" if fault.needs else ""
            out(f"NOT CAUGHT: {fault.name}, {why}: {fault.statement}{needs}")
    killed = [t for t in results if t.killed]
    named_right = sum(t.finding is not None and t.finding.property in f.breaks
                      for f, t in zip(faults, results) if t.killed)
    out(f"{len(killed)} of {len(results)} faults caught, {named_right} as a property expected")
    if sound.finding is not None:
        out(f"FALSE ALARM or a fault of the release: {engine} without any fault: "
            f"{sound.finding.property or sound.finding.kind} because {sound.finding.because} "
            f"({sound.found_in})")
    elif sound.failed:
        out(f"not judged: {engine} without any fault: {sound.failed}")
    else:
        out(f"{engine} without any fault: nothing found in the same {sound.runs} runs "
            f"({sound.steps:,} steps)")


def _caught(t: Trial) -> str:
    finding = t.finding
    if finding is None:
        return "-"
    name = finding.property or f"departure ({finding.rule})"
    return f"{name}, by its death" if finding.kind == "crash" and name != "NoCrash" else name


def _expected(f: Fault, t: Trial) -> str:
    if t.finding is None or t.finding.property in f.breaks:
        return ""
    return " or ".join(name or "a departure" for name in f.breaks)


def _trial(t: Trial) -> dict[str, Any]:
    finding = t.finding
    return {
        "killed": t.killed, "kind": finding and finding.kind,
        "property": finding and finding.property, "because": finding and finding.because,
        "like": finding and finding.like, "rule": finding and finding.rule,
        "found_in": t.found_in, "runs": t.runs, "steps": t.steps,
        "seconds": round(t.seconds, 2), "repeats": t.steady, "not_judged_runs": t.not_judged,
        "failed": t.failed,
    }


def _data(f: Fault, t: Trial) -> dict[str, Any]:
    return {"fault": f.name, "statement": f.statement, "source": f.source,
            "expected": list(f.breaks), "harmless": f.harmless, **_trial(t)}
