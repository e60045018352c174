"""Known bugs: what their code looks like, what is found of them, where they begin and end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvoracle.oracle import cli, exits
from kvoracle.oracle.bugs import BUGS, ELSEWHERE, FIXED, PRESENT, Source
from kvoracle.oracle.bugs.bisect import BAD, GOOD, bisect
from kvoracle.oracle.bugs.hunt import Met, hunt
from kvoracle.oracle.commands import matrix
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.engines.vllm import environment
from kvoracle.oracle.events import Config, Group
from kvoracle.oracle.judge import Finding
from kvoracle.oracle.workload import PROFILES, profile

CODE = {  # as the releases' notes and pull requests have it
    "0.26.0": {"no-key-bound": PRESENT, "aborted-in-queue": PRESENT, "tail-jumped-over": FIXED,
               "last-chunk-dropped": FIXED, "reset-keeps-jobs": FIXED},
    "0.29.0": {"no-key-bound": PRESENT, "aborted-in-queue": FIXED, "tail-left-at-finish": PRESENT,
               "last-token-stored": PRESENT, "widened-for-windows-only": PRESENT},
    "0.30.0": {"no-key-bound": FIXED, "tail-left-at-finish": FIXED, "last-token-stored": FIXED,
               "widened-for-windows-only": FIXED, "stranded-behind-head": PRESENT},
    "0.33.0": {"no-key-bound": FIXED, "stranded-behind-head": FIXED, "reset-twice": PRESENT},
}


@pytest.mark.vllm(*CODE)
def test_the_code_of_releases_is_told_apart() -> None:
    for release, expected in CODE.items():
        source = Source(environment.overlay(release))
        assert {name: BUGS[name].code(source) for name in expected} == expected


def test_an_empty_release_has_no_bug_of_a_feature(tmp_path: Path) -> None:
    assert BUGS["no-key-bound"].code(Source(tmp_path)) == ELSEWHERE
    assert BUGS["reset-twice"].code(Source(tmp_path)) == ELSEWHERE


def test_every_bug_names_workloads_and_what_it_rests_on() -> None:
    for bug in BUGS.values():
        assert set(bug.profiles) <= set(PROFILES) and bug.rests_on and bug.issue


def test_another_run_goes_on_behind_what_was_met() -> None:
    """A fault in every run does not hide one in a few."""
    found = hunt(open_engine("model:no-exclusion"), profile("storing"), 0, 30.0,
                 lambda h: h.runs >= 6)
    assert {k.property for k in found.met} == {"NoVolatileStore"}
    assert found.steps > 3 * 120  # half the runs were seen to their end


@pytest.mark.parametrize(("finding", "groups", "bugs"), [
    (Finding("crash", "KeysEqBlocks", "", 0, like="no-key-bound"), (Group(4),), {"no-key-bound"}),
    (Finding("violation", "NoHole", "", 0, chunk=(1, 2)), (Group(4), Group(2, True)),
     {"tail-jumped-over"}),
    (Finding("violation", "NoHole", "", 0, chunk=(0, 2)), (Group(4), Group(2, True)), set()),
    (Finding("violation", "EventuallyStored", "", 0, chunk=(0, 2)), (Group(4),),
     {"last-chunk-dropped"}),
    (Finding("violation", "NoVolatileStore", "", 0, acceptance=True), (Group(4, True),),
     {"drafts-unknown"}),
    (Finding("violation", "NoStall", "", 0), (Group(4),), {"stranded-behind-head"}),
])
def test_a_finding_is_told_by_property_and_place(
        finding: Finding, groups: tuple[Group, ...], bugs: set[str]) -> None:
    met = Met(finding, Config(groups), "storing", 0, 1, 0.1)
    assert {b.name for b in BUGS.values() if b.met(met)} == bugs


def test_a_hunt_keeps_what_it_meets_first() -> None:
    found = hunt(open_engine("model:no-key-bound"), profile("storing"), 0, 30.0,
                 lambda h: bool(h.met))
    assert [k.property for k in found.met] == ["KeysEqBlocks"]
    met = next(iter(found.met.values()))
    assert met.steps == found.steps > 0 and met.run == found.runs - 1
    assert "late keys" in found.features


# --- bisect -----------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "before", "after", "most"), [
    ("bbbbggg", "3", "4", 5), ("gggbbbb", "2", "3", 5), ("bg", "0", "1", 2),
    ("gbbbbbg", "5", "6", 6), ("bbb-ggg", "2", "4", 6), ("-bbbgg-", "3", "4", 6),
    ("ggg", "", "", 3), ("---", "", "", 3),
])
def test_the_change_is_found(answers: str, before: str, after: str, most: int) -> None:
    asked = []

    def ask(version: str) -> str | None:
        asked.append(version)
        return {"b": BAD, "g": GOOD, "-": None}[answers[int(version)]]

    found = bisect([str(i) for i in range(len(answers))], ask)
    assert (found.before, found.after) == (before, after)
    assert len(asked) == len(set(asked)) <= most


@pytest.mark.vllm("0.29.0", "0.30.0")
def test_a_scenario_is_bisected_over_releases(capsys: pytest.CaptureFixture[str],
                                              tmp_path: Path) -> None:
    code = cli.main(["bisect", "seed", "--engine", "vllm>=0.29,<=0.30",
                     "--json", str(tmp_path / "f.json")])
    assert code == exits.HOLDS
    assert "first good: 0.30.0 (after 0.29.0)" in capsys.readouterr().out
    assert json.loads((tmp_path / "f.json").read_text())["asked"] == {
        "0.29.0": "bad", "0.30.0": "good"}


@pytest.mark.vllm("0.29.0", "0.30.0")
def test_one_checkout_ends_as_git_bisect_wants_it(tmp_path: Path) -> None:
    assert cli.main(["bisect", "seed", "--engine", f"vllm@{environment.overlay('0.29.0')}"]) == 1
    assert cli.main(["bisect", "seed", "--engine", f"vllm@{environment.overlay('0.30.0')}"]) == 0
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('half built')")
    assert cli.main(["bisect", "seed", "--engine", f"vllm@{tmp_path}"]) == 125


# --- matrix -------------------------------------------------------------------------------


@pytest.mark.vllm("0.29.0", "0.30.0")
def test_the_matrix_is_red_where_the_code_is(tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["matrix", "--engines", "vllm==0.29.0", "--engines", "vllm==0.30.0", "--bugs",
                     "no-key-bound", "--budget", "4", "--json", str(tmp_path / "f.json"),
                     "--html", str(tmp_path / "f.html")])
    said = capsys.readouterr().out
    assert code == exits.HOLDS, said
    bug = json.loads((tmp_path / "f.json").read_text())["bugs"][0]
    assert [(c["release"], c["verdict"]) for c in bug["cells"]] == [
        ("0.29.0", "found"), ("0.30.0", "clean")]
    assert bug["exact"] and "1 of 1 bugs" in said
    assert 'class="bad"' in (tmp_path / "f.html").read_text()


def test_what_is_no_release_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["matrix", "--engines", "impl"]) == exits.USAGE
    assert cli.main(["matrix", "--bugs", "no-key-bond"]) == exits.USAGE
    assert "no-key-bound" in capsys.readouterr().err
    assert matrix.ENGINES.startswith("vllm>=")
