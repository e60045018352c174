"""Known bugs, and which releases of vLLM have them: by their code, and by what is found."""

from __future__ import annotations

from kvoracle.model.scopes import nearest

from .bug import ELSEWHERE, FIXED, PRESENT, Bug, Source
from .vllm import BUGS as VLLM

BUGS: dict[str, Bug] = {b.name: b for b in VLLM}
"""The catalogue, by name."""


def named(name: str) -> Bug:
    """The bug of this name; raises `UnknownName`."""
    if name not in BUGS:
        raise nearest("bug", name, BUGS)
    return BUGS[name]


__all__ = ["BUGS", "ELSEWHERE", "FIXED", "PRESENT", "Bug", "Source", "named"]
