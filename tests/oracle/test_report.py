"""What CI systems read: made of the one document, and in the form that they expect."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from kvoracle.oracle.report import html, junit, sarif

FINDING: dict[str, Any] = {
    "engine": "vllm 0.29.0", "kind": "crash", "property": "KeysEqBlocks", "statement": "one key",
    "why": "else <it> dies", "because": "1 chunk & 0 keys \x1b[31m", "acceptance": False,
    "rows": [{"number": 1, "done": "request <a> arrives", "seen": ["a starts"]}],
    "replay": "kvoracle replay f.jsonl", "file": "out/f.jsonl", "at": "s.py:1", "rule": "",
}
DEPARTURE = {**FINDING, "kind": "departure", "property": "", "acceptance": True, "file": None,
             "rule": "retire: ended", "replay": ""}
DOCUMENT: dict[str, Any] = {
    "exit_code": 1,
    "properties": {
        "KeysEqBlocks": {"proved": True, "explored": {"seed": True},
                         "engines": {"vllm==0.29.0": "BROKEN (crash)", "gone": "not judged"}},
        "NoHole": {"proved": False, "explored": {"seed": False, "pair": True},
                   "engines": {"vllm==0.29.0": "held (3 checks)", "gone": "not judged"}},
        "NoCrash": {"proved": None, "explored": None,
                    "engines": {"vllm==0.29.0": "-", "gone": "not judged"}},
    },
    "engines": [{"engine": "vllm==0.29.0", "findings": [FINDING, DEPARTURE]},
                {"engine": "gone", "not_judged": "not installed"}],
}


def test_junit_has_a_suite_for_each_column_and_counts_that_add_up() -> None:
    root = ElementTree.fromstring(junit(DOCUMENT).encode())
    suites = {s.get("name"): s for s in root.iter("testsuite")}
    assert list(suites) == ["for all sizes", "explored", "vllm==0.29.0", "gone"]
    for suite in suites.values():
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("skipped", "")) == len(suite.findall("testcase/skipped"))
        assert all(c.get("name") and c.get("classname") for c in cases)
    failed = {(s, c.get("name")) for s, suite in suites.items() for c in suite
              if c.find("failure") is not None}
    assert failed == {("for all sizes", "NoHole"), ("explored", "NoHole"),
                      ("vllm==0.29.0", "KeysEqBlocks"), ("vllm==0.29.0", "departure")}
    told = suites["vllm==0.29.0"].find("testcase/failure")
    assert told is not None and "1 chunk & 0 keys" in (told.text or "")
    assert suites["gone"].get("skipped") == "3"


def test_sarif_has_what_the_standard_requires() -> None:
    log = json.loads(sarif(DOCUMENT))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "kvoracle"
    assert [r["id"] for r in driver["rules"]] == ["KeysEqBlocks", "departure"]
    assert [r["level"] for r in run["results"]] == ["error", "note"]
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        for location in result["locations"]:
            assert location["physicalLocation"]["artifactLocation"]["uri"]
    prints = [r["partialFingerprints"]["kvoracle/v1"] for r in run["results"]]
    assert len(set(prints)) == len(prints)


class _Balance(HTMLParser):
    """Checks that what is opened is closed; collects the text."""

    VOID = frozenset({"meta", "br", "img", "input", "hr", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.kinds: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.kinds += [v or "" for k, v in attrs if k == "class"]
        assert not any(k in ("src", "href") for k, _ in attrs)  # nothing is fetched

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_and_escapes_what_it_shows() -> None:
    text = html(DOCUMENT)
    reader = _Balance()
    reader.feed(text)
    assert reader.open == [] and "<it>" not in text and "request <a> arrives" in reader.text
    assert "Verdict: VIOLATED" in reader.text
    assert {"bad", "good", "grey"} <= set(reader.kinds)
