"""Which releases a range names, and where the list of releases comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvoracle.model.scopes import UnknownName
from kvoracle.oracle.engines import registry
from kvoracle.oracle.engines.registry import EngineUnavailable
from kvoracle.oracle.engines.vllm import environment, versions
from kvoracle.oracle.engines.vllm.errors import BadVersion, NoRegistry

RELEASES = ["0.20.0", "0.20.1", "0.30.0", "0.32.0", "0.33.0", "0.33.1", "0.9.2"]


@pytest.mark.parametrize(("text", "found"), [
    ("vllm>=0.20,<=0.33", ["0.20.0", "0.20.1", "0.30.0", "0.32.0", "0.33.0", "0.33.1"]),
    (">=0.30, <0.33", ["0.30.0", "0.32.0"]),
    ("vllm>0.30", ["0.32.0", "0.33.0", "0.33.1"]),
    ("vllm<0.20", ["0.9.2"]),
    ("vllm<=0.33.0,>0.30.0", ["0.32.0", "0.33.0"]),
    ("vllm==0.20.*", ["0.20.0", "0.20.1"]),
    ("vllm>=0.20,!=0.33", ["0.20.0", "0.20.1", "0.30.0", "0.32.0"]),
])
def test_a_bound_stands_for_all_releases_that_begin_with_it(text: str, found: list[str]) -> None:
    assert versions.resolve(text, RELEASES) == found


@pytest.mark.parametrize("text", ["vllm>=0.20;<0.3", "vllm>=", "vllm>=new", "vllm=>0.3", "vllm"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(BadVersion):
        versions.resolve(text, RELEASES)


def test_an_empty_range_says_what_there_is() -> None:
    with pytest.raises(versions.NoneInRange, match=r"there are 0\.9\.2 to 0\.33\.1"):
        versions.resolve("vllm>=0.40", RELEASES)


def test_the_index_is_asked_once_a_day(tmp_path: Path) -> None:
    asked = []

    def ask() -> list[str]:
        asked.append(1)
        return ["0.33.0", "0.33.0rc1", "0.10.2", "0.11.0", "0.12.0.post2", "0.9.2"]

    kept = tmp_path / "cache" / "releases.json"
    at = 1000.0
    for _ in range(2):
        assert versions.released(kept, ask=ask, now=lambda: at) == ["0.11.0", "0.33.0"]
    assert len(asked) == 1
    at += versions.KEPT
    versions.released(kept, ask=ask, now=lambda: at)
    assert len(asked) == 2


def test_without_a_network_an_old_list_serves(tmp_path: Path) -> None:
    def gone() -> list[str]:
        raise NoRegistry("it is gone")

    kept = tmp_path / "releases.json"
    with pytest.raises(NoRegistry):
        versions.released(kept, ask=gone)
    versions.released(kept, ask=lambda: ["0.33.0"], now=lambda: 0.0)
    assert versions.released(kept, ask=gone, now=lambda: 1e9) == ["0.33.0"]
    kept.write_text("{")
    with pytest.raises(NoRegistry):
        versions.released(kept, ask=gone)


def test_a_range_is_as_good_as_its_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "released", lambda: RELEASES)
    assert registry.expand(["impl", "vllm>=0.32,<0.33.1", "vllm==0.32.0"]) == [
        "impl", "vllm==0.32.0", "vllm==0.33.0"]
    assert registry.single("vllm<0.20") == "vllm==0.9.2"
    with pytest.raises(UnknownName, match="names 3 engines"):
        registry.single("vllm>0.30")
    with pytest.raises(UnknownName, match="no release of vllm lies in"):
        registry.expand(["vllm>1"])
    with pytest.raises(UnknownName, match="is not a version"):
        registry.expand(["vllm>=new"])


def test_a_range_without_an_index_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> list[str]:
        raise NoRegistry("it is gone")

    monkeypatch.setattr(environment, "released", gone)
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        registry.expand(["vllm>=0.30"])
