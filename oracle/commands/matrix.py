"""``kvoracle matrix``: known bugs by releases, what the code says against what is found."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from dataclasses import asdict
from typing import Any

from .. import exits, page
from ..bugs import BUGS, ELSEWHERE, PRESENT, Bug, named
from ..bugs.matrix import (
    ALARM,
    CANNOT_RUN,
    CLEAN,
    FOUND,
    MISSED,
    NOT_EXPRESSIBLE,
    Cell,
    Release,
    cells,
    drive_all,
)
from ..console import Status, note, out, table, write_json, write_text
from ..engines.registry import EngineUnavailable, expand, open_engine

ENGINES = "vllm>=0.20,<=0.33"
SECONDS = 20.0
"""For each profile of runs in each release."""


def run(arguments: argparse.Namespace) -> int:
    """Hunt through the releases without a hint, then look at their code."""
    bugs = [named(n) for n in dict.fromkeys(arguments.bugs or BUGS)]
    versions = _versions(arguments.engines or [ENGINES])
    begun = time.monotonic()
    status = Status()
    done: list[Release] = []

    def told(release: Release) -> None:
        done.append(release)
        status.show(f"{len(done)} of {len(versions)} releases; last {release.version}")

    try:
        releases = drive_all(versions, [b.name for b in bugs], arguments.seed,
                             arguments.budget or SECONDS, arguments.jobs or 2, told)
    finally:
        status.clear()
    rows = cells(bugs, releases)
    _report(bugs, rows, releases)
    note(f"{time.monotonic() - begun:.0f} s, {sum(h.runs for r in releases for h in r.hunts):,} "
         f"runs")
    code = _code(rows)
    if arguments.json is not None:
        write_json(arguments.json, _data(bugs, rows, releases, arguments, code))
    if arguments.html is not None:
        write_text(arguments.html, _page(bugs, rows))
    if arguments.markdown is not None:
        command = ["kvoracle", "matrix", *(a for e in arguments.engines or [ENGINES]
                                           for a in ("--engines", e))]
        if arguments.budget is not None:
            command += ["--budget", f"{arguments.budget:g}"]
        write_text(arguments.markdown, _markdown(bugs, rows, shlex.join(command)))
    return code


def _versions(names: list[str]) -> list[str]:
    found = []
    try:
        for engine in expand(names):
            if not re.fullmatch(r"vllm==[^:]+", engine):
                raise exits.UserError(f"the matrix is of releases of vLLM, and {engine!r} is none")
            open_engine(engine).close()
            found.append(engine.removeprefix("vllm=="))
    except EngineUnavailable as missing:
        raise exits.UserError(str(missing), exits.UNJUDGED) from None
    return found


def _code(rows: list[list[Cell]]) -> int:
    verdicts = {c.verdict for row in rows for c in row}
    if verdicts & {MISSED, ALARM}:
        return exits.VIOLATION
    return exits.UNJUDGED if verdicts & {CANNOT_RUN, NOT_EXPRESSIBLE} else exits.HOLDS


def _short(c: Cell) -> str:
    """A cell in few letters."""
    if c.verdict in (FOUND, ALARM):
        return f"{c.seconds:.1f}s{'?' if c.verdict == ALARM else ''}"
    return {MISSED: "MISSED", CLEAN: "-" if c.code == ELSEWHERE else ".",
            NOT_EXPRESSIBLE: "n/e", CANNOT_RUN: "n/r"}[c.verdict]


def _exact(row: list[Cell]) -> bool:
    """Whether a bug is red on just the releases whose code has it, and on one at least."""
    return all(c.right for c in row) and any(c.verdict == FOUND for c in row)


def _report(bugs: list[Bug], rows: list[list[Cell]], releases: list[Release]) -> None:
    out(table(["bug", *(r.version for r in releases)],
              [[b.name, *map(_short, row)] for b, row in zip(bugs, rows)]))
    out()
    out("3.1s: found after so long, and the code has it; . the code has it not, and nothing is "
        "found; - the code it is about is not there yet")
    out("MISSED: the code has it and it is not found; 3.1s?: found, though the code has it not; "
        "n/e: not expressible there; n/r: the release cannot be run")
    for row in rows:
        for c in row:
            if c.verdict in (ALARM, NOT_EXPRESSIBLE, CANNOT_RUN):
                out(f"{c.bug} in {c.release}: {c.verdict}: {c.because}")
    for release in releases:
        for met in release.unexplained(bugs):
            what = met.finding.property or met.finding.kind
            at = f" ({met.finding.died.at})" if met.finding.died else ""
            out(f"{release.version}, none of these: {what} because {met.finding.because}{at}")
    exact = sum(map(_exact, rows))
    out(f"{exact} of {len(bugs)} bugs are found on just the releases whose code has them")


def _markdown(bugs: list[Bug], rows: list[list[Cell]], command: str) -> str:
    """The table as the project's own page has it."""
    versions = [c.release for c in rows[0]] if rows else []
    lines = [
        "# Known bugs by releases of vLLM", "",
        f"Made by `{command}`. Runs know nothing of what they look for: a bug's workloads are "
        "chosen by the features that it is about, and whether a release has it is read from the "
        "release's code. A time: the code has it, and it was found after so long. `.`: the code "
        "has it not, and nothing was found. `-`: the code it is about is not there yet. "
        "**missed**: the code has it, and it was not found. **?**: found, though the code has it "
        "not. n/e: not expressible there; n/r: the release cannot be run.", "",
        "| bug | " + " | ".join(versions) + " |", "| --- |" + " --- |" * len(versions),
    ]
    for bug, row in zip(bugs, rows):
        told = [f"**{_short(c).lower()}**" if c.verdict in (MISSED, ALARM) else _short(c)
                for c in row]
        lines.append(f"| {bug.name} | " + " | ".join(told) + " |")
    exact = sum(map(_exact, rows))
    lines += ["", f"{exact} of {len(bugs)} are found on just the releases whose code has them.", "",
              "| bug | public as | what | in the code | workloads |",
              "| --- | --- | --- | --- | --- |"]
    lines += [f"| {b.name} | {b.issue} | {b.title} | {b.rests_on} | {', '.join(b.profiles)} |"
              for b in bugs]
    return "\n".join([*lines, ""])


