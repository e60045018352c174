"""What the parent makes of a child that answers, refuses, dies, hangs or talks nonsense."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvoracle.oracle import events
from kvoracle.oracle.engines.process import (
    EngineGone,
    EngineNotFound,
    EngineProcess,
    EngineRefused,
)

CONFIG = events.Config(groups=(events.Group(4),))
HELLO = """
import json, os, sys, time
def answer(saw): print(json.dumps({"saw": saw}), flush=True)
def asks():
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "stop":
            sys.exit(0)
        if ask["do"] == "start":
            answer([{"saw": "hello", "engine": "toy", "version": "1"}])
        else:
            yield ask
"""

Make = Callable[..., EngineProcess]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Make]:
    """Makes an engine process out of the body of a toy child."""
    made: list[EngineProcess] = []

    def make(body: str, answer_timeout: float = 20.0) -> EngineProcess:
        script = tmp_path / f"child{len(made)}.py"
        script.write_text(HELLO + body)
        engine = EngineProcess([sys.executable, str(script)], answer_timeout=answer_timeout,
                               start_timeout=20.0)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie still has a pid: reaping is part of what is asked for.
    return not os.path.exists(f"/proc/{pid}") or "Z" not in open(
        f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[:1]


ARRIVED = """
for ask in asks():
    answer([{"saw": "arrived", "r": ask["r"], "prompt": 7}])
"""


def test_answers_are_decoded_in_order(child: Make) -> None:
    with child(ARRIVED) as engine:
        hello = engine.start(CONFIG)
        assert hello == (events.Hello(engine="toy", version="1"),)
        assert engine.hello == hello[0]
        seen = engine.send_all([events.Arrive(r=name, prompt=((0, 7),)) for name in "abc"])
    assert seen == [(events.Arrived(r=name, prompt=7),) for name in "abc"]


def test_more_than_both_pipes_hold_is_sent_ahead_of_the_answers(child: Make) -> None:
    body = """
for ask in asks():
    answer([{"saw": "arrived", "r": ask["r"], "prompt": 1}] * 40)
"""
    with child(body) as engine:
        engine.start(CONFIG)
        long = tuple((n, 1) for n in range(300))
        stimuli = [events.Arrive(r=f"r{n}", prompt=long) for n in range(200)]
        assert len(engine.send_all(stimuli)) == 200


def test_a_refusal_is_raised_and_the_engine_goes_on(child: Make) -> None:
    body = """
for ask in asks():
    if ask["do"] == "reset":
        print(json.dumps({"error": "no reset here"}), flush=True)
    else:
        answer([])
"""
    with child(body) as engine:
        engine.start(CONFIG)
        with pytest.raises(EngineRefused, match="no reset here"):
            engine.send(events.Reset())
        assert engine.died is None
        assert engine.send(events.Step()) == ()


@pytest.mark.parametrize(("way", "words"), [
    ("os._exit(3)", "exited with code 3"),
    ("os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
    ("os.close(1); time.sleep(0.1); os._exit(0)", "exited with code 0"),
])
def test_a_child_that_vanishes_is_a_died_observation(child: Make, way: str, words: str) -> None:
    body = f"""
for ask in asks():
    print("last words", file=sys.stderr, flush=True)
    {way}
"""
    with child(body) as engine:
        engine.start(CONFIG)
        (died,) = engine.send(events.Step())
        assert isinstance(died, events.Died)
        assert died.error == "vanished"
        assert words in died.message and '"do":"step"' in died.message
        assert "last words" in died.stderr
        with pytest.raises(EngineGone, match="vanished"):
            engine.send(events.Step())


def test_a_child_that_hangs_is_ended_and_its_helpers_too(child: Make) -> None:
    body = """
import subprocess
for ask in asks():
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(helper.pid, file=sys.stderr, flush=True)
    time.sleep(60)
"""
    engine = child(body, answer_timeout=1.0)
    engine.start(CONFIG)
    pid = engine.pid
    before = time.monotonic()
    (died,) = engine.send(events.Step())
    assert time.monotonic() - before < 10
    assert isinstance(died, events.Died)
    assert died.error == "hung"
    assert "no answer within 1 s" in died.message
    assert pid is not None and not is_running(pid)
    deadline = time.monotonic() + 5
    while is_running(int(died.stderr.split()[0])) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(died.stderr.split()[0]))


@pytest.mark.parametrize("line", [
    "hello from a logger", '{"saw": [{"saw": "unheard"}]}', '{"saw": 3}', "{}", "[]",
])
def test_a_line_that_is_no_answer_is_a_died_observation(child: Make, line: str) -> None:
    body = f"""
for ask in asks():
    print({line!r}, flush=True)
"""
    with child(body) as engine:
        engine.start(CONFIG)
        (died,) = engine.send(events.Step())
        assert isinstance(died, events.Died)
        assert died.error == "garbage"
        assert line[:20] in died.message


def test_a_dead_engine_starts_again_in_a_new_process(child: Make) -> None:
    body = """
for ask in asks():
    if ask["do"] == "reset":
        os._exit(1)
    answer([{"saw": "arrived", "r": "a", "prompt": 1}])
"""
    with child(body) as engine:
        engine.start(CONFIG)
        first = engine.pid
        engine.send(events.Reset())
        engine.start(CONFIG)
        assert engine.died is None
        assert engine.pid != first
        assert engine.send(events.Step())


def test_what_was_sent_ahead_of_a_death_is_not_answered(child: Make) -> None:
    """The engine keeps its process after a failed assertion, and answers only ``start``."""
    body = """
for n, ask in enumerate(asks()):
    if n == 1:
        answer([{"saw": "died", "error": "AssertionError", "at": "x.py:1 f: assert False"}])
    elif n > 1:
        print(json.dumps({"error": "the engine died"}), flush=True)
    else:
        print("why", file=sys.stderr, flush=True)
        answer([])
"""
    with child(body) as engine:
        engine.start(CONFIG)
        pid = engine.pid
        answers = engine.send_all([events.Step()] * 4)
        assert len(answers) == 2
        died = answers[1][-1]
        assert isinstance(died, events.Died)
        assert died.error == "AssertionError" and died.stderr == "why\n"
        engine.start(CONFIG)
        assert engine.pid == pid


def test_a_start_that_fails_says_so(child: Make, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('cannot import vllm')")
    with EngineProcess([sys.executable, str(script)]) as engine:
        (died,) = engine.start(CONFIG)
        assert isinstance(died, events.Died)
        assert died.error == "vanished" and "cannot import vllm" in died.stderr


def test_no_such_program() -> None:
    engine = EngineProcess(["/does/not/exist"])
    with pytest.raises(EngineNotFound, match="/does/not/exist"):
        engine.start(CONFIG)


def test_closing_leaves_no_process(child: Make) -> None:
    engine = child(ARRIVED)
    engine.start(CONFIG)
    pid = engine.pid
    engine.close()
    engine.close()
    assert engine.pid is None
    assert pid is not None and not is_running(pid)
    with pytest.raises(EngineGone):
        engine.send(events.Step())


def test_a_forgotten_engine_ends_with_the_parent(tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "child.py"
    script.write_text(HELLO + ARRIVED)
    parent = f"""
import sys
from kvoracle.oracle import events
from kvoracle.oracle.engines.process import EngineProcess
engine = EngineProcess([sys.executable, {str(script)!r}])
engine.start(events.Config(groups=(events.Group(4),)))
print(engine.pid)
"""
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True,
                          check=True)
    assert not is_running(int(done.stdout))
