"""Generated runs: each makes sense, together they reach what engines get wrong, and a seed means
the same run for ever."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice

import pytest

from kvoracle.model.scopes import UnknownName
from kvoracle.oracle import events as e
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.scenario import Header, Scenario, parse
from kvoracle.oracle.session import play
from kvoracle.oracle.workload import CHECKED, DEFAULT, PROFILES, generate, profile, runs

SEEDS = range(60)
SIMULATED = [name for name, p in PROFILES.items() if p.suits(e.BASIC)]
"""Those that engines without special features can play."""


@pytest.mark.parametrize("name", PROFILES)
def test_runs_make_sense(name: str) -> None:
    for seed in SEEDS:
        run = generate(PROFILES[name], seed)
        arrived: set[str] = set()
        for s in run.stimuli:
            if isinstance(s, e.Arrive):
                assert s.r not in arrived
                assert {source for source, _ in s.prompt if isinstance(source, str)} <= arrived
                arrived.add(s.r)
                longest = sum(n for _, n in s.prompt) + s.output + 2 * run.config.draft_tokens
                config = run.config
                blocks = sum(-(-longest // config.tokens_per_block(g))
                             for g in range(len(config.groups)))
                assert blocks <= run.config.gpu_blocks
            elif isinstance(s, (e.Keys, e.Abort)):
                assert s.r in arrived
            elif isinstance(s, e.Step):
                assert arrived.issuperset(s.stop) and s.accept <= run.config.draft_tokens
        assert arrived
        assert run.stimuli[-1] == e.Drain()
        assert run.steps == PROFILES[name].steps
        # A run can be written down and read again.
        scenario = Scenario(Header(1, "x", run.config), run.stimuli)
        assert parse(scenario.text(), "f.jsonl") == scenario


@pytest.mark.parametrize("name", SIMULATED)
def test_what_fails_in_engines_is_reached_in_a_few_runs(name: str) -> None:
    """Preemption, loads, refusals, rejected drafts, aborts and late keys, all in ten runs."""
    engine, met = open_engine("impl"), Counter[str]()
    for seed in range(10):
        run = generate(PROFILES[name], seed, e.BASIC)
        outcome = play(engine, run.config, run.stimuli)
        assert outcome.finding is None, (seed, outcome.finding)
        assert len(outcome.log) == len(run.stimuli)
        seen = [o for _, answer in outcome.log for o in answer]
        kinds = {type(o).__name__ for o in seen}
        kinds |= {"aborted" for o in seen if isinstance(o, e.Finished) and o.aborted}
        kinds |= {"declined" for o in seen if isinstance(o, e.Planned)
                  and any(part.declined for part in o.groups)}
        kinds |= {"late keys" for s in run.stimuli if isinstance(s, e.Keys) and s.upto}
        kinds |= {"several" for s in run.stimuli if isinstance(s, e.Step) and s.stop}
        met.update(kinds)
    wanted = {"Preempted", "Loaded", "Refused", "WasReset", "Stored", "Finished", "aborted",
              "declined", "several", "Checked"}
    on = dict(PROFILES[name].chances)
    wanted |= {"late keys"} if "late keys" in on else set()
    wanted |= {"Rejected"} if "drafts" in on else set()
    assert {what for what in wanted if met[what] < 2} == set()


@pytest.mark.parametrize("name", SIMULATED)
def test_the_machine_as_an_engine_holds(name: str) -> None:
    engine, kinds = open_engine("model"), set()
    for seed in range(100, 108):
        run = generate(PROFILES[name], seed, e.BASIC)
        outcome = play(engine, run.config, run.stimuli)
        assert outcome.finding is None, (seed, outcome.finding)
        kinds |= {type(o) for _, answer in outcome.log for o in answer}
    assert {e.Preempted, e.Refused, e.Finished, e.Retired, e.Checked} <= kinds


def _hash(name: str, seed: int) -> str:
    run = generate(PROFILES[name], seed)
    text = "\n".join([e.encode(run.config), *map(e.encode, run.stimuli)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


PINNED = {
    ("storing", 0): "5357ea33751f",
    ("storing", 7): "82320386c7de",
    ("groups", 0): "9fef5875d66a",
    ("resets", 0): "fdfabfca6a39",
    ("reuse", 1): "ad3c7fb179ac",
    ("reuse", 1_000_000): "8c3239c2b43f",
}


def test_a_seed_means_the_same_run_for_ever() -> None:
    """Another hash means that no recorded seed is of use any more: change it knowingly."""
    assert {key: _hash(*key) for key in PINNED} == PINNED


def test_seeds_and_profiles_share_no_run() -> None:
    hashes = {_hash(name, seed) for name in PROFILES for seed in range(20)}
    assert len(hashes) == 20 * len(PROFILES)


def test_seeds_of_campaigns_share_no_run() -> None:
    chosen = [PROFILES[name] for name in CHECKED]
    taken = [(run.profile, run.seed) for seed in (0, 1, 2, -1)
             for run in islice(runs(chosen, seed), 60)]
    assert len(set(taken)) == len(taken)


def test_profiles_take_turns() -> None:
    chosen = [PROFILES[name] for name in CHECKED]
    first = list(islice(runs(chosen, 3), 2 * len(chosen)))
    assert [run.profile for run in first] == 2 * list(CHECKED)
    assert first[0] == generate(chosen[0], first[0].seed)


def test_fields_of_the_config_can_be_set() -> None:
    run = generate(PROFILES[DEFAULT], 5, host_chunks=3)
    assert run.config.host_chunks == 3
    assert run.config.gpu_blocks == generate(PROFILES[DEFAULT], 5).config.gpu_blocks


def test_a_profile_is_found_by_name() -> None:
    assert profile(DEFAULT).name == DEFAULT
    with pytest.raises(UnknownName, match="no profile 'stor'; did you mean storing"):
        profile("stor")


def test_what_an_engine_lacks_is_left_out_of_its_runs() -> None:
    for name, chosen in PROFILES.items():
        for seed in range(20):
            run = generate(chosen, seed, e.BASIC)
            needed = e.config_needs(run.config).union(*map(e.stimulus_needs, run.stimuli))
            assert needed <= set(e.BASIC), name
    assert e.config_needs(generate(PROFILES["async"], 0).config) >= {"async"}
    assert not PROFILES["async"].suits(e.BASIC) and PROFILES["async"].suits(None)


def test_each_feature_is_met_in_some_profile() -> None:
    met = {feature for p in PROFILES.values() for seed in range(60)
           for run in [generate(p, seed)]
           for feature in e.config_needs(run.config).union(*map(e.stimulus_needs, run.stimuli))}
    assert met == set(e.FEATURES) - {"mamba", "unmarked drafts"}
