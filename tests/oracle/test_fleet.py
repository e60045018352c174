"""A campaign in many processes finds what it finds in one, loses nothing and goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kvoracle.oracle import cli, exits, fleet
from kvoracle.oracle.campaign import Campaign, Met
from kvoracle.oracle.cluster import NoCluster, RayWorkers
from kvoracle.oracle.fleet import Died, Fleet, Inline, Job, LocalWorkers, OtherEngine, Workers
from kvoracle.oracle.journal import Journal, JournalRefused, Played

BROKEN = "model:cursor-falls-back"
RUNS = 14


def _campaign(workers: Workers, journal: Journal | None = None, runs: int | None = RUNS,
              engine: str = BROKEN, **more: Any) -> Campaign:
    gathered = Fleet(Job(engine, ("storing", "groups"), 0, "found"), workers, journal)
    try:
        gathered.play(runs, **more)
        gathered.examine()
    finally:
        workers.close()
    return gathered.campaign


def _plain(campaign: Campaign) -> dict[str, Any]:
    return {**asdict(campaign), "findings": [
        (f.explanation.to_json(), f.times, f.found_in, f.file) for f in campaign.reported]}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    os.chdir(tmp_path_factory.mktemp("alone"))
    return _plain(_campaign(Inline()))


@pytest.fixture(autouse=True)
def _aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_many_processes_find_what_one_finds(alone: dict[str, Any]) -> None:
    assert alone["findings"] and alone["runs"] == RUNS
    assert _plain(_campaign(LocalWorkers(2))) == alone
    for *_, file in alone["findings"]:
        assert Path(file).read_text("utf-8").startswith('{"kvoracle":1')


def test_steps_are_counted_as_they_are_asked_for() -> None:
    campaign = _campaign(Inline(), None, None, "model", steps=500)
    assert (campaign.runs, campaign.steps) == (5, 600)


def test_a_process_that_is_killed_takes_nothing_with_it(alone: dict[str, Any]) -> None:
    workers = LocalWorkers(2)
    give, killed = workers.give, []

    def kills_once(task: object, call: Callable[..., Any], *arguments: Any) -> None:
        give(task, call, *arguments)
        processes = list(workers._pool._processes or {})
        if len(processes) == 2 and not killed:
            killed.append(processes[0])
            os.kill(processes[0], signal.SIGKILL)

    workers.give = kills_once  # type: ignore[method-assign]
    assert _plain(_campaign(workers)) == alone
    assert killed


class _Faulty:
    """A worker that says of some tasks that their process died."""

    size = 2

    def __init__(self, dies: Callable[[object, int], bool]) -> None:
        self._inline, self._dies = Inline(), dies
        self._asked: dict[object, int] = {}
        self._dead: list[object] = []

    def give(self, task: object, call: Callable[..., Any], *arguments: Any) -> None:
        self._asked[task] = self._asked.get(task, 0) + 1
        if self._dies(task, self._asked[task]):
            self._dead.append(task)
        else:
            self._inline.give(task, call, *arguments)

    def done(self, seconds: float) -> list[tuple[object, Any]]:
        if self._dead:
            return [(self._dead.pop(), Died())]
        return self._inline.done(seconds)

    def close(self) -> None:
        self._inline.close()


def test_a_batch_whose_process_died_is_played_again(alone: dict[str, Any]) -> None:
    assert _plain(_campaign(_Faulty(lambda task, n: task == (4, 4) and n < 3))) == alone


def test_a_batch_that_kills_every_process_is_said_and_left_out() -> None:
    campaign = _campaign(_Faulty(lambda task, n: task == (4, 4)))
    assert campaign.runs == RUNS - 4
    assert campaign.not_judged == {"the process that played it died, 3 times": 4}
    assert campaign.stopped == ""


def test_a_fleet_whose_processes_all_die_is_given_up() -> None:
    campaign = _campaign(_Faulty(lambda task, n: True), runs=400)
    assert campaign.runs == 0
    assert campaign.stopped == "given up: the processes that play the runs die"


# --- the journal ---------------------------------------------------------------------------------


class _Interrupted(Inline):
    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def done(self, seconds: float) -> list[tuple[object, Any]]:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return super().done(seconds)


def _journal(path: str = "journal", **changes: Any) -> Journal:
    asked: dict[str, Any] = {"engine": BROKEN, "profiles": ("storing", "groups"), "seed": 0}
    return Journal(Path(path), **(asked | changes))


def test_a_campaign_goes_on_from_its_journal(
        alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        _campaign(_Interrupted(2), _journal())
    with open("journal", "ab") as file:
        file.write(b'{"first":8,"ru')  # the machine went down while it was written
    played: list[int] = []
    play = fleet.play_batch

    def counted(job: Job, first: int, *more: Any) -> Played:
        played.append(first)
        return play(job, first, *more)

    monkeypatch.setattr(fleet, "play_batch", counted)
    assert _plain(_campaign(Inline(), _journal())) == alone
    assert played == [8, 12]
    played.clear()
    assert _plain(_campaign(Inline(), _journal())) == alone
    assert played == []


@pytest.mark.parametrize(("changes", "said"), [
    ({"seed": 7}, "seed is 0 there and 7 here"),
    ({"engine": "impl"}, "engine is 'model:cursor-falls-back' there and 'impl' here"),
    ({"guided": True}, "guided is False there and True here"),
    ({"profiles": ("reuse",)}, "profiles is ['storing', 'groups'] there and ['reuse'] here"),
])
def test_the_journal_of_another_campaign_is_refused(changes: dict[str, Any], said: str) -> None:
    _journal()
    with pytest.raises(JournalRefused, match="the journal of another campaign") as refused:
        _journal(**changes)
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["hello\n", "{}\n", '{"kvoracle": 1, "name": "seed"}\n'])
def test_what_is_no_journal_is_refused_and_kept(text: str) -> None:
    Path("journal").write_text(text)
    with pytest.raises(JournalRefused):
        _journal()
    assert Path("journal").read_text() == text


def test_a_damaged_line_is_named() -> None:
    _journal()
    with open("journal", "a") as file:
        file.write('{"first": 0}\n')
    with pytest.raises(JournalRefused, match="journal:2: no batch of runs"):
        _journal()


def test_another_version_of_the_engine_is_another_campaign() -> None:
    figures = Campaign(BROKEN, version="model of another time", runs=4)
    _journal().append(Played(0, 4, figures, (Met(1, ("crash",)),)))
    with pytest.raises(OtherEngine, match="was model of another time and is model"):
        _campaign(Inline(), _journal())


# --- a cluster ---------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Any]:
    utils = pytest.importorskip("ray.cluster_utils")
    made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield made
    made.shutdown()


@pytest.mark.tool("ray")
def test_a_cluster_that_loses_a_node_loses_no_work(cluster: Any, alone: dict[str, Any]) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    workers = RayWorkers(cluster.address)
    assert workers.size == 2
    give, given = workers.give, []

    def loses_a_node(task: object, call: Callable[..., Any], *arguments: Any) -> None:
        give(task, call, *arguments)
        given.append(task)
        if len(given) == 3:
            time.sleep(0.5)  # it has begun
            cluster.remove_node(node, allow_graceful=False)

    workers.give = loses_a_node  # type: ignore[method-assign]
    assert _plain(_campaign(workers)) == alone


@pytest.mark.tool("ray")
def test_a_cluster_that_is_not_there_is_said() -> None:
    with pytest.raises(NoCluster, match=r"no Ray cluster at '127\.0\.0\.1:1': .*refused"):
        RayWorkers("127.0.0.1:1")


def test_without_ray_the_command_says_what_to_install(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["fuzz", "--engine", "model", "--ray", "auto"]) == exits.USAGE
    assert "pip install 'kvoracle[ray]'" in capsys.readouterr().err
