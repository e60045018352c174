"""``kvoracle check``: every broken design is caught and the sound ones never are; an engine that
misbehaves costs nobody else's result."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvoracle.oracle import campaign, cli, exits, scenario, verify
from kvoracle.oracle.commands import check, fuzz, replay
from kvoracle.oracle.engines import registry
from kvoracle.oracle.engines.process import EngineProcess
from kvoracle.oracle.observed import DIRECT, OBSERVED
from kvoracle.spec.properties import PLANNING, PROPERTIES
from kvoracle.spec.variants import PLANNERS

ENGINE = '''
import json, os, sys, time

print("a line in the log", file=sys.stderr, flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    do, seen = ask["do"], []
    if do == "stop":
        break
    if do == "start":
        if MODE == "hangs at the start": time.sleep(999)
        if MODE == "dies at the start": sys.exit("no such GPU")
        if MODE == "refuses":
            print(json.dumps({"error": "not\\nthis config"}), flush=True)
            continue
        seen = [{"saw": "hello", "engine": "bad", "version": "1"}]
    if do == "arrive":
        seen = [{"saw": "arrived", "r": ask["r"], "prompt": sum(n for _, n in ask["prompt"])}]
    if do == "step":
        if MODE == "dies": print("about to fall", file=sys.stderr, flush=True); os.abort()
        if MODE == "hangs": time.sleep(999)
        if MODE == "garbage": print("INFO: one step"); seen = None
        if MODE == "nonsense": seen = [{"saw": "finished", "r": "nobody"}]
    if seen is not None:
        print(json.dumps({"saw": seen}), flush=True)
    else:
        sys.stdout.flush()
'''

Check = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def proof() -> verify.ProofResult:
    return verify.prove()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        proof: verify.ProofResult) -> Check:
    """``run(engine, ...)``: exit code, text and document of a check with few runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "prove", lambda *_: proof)
    monkeypatch.setattr(check, "DEFAULT_SCOPES", ("seed",))
    monkeypatch.setattr(check, "RUNS", 3)

    def checked(*engines: str, more: tuple[str, ...] = ()) -> tuple[int, str, dict[str, Any]]:
        named = [a for name in engines for a in ("--engine", name)]
        code = cli.main(["check", *named, "--json", "f.json", *more])
        return code, capsys.readouterr().out, json.loads(Path("f.json").read_text())

    return checked


@pytest.fixture
def bad_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """``bad:MODE`` is an engine in a process that misbehaves so."""
    opened = []

    def open_engine(name: str) -> Any:
        if not name.startswith("bad:"):
            return registry.open_engine(name)
        if name == "bad:gone":
            return EngineProcess(["/nowhere/python"])
        script = tmp_path / "engine.py"
        script.write_text(f"MODE = {name[4:]!r}\n{ENGINE}")
        # Only where the engine hangs is the test to wait for nothing.
        opened.append(EngineProcess(
            [sys.executable, str(script)], answer_timeout=0.3 if name == "bad:hangs" else 20,
            start_timeout=0.3 if name == "bad:hangs at the start" else 20))
        return opened[-1]

    for module in (check, fuzz, replay):
        monkeypatch.setattr(module, "open_engine", open_engine)
    yield
    assert all(engine.pid is None for engine in opened)


def _row(text: str, name: str) -> list[str]:
    (line,) = [x for x in text.splitlines() if x.startswith(f"{name}  ")]
    return re.split(r" {2,}", line)[1:]


def _stimuli(text: str) -> int:
    return len(re.findall(r"^ {2,4}\d+  \S", text, re.M))


# --- sound engines, broken designs ----------------------------------------------------


@pytest.mark.parametrize("engine", ["model", "impl"])
def test_a_sound_engine_holds_and_every_property_is_evaluated(engine: str, run: Check) -> None:
    code, text, document = run(engine)
    assert code == exits.HOLDS, text
    assert text.endswith("verdict: holds\n")
    for name in dict.fromkeys([*PROPERTIES, *OBSERVED]):
        proved, explored, held = _row(text, name)
        if name in PLANNING or name in OBSERVED:
            assert re.fullmatch(r"held \([\d,]*[1-9][\d,]* \w+\)", held) \
                or (name in DIRECT and held == "not seen")
        else:
            assert held == "-"  # a promise of the machine alone
        if name in PROPERTIES:
            assert proved.startswith("proved (")
        if name in PLANNING:
            assert explored.startswith("holds in 5,0")
    assert document["exit_code"] == exits.HOLDS
    (one,) = document["engines"]
    assert one["findings"] == [] and one["unstable"] == []
    assert all(why.startswith("profile ") for why in one["not_judged"]), one["not_judged"]
    assert all(one["evaluated"][name] for name in PLANNING)
    assert not Path("kvoracle-findings").exists()


