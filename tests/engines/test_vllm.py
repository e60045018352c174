"""The real engine: what each release does with scenarios whose outcome is known.

A release that is not installed is skipped, with the command that installs it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvoracle.oracle import events
from kvoracle.oracle.engines.process import EngineProcess, EngineRefused
from kvoracle.oracle.engines.vllm import command_for_path, engine_command
from kvoracle.oracle.engines.vllm.environment import overlay
from kvoracle.oracle.events import Abort, Arrive, Drain, Keys, Refuse, Reset, Step

ONE = events.Config(groups=(events.Group(4),))
KEY_ASSERT = "assert len(offload_keys) == len(offload_block_ids)"

Seen = list[events.AnyObservation]


def releases(*versions: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "version", [pytest.param(v, marks=pytest.mark.vllm(v)) for v in versions])


ALL = releases("0.26.0", "0.29.0", "0.30.0", "0.32.0", "0.33.0")
BOUNDED = releases("0.30.0", "0.32.0", "0.33.0")
"""The releases that bound a store by the keys that exist."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Callable[[str], EngineProcess]]:
    """One process for each release: importing it takes ten seconds, starting it again none."""
    running: dict[str, EngineProcess] = {}

    def get(version: str) -> EngineProcess:
        if version not in running:
            running[version] = EngineProcess(*engine_command(version))
        return running[version]

    yield get
    for process in running.values():
        process.close()


Engines = Callable[[str], EngineProcess]


def play(engine: EngineProcess, config: events.Config, *stimuli: events.AnyStimulus) -> list[Seen]:
    assert isinstance(engine.start(config)[0], events.Hello)
    return [list(seen) for seen in engine.send_all(stimuli)]


def flat(answers: list[Seen]) -> Seen:
    return [event for seen in answers for event in seen]


def of(kind: type[events.Observation], answers: list[Seen]) -> list[events.AnyObservation]:
    return [event for event in flat(answers) if isinstance(event, kind)]


SEED = (Arrive(r="a", prompt=((0, 7),)), Keys(r="a", upto=4), Step(), Step())
"""vLLM#52170: the block of tokens 4 to 8 is there, its key is not."""


@releases("0.26.0", "0.29.0")
def test_a_late_key_kills_releases_without_the_bound(version: str, engine: Engines) -> None:
    answers = play(engine(version), ONE, *SEED)
    last = answers[-1]
    assert isinstance(last[-1], events.Died)
    assert last[-1].error == "AssertionError"
    assert last[-1].at.endswith(KEY_ASSERT)
    assert "_build_store_jobs" in last[-1].at and "scheduler.py" in last[-1].at
    # What the failing step had decided: eight tokens computed in two blocks, one key.
    assert events.Computed(r="a", n=8) in last
    assert events.BlocksKnown(r="a", g=0, n=2) in flat(answers)
    assert of(events.KeysKnown, answers) == [events.KeysKnown(r="a", g=0, n=1)]
    assert engine(version).died is not None
    engine(version).start(ONE)


@BOUNDED
def test_a_late_key_is_waited_for(version: str, engine: Engines) -> None:
    late = play(engine(version), ONE, *SEED, Keys(r="a"), Step(), Step())
    assert of(events.Died, late) == []
    assert of(events.Planned, late[:4]) == [
        events.Planned(r="a", groups=(events.Chunks(g=0, offered=(0,), blocks=1),), job=0)]
    assert of(events.Cursor, late[:4]) == [events.Cursor(r="a", g=0, n=1)]
    assert of(events.Planned, late[4:]) == [
        events.Planned(r="a", groups=(events.Chunks(g=0, offered=(1,), blocks=1),), job=1)]
    assert of(events.Cursor, late[4:]) == [events.Cursor(r="a", g=0, n=2)]
    assert of(events.Stored, late) == [events.Stored(job=0), events.Stored(job=1)]


NEVER_RAN = (Arrive(r="a", prompt=((0, 12),)), Arrive(r="b", prompt=((1, 12),)),
             Step(), Abort(r="b"), Step())
