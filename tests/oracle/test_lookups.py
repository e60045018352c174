"""What lookup may promise, given what the host pool holds."""

from __future__ import annotations

import pytest

from kvoracle.oracle.events import Config, Group, LookedUp
from kvoracle.oracle.lookups import promised

ONE = Config((Group(4),))
DRAFT = Config((Group(4, draft=True),))
TWO = Config((Group(8), Group(4)))


@pytest.mark.parametrize(("config", "pool", "tokens", "cached", "answer", "least", "lacking"), [
    (ONE, ("RR.",), 14, 0, 8, 8, None),
    (ONE, ("RR.",), 14, 0, 12, 8, (0, 2)),
    (ONE, ("R.R",), 14, 0, 4, 4, None),
    (ONE, ("RP.",), 14, 0, 8, 4, (0, 1)),
    (ONE, ("RRR",), 14, 4, 8, 8, None),
    (ONE, (".RR",), 14, 4, 8, 8, None),
    (ONE, ("...",), 14, 0, 0, 0, None),
    (ONE, ("RR",), 8, 0, 8, 8, None),
    (ONE, ("",), 3, 0, 0, 0, None),
    (DRAFT, ("RR.",), 14, 0, 4, 4, None),
    (DRAFT, ("R..",), 14, 0, 0, 0, None),
    (DRAFT, ("RR.",), 14, 0, 12, 4, (0, 2)),
    (TWO, ("RR", "RRR."), 17, 0, 12, 8, None),
    (TWO, ("RR", "RR.."), 17, 0, 16, 8, (1, 2)),
    (TWO, ("R.", "RRRR"), 17, 0, 16, 8, (0, 1)),
    (TWO, ("R.", "RRRR"), 17, 0, 0, 8, None),
])
def test_a_promise_is_between_what_is_whole_and_what_is_there(
        config: Config, pool: tuple[str, ...], tokens: int, cached: int, answer: int,
        least: int, lacking: tuple[int, int] | None) -> None:
    seen = LookedUp("a", tokens, pool, cached, answer)
    assert promised(config, seen) == (least, lacking)
