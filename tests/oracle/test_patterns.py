"""The page of recurring faults says what the machine says.

After a change of the machine it is written anew by

    KVORACLE_REGENERATE=1 python -m pytest tests/oracle/test_patterns.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvoracle.oracle.patterns import PATTERNS, page
from kvoracle.spec.properties import PROPERTIES
from kvoracle.spec.variants import VARIANTS

PAGE = Path(__file__).parents[2] / "docs" / "patterns.md"


def test_the_page_is_as_the_machine_has_it() -> None:
    text = page()
    if os.environ.get("KVORACLE_REGENERATE"):
        PAGE.write_text(text, "utf-8")
    assert PAGE.read_text("utf-8") == text


@pytest.mark.parametrize(("variant", "prop"), [s for p in PATTERNS for s in p.shown_by])
def test_a_pattern_is_shown_by_a_promise_that_its_variant_breaks(variant: str, prop: str) -> None:
    assert prop in PROPERTIES
    assert prop in VARIANTS[variant].breaks
