"""Scenario files: what is written is what is read, mistakes are told by file and line, and the
shipped ones tell sound designs from broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoracle.oracle import events as e
from kvoracle.oracle.engines.machine import machine_engine
from kvoracle.oracle.engines.registry import open_engine
from kvoracle.oracle.scenario import (
    LARGEST,
    UNMET,
    Expect,
    Found,
    Header,
    MalformedScenario,
    Scenario,
    named,
    parse,
    perform,
    read,
    recorded,
    shipped,
)
from kvoracle.spec.variants import PLANNERS

HEADER = '{"kvoracle": 1, "name": "x", "config": {"groups": [{"tokens_per_block": 4}]}}'
ARRIVE = '{"do": "arrive", "r": "a", "prompt": [[0, 7]]}'


def _parsed(*lines: str) -> Scenario:
    return parse("\n".join(lines), "f.jsonl")


def _refused(*lines: str) -> str:
    with pytest.raises(MalformedScenario) as refused:
        _parsed(*lines)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- there and back -------------------------------------------------------------------

_names = st.text(min_size=1, max_size=64)
_counts = st.integers(0, 50)
_configs = st.builds(
    e.Config,
    groups=st.lists(
        st.builds(e.Group, st.integers(1, 16), st.booleans()), min_size=1, max_size=3).map(tuple),
    blocks_per_chunk=st.integers(1, 4), gpu_blocks=st.just(5000),
    host_chunks=st.integers(1, 90), tokens_per_step=st.integers(1, 90),
    max_running=st.integers(1, 9), prompt_only=st.booleans(),
    gpu_prefix_caching=st.booleans(), draft_tokens=st.integers(0, 3))


@st.composite
def _scenarios(draw: st.DrawFn) -> Scenario:
    config = draw(_configs)
    waiting = draw(st.lists(_names, unique=True, max_size=3))
    arrived: list[str] = []
    stimuli: list[e.AnyStimulus] = []
    expectations: list[tuple[int, Expect]] = []
    for _ in range(draw(st.integers(0, 8))):
        known = st.sampled_from(arrived) if arrived else _names
        if waiting and draw(st.booleans()):
            sources = st.one_of(st.integers(0, 9), known)
            segments = st.lists(st.tuples(sources, st.integers(1, 40)), min_size=1, max_size=3)
            arrived.append(waiting.pop())
            stimuli.append(e.Arrive(
                arrived[-1], tuple(draw(segments)), draw(st.integers(1, 40))))
        elif arrived and draw(st.booleans()):
            cursor = draw(st.none() | st.tuples(*(_counts for _ in config.groups)))
            expectations.append(
                (len(stimuli), Expect(draw(known), draw(st.none() | _counts), cursor)))
        else:
            stimuli.append(draw(st.one_of(
                st.builds(e.Step, st.integers(1, LARGEST), st.none() | _counts, st.booleans(),
                          _counts, st.lists(_names, max_size=2).map(tuple)),
                st.builds(e.Keys, _names, st.none() | _counts), st.builds(e.Abort, _names),
                st.builds(e.Refuse, st.integers(1, 9)), st.just(e.Reset()),
                st.builds(e.Drain, st.integers(1, 2000)))))
    found = draw(st.none() | st.builds(Found, st.text(), st.text(), st.text()))
    header = Header(1, draw(_names), config, draw(st.text()), found)
    return Scenario(header, tuple(stimuli), tuple(expectations))


@given(_scenarios())
def test_what_is_written_is_what_is_read(scenario: Scenario) -> None:
    text = scenario.text()
    assert parse(text, "f.jsonl") == scenario
    assert parse(text, "f.jsonl").text() == text


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_come_back_the_same(name: str) -> None:
    assert parse(shipped()[name].text(), "f.jsonl") == shipped()[name]


def test_files_of_other_editors_are_read(tmp_path: Path) -> None:
    text = f"{HEADER}\n\n{ARRIVE}\n"
    file = tmp_path / "f.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read(file) == parse(text, "f.jsonl")


# --- mistakes --------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
    | st.sampled_from(["arrive", "keys", "step", "abort", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["r", "n", "do", "expect", "kvoracle", "groups", "tokens_per_block"]),
        inner, max_size=3), max_leaves=8)
_fields = ["do", "expect", "r", "prompt", "output", "upto", "n", "done", "stop", "jobs", "cursor",
           "kvoracle", "name", "config", "found"]


@given(st.lists(st.dictionaries(st.sampled_from(_fields), _json, max_size=5), max_size=4),
       st.booleans())
def test_whatever_is_in_the_file_it_is_read_or_refused_by_line(
        objects: list[dict[str, Any]], headed: bool) -> None:
    import json

    lines = [HEADER] * headed + [json.dumps(o) for o in objects]
    try:
        _parsed(*lines)
    except MalformedScenario as refused:
        assert str(refused).startswith(f"f.jsonl:{refused.line}: ")
        assert 1 <= refused.line <= max(1, len(lines))


@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    with pytest.raises(MalformedScenario):
        parse(text, "f.jsonl")


@pytest.mark.parametrize(("lines", "says"), [
    ([], "f.jsonl:1: the file is empty; expected a first line like"),
    (["{"], "f.jsonl:1: expected one JSON object on the line"),
    (["[]"], "f.jsonl:1: expected a JSON object, found list"),
    (["[" * 100_000], "f.jsonl:1: expected one JSON object on the line: it is nested too deeply"),
    (["{}"], 'f.jsonl:1: expected a first line with "kvoracle": 1, "name" and "config"'),
    (['{"kvoracle": 2}'], "f.jsonl:1: format 2 is not known; this version reads format 1"),
    (['{"kvoracle": 1}'], "f.jsonl:1: Object missing required field name; expected kvoracle, "
                          "name, config, about (optional), found (optional)"),
    ([HEADER.replace("4", "0")], "f.jsonl:1: Expected int >= 1, at config.groups[0]"),
    ([HEADER.replace('{"tokens_per_block": 4}', "")], "f.jsonl:1: Expected array of length >= 1"),
    ([HEADER.replace('"config"', '"do": 1, "config"')],
     "f.jsonl:1: Object contains unknown field do; expected kvoracle, name"),
    ([HEADER.replace("4}]", '4}], "gpu_blocks": 1000000')],
     "f.jsonl:1: expected pools of at most 1,000,000 token positions, and gpu_blocks is"),
    ([HEADER.replace("4}]", '4}], "host_chunks": 1000000')], "and host_chunks is 1,000,000"),
    ([HEADER, "", ARRIVE, "nonsense"], "f.jsonl:4: expected one JSON object"),
    ([HEADER, '{"r": "a"}'], 'f.jsonl:2: expected a stimulus ("do") or an expectation ("expect")'),
    ([HEADER, '{"do": "stp"}'], "f.jsonl:2: no stimulus 'stp'; expected one of abort, arrive, "),
    ([HEADER, '{"do": []}'], "f.jsonl:2: no stimulus []; expected one of"),
    ([HEADER, '{"do": "step", "n": 0}'], "f.jsonl:2: Expected int >= 1, at n"),
    ([HEADER, '{"do": "step", "m": 1}'], "f.jsonl:2: Object contains unknown field m; expected n "),
    ([HEADER, '{"do": "step", "n": 9999999}'],
     "f.jsonl:2: expected at most 1,000,000 steps, found 9,999,999"),
    ([HEADER, '{"do": "arrive", "r": "a"}'], "missing required field prompt; expected r, prompt"),
    ([HEADER, '{"do": "arrive", "r": "a", "prompt": [[0, 1000]]}'],
     "f.jsonl:2: request 'a' never fits: its 1000 tokens of prompt and 16 of output need 254 "
     "blocks, and gpu_blocks is 64"),
    ([HEADER, ARRIVE, ARRIVE], "f.jsonl:3: expected another name: a request 'a' has arrived"),
    ([HEADER, '{"expect": 5}'], "f.jsonl:2: Expected object, got int"),
    ([HEADER, ARRIVE, '{"expect": {"r": "a", "do": 1}}'],
     "f.jsonl:3: Object contains unknown field do; expected r, jobs (optional), cursor (optional)"),
    ([HEADER, '{"expect": {"r": "a"}}', ARRIVE],
     "f.jsonl:2: expected a request that has arrived by then, found 'a'"),
    ([HEADER, ARRIVE, '{"expect": {"r": "a", "cursor": [1, 1]}}'],
     "f.jsonl:3: expected a cursor for each group, 1 in all, found 2"),
])
def test_a_mistake_is_told_by_file_line_and_what_was_expected(
        lines: list[str], says: str) -> None:
    assert says in _refused(*lines)


def test_what_just_fits_is_no_mistake() -> None:
    # 64 blocks of 4 tokens: the last sampled token needs no place.
    assert _parsed(HEADER, '{"do": "arrive", "r": "a", "prompt": [[0, 241]]}').stimuli
    assert "never fits" in _refused(HEADER, '{"do": "arrive", "r": "a", "prompt": [[0, 242]]}')


# --- what scenarios are for ---------------------------------------------------------------


def test_the_seed_comes_first() -> None:
    assert next(iter(shipped())) == "seed"
    assert len(shipped()) >= 5
    assert all(name == scenario.name and scenario.header.about
               for name, scenario in shipped().items())


@pytest.mark.parametrize("engine", ["impl", "model"])
@pytest.mark.parametrize("name", shipped())
def test_a_shipped_scenario_holds_on_sound_engines(name: str, engine: str) -> None:
    outcome = perform(open_engine(engine), named(name))
    assert outcome.finding is None
    assert outcome.judge is not None and outcome.judge.judged > 5
    assert outcome.stimuli == named(name).stimuli


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_scenario_fails_on_a_broken_design(name: str) -> None:
    broken = [v.name for v in PLANNERS.values()
              if perform(machine_engine(v), named(name)).finding is not None]
    assert broken


@pytest.mark.parametrize(("expect", "because"), [
    ('{"r": "a", "jobs": 2}',
     "1 store job of request a was planned by then, and the scenario expects 2"),
    ('{"r": "a", "cursor": [3]}',
     "the cursor of request a is then at [1], and the scenario expects [3]"),
])
def test_an_expectation_that_is_not_met_is_a_finding(expect: str, because: str) -> None:
    lines = (HEADER, ARRIVE, '{"do": "step"}', f'{{"expect": {expect}}}', '{"do": "drain"}')
    outcome = perform(open_engine("model"), _parsed(*lines))
    assert outcome.finding is not None
    assert (outcome.finding.because, outcome.finding.rule) == (because, UNMET)
    assert outcome.finding.at == 1 and len(outcome.log) == 2


def test_expectations_that_are_met_are_none() -> None:
    lines = (HEADER, ARRIVE, '{"expect": {"r": "a", "jobs": 0, "cursor": [0]}}',
             '{"do": "step"}', '{"expect": {"r": "a", "jobs": 1, "cursor": [1]}}')
    assert perform(open_engine("model"), _parsed(*lines)).finding is None


def test_an_expectation_is_about_the_time_at_which_it_stands() -> None:
    late = (HEADER, ARRIVE, '{"do": "step"}', '{"do": "step"}', '{"do": "drain"}',
            '{"expect": {"r": "a", "cursor": [1]}}')
    outcome = perform(open_engine("model"), _parsed(*late))
    assert outcome.finding is not None and "then at [5]" in outcome.finding.because


def test_a_failing_run_is_written_with_what_was_found() -> None:
    outcome = perform(machine_engine(PLANNERS["no-key-bound"]), named("seed"))
    kept = recorded(outcome, "model:no-key-bound", "kept")
    again = parse(kept.text(), "f.jsonl")
    assert again.header.found is not None and outcome.finding is not None
    assert again.header.found.engine == "model:no-key-bound"
    assert again.header.found.property == outcome.finding.property == "KeysEqBlocks"
    assert again.stimuli == outcome.stimuli
