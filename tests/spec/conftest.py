"""Searches that several tests look at, made once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from kvoracle.model.scopes import SCOPES
from kvoracle.spec.explore import Exploration, NoCompiler, search, toolchain
from kvoracle.spec.variants import VARIANTS


@functools.cache
def _reference(scope: str) -> Exploration:
    return search(SCOPES[scope])


@functools.cache
def _broken(variant: str) -> Exploration:
    chosen = VARIANTS[variant]
    return search(SCOPES[chosen.scope], chosen, find_all=True)


@pytest.fixture(scope="session")
def reference_search() -> Callable[[str], Exploration]:
    """The whole search of a scope under the reference design."""
    return _reference


@pytest.fixture(scope="session")
def variant_search() -> Callable[[str], Exploration]:
    """The search of a variant's scope for everything that it breaks."""
    return _broken


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the one kept under a name; ``--renew-golden`` keeps the new one."""

    def compare(name: str, text: str) -> None:
        kept = Path(__file__).parent / "golden" / name
        if request.config.getoption("--renew-golden"):
            kept.write_text(text, encoding="utf-8")
        assert kept.read_text("utf-8") == text, \
            f"{name} has changed; if it should: make test ARGS='--renew-golden -k as_kept'"

    return compare


@pytest.fixture(scope="session")
def compiler(request: pytest.FixtureRequest) -> None:
    """A C compiler, without which what it takes to test is skipped."""
    try:
        toolchain.compiler()
    except NoCompiler as error:
        if request.config.getoption("--require-engines"):
            raise
        pytest.skip(str(error))