CROWDED = events.Config(groups=(events.Group(4),), max_running=1)


@releases("0.26.0")
def test_aborting_a_queued_request_kills_0_26(version: str, engine: Engines) -> None:
    """vLLM#49118: hashes exist from construction, blocks do not."""
    answers = play(engine(version), CROWDED, *NEVER_RAN)
    died = answers[-1][-1]
    assert isinstance(died, events.Died)
    assert died.at.endswith(KEY_ASSERT)
    assert events.Finished(r="b", aborted=True) in answers[3]
    assert events.KeysKnown(r="b", g=0, n=3) not in flat(answers) or \
        events.BlocksKnown(r="b", g=0, n=3) not in flat(answers)


@BOUNDED
def test_aborting_a_queued_request_is_survived(version: str, engine: Engines) -> None:
    answers = play(engine(version), CROWDED, *NEVER_RAN, Drain())
    assert of(events.Died, answers) == [] and of(events.NotAtRest, answers) == []
    assert events.Retired(r="b") in flat(answers)


@releases("0.29.0")
def test_before_0_30_the_last_sampled_token_is_stored_without_being_computed(
        version: str, engine: Engines) -> None:
    """0.30 clamps a finished request to ``num_tokens - 1``: nobody computes the KV of a token
    that is sampled last.  Seen as bytes, since neither an assert nor a count says so."""
    ends = (Arrive(r="a", prompt=((0, 6),), output=2), Drain())
    bad = of(events.BadBytes, play(engine(version), ONE, *ends))
    assert len(bad) == 1 and isinstance(bad[0], events.BadBytes)
    assert (bad[0].where, bad[0].r, bad[0].chunk, bad[0].position) == ("store", "a", 1, 7)
    assert (bad[0].want, bad[0].got) == ("a[7]", "nothing")


@BOUNDED
def test_since_0_30_a_chunk_with_the_last_token_is_left_out(version: str,
                                                            engine: Engines) -> None:
    ends = (Arrive(r="a", prompt=((0, 6),), output=2), Drain())
    answers = play(engine(version), ONE, *ends)
    assert of(events.BadBytes, answers) == []
    assert [plan.groups[0].offered for plan in of(events.Planned, answers)
            if isinstance(plan, events.Planned)] == [(0,)]


@ALL
def test_a_repeated_prompt_is_loaded_from_the_host(version: str, engine: Engines) -> None:
    answers = play(engine(version), ONE, Arrive(r="a", prompt=((0, 9),), output=1), Drain(),
                   Arrive(r="b", prompt=((0, 10),), output=1), Drain())
    assert of(events.Loaded, answers) == [events.Loaded(r="b", upto=8, job=1)]
    assert of(events.BadBytes, answers) == []
    checked = answers[-1][-1]
    assert isinstance(checked, events.Checked)
    assert checked.stored >= 8 and checked.read >= 8


@ALL
def test_a_continued_conversation_shares_its_prefix(version: str, engine: Engines) -> None:
    answers = play(engine(version), ONE, Arrive(r="a", prompt=((0, 6),), output=7), Drain(),
                   Arrive(r="b", prompt=(("a", 10), (5, 3)), output=1), Drain())
    assert [(e.r, e.upto) for e in of(events.Loaded, answers)
            if isinstance(e, events.Loaded)] == [("b", 8)]


@ALL
def test_prompt_only_stores_no_decoded_chunk(version: str, engine: Engines) -> None:
    run = (Arrive(r="a", prompt=((0, 5),), output=12), Drain())
    both = [of(events.Planned, play(engine(version), config, *run)) for config in
            (ONE, events.Config(groups=(events.Group(4),), prompt_only=True))]
    assert len(both[0]) > 1 and len(both[1]) == 1