def _page(bugs: list[Bug], rows: list[list[Cell]]) -> str:
    kinds = {FOUND: "bad", MISSED: "wrong", ALARM: "wrong", CLEAN: "good",
             NOT_EXPRESSIBLE: "grey", CANNOT_RUN: "grey"}
    versions = [c.release for c in rows[0]] if rows else []
    head = page.grid(["bug", *versions], (
        [b.name, *((_short(c), "grey" if c.code == ELSEWHERE and c.right else kinds[c.verdict])
                   for c in row)] for b, row in zip(bugs, rows)))
    about = page.grid(["bug", "public as", "what", "in the code", "workloads"], (
        [b.name, b.issue, b.title, b.rests_on, ", ".join(b.profiles)] for b in bugs))
    return page.document("Known bugs by releases of vLLM", [
        "<p>Red: the release's code has the bug, and runs that know nothing of it found it, after "
        "the seconds given. Green: the code has it not, and nothing was found. Yellow: code and "
        "finding disagree. Grey: the code it is about is not there, or it could not be tried.</p>",
        head, "<h2>The bugs</h2>", about])


def _data(bugs: list[Bug], rows: list[list[Cell]], releases: list[Release],
          arguments: argparse.Namespace, code: int) -> dict[str, Any]:
    return {
        "kvoracle": 1, "kind": "matrix", "exit_code": code, "seed": arguments.seed,
        "seconds_per_profile": arguments.budget or SECONDS,
        "bugs": [{"bug": b.name, "issue": b.issue, "title": b.title, "in_code": b.rests_on,
                  "profiles": list(b.profiles), "exact": _exact(row),
                  "present": [c.release for c in row if c.code == PRESENT],
                  "cells": [asdict(c) for c in row]} for b, row in zip(bugs, rows)],
        "releases": [{
            "release": r.version, "failed": r.failed,
            "hunts": [{"profile": h.profile, "runs": h.runs, "steps": h.steps,
                       "seconds": round(h.seconds, 2), "refused": h.refused,
                       "failed": h.failed} for h in r.hunts],
            "unexplained": [{"property": m.finding.property, "kind": m.finding.kind,
                             "because": m.finding.because, "profile": m.profile, "run": m.run,
                             "at": m.finding.died.at if m.finding.died else ""}
                            for m in r.unexplained(bugs)],
        } for r in releases],
    }
