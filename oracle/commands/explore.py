"""``kvoracle explore``: every state of a scope, and which property was evaluated how often."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from kvoracle.model.scopes import SCOPES, Scope
from kvoracle.model.scopes import scope as find_scope
from kvoracle.spec.explore import (
    COMPILED,
    TORCH,
    CheckpointRefused,
    Exploration,
    Lasting,
    Limits,
    NoCompiler,
    NoDevice,
    OutOfMemory,
    lasting,
    search,
)
from kvoracle.spec.explore.checkpoint import Asked, header
from kvoracle.spec.properties import EVERYTHING, LIVENESS, named
from kvoracle.spec.variants import Variant
from kvoracle.spec.variants import variant as find_variant

from .. import exits
from ..console import Status, note, out, table, write_json
from ..verify import because, run_lines
from . import future

NO_COMPILER = "no C compiler: exploring in Python, some hundred times slower"


def run(arguments: argparse.Namespace) -> int:
    """Search one scope, or each of them."""
    if arguments.backend in ("rumur", "tlc", "apalache"):
        from .outside import run as ask

        return ask(arguments)
    try:
        return _run(arguments)
    except (NoCompiler, NoDevice) as error:
        raise exits.UserError(str(error), exits.UNJUDGED) from None
    except OutOfMemory as error:
        raise exits.UserError(f"{error} (--max-memory)", exits.UNJUDGED) from None
    except CheckpointRefused as error:
        raise exits.UserError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    if arguments.device is not None and arguments.backend != TORCH:
        raise exits.UserError(f"--device is for the backend {TORCH}")
    if arguments.server is not None:
        raise exits.UserError("--server is for the backend apalache")
    kept = header(Path(arguments.resume)).asked if arguments.resume is not None else None
    if kept is not None:
        _as_kept(arguments, kept)
    variant = find_variant(arguments.variant) if arguments.variant else None
    names = dict.fromkeys(arguments.scope or [variant.scope if variant else "seed"])
    scopes = [find_scope(n) for n in (SCOPES if "all" in names else names)]
    properties = [named(n) for n in dict.fromkeys(arguments.property or ())] or None
    if arguments.liveness:
        _whole_and_plain(arguments)
    limits = _limits(arguments, len(scopes))
    status = Status()
    results: list[Exploration] = []
    for scope in scopes:
        try:
            result = search(
                scope, variant, arguments.backend,
                properties=properties, max_states=arguments.max_states, limits=limits,
                device=arguments.device,
                progress=lambda r, frontier: status.show(_progress(r, frontier)),
            )
        except KeyboardInterrupt:
            status.clear()
            if limits is not None and limits.checkpoint is not None:
                note(f"the search is kept: kvoracle explore --resume {_quoted(limits.checkpoint)}")
            raise
        finally:
            status.clear()
        if arguments.backend is None and result.backend != COMPILED and not results:
            note(NO_COMPILER)
        results.append(result)
        _print(result, arguments, limits)
    lasted = [_lasting(s, variant, arguments, status) for s in scopes] \
        if arguments.liveness else []
    codes = {_code(results), future.code(lasted)}
    code = next(c for c in (exits.VIOLATION, exits.UNJUDGED, exits.HOLDS) if c in codes)
    if arguments.json is not None:
        write_json(arguments.json, {"kvoracle": 1, "kind": "explore", "exit_code": code,
                                    "results": [_data(r) for r in results],
                                    "future": [future.data(r) for r in lasted]})
    return code


def _lasting(scope: Scope, variant: Variant | None, arguments: argparse.Namespace,
             status: Status) -> Lasting:
    """Judge the promises about the future in a scope."""
    names = dict.fromkeys(arguments.property or LIVENESS)
    status.show(f"looking for runs of {scope.name} that wait for ever")
    try:
        found = lasting(scope, variant, arguments.backend, max_states=arguments.max_states,
                        properties=[LIVENESS[n] for n in names if n in LIVENESS])
    finally:
        status.clear()
    future.show(found, scope, variant.machine(scope) if variant else scope.machine())
    return found


def _whole_and_plain(arguments: argparse.Namespace) -> None:
    """What promises about the future cannot be judged with."""
    if arguments.backend not in (None, COMPILED, "python"):
        raise exits.UserError(
            f"--liveness needs the backend {COMPILED} or python, not {arguments.backend}")
    if arguments.symmetry:
        raise exits.UserError("--liveness needs every state: fairness tells apart what --symmetry "
                              "makes one")


def _as_kept(arguments: argparse.Namespace, kept: Asked) -> None:
    """A search that goes on does what it did; what the command line leaves open is the file's."""
    arguments.scope = arguments.scope or [kept.scope]
    arguments.variant = arguments.variant or kept.variant
    arguments.property = arguments.property or list(kept.properties)
    arguments.symmetry = arguments.symmetry or kept.symmetry
    arguments.checkpoint = arguments.checkpoint or arguments.resume


