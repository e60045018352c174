"""Faults put into a release of vLLM on purpose: does the oracle catch what it should?

A fault is a few edits of the release's text.  They are applied to a folder that looks like the
release and shares its other files (`overlay`); what is installed is never touched.
"""

from __future__ import annotations

from kvoracle.model.scopes import nearest

from .fault import Edit, Fault
from .overlay import NoSuchText, patched
from .vllm_0_33 import FAULTS as NEWEST

FAULTS: dict[str, Fault] = {f.name: f for f in NEWEST}
"""The faults by name; they are written against the newest release that is known."""

WRITTEN_FOR = "0.33.0"


def named(name: str) -> Fault:
    """The fault of this name; raises `UnknownName`."""
    if name not in FAULTS:
        raise nearest("fault", name, FAULTS)
    return FAULTS[name]


__all__ = ["FAULTS", "WRITTEN_FOR", "Edit", "Fault", "NoSuchText", "named", "patched"]
