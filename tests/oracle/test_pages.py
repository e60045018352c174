"""A finding in full: whose fault, why unseen so far; as a page and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvoracle.oracle import cli, exits, page, picture
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.explain import explain, full_text
from kvoracle.oracle.scenario import named, perform
from kvoracle.oracle.session import Outcome

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def outcome() -> Outcome:
    return perform(open_engine("model:cursor-keeps-tail"), named("prefill-pieces"))


def test_the_order_is_what_property_run_command_and_why_not_before(outcome: Outcome) -> None:
    told = explain(outcome, "kvoracle replay it", "as found", "model:cursor-keeps-tail")
    said = full_text(told, outcome)
    parts = ["breaks NoHole because", "The design is at fault", "NoHole: ", "The run (as found)",
             "step  action", "replay: kvoracle replay it", "Why earlier checks did not see it:"]
    assert [said.index(p) for p in parts] == sorted(said.index(p) for p in parts)
    assert all(len(line) <= 100 for line in said.splitlines())


def test_the_picture_follows_the_request_at_fault(outcome: Outcome) -> None:
    drawn = picture.draw(outcome)
    assert outcome.finding is not None
    assert drawn.request == outcome.finding.r and drawn.group == 1
    assert set(drawn.lines) == {"tokens", "blocks", "keys", "cursor"}
    assert len({len(line) for line in drawn.lines.values()}) == 1
    places = [at for at, _ in drawn.marks]
    assert places == sorted(set(places)) and len(places) == len(outcome.log)
    assert drawn.lines["cursor"][-1] == 5
    root = ElementTree.fromstring(picture.svg(drawn))
    assert root.tag == f"{SVG}svg" and root.find(f"{SVG}title") is not None
    assert len(root.findall(f"{SVG}polyline")) == 4
    words = " ".join(t.text or "" for t in root.iter(f"{SVG}text"))
    assert "cursor" in words and drawn.marks[0][1] in words


def test_the_page_has_the_picture_and_the_table(outcome: Outcome) -> None:
    told = explain(outcome, "kvoracle replay it", "as found", "model:cursor-keeps-tail")
    text = page.finding(told, picture.draw(outcome), "not seen since ...")
    assert text.startswith("<!doctype html>") and text.count("<svg") == 1
    assert text.count("<tr>") == len(told.rows) + 1 and "not seen since" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched


def test_the_command_writes_what_it_is_asked_for(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"f.{name}" for name in ("html", "svg", "json")}
    code = cli.main(["explain", "seed", "--engine", "model:no-key-bound",
                     *(a for name, f in files.items() for a in (f"--{name}", str(f)))])
    assert code == exits.VIOLATION
    assert f"picture: {files['svg']}" in capsys.readouterr().out
    data = json.loads(files["json"].read_text())
    assert data["finding"]["property"] == "KeysEqBlocks" and data["picture"]["request"] == "a"
    assert cli.main(["explain", "seed", "--engine", "model"]) == exits.HOLDS
    assert "nothing to explain" in capsys.readouterr().out


def test_a_script_of_another_engine_than_vllm_is_refused(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["explain", "seed", "--engine", "model:no-key-bound", "--repro",
                     str(tmp_path / "f.py")])
    assert code == exits.UNJUDGED and "of model" in capsys.readouterr().err
    assert not (tmp_path / "f.py").exists()
