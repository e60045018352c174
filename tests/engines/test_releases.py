"""Every release has something that drives it, and old ones do what they did.

What is driven here is installed by `make test`; which class a release gets needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvoracle.oracle import events
from kvoracle.oracle.engines.process import EngineProcess, EngineRefused
from kvoracle.oracle.engines.vllm import engine_command
from kvoracle.oracle.engines.vllm.child import shims
from kvoracle.oracle.events import Abort, Arrive, Config, Drain, Group, Keys, Refuse, Reset, Step

ONE = Config(groups=(Group(4),))
SMALL = Config(groups=(Group(4),), gpu_blocks=6, host_chunks=4)

Engines = Callable[[str], EngineProcess]
OLD = pytest.mark.parametrize(
    "version", [pytest.param(v, marks=pytest.mark.vllm(v)) for v in ("0.18.1", "0.22.1")])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engines]:
    running: dict[str, EngineProcess] = {}

    def get(version: str) -> EngineProcess:
        if version not in running:
            running[version] = EngineProcess(*engine_command(version))
        return running[version]

    yield get
    for process in running.values():
        process.close()


def play(engine: EngineProcess, config: Config, *stimuli: events.AnyStimulus
         ) -> list[events.AnyObservation]:
    assert isinstance(engine.start(config)[0], events.Hello)
    return [event for seen in engine.send_all(stimuli) for event in seen]


def kinds(seen: list[events.AnyObservation], kind: type) -> list[events.AnyObservation]:
    return [event for event in seen if isinstance(event, kind)]


@pytest.mark.parametrize(("version", "name"), [
    ("0.11.0", "Since011"), ("0.11.2", "Since0111"), ("0.12.0", "Since012"),
    ("0.13.0", "Since012"), ("0.14.1", "Since014"), ("0.15.0", "Since014"),
    ("0.16.0", "Since016"), ("0.17.1", "Since017"), ("0.18.0", "Since018"),
    ("0.19.1", "Since019"), ("0.20.2", "Since020"), ("0.21.0", "Since021"),
    ("0.22.1", "Since022"), ("0.23.0", "Since023"), ("0.24.0", "Since024"),
    ("0.25.1", "Since025"), ("0.26.0", "Since026"), ("0.27.1", "Since026"), ("0.29.0", "Since028"),
    ("0.30.0", "Since030"), ("0.31.0", "Release"), ("0.33.0+cpu", "Release"),
    ("0.34.0rc1", "Release"), ("dev", "Release"),
])
def test_each_release_is_driven_by_the_class_of_its_range(version: str, name: str) -> None:
    assert type(shims.pick(version)).__name__ == name


def test_what_is_older_than_offloading_is_not_driven() -> None:
    assert shims.pick("0.10.2") is None


@OLD
def test_an_old_release_stores_and_loads_again(version: str, engine: Engines) -> None:
    seen = play(engine(version), ONE, Arrive(r="a", prompt=((0, 9),), output=1), Drain(),
                Arrive(r="b", prompt=((0, 10),), output=1), Drain())
    assert [(e.r, e.upto) for e in kinds(seen, events.Loaded)
            if isinstance(e, events.Loaded)] == [("b", 8)]
    plan = kinds(seen, events.Planned)[0]
    assert isinstance(plan, events.Planned)
    assert plan.groups == (events.Chunks(g=0, offered=(0, 1), blocks=2),)
    assert kinds(seen, events.BadBytes) == kinds(seen, events.NotAtRest) == []
    checked = seen[-1]
    assert isinstance(checked, events.Checked)
    assert checked.stored >= 8 and checked.read >= 8


@OLD
def test_an_old_release_survives_aborts_refusals_and_preemption(version: str,
                                                                engine: Engines) -> None:
    seen = play(engine(version), SMALL, Arrive(r="a", prompt=((0, 8),), output=12),
                Arrive(r="b", prompt=((1, 8),), output=12), Refuse(n=2), Step(n=8, done=0),
                Arrive(r="c", prompt=((0, 6),)), Step(), Abort(r="c"), Drain())
    assert kinds(seen, events.Preempted) and kinds(seen, events.Refused)
    for wrong in (events.Died, events.BadBytes, events.NotAtRest):
        assert kinds(seen, wrong) == []
    # A request that ended is told of with the cursor it ended with, however it was forgotten.
    cursors = [e.n for e in kinds(seen, events.Cursor)
               if isinstance(e, events.Cursor) and e.r == "a"]
    assert cursors == sorted(cursors) and cursors[-1] > 2


@OLD
def test_a_late_key_kills_an_old_release(version: str, engine: Engines) -> None:
    seen = play(engine(version), ONE, Arrive(r="a", prompt=((0, 7),)), Keys(r="a", upto=4),
                Step(n=3))
    died = seen[-1]
    assert isinstance(died, events.Died) and died.error == "AssertionError"
    # What the failing step had decided comes before.
    assert events.Computed(r="a", n=8) in seen and events.BlocksKnown(r="a", g=0, n=2) in seen


@pytest.mark.vllm("0.18.1")
def test_what_a_release_has_not_is_refused_in_words(engine: Engines) -> None:
    process = engine("0.18.1")
    for config, words in (
        (Config(groups=(Group(4), Group(4))), ": groups"),
        (Config(groups=(Group(4, draft=True),)), "draft groups"),
        (Config(groups=(Group(4),), prompt_only=True), "prompt only"),
    ):
        with pytest.raises(EngineRefused, match=words):
            process.start(config)
    hello = process.start(ONE)[0]
    assert isinstance(hello, events.Hello) and hello.unseen == ("stored",)
    with pytest.raises(EngineRefused, match="cannot be reset"):
        process.send(Reset())