def _limits(arguments: argparse.Namespace, scopes: int) -> Limits | None:
    """What only the backends of packed states keep; None where nothing of it is asked for."""
    asked = [name for name in ("max_memory", "jobs", "symmetry", "checkpoint", "resume")
             if getattr(arguments, name)]
    if not asked:
        return None
    if arguments.backend not in (None, COMPILED, TORCH):
        raise exits.UserError(f"--{asked[0].replace('_', '-')} needs the backend {COMPILED} or "
                              f"{TORCH}, not {arguments.backend}")
    if arguments.checkpoint and scopes > 1:
        raise exits.UserError("a checkpoint keeps the search of one scope: name one")
    return Limits(
        memory=arguments.max_memory, threads=arguments.jobs, symmetry=arguments.symmetry,
        checkpoint=Path(arguments.checkpoint) if arguments.checkpoint else None,
        resume=Path(arguments.resume) if arguments.resume else None,
    )


def _progress(r: Exploration, frontier: int) -> str:
    memory = f", {_size(r.memory)}" if r.memory else ""
    return (f"{r.scope}: {r.distinct:,} states{memory}, "
            f"{r.generated / max(r.seconds, 1e-9):,.0f} generated/s, depth {r.depth}, "
            f"frontier {frontier:,}")


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 2**10:,.1f} KiB"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _code(results: list[Exploration]) -> int:
    if any(r.violations for r in results):
        return exits.VIOLATION
    judged = all(r.complete and r.evaluated for r in results)
    return exits.HOLDS if judged else exits.UNJUDGED


def replay_line(scope: str, variant: str | None, name: str, symmetry: bool = False) -> str:
    """The command that finds the same run again: the search is deterministic."""
    design = f" --variant {variant}" if variant else ""
    way = " --symmetry" if symmetry else ""
    return f"kvoracle explore --scope {scope}{design}{way} --property {name}"


def _print(r: Exploration, arguments: argparse.Namespace, limits: Limits | None) -> None:
    design = f", variant {r.variant}" if r.variant else ""
    way = ", up to renaming" if arguments.symmetry else ""
    scope = find_scope(r.scope)
    out(f"scope {r.scope}{design}, backend {r.backend}{way}: {scope.doc}")
    out(f"{r.distinct:,} distinct states, {r.generated:,} generated, {r.cut:,} cut by the scope's "
        f"bounds, depth {r.depth}; exact: states are compared whole")
    memory = f", {_size(r.memory)} for the states" if r.memory else ""
    note(f"{r.seconds:.2f} s, {r.generated / max(r.seconds, 1e-9):,.0f} generated/s{memory}")
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
        out()
        also = f" (and {', '.join(violation.also)})" if violation.also else ""
        machine = find_variant(r.variant).machine(scope) if r.variant else scope.machine()
        out(f"{violation.property} is broken{also} because "
            f"{because(machine, scope, violation)}.")
        out(f"{violation.property}: {EVERYTHING[violation.property].statement}.")
        out(f"A shortest run, of {len(violation.run)} steps:")
        for line in run_lines(machine, scope, violation.run):
            out(line)
        line = replay_line(r.scope, r.variant, violation.property, arguments.symmetry)
        out(f"replay: {line}")
    if r.stopped:
        out(f"not everything was searched: {_stopped(r, arguments, limits)}")
    out()


def _stopped(r: Exploration, arguments: argparse.Namespace, limits: Limits | None) -> str:
    """Why a search ended early, and how to go on."""
    kept = limits.checkpoint if limits is not None else None
    resume = f"kvoracle explore --resume {_quoted(kept)}" if kept is not None else ""
    if r.stopped == "memory":
        more = f"{resume} --max-memory SIZE goes on" if resume \
            else "--max-memory gives more, --checkpoint keeps a search to go on from"
        fewer = "" if arguments.symmetry else "; --symmetry needs fewer states"
        return (f"{r.distinct:,} states were searched in the memory allowed, {_size(r.memory)}; "
                f"{more}{fewer}")
    text = f"the limit of {arguments.max_states:,} states was reached"
    return f"{text}; {resume} goes on" if resume else text


def _data(r: Exploration) -> dict[str, Any]:
    return {
        "scope": r.scope, "variant": r.variant, "backend": r.backend, "distinct": r.distinct,
        "generated": r.generated, "cut": r.cut, "depth": r.depth, "seconds": r.seconds,
        "exact": True, "complete": r.complete, "stopped": r.stopped, "evaluated": r.evaluated,
        "situations": r.witnesses,
        "violations": {
            name: [{"action": s.action, **s.values} for s in v.run]
            for name, v in r.violations.items()
        },
    }
