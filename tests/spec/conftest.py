"""Searches that several tests look at, made once."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from kvoracle.model.scopes import SCOPES
from kvoracle.spec.explore import Exploration, search
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
