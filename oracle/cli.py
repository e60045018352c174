"""The command line: what may be typed, and how it ends.

Exit codes: 0 it holds; 1 a violation was found; 2 bad input or usage; 3 it could not be
judged.  Commands are imported when called, so that ``--help`` stays quick.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import math
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import console, exits

CHECK = "prove, explore and run engines; one table"
DEFAULT_OUT = "kvoracle-findings"
FILES = ("junit", "sarif", "html", "svg", "repro", "markdown")
"""Options that name a file to write, beside ``--json``."""
COMMANDS = ("check", "prove", "explore", "fuzz", "replay", "explain", "matrix", "bisect", "engines",
            "export", "mutants")


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the command line."""

    def error(self, message: str) -> NoReturn:
        raise exits.UserError(f"{message} (see {self.prog} --help)")


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}") from None


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, not {text!r}")
    return value


def _bytes(text: str) -> int:
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = {"K": 10, "M": 20, "G": 30, "T": 40}.get(number[-1:], 0)
    try:
        size = int(float(number[:-1] if unit else number) * 2**unit)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected a size such as 500M or 4G, not {text!r}")
    return size


def version() -> str:
    """The installed version."""
    try:
        return importlib.metadata.version("kvoracle")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    top = _Parser(
        prog="kvoracle", description="Checks KV-cache offloading of LLM serving engines.",
        epilog="exit codes: 0 it holds, 1 a violation was found, 2 bad input, 3 not judged")
    top.add_argument("--version", action="version",
                     version=f"kvoracle {version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    check = commands.add_parser("check", help=CHECK, description=CHECK)
    check.add_argument("--engine", action="append", metavar="E",
                       help="impl (default), model, model:VARIANT, vllm==X, 'vllm>=X,<=Y', "
                            "vllm@PATH; repeatable")
    check.add_argument("--scope", action="append", metavar="S",
                       help="scopes to explore, or all")
    check.add_argument("--budget", type=_seconds, metavar="SECONDS",
                       help="seconds of generated runs for each engine, instead of a fixed number")
    check.add_argument("--junit", metavar="F", help="write the result as JUnit XML")
    check.add_argument("--sarif", metavar="F", help="write the findings as SARIF 2.1.0")
    check.add_argument("--html", metavar="F", help="write the result as a page")
    _common(check, seeded=True)

    prove = commands.add_parser("prove", help="prove properties for all sizes")
    prove.add_argument("property", nargs="*", metavar="PROPERTY")
    prove.add_argument("--variant", metavar="V", help="prove a variant instead of the reference")
    _common(prove)

    explore = commands.add_parser("explore", help="search a bounded scope exhaustively")
    explore.add_argument("--scope", action="append", metavar="S", help="default: seed; or all")
    explore.add_argument("--variant", metavar="V")
    explore.add_argument("--property", action="append", metavar="P",
                         help="only these properties (default: all)")
    explore.add_argument("--backend", metavar="B",
                         help="compiled (default; python where there is no compiler), torch, "
                              "python or reference; rumur, tlc or apalache: another checker, "
                              "on the exported scope")
    explore.add_argument("--device", metavar="D", help="for the backend torch: cpu or cuda")
    explore.add_argument("--server", metavar="HOST:PORT",
                         help="for the backend apalache (default: localhost:8822)")
    explore.add_argument("--tla2tools", metavar="JAR", help="for the backend tlc: tla2tools.jar")
    explore.add_argument("--max-states", type=_positive, metavar="N")
    explore.add_argument("--max-memory", type=_bytes, metavar="SIZE",
                         help="for states, such as 4G (default: three quarters of what is free)")
    explore.add_argument("--jobs", type=_positive, metavar="N", help="threads (default: all)")
    explore.add_argument("--symmetry", action="store_true",
                         help="of states that differ by a renaming of interchangeable things "
                              "(requests, blocks, texts, workers), search one")
    explore.add_argument("--liveness", action="store_true",
                         help="judge also what must happen in the end, under fairness")
    explore.add_argument("--checkpoint", metavar="FILE",
                         help="keep the search here, now and then and where it stops")
    explore.add_argument("--resume", metavar="FILE",
                         help="go on from a checkpoint, and keep the search there")
    _common(explore)

    fuzz = commands.add_parser("fuzz", help="random runs against one engine")
    fuzz.add_argument("--engine", required=True, metavar="E")
    fuzz.add_argument("--steps", type=_positive, metavar="N", help="scheduler steps in all")
    fuzz.add_argument("--budget", type=_seconds, metavar="SECONDS")
    fuzz.add_argument("--profile", action="append", metavar="P",
                      help="kind of workload (default storing); repeatable; or all")
    fuzz.add_argument("--jobs", type=_positive, default=1, metavar="N",
                      help="processes that play runs (default 1)")
    fuzz.add_argument("--journal", metavar="FILE",
                      help="keep what is done here; where the file is there, go on from it")
    fuzz.add_argument("--guided", action="store_true",
                      help="make runs from those that went where no run had been")
    fuzz.add_argument("--corpus", metavar="DIR",
                      help="guided; the runs kept here first, and what leads further is kept here")
    fuzz.add_argument("--ray", metavar="ADDRESS",
                      help="play on the Ray cluster at this address (auto: this machine's)")
    _common(fuzz, seeded=True)

    replay = commands.add_parser("replay", help="play a scenario on an engine")
    replay.add_argument("file", metavar="FILE", help="a scenario file, or a shipped one's name")
    replay.add_argument("--engine", metavar="E",
                        help="default: the engine the file was recorded on, else impl")
    _common(replay)

    explain = commands.add_parser("explain", help="one finding in full: a table, a page, a script")
    explain.add_argument("file", metavar="FILE", help="the file of a finding, or a scenario")
    explain.add_argument("--engine", metavar="E", help="default: the engine it was found in")
    explain.add_argument("--repro", metavar="F",
                         help="write a script that shows it with nothing but that vLLM (- for "
                              "stdout)")
    explain.add_argument("--html", metavar="F", help="write it as a page")
    explain.add_argument("--svg", metavar="F", help="write its picture")
    _common(explain)

    matrix = commands.add_parser("matrix", help="known bugs by releases of vLLM")
    matrix.add_argument("--engines", action="append", metavar="RANGE",
                        help="releases (default 'vllm>=0.20,<=0.33'); repeatable")
    matrix.add_argument("--bugs", action="append", metavar="B", help="only these (default: all)")
    matrix.add_argument("--budget", type=_seconds, metavar="SECONDS",
                        help="for each profile of runs in each release (default 20)")
    matrix.add_argument("--seed", type=_whole, default=0, metavar="N")
    matrix.add_argument("--jobs", type=_positive, metavar="N",
                        help="releases at a time (default 2)")
    matrix.add_argument("--html", metavar="F", help="write the table as a page")
    matrix.add_argument("--markdown", metavar="F", help="write it as Markdown")
    _common(matrix)

    bisect = commands.add_parser("bisect", help="the first release with a bug, or without it")
    bisect.add_argument("what", metavar="FILE|BUG", help="the file of a finding, or a known bug")
    bisect.add_argument("--engine", default="vllm", metavar="E",
                        help="vllm: all that are installed (default); a range; or vllm@PATH: one "
                             "checkout, with the exit codes of git bisect run")
    bisect.add_argument("--budget", type=_seconds, metavar="SECONDS",
                        help="for each profile of a known bug's runs (default 20)")
    bisect.add_argument("--seed", type=_whole, default=0, metavar="N")
    _common(bisect)

    engines = commands.add_parser("engines", help="list, install or remove engines")
    what = engines.add_subparsers(dest="what", required=True, metavar="list|install|remove")
    listing = what.add_parser("list", help="what can be driven now")
    listing.add_argument("--all", action="store_true",
                         help="and the releases on the package index that are not installed")
    for name in ("install", "remove"):
        one = what.add_parser(name, help=f"{name} releases of vLLM")
        one.add_argument("engine", nargs="+", metavar="vllm==VERSION",
                         help="or a range: 'vllm>=0.20,<=0.33'")

    export = commands.add_parser("export", help="write the model down for another checker")
    export.add_argument("format", choices=("tla", "murphi", "smt2"),
                        help="tla and murphi: one scope; smt2: the proof, for all sizes")
    export.add_argument("--scope", metavar="S", help="default: seed, or the variant's")
    export.add_argument("--variant", metavar="V")
    export.add_argument("--out", metavar="DIR", default="kvoracle-export",
                        help="where the files are written (default kvoracle-export)")

    mutants = commands.add_parser("mutants", help="put faults in; is each of them caught?")
    mutants.add_argument("--scope", action="append", metavar="S",
                         help="of the machine, in these scopes (default: all)")
    mutants.add_argument("--all", action="store_true", help="of the machine: list every mutant")
    mutants.add_argument("--engine", metavar="E",
                         help="faults put into a release instead: vllm==0.33.0")
    mutants.add_argument("--fault", action="append", metavar="F", help="only these (default: all)")
    mutants.add_argument("--profile", action="append", metavar="P",
                         help="kinds of workload, in turn (default: those of check)")
    mutants.add_argument("--runs", type=_positive, metavar="N",
                         help="runs in which a fault has to be met (default 60)")
    mutants.add_argument("--seed", type=_whole, default=0, metavar="N")
    mutants.add_argument("--jobs", type=_positive, metavar="N",
                         help="searches, or engines, at a time (default 2)")
    _common(mutants)
    return top


def _common(command: argparse.ArgumentParser, seeded: bool = False) -> None:
    command.add_argument("--json", metavar="F", help="write the result as JSON (- for stdout)")
    if seeded:
        command.add_argument("--seed", type=_whole, default=0, metavar="N")
        command.add_argument("--out", default=DEFAULT_OUT, metavar="DIR",
                             help=f"where findings are written (default {DEFAULT_OUT})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return _end("interrupted", exits.INTERRUPTED)


def _run(argv: Sequence[str]) -> int:
    try:
        arguments = _parse(argv)
    except exits.UserError as error:
        return _end(str(error), error.code)
    except SystemExit as ended:  # --help and --version
        return _flushed(int(ended.code or 0))
    from kvoracle.model.scopes import ImpossibleConfig, UnknownName

    from .scenario import MalformedScenario

    json = getattr(arguments, "json", None)
    console.begin(machine_readable=json == "-")
    try:
        for wanted in (json, *(getattr(arguments, name, None) for name in FILES)):
            if wanted is not None:
                console.need_writable(wanted)
        if getattr(arguments, "out", DEFAULT_OUT) != DEFAULT_OUT:
            console.need_writable(arguments.out, folder=True)
        module = importlib.import_module(f"kvoracle.oracle.commands.{arguments.command}")
        code: int = module.run(arguments)
    except exits.UserError as error:
        return _end(str(error), error.code)
    except (UnknownName, ImpossibleConfig, MalformedScenario) as error:
        return _end(str(error), exits.USAGE)
    return _flushed(code)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    grammar = parser()
    command = argv[0] if argv else ""
    if command and not command.startswith("-") and command not in COMMANDS:
        from kvoracle.model.scopes import nearest

        raise exits.UserError(str(nearest("command", command, COMMANDS)))
    return grammar.parse_args(argv)


def _flushed(code: int) -> int:
    """What was written has arrived, or nobody wants it."""
    try:
        console.end()
    except exits.UserError as error:
        return _end(str(error), error.code)
    return code


def _end(message: str, code: int) -> int:
    console.note(f"kvoracle: {' '.join(message.splitlines())}")
    with contextlib.suppress(exits.UserError):
        console.end()
    return code


if __name__ == "__main__":
    sys.exit(main())
