"""Do `kvoracle export` and `kvoracle explore --backend rumur|tlc` do what they say, in one line?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvoracle.model.scopes import SCOPES
from kvoracle.oracle import exits
from kvoracle.oracle.cli import main
from kvoracle.spec.explore import search
from kvoracle.spec.export import rumur, tlc
from kvoracle.spec.export.external import Disagreement, ToolMissing, Verdict
from kvoracle.spec.export.murphi import murphi
from kvoracle.spec.export.tla import tla
from kvoracle.spec.variants import VARIANTS

Capture = pytest.CaptureFixture[str]


def _run(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    said = capsys.readouterr()
    return code, said.out, said.err


# --- export --------------------------------------------------------------------------------


def test_a_scope_is_written_for_tlc(capsys: Capture, tmp_path: Path) -> None:
    code, out, _ = _run(capsys, "export", "tla", "--scope", "draft", "--out", str(tmp_path / "a"))
    made = tla(SCOPES["draft"])
    assert code == exits.HOLDS
    assert (tmp_path / "a" / "kvoracle_draft.tla").read_text("utf-8") == made.module
    assert (tmp_path / "a" / "kvoracle_draft.cfg").read_text("utf-8") == made.configuration
    assert "kvoracle_draft.cfg" in out and "tlc2.TLC" in out


def test_a_variant_is_written_in_its_own_scope(capsys: Capture, tmp_path: Path) -> None:
    variant = VARIANTS["cursor-falls-back"]
    code, out, _ = _run(
        capsys, "export", "murphi", "--variant", variant.name, "--out", str(tmp_path))
    assert code == exits.HOLDS
    path = tmp_path / "kvoracle_draft_cursor_falls_back.m"
    assert path.read_text("utf-8") == murphi(SCOPES[variant.scope], variant)
    assert f"{path}\n" in out and "rumur " in out


@pytest.mark.deep
def test_the_proof_is_written_for_smt_solvers(capsys: Capture, tmp_path: Path) -> None:
    code, out, _ = _run(capsys, "export", "smt2", "--out", str(tmp_path))
    files = list((tmp_path / "smt2-reference").glob("*.smt2"))
    assert code == exits.HOLDS and len(files) > 100
    assert out.startswith(f"{len(files)} files in {tmp_path / 'smt2-reference'}\n")


@pytest.mark.parametrize(("argv", "said"), [
    (["export", "tla", "--scope", "drafts"], "no scope 'drafts'; did you mean draft"),
    (["export", "tla", "--variant", "no-key"], "no variant 'no-key'; did you mean no-key-bound"),
    (["export", "smt2", "--scope", "seed"], "a proof is for all sizes: smt2 takes no --scope"),
    (["export", "pml"], "invalid choice: 'pml'"),
    (["explore", "--backend", "tlc"], "the backend tlc needs --tla2tools JAR"),
    (["explore", "--backend", "rumur", "--max-states", "9"],
     "--max-states is not for the backend rumur"),
    (["explore", "--backend", "rumur", "--scope", "all"], "takes scopes by their names"),
    (["explore", "--backend", "rumur", "--scope", "sed"], "no scope 'sed'; did you mean seed"),
])
def test_what_is_wrong_is_said_in_one_line(capsys: Capture, argv: list[str], said: str) -> None:
    code, out, err = _run(capsys, *argv)
    assert code == exits.USAGE and out == ""
    assert err.startswith("kvoracle: ") and err.count("\n") == 1 and said in err


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, _, err = _run(capsys, "export", "tla", "--out", str(tmp_path / "file"))
    assert code == exits.USAGE and err.count("\n") == 1 and "cannot write" in err


# --- other checkers --------------------------------------------------------------------------


@pytest.mark.parametrize(("argv", "tool"), [
    (["--backend", "rumur"], "rumur is not installed"),
    (["--backend", "tlc", "--tla2tools", "none.jar"], "java is not installed"),
])
def test_a_missing_tool_is_said_in_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, argv: list[str], tool: str
) -> None:
    monkeypatch.setenv("PATH", "")
    code, out, err = _run(capsys, "explore", *argv)
    assert code == exits.UNJUDGED and out == ""
    assert err.startswith(f"kvoracle: {tool}") and err.count("\n") == 1


def _checker(monkeypatch: pytest.MonkeyPatch, module: Any, answer: Callable[[], Verdict]) -> None:
    monkeypatch.setattr(module, "check", lambda *_, **__: answer())


def _as_ours(checker: str, variant: str | None = None, **changed: Any) -> Verdict:
    """A verdict like our own, but for what is changed."""
    chosen = VARIANTS[variant] if variant else None
    ours = search(SCOPES["seed"], chosen)
    violation = ours.violation
    values: dict[str, Any] = {
        "checker": checker, "distinct": ours.distinct, "generated": ours.generated,
        "depth": ours.depth, "complete": violation is None, "seconds": 1.0,
        "broken": violation.property if violation else None,
        "run": violation.run if violation else (),
    }
    return Verdict(**(values | changed))


def test_a_checker_that_agrees_holds(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _checker(monkeypatch, rumur, lambda: _as_ours("rumur"))
    path = tmp_path / "r.json"
    code, out, _ = _run(capsys, "explore", "--backend", "rumur", "--json", str(path))
    assert code == exits.HOLDS
    assert "our own search agrees: 5,075 distinct states" in out and "KeysEqBlocks" in out
    (result,) = json.loads(path.read_text("utf-8"))["results"]
    assert result["distinct"] == 5_075 and result["difference"] is None
    assert result["backend"] == "rumur" and result["violations"] == {}


def test_a_violation_is_explained_like_our_own(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _checker(monkeypatch, tlc, lambda: _as_ours("TLC", "no-key-bound"))
    code, out, _ = _run(capsys, "explore", "--backend", "tlc", "--tla2tools", "x.jar",
                        "--variant", "no-key-bound")
    assert code == exits.VIOLATION
    assert "KeysEqBlocks is broken because the job of request 0 names 0 keys" in out
    assert "our own search agrees: KeysEqBlocks after 4 steps" in out


@pytest.mark.parametrize(("variant", "changed", "said"), [
    (None, {"distinct": 5_074}, "rumur finds 5,074 distinct states, our search 5,075"),
    (None, {"depth": 17}, "rumur finds a depth of 17, our search 18"),
    ("no-key-bound", {"broken": None, "run": ()},
     "rumur finds every property kept, our search finds KeysEqBlocks broken"),
])
def test_readings_that_disagree_judge_nothing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, variant: str | None,
    changed: dict[str, Any], said: str,
) -> None:
    _checker(monkeypatch, rumur, lambda: _as_ours("rumur", variant, **changed))
    design = ["--variant", variant] if variant else []
    code, out, _ = _run(capsys, "explore", "--backend", "rumur", *design)
    assert code == exits.UNJUDGED and f"the readings disagree: {said}" in out


@pytest.mark.parametrize("error", [Disagreement("TLC's step 3"), ToolMissing("no jar")])
def test_no_verdict_is_no_judgement(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> Verdict:
        raise error

    _checker(monkeypatch, rumur, fail)
    code, _, err = _run(capsys, "explore", "--backend", "rumur")
    assert code == exits.UNJUDGED and str(error) in err and err.count("\n") == 1


@pytest.mark.tool("rumur")
def test_rumur_checks_a_scope_from_the_command_line(capsys: Capture) -> None:
    code, out, _ = _run(capsys, "explore", "--backend", "rumur", "--scope", "seed")
    assert code == exits.HOLDS
    assert out.splitlines()[1] == "5,075 distinct states, 29,130 generated"
