"""What a known bug is: how it is recognised when it is found, and how its code is recognised.

The two are independent.  ``met`` looks at findings of runs that know nothing of the bug; ``code``
looks at the text of a release, and says whether the mistake is in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .hunt import Met

PRESENT, FIXED, ELSEWHERE = "present", "fixed", "not there"
"""The mistake is in the release; the code is there without it; the feature is not there yet."""


class Source:
    """The text of a release."""

    PLANNER = (
        "vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py",
        "vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py",
    )
    SCHEDULER = ("vllm/v1/core/sched/scheduler.py",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._texts: dict[tuple[str, ...], str] = {}

    def text(self, files: tuple[str, ...]) -> str:
        """The first of the files that is there; later releases split what was one."""
        if files not in self._texts:
            there = [self.folder / name for name in files if (self.folder / name).is_file()]
            self._texts[files] = there[0].read_text(encoding="utf-8") if there else ""
        return self._texts[files]

    def planner(self, pattern: str) -> bool:
        """Whether the offloading connector's scheduler side has the text."""
        return re.search(pattern, self.text(self.PLANNER)) is not None

    def scheduler(self, pattern: str) -> bool:
        """Whether vLLM's own scheduler has the text."""
        return re.search(pattern, self.text(self.SCHEDULER)) is not None


@dataclass(frozen=True)
class Bug:
    """A public bug.

    ``issue``: where it is public.  ``profiles``: the workloads that have the features it is about.
    ``code``: from a release's text, `PRESENT`, `FIXED` or `ELSEWHERE`; ``rests_on`` says in words
    what it looks for.  ``needs``: features (`explain.features`) without which it cannot be met.
    ``unless``: bugs that look the same; where one of them is met, this is no finding of its own.
    """

    name: str
    issue: str
    title: str
    profiles: tuple[str, ...]
    met: Callable[[Met], bool]
    code: Callable[[Source], str]
    rests_on: str
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
