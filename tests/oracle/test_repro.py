"""A finding as a script: it needs nothing but that vLLM, fails on it and passes on a right one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kvoracle.oracle import cli, exits
from kvoracle.oracle import events as e
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.engines.vllm import environment
from kvoracle.oracle.judge import Finding
from kvoracle.oracle.repro import NoScript, script, shows
from kvoracle.oracle.scenario import named, perform
from kvoracle.oracle.session import Outcome

CONFIG = e.Config((e.Group(4),))


def _outcome(finding: Finding, *seen: e.AnyObservation) -> Outcome:
    return Outcome(CONFIG, [(e.Step(), list(seen))], finding, engine="vllm 0.33.0")


@pytest.mark.parametrize(("finding", "last", "shown"), [
    (Finding("crash", "NoCrash", "", 0, died=e.Died("KeyError")), e.Died("KeyError"),
     {"died": "KeyError"}),
    (Finding("violation", "LoadedBytes", "", 0), e.BadBytes("load", "a", 0, "a[1]", "b[1]"),
     {"seen": {"saw": "bad_bytes", "where": "load", "r": "a"}}),
    (Finding("violation", "NoHole", "", 0, "a", chunk=(1, 3)), e.Cursor("a", 1, 4),
     {"never_offered": {"r": "a", "g": 1, "chunk": 3}}),
    (Finding("violation", "NoVolatileStore", "", 0, "a"), e.Planned("a", (e.Chunks(0, (0,)),), 1),
     {"seen": {"saw": "planned", "r": "a", "groups": [{"g": 0, "offered": [0]}], "job": 1}}),
])
def test_what_shows_a_finding_again(finding: Finding, last: e.AnyObservation,
                                    shown: dict[str, object]) -> None:
    assert shows(_outcome(finding, last)) == shown


def test_only_vllm_has_scripts() -> None:
    outcome = perform(open_engine("model:no-key-bound"), named("seed"))
    with pytest.raises(NoScript, match="is of model"):
        script(outcome, None)  # type: ignore[arg-type]


def _runs(file: Path, release: str, tmp_path: Path) -> tuple[int, str]:
    """The script in the engine's own interpreter, where kvoracle is not installed."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(environment.overlay(release)),
           "VLLM_CACHE_ROOT": str(environment.state(release)), "HOME": str(tmp_path)}
    done = subprocess.run([environment.python(), file], env=env, cwd=tmp_path, text=True,
                          capture_output=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.vllm("0.29.0", "0.30.0")
def test_a_script_fails_on_the_faulty_release_and_passes_on_the_right_one(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "script.py"
    assert cli.main(["explain", "seed", "--engine", "vllm==0.29.0", "--repro", str(file),
                     "--html", str(tmp_path / "f.html")]) == exits.VIOLATION
    assert "The engine is at fault" in capsys.readouterr().out
    assert "breaks KeysEqBlocks" in file.read_text() and "import kvoracle" not in file.read_text()
    code, said = _runs(file, "0.29.0", tmp_path)
    assert code == 1 and said.endswith("AGAIN, as described at the top of this file\n"), said
    code, said = _runs(file, "0.30.0", tmp_path)
    assert code == 0 and said.endswith("not seen here\n"), said
