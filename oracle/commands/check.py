"""``kvoracle check``: one table of properties: proved, explored, held by each engine."""

from __future__ import annotations

import argparse
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvoracle.model.scopes import SCOPES
from kvoracle.model.scopes import scope as find_scope
from kvoracle.spec.explore import COMPILED, Exploration, Lasting
from kvoracle.spec.properties import PLANNING, PROPERTIES

from .. import exits
from ..campaign import Campaign, Runner
from ..console import Status, note, out, table, write_json, write_text
from ..engines.process import EngineProcess
from ..engines.protocol import Engine
from ..engines.registry import EngineUnavailable, expand, open_engine
from ..observed import DIRECT, OBSERVED
from ..report import FORMS
from ..scenario import shipped
from ..verify import DEFAULT_SCOPES, ProofResult, explored, lasted, prove
from ..workload import CHECKED, profile
from . import future, fuzz
from .explore import NO_COMPILER

Campaigns = list[tuple[str, "Campaign | EngineUnavailable"]]
"""By engine, what driving it came to, or why there is none."""

RUNS = 30
"""Generated runs for each engine: a few seconds, and each broken design is found in fewer."""


def run(arguments: argparse.Namespace) -> int:
    """Prove, explore, drive the engines, and say what it comes to."""
    try:
        names = expand(arguments.engine or ["impl"])
    except EngineUnavailable as unknown:
        raise exits.UserError(str(unknown), exits.UNJUDGED) from None
    wanted = dict.fromkeys(arguments.scope or DEFAULT_SCOPES)
    scopes = [find_scope(n) for n in (SCOPES if "all" in wanted else wanted)]
    engines: list[tuple[str, Engine | EngineUnavailable]] = []
    for name in names:
        try:
            engines.append((name, open_engine(name)))
        except EngineUnavailable as missing:
            engines.append((name, missing))
    status = Status()
    stop = threading.Event()
    # What runs in a process of its own runs while the machine is proved; what runs in this one
    # waits, since it would take the interpreter from the solver call by call.
    aside = [name for name, engine in engines if isinstance(engine, EngineProcess)]
    pool = ThreadPoolExecutor(max_workers=max(1, min(len(aside), os.cpu_count() or 1)))
    try:
        futures = {
            name: pool.submit(_drive, name, engine, arguments, status, stop)
            for name, engine in engines if isinstance(engine, EngineProcess)
        }
        proof = prove(None, None, lambda what: status.show(f"proving {what}"))
        searches = explored(scopes, None, lambda r, frontier: status.show(
            f"exploring {r.scope}: {r.distinct:,} states, frontier {frontier:,}"))
        if any(r.backend != COMPILED for r in searches):
            note(NO_COMPILER)
        endings = lasted(scopes, status.show)
        campaigns: Campaigns = [
            (name, engine if isinstance(engine, EngineUnavailable)
             else futures[name].result() if name in futures
             else _drive(name, engine, arguments, status, stop))
            for name, engine in engines
        ]
    finally:
        stop.set()  # all is done, or something failed and nobody waits for the rest
        for _, engine in engines:
            if not isinstance(engine, EngineUnavailable):
                engine.close()
        pool.shutdown(wait=False, cancel_futures=True)
        status.clear()
    code = _report(proof, searches, endings, campaigns)
    document = _data(proof, searches, endings, campaigns, code)
    if arguments.json is not None:
        write_json(arguments.json, document)
    for option, form in FORMS.items():
        if getattr(arguments, option) is not None:
            write_text(getattr(arguments, option), form(document))
    return code


def _drive(name: str, engine: Engine, arguments: argparse.Namespace, status: Status,
           stop: threading.Event) -> Campaign:
    runner = Runner(name, engine, Path(arguments.out), lambda what, i, n, found: status.show(
        f"{name}: {what}" + (f" ({i} of {n} runs)" if n else "") + f", {found} findings"), stop)
    runner.scenarios(shipped().values())
    runner.generated([profile(name) for name in CHECKED], arguments.seed,
                     None if arguments.budget else RUNS, None, arguments.budget)
    return runner.campaign


# --- the table ---------------------------------------------------------------------


def _proof_cell(name: str, proof: ProofResult) -> str:
    if name not in PROPERTIES:
        return "-"
    return f"proved ({len(proof.of(name))} obligations)" if proof.proved(name) else "NOT PROVED"


def _search_cell(name: str, searches: list[Exploration]) -> str:
    judged = [r for r in searches if name in r.evaluated]
    if name not in PROPERTIES or not judged:
        return "-"
    broken = [r.scope for r in judged if name in r.violations]
    if broken:
        return f"BROKEN in {', '.join(broken)}"
    states = sum(r.distinct for r in judged)
    never = [w for r in [judged] for w in _never_seen(name, r)]
    text = f"holds in {states:,} states"
    return f"{text}\nnever met: {', '.join(never)}" if never else text


def _future_cell(name: str, endings: list[Lasting]) -> str:
    """What is said of the promise's other part, what must happen in the end."""
    judged = [r for r in endings if name in r.judged]
    broken = [r.scope for r in endings if name in r.violations]
    if broken:
        return f"\nBROKEN under fairness in {', '.join(broken)}"
    return f"\nunder fairness in {sum(r.states for r in judged):,} states" if judged else ""


