"""What a fault is: edits of a release's files, and what is expected to come of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """``old``, which must occur exactly once in ``file`` (below the release's folder), becomes
    ``new``."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """One mistake that a programmer could make.

    ``statement``: the mistake in a sentence.  ``breaks``: the properties any of which may be
    named, the cause first.  ``source``: a bug of its kind.  ``needs``: what a workload must do
    to meet it, where that is more than storing and loading.  ``harmless``: why nothing can come
    of it in what is driven today; then it need not be caught.
    """

    name: str
    statement: str
    breaks: tuple[str, ...]
    source: str
    edits: tuple[Edit, ...]
    needs: str = ""
    harmless: str = ""
