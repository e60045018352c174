"""What does judging cost?  Checked runs of vLLM against the same engine with nothing watched.

    python bench/oracle.py [--engine vllm==0.33.0] [--runs 12] [--steps 600] [--profile storing]

The same generated runs, in turn, once under the oracle (a process with ghost content and
observations, its lines decoded and judged in this one) and once bare (`bare_vllm.py`: the release's
scheduler, connector, pool and model-runner mixin in a loop of their own).  Building an engine is
counted on neither side.  Printed are scheduler steps a second, and how many times as long the
checked runs take.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from kvoracle.oracle.engines.protocol import BadStimulus, Engine
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.engines.vllm import CHILD, engine_command, environment
from kvoracle.oracle.events import AnyObservation, AnyStimulus, Config
from kvoracle.oracle.session import play
from kvoracle.oracle.workload import Generated, profile, runs


@dataclass
class Side:
    """One side's figures."""

    steps: int = 0
    seconds: float = 0.0
    refused: list[str] = field(default_factory=list)


class Timed:
    """An engine whose starts are not counted."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.starting = engine, 0.0

    def start(self, config: Config) -> Sequence[AnyObservation]:
        begun = time.perf_counter()
        try:
            return self.engine.start(config)
        finally:
            self.starting += time.perf_counter() - begun

    def send(self, stimulus: AnyStimulus) -> Sequence[AnyObservation]:
        return self.engine.send(stimulus)

    def send_all(self, stimuli: Iterable[AnyStimulus]) -> Sequence[Sequence[AnyObservation]]:
        return self.engine.send_all(stimuli)

    def close(self) -> None:
        self.engine.close()


def checked(engine: Timed, run: Generated, side: Side) -> str:
    """One run under the judge; what was found, in a word."""
    begun, before = time.perf_counter(), engine.starting
    outcome = play(engine, run.config, run.stimuli)
    side.seconds += time.perf_counter() - begun - (engine.starting - before)
    return outcome.finding.property or outcome.finding.kind if outcome.finding else ""


class Bare:
    """The engine with nothing watched, in its own interpreter."""

    def __init__(self, version: str) -> None:
        argv, env = engine_command(version)
        self.process = subprocess.Popen(
            [argv[0], str(Path(__file__).with_name("bare_vllm.py")), str(CHILD)],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, run: Generated) -> dict[str, Any]:
        """One run's figures."""
        assert self.process.stdin is not None and self.process.stdout is not None
        line = msgspec.json.encode({"config": run.config, "stimuli": run.stimuli}).decode()
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", default="vllm==0.33.0", metavar="E")
    parser.add_argument("--profile", default="storing", metavar="P")
    parser.add_argument("--runs", type=int, default=12, metavar="N")
    parser.add_argument("--steps", type=int, default=600, metavar="N", help="of each run")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    version = environment.normal(arguments.engine)
    engine = Timed(open_engine(arguments.engine))
    bare = Bare(version)
    chosen = replace(profile(arguments.profile), steps=arguments.steps)
    ours, theirs = Side(), Side()
    found = []
    try:
        for i, run in zip(range(arguments.runs), runs([chosen], arguments.seed)):
            told = bare.run(run)
            if "refused" in told or "died" in told:
                theirs.refused.append(told.get("refused") or told["died"])
                continue
            try:
                what = checked(engine, run, ours)
            except BadStimulus as refused:
                ours.refused.append(str(refused))
                continue
            if what:
                found.append(f"run {i}: {what}")
            theirs.steps += told["steps"]
            theirs.seconds += told["seconds"]
            ours.steps += told["steps"]
    finally:
        engine.close()
        bare.close()
    if not ours.steps:
        print("no run could be made", file=sys.stderr)
        return 3
    print(f"{arguments.engine}, profile {arguments.profile}: {arguments.runs} runs of "
          f"{arguments.steps} steps and their drains, {ours.steps:,} steps")
    for name, side in (("bare", theirs), ("checked", ours)):
        print(f"{name:<8}{side.steps / side.seconds:>9,.0f} steps/s{side.seconds:>8.2f} s")
    print(f"checked runs take {ours.seconds / theirs.seconds:.2f} times as long")
    for what in (*found, *set(ours.refused), *set(theirs.refused)):
        print(f"not a whole run: {what}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
