"""Does TLC see the same states?  Runs it on an exported scope and reads its answer.

TLC (``tla2tools.jar``) is the user's: it is in no package registry.  It is run with
``-tool``, which puts every message between marks that carry the message's number.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvoracle.model.scopes import Scope
from kvoracle.model.terms import Sort

from ..explore import MachineStep
from ..properties import Property
from ..variants import Variant
from .external import Seen, ToolFailed, ToolMissing, Verdict, replayed
from .prepared import Prepared
from .tla import Module

# TLC's message numbers (its class EC).
VIOLATED = {
    2107: r"Invariant (\w+) is violated by the initial state",
    2110: r"Invariant (\w+) is violated",
    2112: r"Action property (\w+) is violated",
}
SUCCESS, STATISTICS, DEPTH, STATE = 2193, 2199, 2194, 2217

ERROR, BUG = 1, 2
"""Severities of messages that are not about the model's states."""

BEHAVIOUR = 2121
"""The message that a run follows, an error by its severity."""

_MESSAGE = re.compile(
    r"^@!@!@STARTMSG (\d+):(\d+) @!@!@\n(.*?)^@!@!@ENDMSG \1 @!@!@$", re.M | re.S)
_STATISTICS = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found")
_DEPTH = re.compile(r"The depth of the complete state graph search is ([\d,]+)")


@dataclass(frozen=True)
class Answer:
    """What TLC printed.  ``depth`` counts steps, not states; ``run`` is as TLC shows it."""

    distinct: int
    generated: int
    depth: int | None
    complete: bool
    broken: str | None
    run: tuple[Seen, ...]