@ALL
def test_a_refused_offer_comes_again(version: str, engine: Engines) -> None:
    answers = play(engine(version), ONE, Arrive(r="a", prompt=((0, 9),)), Refuse(), Step(), Step())
    assert of(events.Refused, answers) == [
        events.Refused(r="a", groups=(events.Chunks(g=0, offered=(0, 1)),))]
    plans = of(events.Planned, answers)
    assert isinstance(plans[0], events.Planned)
    assert plans[0].groups == (events.Chunks(g=0, offered=(0, 1), blocks=2),)
    cursors = of(events.Cursor, answers)
    assert cursors == [events.Cursor(r="a", g=0, n=2)]


@ALL
def test_a_chunk_that_is_there_is_declined(version: str, engine: Engines) -> None:
    answers = play(engine(version), ONE, Arrive(r="a", prompt=((0, 9),)), Arrive(
        r="b", prompt=((0, 9),)), Step())
    plans = [p for p in of(events.Planned, answers) if isinstance(p, events.Planned)]
    assert [(p.r, p.groups[0].declined, p.job) for p in plans] == [
        ("a", (), 0), ("b", (0, 1), None)]


@ALL
def test_a_preempted_request_starts_again_and_has_its_keys(version: str, engine: Engines) -> None:
    small = events.Config(groups=(events.Group(4),), gpu_blocks=6)
    answers = play(engine(version), small, Arrive(r="a", prompt=((0, 8),), output=12),
                   Arrive(r="b", prompt=((1, 8),), output=12), Keys(r="b", upto=8), Drain())
    assert of(events.Preempted, answers) == [events.Preempted(r="b")]
    assert [e.r for e in of(events.Started, answers) if isinstance(e, events.Started)] == [
        "a", "b", "b"]
    assert of(events.Died, answers) == [] and of(events.NotAtRest, answers) == []


@ALL
def test_a_reset_starts_storing_again(version: str, engine: Engines) -> None:
    answers = play(engine(version), ONE, Arrive(r="a", prompt=((0, 9),)), Step(), Reset(), Step())
    assert answers[2] == [events.WasReset(), events.Cursor(r="a", g=0, n=0)]
    plan = of(events.Planned, answers[3:])[0]
    assert isinstance(plan, events.Planned) and plan.groups[0].offered == (0, 1)
    # The first job's late report is ignored.
    assert of(events.Stored, answers) == []


@ALL
def test_drafts_are_accepted_and_rejected(version: str, engine: Engines) -> None:
    config = events.Config(groups=(events.Group(4), events.Group(4, draft=True)), draft_tokens=3)
    answers = play(engine(version), config, Arrive(r="a", prompt=((0, 7),), output=30), Step(),
                   Step(accept=2), Step(accept=0), Step(accept=3))
    tokens = [e.n for e in of(events.TokensKnown, answers) if isinstance(e, events.TokensKnown)]
    assert tokens == [8, 11, 12, 16]
    rejected = [e.n for e in of(events.Rejected, answers) if isinstance(e, events.Rejected)]
    assert rejected == [1, 3]
    computed = [e.n for e in of(events.Computed, answers) if isinstance(e, events.Computed)]
    assert computed == [7, 8, 11, 12]
    assert of(events.BadBytes, answers) == []


@BOUNDED
def test_a_draft_groups_last_chunk_waits_while_decoding(version: str, engine: Engines) -> None:
    config = events.Config(groups=(events.Group(4), events.Group(4, draft=True)))
    answers = play(engine(version), config, Arrive(r="a", prompt=((0, 7),), output=30), Step(),
                   Step(n=4))
    cursors = {e.g: e.n for e in of(events.Cursor, answers) if isinstance(e, events.Cursor)}
    assert cursors == {0: 2, 1: 1}


@ALL
def test_the_host_pool_keeps_chunks_of_several_blocks(version: str, engine: Engines) -> None:
    config = events.Config(groups=(events.Group(4), events.Group(8)), blocks_per_chunk=2)
    answers = play(engine(version), config, Arrive(r="a", prompt=((0, 37),), output=1), Drain(),
                   Arrive(r="b", prompt=((0, 36), (3, 4)), output=1), Drain())
    plan = of(events.Planned, answers)[0]
    assert isinstance(plan, events.Planned)
    assert plan.groups == (events.Chunks(g=0, offered=(0, 1, 2, 3), blocks=8),
                           events.Chunks(g=1, offered=(0, 1), blocks=4))
    assert of(events.Loaded, answers) == [events.Loaded(r="b", upto=32, job=1)]
    assert of(events.BadBytes, answers) == []


