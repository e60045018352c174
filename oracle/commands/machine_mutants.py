"""``kvoracle mutants`` of the machine: is every small change of it noticed by some property?"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvoracle.model.scopes import scope
from kvoracle.spec.explore.toolchain import NoCompiler
from kvoracle.spec.mutants.alike import proved_same
from kvoracle.spec.mutants.kill import TRIED, Outcome, kill_table
from kvoracle.spec.mutants.operators import KINDS
from kvoracle.spec.mutants.reasons import REASONS, Explained, explain
from kvoracle.spec.properties import EVERYTHING, PROPERTIES

from .. import exits
from ..console import Status, note, out, table, write_json


def run(arguments: argparse.Namespace) -> int:
    """The kill table of the named scopes' machines, or of all."""
    names = [scope(n).name for n in dict.fromkeys(arguments.scope or TRIED)]
    status = Status()

    def done(name: str, n: int, of: int) -> None:
        status.show(f"mutants in scope {name}: {n} of {of}")

    try:
        outcomes = kill_table(names, arguments.jobs, done)
    except NoCompiler as error:
        raise exits.UserError(str(error), exits.UNJUDGED) from None
    status.show("proving of survivors that they are the same machine")
    whole = set(names) >= set(TRIED)
    explained = explain(outcomes, REASONS, proved_same)
    status.clear()
    shown = {name for o in outcomes for name in o.killers}
    idle = [n for n in EVERYTHING if n not in shown] if whole else []
    _print(outcomes, explained, idle, arguments.all)
    code = _code(explained, idle, whole)
    if arguments.json is not None:
        write_json(arguments.json, _data(outcomes, explained, idle, code))
    return code


def _code(explained: Explained, idle: Sequence[str], whole: bool) -> int:
    """Of some scopes alone, survivors say nothing: another scope may kill them.  A lemma that
    notices nothing is told; it is there for its proof."""
    if not whole:
        return exits.HOLDS
    gaps = explained.unexplained or explained.stale or any(n in PROPERTIES for n in idle)
    return exits.VIOLATION if gaps else exits.HOLDS


def _print(outcomes: list[Outcome], explained: Explained, idle: Sequence[str],
           every: bool) -> None:
    killed = [o for o in outcomes if o.fate == "killed"]
    shown = Counter((p, o.kind) for o in outcomes for p in o.killers)
    rows = [(p, *(str(shown[p, k] or "-") for k in KINDS), str(sum(shown[p, k] for k in KINDS)))
            for p in dict.fromkeys((*EVERYTHING, *sorted(p for p, _ in shown)))
            if any((p, k) in shown for k in KINDS)]
    out(table(("killed by", *KINDS, "in all"), rows))
    out()
    if every:
        for o in outcomes:
            where = next((t.scope for t in o.trials if t.fate == o.fate), "")
            by = ", ".join(o.killers)
            out(f"{o.fate:8}  {o.name}  {f'{by} in {where}' if by else where}")
        out()
    lost = sum(o.fate == "witness" for o in outcomes)
    out(f"{len(outcomes)} mutants: {len(killed)} break a property, {lost} lose a situation that "
        f"a property is about, {sum(len(g) for _, g in explained.groups)} survive with a reason, "
        f"{len(explained.unexplained)} without")
    for why, group in explained.groups:
        out(f"  {len(group):4}  {why}")
    for o in explained.unexplained:
        out(f"no property notices: {o.name} ({_MEANING[o.fate]})")
    for reason in explained.stale:
        out(f"explains no survivor: {', '.join(reason.patterns)} ({reason.why})")
    for name in idle:
        out(f"{name} notices no mutant")
    note("a mutant counts as killed in the smallest scope that shows it")


_MEANING = {
    "same": "in no scope is a state or a step more or less",
    "other": "it permits other things",
    "unknown": "its search was cut off",
}


def _data(outcomes: list[Outcome], explained: Explained, idle: Sequence[str],
          code: int) -> dict[str, Any]:
    why = {o.name: reason for reason, group in explained.groups for o in group}
    return {
        "kvoracle": 1, "kind": "mutants", "exit_code": code,
        "mutants": [{
            "name": o.name, "action": o.action, "kind": o.kind, "fate": o.fate,
            "killers": list(o.killers),
            "scope": next((t.scope for t in o.trials if t.fate == o.fate), None),
            "reason": why.get(o.name),
        } for o in outcomes],
        "unexplained": [o.name for o in explained.unexplained],
        "stale_reasons": [list(r.patterns) for r in explained.stale],
        "properties_that_kill_nothing": list(idle),
    }