def check(scope: Scope, variant: Variant | None, jar: Path, *,
          properties: Iterable[Property] | None = None, workers: int = 1) -> Verdict:
    """Search the scope with TLC, up to the first violation.

    With one worker no run to a violation is shorter.  ``generated`` may be larger than ours:
    TLC takes each way in which a guard holds as a step of its own.  Raises `ToolMissing`,
    `ToolFailed`, and `Disagreement` where the violation is none of ours.
    """
    java = shutil.which("java")
    if java is None:
        raise ToolMissing("java is not installed (Debian: apt-get install default-jre-headless)")
    if not jar.is_file():
        raise ToolMissing(f"no file {jar}: --tla2tools names the tla2tools.jar of TLA+")
    module = Module(Prepared(scope, variant, properties, fold_constants=False))
    with tempfile.TemporaryDirectory(prefix="kvoracle-tlc-") as folder:
        (Path(folder) / f"{module.name}.tla").write_text(module.text(), encoding="utf-8")
        (Path(folder) / f"{module.name}.cfg").write_text(module.configuration(), encoding="utf-8")
        started = time.perf_counter()
        done = subprocess.run(
            [java, "-XX:+UseParallelGC", "-cp", str(jar.resolve()), "tlc2.TLC", "-tool",
             "-workers", str(workers), "-metadir", folder, module.name],
            cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if not _MESSAGE.search(done.stdout) or "Exception in thread" in done.stderr:
        lines = [line for line in done.stderr.splitlines() if re.search("Error|Exception", line)]
        raise ToolFailed(
            f"TLC did not run: {lines[0].strip() if lines else f'exit code {done.returncode}'}")
    found = read(module, done.stdout)
    run: tuple[MachineStep, ...] = ()
    if found.broken is not None:
        run = replayed(module.machine, scope, "TLC", found.run)
    return Verdict("TLC", found.distinct, found.generated, found.depth, found.complete, seconds,
                   found.broken, run)


def read(module: Module, text: str) -> Answer:
    """What TLC's output (``-tool``) about the module says; raises `ToolFailed`."""
    broken: str | None = None
    counts: tuple[int, int] | None = None
    depth: int | None = None
    complete = False
    run: list[Seen] = []
    for number, severity, body in _messages(text):
        if number in VIOLATED:
            said = re.match(VIOLATED[number], body)
            if said is None:
                raise ToolFailed(f"TLC said what is not understood: {body.strip()}")
            broken = _property(module, said[1])
            if number == 2107:
                run = [Seen(None, _state(module, body.partition("\n")[2]))]
        elif number == STATE:
            run.append(_seen(module, body))
        elif number == STATISTICS:
            said = _STATISTICS.match(body)
            counts = (_number(said[2]), _number(said[1])) if said else None
        elif number == DEPTH:
            said = _DEPTH.match(body)
            depth = _number(said[1]) - 1 if said else None
        elif number == SUCCESS:
            complete = True
        elif severity in (ERROR, BUG) and number != BEHAVIOUR:
            raise ToolFailed(f"TLC stopped: {' '.join(body.split())[:300]}")
    if counts is None:
        raise ToolFailed("TLC ended without saying how many states it found")
    return Answer(*counts, depth, complete and broken is None, broken, tuple(run))


def _messages(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _MESSAGE.finditer(text):
        yield int(match[1]), int(match[2]), match[3]


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _property(module: Module, shown: str) -> str:
    known = {name: prop for prop, name in module.property_names.items()}
    if shown not in known:
        raise ToolFailed(f"TLC found {shown} broken: the exported model is wrong, not the design")
    return known[shown]


# --- states ------------------------------------------------------------------------------


def _seen(module: Module, body: str) -> Seen:
    head, _, state = body.partition("\n")
    said = re.match(r"\d+: <(\w+)", head)
    actions = {module.names[a]: a for a in module.machine.actions}
    return Seen(actions.get(said[1]) if said else None, _state(module, state))


def _state(module: Module, text: str) -> Mapping[tuple[str, tuple[int, ...]], int]:
    """``/\\ name = value`` for every variable, as values by variable and index."""
    variables = {module.names[v.name]: v for v in module.machine.state}
    parts = re.split(r"^(?:/\\ )?(\w+) = ", text, flags=re.M)
    state: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, value in zip(parts[1::2], parts[2::2]):
        if name not in variables:
            raise ToolFailed(f"TLC shows a variable {name}, which there is not")
        variable = variables[name]
        parsed = parse(value)
        items = parsed.items() if isinstance(parsed, dict) else [((), parsed)]
        for index, each in items:
            at = index if isinstance(index, tuple) else (index,)
            state[variable.name, tuple(map(_plain, at, variable.domain))] = \
                _plain(each, variable.sort)
    return state


def _plain(value: Shown, sort: Sort) -> int:
    if isinstance(value, str) and value in sort.names:
        return sort.names.index(value)
    if not isinstance(value, int):
        raise ToolFailed(f"TLC shows {value} where a number belongs")
    return int(value)


Shown = int | bool | str | tuple["Shown", ...] | dict["Shown", "Shown"]

_TOKEN = re.compile(r'\s*("[^"]*"|-?\d+|TRUE|FALSE|<<|>>|:>|@@|[(),])')


def parse(text: str) -> Shown:
    """A value as TLC prints it: a number, truth, string, tuple or function of such."""
    tokens = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ToolFailed(f"TLC shows a value that is not understood: {text}")
        tokens.append(match[1])
        at = match.end()
    value, rest = _value(tokens, text)
    if rest:
        raise ToolFailed(f"TLC shows a value that is not understood: {text}")
    return value


def _value(tokens: list[str], text: str) -> tuple[Shown, list[str]]:
    if not tokens:
        raise ToolFailed(f"TLC shows half a value: {text}")
    first, rest = tokens[0], tokens[1:]
    if first == "<<":
        items: list[Shown] = []
        while rest[:1] != [">>"]:
            item, rest = _value(rest[1:] if rest[:1] == [","] else rest, text)
            items.append(item)
        return tuple(items), rest[1:]
    if first == "(":
        function: dict[Shown, Shown] = {}
        while rest[:1] != [")"]:
            key, rest = _value(rest[1:] if rest[:1] == ["@@"] else rest, text)
            if rest[:1] != [":>"]:
                raise ToolFailed(f"TLC shows a value that is not understood: {text}")
            function[key], rest = _value(rest[1:], text)
        return function, rest[1:]
    if first in ("TRUE", "FALSE"):
        return first == "TRUE", rest
    if first.startswith('"'):
        return first[1:-1], rest
    try:
        return int(first), rest
    except ValueError:
        raise ToolFailed(f"TLC shows a value that is not understood: {text}") from None


__all__ = ["Answer", "check", "parse", "read"]
