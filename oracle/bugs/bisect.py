"""Where does a bug begin or end?  A search over releases that asks as few as it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

GOOD, BAD = "good", "bad"

Ask = Callable[[str], "str | None"]
"""`GOOD`, `BAD`, or None where a release cannot tell."""


@dataclass
class Bisected:
    """``before`` and ``after``: the neighbours between which it changes, of those that can tell;
    none where no change was seen."""

    asked: dict[str, str | None] = field(default_factory=dict)
    before: str = ""
    after: str = ""

    @property
    def changed(self) -> bool:
        """Whether a change was seen."""
        return bool(self.after)


def bisect(releases: Sequence[str], ask: Ask) -> Bisected:
    """The change between the newest release and the newest one that differs from it.

    Where oldest and newest agree, releases in between are asked, newest first, until one differs.
    """
    found = Bisected()

    def told(version: str) -> str | None:
        if version not in found.asked:
            found.asked[version] = ask(version)
        return found.asked[version]

    high = next((i for i in reversed(range(len(releases))) if told(releases[i])), None)
    low = next((i for i in range(len(releases)) if told(releases[i])), None)
    if high is None or low is None:
        return found
    newest = told(releases[high])
    if told(releases[low]) == newest:
        low = next((i for i in range(high - 1, low, -1)
                    if told(releases[i]) not in (None, newest)), low)
        if told(releases[low]) == newest:
            return found
    while True:
        # The middle first; where that cannot tell, its neighbours.
        twice = low + high
        between = sorted(range(low + 1, high), key=lambda i: abs(2 * i - twice))
        middle = next((i for i in between if told(releases[i]) is not None), None)
        if middle is None:
            found.before, found.after = releases[low], releases[high]
            return found
        if told(releases[middle]) == newest:
            high = middle
        else:
            low = middle