@ALL
def test_what_makes_no_sense_is_refused_and_not_blamed_on_the_engine(version: str,
                                                                     engine: Engines) -> None:
    process = engine(version)
    process.start(ONE)
    process.send(Arrive(r="a", prompt=((0, 7),)))
    for nonsense, words in (
        (Arrive(r="a", prompt=((0, 7),)), "has arrived before"),
        (Arrive(r="b", prompt=(("z", 7),)), "unknown request 'z'"),
        (Arrive(r="b", prompt=((0, 250),)), "needs 67 blocks when it is longest, the pool has 64"),
        (Abort(r="z"), "no request 'z'"),
        (Keys(r="z"), "no request 'z'"),
    ):
        with pytest.raises(EngineRefused, match=words):
            process.send(nonsense)
    assert process.send(Step())
    with pytest.raises(EngineRefused, match="vllm refuses this config"):
        process.start(events.Config(groups=(events.Group(4),), tokens_per_step=2, max_running=4))
    process.start(events.Config(groups=(events.Group(4),), gpu_prefix_caching=True))
    process.send(Arrive(r="a", prompt=((0, 7),)))
    with pytest.raises(EngineRefused, match="keys cannot be held back with gpu_prefix_caching"):
        process.send(Keys(r="a", upto=4))


# --- long runs -------------------------------------------------------------------

CONFIGS = {
    "one group": events.Config(groups=(events.Group(4),), gpu_blocks=14, host_chunks=10,
                               tokens_per_step=16, max_running=4),
    "chunks of two blocks": events.Config(groups=(events.Group(4),), blocks_per_chunk=2,
                                          gpu_blocks=16, host_chunks=8, tokens_per_step=16,
                                          max_running=4),
    "two block sizes": events.Config(groups=(events.Group(4), events.Group(8)), gpu_blocks=20,
                                     host_chunks=16, tokens_per_step=16, max_running=4),
    "drafts": events.Config(groups=(events.Group(4), events.Group(4, draft=True)), gpu_blocks=28,
                            host_chunks=20, tokens_per_step=20, max_running=4, draft_tokens=2),
    "gpu prefix caching": events.Config(groups=(events.Group(4),), gpu_blocks=14, host_chunks=10,
                                        tokens_per_step=16, max_running=4,
                                        gpu_prefix_caching=True),
}


def workload(rng: random.Random, config: events.Config, length: int) -> list[events.AnyStimulus]:
    """Shared prompts, conversations, late keys, aborts, refusals, slow and reordered copies."""
    said: list[events.AnyStimulus] = []
    names: list[str] = []
    live: list[str] = []
    late = not config.gpu_prefix_caching
    for _ in range(length):
        dice = rng.random()
        if dice < 0.3:
            name = f"r{len(names)}"
            if names and rng.random() < 0.3:
                prompt: tuple[events.Segment, ...] = (
                    (rng.choice(names[-8:]), rng.randint(4, 30)),
                    (rng.randint(5, 11), rng.randint(1, 6)))
            else:
                prompt = ((rng.randint(0, 2), rng.randint(3, 24)),)
            said.append(Arrive(r=name, prompt=prompt, output=rng.randint(1, 14)))
            names.append(name)
            live = [*live, name][-6:]
            if late and rng.random() < 0.3:
                said.append(Keys(r=name, upto=rng.randint(0, 40)))
        elif dice < 0.36 and live:
            said.append(Abort(r=live.pop(rng.randrange(len(live)))))
        elif dice < 0.4 and late and live:
            said.append(Keys(r=rng.choice(live), upto=rng.choice([None, rng.randint(0, 40)])))
        elif dice < 0.42:
            said.append(Refuse(n=rng.randint(1, 3)))
        elif dice < 0.425:
            # Two resets without a step between them fail an assertion of their own.
            said += [Reset(), Step()]
        elif dice < 0.43:
            said.append(Drain(limit=2000))
        else:
            said.append(Step(n=rng.randint(1, 3), done=rng.choice([None, 0, 1, 1, 2]),
                             newest=rng.random() < 0.3,
                             accept=rng.randint(0, config.draft_tokens),
                             stop=tuple(live[:1]) if rng.random() < 0.1 else ()))
    return [*said, Drain(limit=3000)]


