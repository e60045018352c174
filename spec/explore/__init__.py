"""Exhaustive search of bounded scopes: which backends there are, and one call to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope, nearest

from ..properties import Property
from ..variants import Variant
from .breadth_first import Backend, Exploration, MachineStep, Progress, Violation, explore
from .compiled import CompiledBackend
from .reference import ReferenceBackend

BACKENDS: dict[str, Callable[[Machine, Scope], Backend]] = {
    CompiledBackend.name: CompiledBackend,
    ReferenceBackend.name: ReferenceBackend,
}


def search(
    scope: Scope,
    variant: Variant | None = None,
    backend: str = CompiledBackend.name,
    *,
    properties: Iterable[Property] | None = None,
    find_all: bool = False,
    max_states: int | None = None,
    progress: Progress | None = None,
) -> Exploration:
    """Search a scope under the reference design or a variant's; raises `UnknownName`."""
    if backend not in BACKENDS:
        raise nearest("backend", backend, BACKENDS)
    machine = variant.machine(scope) if variant else scope.machine()
    return explore(
        BACKENDS[backend](machine, scope), machine, scope,
        variant=variant.name if variant else None, properties=properties,
        find_all=find_all, max_states=max_states, progress=progress,
    )


__all__ = ["BACKENDS", "Exploration", "MachineStep", "Violation", "search"]