@pytest.mark.parametrize("name", PLANNERS)
def test_a_broken_design_is_caught_explained_and_replayed(
        name: str, run: Check, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, document = run(f"model:{name}")
    assert code == exits.VIOLATION
    assert text.endswith("verdict: VIOLATED\n")
    (one,) = document["engines"]
    found = [f for f in one["findings"] if f["property"]]
    assert {f["property"] for f in found} <= set(PLANNERS[name].breaks)
    assert found
    for finding in found:
        prop = finding["property"]
        assert len(finding["rows"]) <= 8
        assert f"model:{name} breaks {prop}" in text and " because " in text
        assert _row(text, prop)[-1].startswith("BROKEN")
        if finding["kind"] == "crash":
            assert name in [d["variant"] for d in finding["behaves_like"]]
        line = finding["replay"]
        assert f"replay: {line}\n" in text
        assert line.startswith("kvoracle replay kvoracle-findings/")
        assert cli.main(line.split()[1:]) == exits.VIOLATION
        said = capsys.readouterr().out
        assert f"model:{name} breaks {prop}" in " ".join(said.split())
        assert _stimuli(said) == len(finding["rows"])


def test_a_variant_is_broken_in_its_own_column_only(run: Check) -> None:
    code, text, document = run("model", "model:cursor-keeps-tail", "model")
    assert code == exits.VIOLATION
    assert _row(text, "property")[-2:] == ["model", "model:cursor-keeps-tail"]
    held, broken = _row(text, "NoHole")[-2:]
    assert held.startswith("held") and broken == "BROKEN"
    assert [len(e["findings"]) for e in document["engines"]] == [0, 1]
    assert document["properties"]["NoHole"]["engines"] == {
        "model": held, "model:cursor-keeps-tail": broken}


def test_a_path_with_spaces_can_be_pasted_back(
        run: Check, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run("model:no-key-bound", more=("--out", "my findings"))
    (line,) = re.findall(r"^replay: kvoracle (.*)$", text, re.M)
    assert "'my findings/" in line
    assert cli.main(shlex.split(line)) == exits.VIOLATION
    capsys.readouterr()


def test_findings_that_cannot_be_written_are_still_reported(
        run: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("kvoracle-findings").write_text("not a folder")
    code, text, document = run("model:no-key-bound")
    assert code == exits.VIOLATION
    assert "model:no-key-bound breaks KeysEqBlocks" in text
    assert "cannot write kvoracle-findings/model-no-key-bound-KeysEqBlocks-" in text
    assert "replay: " not in text
    assert document["engines"][0]["findings"][0]["file"] is None


# --- engines that misbehave ---------------------------------------------------------------


@pytest.mark.parametrize(("mode", "says"), [
    ("dies", "vanished: killed by SIGABRT while answering {\"do\":\"step\"}"),
    ("garbage", "garbage: answered {\"do\":\"step\"} with INFO: one step"),
    ("dies at the start", "vanished: exited with code 1 while answering {\"do\":\"start\""),
])
def test_an_engine_that_fails_is_a_finding_with_its_evidence(
        mode: str, says: str, run: Check, bad_engines: None,
        capsys: pytest.CaptureFixture[str]) -> None:
    code, text, document = run(f"bad:{mode}", "model")
    assert code == exits.VIOLATION
    assert f"breaks NoCrash because the engine died: {says}" in " ".join(text.split())
    assert "Its standard error ends:\n  | a line in the log\n" in text
    bad, model = document["engines"]
    assert model["findings"] == [] and model["runs"] == 3 + len(check.shipped())
    assert _row(text, "NoCrash")[-2] == "BROKEN (crash)"
    assert _row(text, "NoCrash")[-1].startswith("held")
    (finding,) = bad["findings"]
    assert "a line in the log" in finding["stderr"]
    assert len(finding["rows"]) <= 1
    assert cli.main(shlex.split(finding["replay"])[1:]) == exits.VIOLATION
    assert "NoCrash" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["hangs", "hangs at the start"])
def test_an_engine_that_hangs_is_given_up(
        mode: str, run: Check, bad_engines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "HUNG_ATTEMPTS", 2)
    code, text, document = run(f"bad:{mode}", "model")
    assert code == exits.VIOLATION
    assert "NoCrash because the engine died: hung: no answer within 0.3 s" in " ".join(text.split())
    assert "not everything was run: given up after 3 runs in which the engine hung" in text
    bad, model = document["engines"]
    assert bad["runs"] == 3 and bad["findings"][0]["times"] == 3
    assert model["findings"] == []


def test_an_engine_that_refuses_every_run_is_not_judged(run: Check, bad_engines: None) -> None:
    code, text, document = run("bad:refuses", "model")
    assert code == exits.UNJUDGED
    runs = 3 + len(check.shipped())
    assert f"not judged, {runs} runs: not this config" in text
    assert "0 runs, 0 steps, 0 events judged" in text and "nothing found" in text.split("==")[2]
    assert "nothing judged" in text.split("==")[1]
    assert text.endswith("verdict: not everything could be judged\n")
    assert set(_row(text, "NoCrash")[-2:-1]) == {"not judged"}
    assert document["engines"][0]["not_judged"] == {"not\nthis config": runs}


def test_an_engine_that_cannot_be_started_is_not_judged(run: Check, bad_engines: None) -> None:
    code, text, _ = run("bad:gone", "model")
    assert code == exits.UNJUDGED
    assert "not everything was run: cannot start /nowhere/python" in text
    assert cli.main(["replay", "seed", "--engine", "bad:gone"]) == exits.UNJUDGED


def test_an_engine_that_is_not_installed_is_not_judged(
        run: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVORACLE_CACHE", "cache")
    code, text, document = run("vllm==0.30.0", "model")
    assert code == exits.UNJUDGED
    assert "kvoracle engines install vllm==0.30.0" in text
    assert _row(text, "NoHole")[-2] == "not judged"
    assert "install" in document["engines"][0]["not_judged"]
    code, text, _ = run("vllm==0.30.0", "model:no-key-bound")
    assert code == exits.VIOLATION


def test_what_no_property_is_about_has_a_row_of_its_own(run: Check, bad_engines: None) -> None:
    code, text, _ = run("bad:nonsense", "model")
    assert code == exits.VIOLATION
    assert "does what the machine knows no action for" in text
    assert _row(text, "(no property)") == ["-", "-", "1 departure", "-"]
    _, text, _ = run("model")
    assert "(no property)" not in text


def test_what_was_never_evaluated_does_not_hold(
        run: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = scenario.parse(
        '{"kvoracle": 1, "name": "rest", "config": {"groups": [{"tokens_per_block": 4}]}}\n'
        '{"do": "drain"}\n', "rest.jsonl")
    monkeypatch.setattr(check, "RUNS", 0)
    monkeypatch.setattr(check, "shipped", lambda: {"rest": nothing})
    code, text, _ = run("model")
    assert code == exits.UNJUDGED
    assert _row(text, "NoHole")[-1] == _row(text, "TrueBytes")[-1] == "not judged"
    assert _row(text, "NoLeak")[-1] == "held (1 run)"
    monkeypatch.setattr(check, "shipped", dict)
    code, text, _ = run("model")
    assert code == exits.UNJUDGED
    assert _row(text, "NoLeak")[-1] == "not judged"


def test_a_proof_that_fails_is_not_passed_over(
        run: Check, monkeypatch: pytest.MonkeyPatch, proof: verify.ProofResult) -> None:
    failed = verify.ProofResult(None, [
        *proof.obligations, verify.Shown("planning", "NoHole", "reset", "unknown", 1.0, False)])
    monkeypatch.setattr(check, "prove", lambda *_: failed)
    code, text, _ = run("model")
    assert code == exits.UNJUDGED
    assert "NOT PROVED" in text


# --- releases of vLLM --------------------------------------------------------------------------


@pytest.mark.vllm("0.29.0")
def test_vllm_0_29_lacks_the_bound_by_keys(
        run: Check, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "RUNS", 1)
    code, text, document = run("vllm==0.29.0")
    assert code == exits.VIOLATION
    found = [f for f in document["engines"][0]["findings"] if f["property"] == "KeysEqBlocks"]
    like = [f["behaves_like"][0]["variant"] for f in found]
    assert "no-key-bound" in like
    assert all(len(f["rows"]) <= 8 for f in found)
    assert "vllm 0.29.0 breaks KeysEqBlocks because" in text
    line = found[like.index("no-key-bound")]["replay"]
    assert f"replay: {line}\n" in text
    assert cli.main(line.split()[1:]) == exits.VIOLATION
    assert "It behaves like the design no-key-bound" in capsys.readouterr().out


@pytest.mark.vllm("0.30.0")
def test_vllm_0_30_holds(run: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "RUNS", 6)
    code, text, document = run("vllm==0.30.0")
    assert code == exits.HOLDS, text
    assert "not judged" not in _row(text, "NoHole")
    assert document["engines"][0]["runs"] >= 6


@pytest.mark.vllm("0.26.0")
def test_vllm_0_26_lacks_the_bounds_by_keys_and_by_blocks(
        run: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "RUNS", 1)
    code, _, document = run("vllm==0.26.0")
    assert code == exits.VIOLATION
    found = document["engines"][0]["findings"]
    assert {"no-key-bound", "no-block-bound"} <= {
        d["variant"] for f in found for d in f["behaves_like"][:1]}
