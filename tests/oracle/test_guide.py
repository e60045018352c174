"""Guided campaigns: what led somewhere new is kept and changed, the same in any number of
processes, and what was kept is played first."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvoracle.oracle import cli, exits
from kvoracle.oracle import events as e
from kvoracle.oracle.fleet import Fleet, Inline, Job, LocalWorkers
from kvoracle.oracle.guide import Corpus, Kept, Situations, changed, text_of
from kvoracle.oracle.judge import Judge
from kvoracle.oracle.scenario import parse, read
from kvoracle.oracle.workload import PROFILES, generate

STORING = PROFILES["storing"]


def _kept(number: int, *points: int) -> Kept:
    run = generate(STORING, number)
    return Kept(number, text_of(run.config, run.stimuli), points)


def test_a_run_is_kept_if_it_reached_what_none_did() -> None:
    corpus = Corpus()
    assert corpus.offer(_kept(0, 1, 2))
    assert not corpus.offer(_kept(1, 2))
    assert corpus.offer(_kept(2, 2, 3))
    assert [k.number for k in corpus.kept] == [0, 2]


def test_a_run_that_reached_rare_points_is_chosen_more_often() -> None:
    corpus = Corpus()
    for number in range(20):
        corpus.offer(_kept(number, 1, 100 + (number == 7)))
    chosen = [corpus.choose(random.Random(i)).number for i in range(100)]
    assert {k.number for k in corpus.kept} == {0, 7}
    assert chosen.count(7) > 80


@pytest.mark.parametrize("seed", range(60))
def test_what_is_made_of_the_corpus_is_a_run(seed: int) -> None:
    corpus = Corpus()
    for number in range(4):
        corpus.offer(_kept(number, number))
    text = changed(corpus, STORING, random.Random(seed))
    assert text == changed(corpus, STORING, random.Random(seed))
    if text is None:
        return
    run = parse(text, "changed").stimuli
    assert isinstance(run[-1], e.Drain) and sum(isinstance(s, e.Drain) for s in run) == 1
    assert sum(isinstance(s, e.Reset) for s in run) <= 1
    assert sum(s.n for s in run if isinstance(s, e.Step)) <= 2 * STORING.steps
    arrived: set[str] = set()
    for s in run:
        if isinstance(s, e.Arrive):
            assert all(isinstance(source, int) or source in arrived for source, _ in s.prompt)
            arrived.add(s.r)
        if isinstance(s, (e.Keys, e.Abort)):
            assert s.r in arrived


def test_situations_tell_how_counts_stand_to_each_other() -> None:
    config = e.Config((e.Group(4),), gpu_blocks=8)

    def points(*seen: e.AnyObservation) -> set[int]:
        judge, situations = Judge(config), Situations()
        judge.judge([e.Hello("it")], -1)
        for one in seen:
            assert judge.judge([one], 0) is None
            situations.watch(judge)
        return situations.points

    arrived = e.Arrived("a", 9)
    assert len(points(arrived)) == 1
    assert points(arrived) < points(arrived, e.KeysKnown("a", 0, 1))
    # How many there are is no situation of its own.
    assert points(arrived) == points(e.Arrived("a", 5))


def _reached(workers: Inline | LocalWorkers, runs: int = 44) -> tuple[object, ...]:
    fleet = Fleet(Job("model", ("storing",), 0, "found", guided=True), workers)
    try:
        fleet.play(runs)
    finally:
        workers.close()
    kept = [k.number for k in fleet.led_somewhere()]
    assert fleet.corpus is not None
    return kept, fleet.corpus.reached, fleet.campaign.steps


def test_processes_do_not_change_what_is_reached() -> None:
    kept, reached, steps = _reached(Inline())
    assert (kept, reached, steps) == _reached(LocalWorkers(2))
    assert steps != 44 * STORING.steps, "no run was changed"


def test_what_was_kept_is_played_first(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    fuzz = ["fuzz", "--engine", "model", "--corpus", "corpus", "--steps"]
    assert cli.main([*fuzz, "600"]) == exits.HOLDS
    files = sorted(Path("corpus").glob("*.jsonl"))
    assert files and all(read(file).stimuli for file in files)
    capsys.readouterr()
    assert cli.main([*fuzz, "120"]) == exits.HOLDS
    assert f"{len(files) + 1} runs" in capsys.readouterr().out
    Path("corpus", "failing.jsonl").write_text(
        Path(cli.__file__).parents[1].joinpath("scenarios", "seed.jsonl").read_text("utf-8"))
    fuzz[2] = "model:no-key-bound"
    assert cli.main([*fuzz, "120"]) == exits.VIOLATION
    said = capsys.readouterr().out
    assert "breaks KeysEqBlocks" in said


def test_a_broken_file_of_the_corpus_is_named(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    Path("corpus", "x.jsonl").write_text("hello\n")
    assert cli.main(["fuzz", "--engine", "model", "--corpus", "corpus"]) == exits.USAGE
    assert "corpus/x.jsonl:1: " in capsys.readouterr().err


@pytest.mark.vllm("0.30.0")
def test_a_release_tells_where_it_was() -> None:
    fleet = Fleet(Job("vllm==0.30.0", ("storing",), 0, "found", guided=True), Inline())
    try:
        fleet.play(4)
    finally:
        fleet.workers.close()
    fleet.led_somewhere()
    assert fleet.corpus is not None and len(fleet.corpus.reached) > 300
