"""Faults put into a release: they fit it, leave it as it is, and what they break is found."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from kvoracle.oracle import cli, exits, faults
from kvoracle.oracle.engines.registry import EngineUnavailable, open_engine
from kvoracle.oracle.engines.vllm import environment
from kvoracle.oracle.faults import Edit, Fault, NoSuchText, patched
from kvoracle.oracle.observed import OBSERVED
from kvoracle.spec.properties import PROPERTIES


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = tmp_path / "release"
    (folder / "vllm" / "a" / "__pycache__").mkdir(parents=True)
    (folder / "vllm" / "b").mkdir()
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "a" / "x.py").write_text("n = 1\nm = 1\n")
    (folder / "vllm" / "a" / "y.py").write_text("y = 1\n")
    (folder / "vllm" / "a" / "__pycache__" / "x.cpython-310.pyc").write_text("old")
    (folder / "vllm" / "a" / "__pycache__" / "y.cpython-310.pyc").write_text("kept")
    (folder / "vllm" / "b" / "z.py").write_text("z = 1\n")
    return folder


def _fault(*edits: Edit) -> Fault:
    return Fault("one", "a mistake", ("NoHole",), "the test", edits)


def test_a_faulty_release_differs_by_its_edits_alone(release: Path, tmp_path: Path) -> None:
    before = {p: p.read_text() for p in release.rglob("*") if p.is_file()}
    made = patched(_fault(Edit("vllm/a/x.py", "n = 1", "n = 2"), Edit("vllm/a/x.py", "m =", "k =")),
                   release, tmp_path / "into")
    assert (made / "vllm/a/x.py").read_text() == "n = 2\nk = 1\n"
    assert (made / "vllm/a/y.py").read_text() == "y = 1\n"
    assert (made / "vllm/b").is_symlink()
    assert [p.name for p in (made / "vllm/a/__pycache__").iterdir()] == ["y.cpython-310.pyc"]
    assert before == {p: p.read_text() for p in release.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("edit", "problem"), [
    (Edit("vllm/a/x.py", "q = 1", ""), "vllm/a/x.py has its text 0 times instead of once: 'q = 1'"),
    (Edit("vllm/a/x.py", " = 1", ""), "2 times instead of once"),
    (Edit("vllm/a/none.py", "n", ""), "the release has no file vllm/a/none.py"),
])
def test_an_edit_that_does_not_fit_is_refused(edit: Edit, problem: str, release: Path,
                                              tmp_path: Path) -> None:
    with pytest.raises(NoSuchText, match="fault one: ") as refused:
        patched(_fault(edit), release, tmp_path / "into")
    assert problem in str(refused.value)
    assert not (tmp_path / "into").exists()


def test_the_catalogue_is_in_order() -> None:
    assert len(faults.FAULTS) >= 28
    promised = {*PROPERTIES, *OBSERVED}
    for fault in faults.FAULTS.values():
        assert fault.edits and fault.source and fault.statement[0].islower()
        assert set(fault.breaks) <= promised | {""}, fault.name


@pytest.mark.vllm(faults.WRITTEN_FOR)
def test_every_fault_fits_the_newest_release(tmp_path: Path) -> None:
    release = environment.overlay(faults.WRITTEN_FOR)
    for fault in faults.FAULTS.values():
        made = patched(fault, release, tmp_path)
        for file in {e.file for e in fault.edits}:
            text = (made / file).read_text(encoding="utf-8")
            assert text != (release / file).read_text(encoding="utf-8"), fault.name
            ast.parse(text)


@pytest.mark.vllm("0.29.0")
def test_faults_for_another_release_are_refused_by_name() -> None:
    with pytest.raises(EngineUnavailable, match=r"faults are written for vllm==0\.33\.0"):
        open_engine("vllm==0.29.0:pending-is-a-hit")


def test_an_unknown_fault_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mutants", "--engine", "vllm==0.33.0", "--fault", "no-flsh"]) == exits.USAGE
    assert "no-flush" in capsys.readouterr().err


def test_options_of_the_other_kind_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mutants", "--fault", "no-flush"]) == exits.USAGE
    assert "--engine" in capsys.readouterr().err
    assert cli.main(["mutants", "--engine", "vllm==0.33.0", "--all"]) == exits.USAGE


@pytest.mark.vllm("0.33.0")
def test_a_fault_is_caught_and_the_release_without_it_is_not(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["mutants", "--engine", "vllm==0.33.0", "--fault", "cursor-too-far",
                     "--runs", "1", "--json", str(tmp_path / "f.json")])
    assert code == exits.HOLDS, capsys.readouterr().out
    data = json.loads((tmp_path / "f.json").read_text())
    assert [(f["fault"], f["property"], f["repeats"]) for f in data["faults"]] \
        == [("cursor-too-far", "NoHole", True)]
    assert data["without_fault"]["property"] is None and data["without_fault"]["steps"] > 0
