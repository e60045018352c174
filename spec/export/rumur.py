"""Does rumur see the same states?  Runs it on an exported scope and reads its answer.

rumur turns Murphi into C, the C compiler that into a checker, and the checker prints XML.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from platform import machine

from kvoracle.model.scopes import Scope
from kvoracle.model.terms import Sort

from ..explore import MachineStep, NoCompiler
from ..explore.toolchain import compiler
from ..properties import Property
from ..variants import Variant
from .external import Seen, ToolFailed, ToolMissing, Verdict, replayed
from .murphi import Program, Use
from .prepared import Prepared

CONFIGURATION = (
    "--deadlock-detection", "off", "--output-format", "machine-readable",
    "--counterexample-trace", "full",
)
COMPILE = ("-std=c11", "-w", *(("-march=native", "-mcx16") if machine() == "x86_64" else ()))
"""rumur's checkers compare and swap two words at once, which x86 compilers want to be told."""


@dataclass(frozen=True)
class Checker:
    """A compiled checker; ``text`` is the Murphi it was made from."""

    program: Program
    text: str
    path: Path


def missing() -> str | None:
    """What is not installed, as one line; None if everything is."""
    if shutil.which("rumur") is None:
        return "rumur is not installed (Debian: apt-get install rumur)"
    try:
        compiler()
    except NoCompiler:
        return "no C compiler is installed (Debian: apt-get install gcc)"
    return None


def build(scope: Scope, variant: Variant | None, folder: Path, *,
          properties: Iterable[Property] | None = None, use: Use = "assert", threads: int = 1,
          optimise: str = "-O1") -> Checker:
    """A checker of the scope, in ``folder``; raises `ToolMissing`, `ToolFailed`."""
    why = missing()
    if why:
        raise ToolMissing(why)
    program = Program(Prepared(scope, variant, properties), use)
    text = program.text()
    model, source, path = folder / "model.m", folder / "model.c", folder / "model"
    model.write_text(text, encoding="utf-8")
    _call(["rumur", *CONFIGURATION, "--threads", str(threads), "--output", str(source),
           str(model)])
    _call([*compiler(), optimise, *COMPILE, "-o", str(path), str(source), "-lpthread"])
    return Checker(program, text, path)


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ToolFailed(f"{Path(command[0]).name} failed: {said[0] if said else done.returncode}")


@dataclass(frozen=True)
class Answer:
    """What a checker printed."""

    distinct: int
    generated: int
    state_bytes: int
    counts: dict[str, int]
    failure: str | None
    run: tuple[Seen, ...]


def answer(checker: Checker) -> Answer:
    """Run the checker; raises `ToolFailed`."""
    done = subprocess.run([str(checker.path)], capture_output=True, text=True, check=False)
    return read(checker.program, done.stdout)


def read(program: Program, xml: str) -> Answer:
    """What a checker's output says; raises `ToolFailed`."""
    try:
        root = Xml.fromstring(xml)
        summary, information = root.find("summary"), root.find("information")
        assert summary is not None and information is not None
    except (Xml.ParseError, AssertionError):
        raise ToolFailed("the checker that rumur made ended without a summary") from None
    counts: dict[str, int] = {}
    for cover in root.iter("cover_result"):
        name = cover.attrib["message"]
        counts[name] = counts.get(name, 0) + int(cover.attrib["count"])
    error = root.find("error")
    return Answer(
        int(summary.attrib["states"]), int(summary.attrib["rules_fired"]),
        int(information.attrib["state_size_bytes"]), counts,
        None if error is None else (error.findtext("message") or "an error without a message"),
        () if error is None else tuple(_run(program, error)))


def _run(program: Program, error: Xml.Element) -> Iterator[Seen]:
    cells = {
        program.place(variable, list(map(str, index))): (variable, index)
        for variable in program.machine.state
        for index in _indices(program, variable.domain)
    }
    action: str | None = None
    for part in error:
        if part.tag == "transition":
            said = re.match(r'Rule "(.*)"', part.text or "")
            action = said[1] if said else None
        elif part.tag == "state":
            state = {}
            for component in part.iter("state_component"):
                variable, index = cells[component.attrib["name"]]
                shown = component.attrib["value"]
                names = ["false", "true"] if variable.sort.is_bool \
                    else program.members.get(variable.sort.name) or []
                state[variable.name, index] = \
                    names.index(shown) if shown in names else int(shown)
            yield Seen(action, state)


def _indices(program: Program, domain: tuple[Sort, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(program.scope.size(s)) for s in domain))


def check(scope: Scope, variant: Variant | None = None, *,
          properties: Iterable[Property] | None = None, threads: int = 1,
          optimise: str = "-O2") -> Verdict:
    """Search the scope with rumur, up to the first violation.

    Raises `ToolMissing`, `ToolFailed`, and `Disagreement` where the violation is none of ours.
    """
    with tempfile.TemporaryDirectory(prefix="kvoracle-rumur-") as folder:
        checker = build(scope, variant, Path(folder), properties=properties, threads=threads,
                        optimise=optimise)
        started = time.perf_counter()
        found = answer(checker)
        seconds = time.perf_counter() - started
    broken: str | None = None
    run: tuple[MachineStep, ...] = ()
    if found.failure is not None:
        said = re.fullmatch(r'invariant "(.*)" failed|Assertion failed: .*: (.*)', found.failure)
        if not said:
            raise ToolFailed(f"rumur stopped: {found.failure}")
        broken = said[1] or said[2]
        run = replayed(checker.program.machine, scope, "rumur", found.run)
    return Verdict("rumur", found.distinct, found.generated, None, broken is None, seconds, broken,
                   run, found.state_bytes)


__all__ = ["Answer", "Checker", "answer", "build", "check", "missing", "read"]