@BOUNDED
@pytest.mark.parametrize("name", CONFIGS)
def test_long_random_runs_raise_no_alarm(version: str, name: str, engine: Engines) -> None:
    for seed in (1, 2):
        stimuli = workload(random.Random(seed), CONFIGS[name], 1200)
        answers = play(engine(version), CONFIGS[name], *stimuli)
        wrong = [event for event in flat(answers) if isinstance(
            event, (events.Died, events.BadBytes, events.NotAtRest))]
        assert wrong == [], f"seed {seed}"
        # Not vacuously: what makes such runs worth doing did happen.
        for kind in (events.Preempted, events.Loaded, events.Refused, events.Stored):
            assert of(kind, answers), kind
        if CONFIGS[name].draft_tokens:
            assert of(events.Rejected, answers)


@pytest.mark.vllm("0.33.0")
def test_the_same_stimuli_are_answered_the_same_in_another_process(engine: Engines) -> None:
    config = CONFIGS["one group"]
    stimuli = workload(random.Random(5), config, 300)
    first = play(engine("0.33.0"), config, *stimuli)
    with EngineProcess(*engine_command("0.33.0")) as other:
        assert play(other, config, *stimuli) == first


# --- is anything detected at all? ------------------------------------------------------

OFFLOADING = "vllm/distributed/kv_transfer/kv_connector/v1/offloading"
MUTANTS = {
    "no fence": ("worker.py", "self.worker.wait(kv_connector_metadata.jobs_to_flush)", "pass"),
    "completed when planned": (
        "scheduler.py", "            store_jobs[job_id] = TransferJob(\n                "
        "req_id=req_id, src_spec=src_spec, dst_spec=dst_spec\n            )",
        "            store_jobs[job_id] = TransferJob(\n                "
        "req_id=req_id, src_spec=src_spec, dst_spec=dst_spec\n            )\n"
        "            self.manager.complete_store(keys_to_store, req_status.req_context)"),
    "no key bound": ("scheduler.py", "min(num_chunks, num_allocated_chunks, num_keyed_chunks)",
                     "min(num_chunks, num_allocated_chunks)"),
}


def mutant(folder: Path, version: str, file: str, old: str, new: str) -> Path:
    """A copy of a release with one change."""
    for source in overlay(version).rglob("*"):
        if source.is_file():  # compiled files too: they save ten seconds
            target = folder / source.relative_to(overlay(version))
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(source, target)
    changed = folder / OFFLOADING / file
    text = changed.read_text()
    assert text.count(old) == 1
    changed.unlink()
    changed.write_text(text.replace(old, new))
    return folder


@pytest.mark.vllm("0.30.0")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_engine_is_seen_to_be_broken(name: str, tmp_path: Path) -> None:
    path = mutant(tmp_path, "0.30.0", *MUTANTS[name])
    config = CONFIGS["one group"]
    with EngineProcess(*command_for_path(path)) as engine:
        answers = play(engine, config, *workload(random.Random(1), config, 600))
    if name == "no key bound":
        died = flat(answers)[-1]
        assert isinstance(died, events.Died) and died.at.endswith(KEY_ASSERT)
    else:
        bad = of(events.BadBytes, answers)
        assert bad
        assert {event.where for event in bad if isinstance(event, events.BadBytes)} & (
            {"store"} if name == "no fence" else {"load", "read"})
