"""How quick are our searches against rumur's, on the same exported scope with the same counts?

    python bench/explore.py [--scope pair] [--scope draft] [--threads 2] [--repeat 3]
    python bench/explore.py --device cuda [--scope pair-deep] [--max-memory 100]

Each backend, and rumur with one thread and with as many as ours, searches the scope in a
process of its own and checks the same properties in every state and step.  Printed are the
best of the repeats: distinct states a second, the ratio to the rumur of as many threads, and
the memory that the search added to its process at most, by state.  Compiling is not counted;
it is printed beside.  Ends with exit code 1 if counts differ.

With ``--device`` the torch reading runs there instead, over every scope and then, for its
speed, over pair-deep (96 million states), each held against the compiled search: generated
states a second, and the memory that states, table and buffers take on the device by state.
On a machine with a GPU that is a matter of a few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from kvoracle.model.scopes import SCOPES
from kvoracle.model.scopes import scope as find_scope
from kvoracle.spec.explore import (
    BACKENDS,
    COMPILED,
    TORCH,
    Exploration,
    Limits,
    NoDevice,
    OutOfMemory,
    search,
)
from kvoracle.spec.export import rumur

SLOW_STATES = 3_000
"""How many states the plain reading is let search: it takes a second for some hundreds."""


@dataclass
class Run:
    """One search: what it saw, how long it took, what it added to its process (bytes)."""

    name: str
    threads: int
    distinct: int
    generated: int
    seconds: float
    memory: int
    prepared: float
    complete: bool = True

    @property
    def rate(self) -> float:
        """Distinct states a second."""
        return self.distinct / max(self.seconds, 1e-9)


def peak(who: int = resource.RUSAGE_SELF) -> int:
    """The most memory a process had so far, in bytes."""
    return resource.getrusage(who).ru_maxrss * 1024


def ours(name: str, scope: str, threads: int) -> Run:
    """One search by a backend of ours, in this process."""
    chosen = find_scope(scope)
    limits = Limits(threads=threads) if name in (COMPILED, TORCH) else None
    most = SLOW_STATES if name == "reference" else None
    started = time.perf_counter()
    search(chosen, backend=name, max_states=2, limits=limits)  # what compiling there is
    prepared, before = time.perf_counter() - started, peak()
    found = search(chosen, backend=name, max_states=most, limits=limits)
    assert not found.violations
    return Run(name, threads, found.distinct, found.generated, found.seconds, peak() - before,
               prepared, found.complete)


def apart(name: str, scope: str, threads: int) -> Run:
    """The same in a process of its own, whose memory is nobody else's."""
    command = [sys.executable, __file__, "--one", name, "--scope", scope, "--threads",
               str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Run(**json.loads(done.stdout))


def theirs(scope: str, threads: int, repeat: int) -> list[Run]:
    """rumur's searches, by one checker as well optimised as its manual says."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        checker = rumur.build(find_scope(scope), None, Path(folder), threads=threads,
                              optimise="-O3")
        prepared = time.perf_counter() - started
        for _ in range(repeat):
            started = time.perf_counter()
            with subprocess.Popen([checker.path], stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                text = process.stdout.read()
                _, _, used = os.wait4(process.pid, 0)
                process.returncode = 0
            seconds = time.perf_counter() - started
            found = rumur.read(checker.program, text)
            assert found.failure is None, found.failure
            runs.append(Run("rumur", threads, found.distinct, found.generated, seconds,
                            used.ru_maxrss * 1024, prepared))
    return runs


def compare(scope: str, most: int, repeat: int) -> bool:
    """Print one scope's table; whether all counts are equal."""
    several = sorted({1, most})
    best = {("rumur", n): min(theirs(scope, n, repeat), key=lambda r: r.seconds)
            for n in several}
    for name in (COMPILED, *((TORCH,) if find_spec("torch") else ()), *BACKENDS):
        for n in several if name in (COMPILED, TORCH) else (1,):
            runs = [apart(name, scope, n) for _ in range(repeat if name == COMPILED else 1)]
            best[name, n] = min(runs, key=lambda r: r.seconds)
    counts = {(r.distinct, r.generated) for r in best.values() if r.complete}
    print(f"scope {scope}: " + "; ".join(
        f"{d:,} distinct states, {g:,} generated" for d, g in sorted(counts)))
    print(f"{'search':<12}{'threads':>8}{'distinct/s':>14}{'x rumur':>10}{'bytes/state':>13}"
          f"{'compiling':>11}")
    for (name, n), run in best.items():
        partly = "" if run.complete else f"  (the first {run.distinct:,} states)"
        print(f"{name:<12}{n:>8}{run.rate:>14,.0f}{run.rate / best['rumur', n].rate:>10,.2f}"
              f"{run.memory / run.distinct:>13,.0f}{run.prepared:>10,.1f}s{partly}")
    print()
    return len(counts) == 1


def told(found: Exploration) -> tuple[object, ...]:
    """What must be equal on every backend."""
    return (found.distinct, found.generated, found.cut, found.depth, found.complete,
            found.evaluated, found.witnesses, list(found.violations))


def on_device(device: str, scopes: list[str], memory: int | None) -> bool:
    """Print how the torch reading does on a device; whether it saw what the compiled one saw."""
    heading = (f"{'scope':<12}{'distinct':>14}{'generated':>15}{'generated/s':>14}"
               f"{'x compiled':>12}{'bytes/state':>13}{'compiling':>11}\n")
    equal = True
    for name in scopes:
        scope, limits = find_scope(name), Limits(memory=memory)
        started = time.perf_counter()
        search(scope, backend=TORCH, device=device, max_states=2, limits=limits)
        prepared = time.perf_counter() - started
        found = search(scope, backend=TORCH, device=device, limits=limits)
        plain = search(scope)
        rate = found.generated / max(found.seconds, 1e-9)
        same = told(found) == told(plain)
        equal = equal and same
        print(f"{heading}{name:<12}{found.distinct:>14,}{found.generated:>15,}{rate:>14,.0f}"
              f"{rate * plain.seconds / plain.generated:>12,.2f}"
              f"{found.memory / found.distinct:>13,.0f}{prepared:>10,.1f}s"
              f"{'' if same else '  DIFFERS from the compiled search'}", flush=True)
        heading = ""
    return equal


def main() -> int:
    """Compare each scope asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scope", action="append", metavar="S", help="default: pair")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--device", metavar="D", help="cuda or cpu: the torch reading there")
    parser.add_argument("--max-memory", type=float, metavar="GIB", help="with --device")
    parser.add_argument("--one", metavar="BACKEND", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scopes = arguments.scope or ["pair"]
    if arguments.one:
        print(json.dumps(asdict(ours(arguments.one, scopes[0], arguments.threads))))
        return 0
    if arguments.device:
        memory = int(arguments.max_memory * 2**30) if arguments.max_memory else None
        names = arguments.scope or [*SCOPES, "pair-deep"]
        try:
            equal = on_device(arguments.device, names, memory)
        except (NoDevice, OutOfMemory) as error:
            print(error, file=sys.stderr)
            return 3
        if not equal:
            print("the searches differ", file=sys.stderr)
        return 0 if equal else 1
    why = rumur.missing()
    if why:
        print(why, file=sys.stderr)
        return 3
    counted = [compare(scope, arguments.threads, arguments.repeat) for scope in scopes]
    if not all(counted):
        print("the counts differ", file=sys.stderr)
    return 0 if all(counted) else 1


if __name__ == "__main__":
    sys.exit(main())