def _never_seen(name: str, searches: list[Exploration]) -> list[str]:
    """Situations of the property that no scope reached: it may hold for want of them."""
    wanted = {w.name for w in PROPERTIES[name].witnesses}
    met = {w for r in searches for w, depth in r.witnesses.get(name, {}).items()
           if depth is not None}
    return sorted(wanted - met)


JUDGED = list(dict.fromkeys([*PLANNING, *OBSERVED]))
"""What an engine is judged by; the rest is a promise of the machine alone, so far."""

NAMES = list(dict.fromkeys([*PROPERTIES, *OBSERVED]))
"""The rows of the table.  What is proved of the machine and seen of an engine is one row."""


def _engine_cell(name: str, campaign: Campaign | EngineUnavailable) -> str:
    if name not in JUDGED:
        return "-"
    if isinstance(campaign, EngineUnavailable) or campaign.runs == 0:
        return "not judged"
    mine = [f for f in campaign.reported if f.explanation.property == name]
    kinds = {f.explanation.kind for f in mine}
    if name == "NoCrash":
        kinds = {f.explanation.kind for f in campaign.reported} & {"crash"}
    if kinds:
        return "BROKEN (crash)" if kinds == {"crash"} else "BROKEN"
    counted = {
        "NoCrash": (campaign.judged, "event"), "NoLeak": (campaign.rested, "run"),
        "TrueBytes": (campaign.stored, "position"), "LoadedBytes": (campaign.read, "position"),
    }
    times, what = counted.get(name, (campaign.evaluated.get(name, 0), "check"))
    return f"held ({fuzz.count(times, what)})" if times \
        else "not seen" if name in DIRECT else "not judged"


def _report(proof: ProofResult, searches: list[Exploration], endings: list[Lasting],
            campaigns: Campaigns) -> int:
    for name, campaign in campaigns:
        out(f"== {name}")
        if isinstance(campaign, EngineUnavailable):
            out(f"not judged: {campaign}")
        else:
            fuzz.report(campaign)
        out()
    header = ["property", "for all sizes", "explored", *(name for name, _ in campaigns)]
    rows = [
        [name, _proof_cell(name, proof), _search_cell(name, searches) + _future_cell(name, endings),
         *(_engine_cell(name, campaign) for _, campaign in campaigns)]
        for name in NAMES
    ]
    others = [_departures(campaign) for _, campaign in campaigns]
    if any(others):
        rows.append(["(no property)", "-", "-", *(n or "-" for n in others)])
    out(table(header, rows))
    out()
    out("explored: " + ", ".join(
        f"{r.scope} ({r.distinct:,} states, depth {r.depth})" for r in searches))
    code = _code(proof, searches, endings, campaigns)
    out({
        exits.HOLDS: "verdict: holds",
        exits.VIOLATION: "verdict: VIOLATED",
        exits.UNJUDGED: "verdict: not everything could be judged",
    }[code])
    return code


def _departures(campaign: Campaign | EngineUnavailable) -> str:
    """What was found that no property of the table is about."""
    if isinstance(campaign, EngineUnavailable):
        return ""
    n = sum(not f.explanation.property for f in campaign.reported)
    return fuzz.count(n, "departure") if n else ""


def _unjudged(campaign: Campaign | EngineUnavailable) -> bool:
    """Whether some property was not judged once, though the engine shows what it is about."""
    return isinstance(campaign, EngineUnavailable) or (not campaign.unseen and any(
        _engine_cell(name, campaign) == "not judged" for name in JUDGED))


def _code(proof: ProofResult, searches: list[Exploration], endings: list[Lasting],
          campaigns: Campaigns) -> int:
    codes = [exits.UNJUDGED if isinstance(c, EngineUnavailable) else fuzz.code(c)
             for _, c in campaigns]
    if exits.VIOLATION in codes or any(r.violations for r in searches) \
            or any(r.violations for r in endings):
        return exits.VIOLATION
    if proof.failed or exits.UNJUDGED in codes or any(_unjudged(c) for _, c in campaigns):
        return exits.UNJUDGED
    return exits.HOLDS


def _data(proof: ProofResult, searches: list[Exploration], endings: list[Lasting],
          campaigns: Campaigns, code: int) -> dict[str, Any]:
    return {
        "kvoracle": 1, "kind": "check", "exit_code": code,
        "properties": {
            name: {
                "proved": proof.proved(name) if name in PROPERTIES else None,
                "explored": {r.scope: name not in r.violations for r in searches
                             if name in r.evaluated} if name in PROPERTIES else None,
                "engines": {n: _engine_cell(name, c) for n, c in campaigns},
            }
            for name in NAMES
        },
        "obligations": [{k: v for k, v in asdict(o).items() if k != "seconds"}
                        for o in proof.obligations],
        "scopes": [{"scope": r.scope, "distinct": r.distinct, "generated": r.generated,
                    "depth": r.depth, "evaluated": r.evaluated} for r in searches],
        "future": [{k: v for k, v in future.data(r).items() if k != "seconds"} for r in endings],
        "engines": [
            {"engine": n, "not_judged": str(c)} if isinstance(c, EngineUnavailable)
            else fuzz.data(c)
            for n, c in campaigns
        ],
    }
