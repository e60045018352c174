"""Why no property notices a mutant, where none does.

A mutant that survives every scope is the same machine written otherwise, or one that permits
other things which are none of our properties' business, or it shows a gap.  Each reason here
was found by looking; one that fits no survivor any more is out of date, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .kill import Outcome


@dataclass(frozen=True)
class Reason:
    """Why the mutants whose names fit one of the patterns (`fnmatch`) survive."""

    why: str
    patterns: tuple[str, ...]

    def fits(self, outcome: Outcome) -> bool:
        """Whether it explains this survivor."""
        name = outcome.name.replace("[", "(").replace("]", ")")  # no sets of characters
        return any(fnmatchcase(name, p.replace("[", "(").replace("]", ")")) for p in self.patterns)


LESS = ("it permits less than engines may do, which no safety property can notice; the counts of "
        "its scopes, which are pinned, differ")
"""Why a mutant survives that only takes steps away."""


@dataclass(frozen=True)
class Explained:
    """The survivors: each reason with those it explains, those without one, and the reasons that
    explain nothing."""

    groups: list[tuple[str, list[Outcome]]]
    unexplained: list[Outcome]
    stale: list[Reason]


SAME = "it is the same machine written otherwise, for all sizes: proved"
"""Why a mutant survives that changes nothing in states that keep the invariants."""


def explain(outcomes: Iterable[Outcome], reasons: Sequence[Reason],
            proved_same: Callable[[Outcome], bool]) -> Explained:
    """Sort the survivors by the reason why they survive; the first that fits counts."""
    survivors = [o for o in outcomes if o.fate not in ("killed", "witness")]
    groups: dict[str, list[Outcome]] = {}
    unexplained: list[Outcome] = []
    used: set[Reason] = set()
    for outcome in survivors:
        reason = next((r for r in reasons if r.fits(outcome)), None)
        if reason is not None:
            used.add(reason)
            groups.setdefault(reason.why, []).append(outcome)
        elif outcome.fate == "less":
            groups.setdefault(LESS, []).append(outcome)
        elif outcome.fate == "same" and proved_same(outcome):
            groups.setdefault(SAME, []).append(outcome)
        else:
            unexplained.append(outcome)
    return Explained(list(groups.items()), unexplained, [r for r in reasons if r not in used])




REASONS: tuple[Reason, ...] = ()
