"""Exhaustive search of bounded scopes: which backends there are, and one call to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope, nearest

from ..properties import Property
from ..variants import Variant
from .breadth_first import Backend, Exploration, MachineStep, Progress, Violation, explore
from .checkpoint import CheckpointRefused
from .compiled import CompiledBackend
from .cuda import NoDevice
from .limits import Limits, OutOfMemory
from .liveness import Lasso, Lasting, lasting
from .reference import ReferenceBackend
from .toolchain import NoCompiler

COMPILED = "compiled"
"""The backend that compiles the whole search, not only a machine's steps."""

TORCH = "torch"
"""The backend that runs it as kernels on a GPU, or on processors."""

BACKENDS: dict[str, Callable[[Machine, Scope], Backend]] = {
    CompiledBackend.name: CompiledBackend,
    ReferenceBackend.name: ReferenceBackend,
}
"""Those that give the steps of a machine to the search in Python."""


def search(
    scope: Scope,
    variant: Variant | None = None,
    backend: str | None = None,
    *,
    properties: Iterable[Property] | None = None,
    find_all: bool = False,
    max_states: int | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    device: str | None = None,
) -> Exploration:
    """Search a scope under the reference design or a variant's.

    The backend is `COMPILED` unless one is named; where there is no compiler and no ``limits``,
    which only that one and `TORCH` keep, it is Python's.  ``device`` is where `TORCH` runs
    (default: cpu).  Raises `UnknownName`, `NoCompiler`, `NoDevice`, `CheckpointRefused`,
    `OutOfMemory`.
    """
    if backend not in (None, COMPILED, TORCH, *BACKENDS):
        raise nearest("backend", str(backend), (COMPILED, TORCH, *BACKENDS))
    machine = variant.machine(scope) if variant else scope.machine()
    name = variant.name if variant else None
    if backend == TORCH:
        from .device import DeviceSearch

        return DeviceSearch(
            machine, scope, device=device or "cpu", variant=name, properties=properties,
            max_states=max_states, find_all=find_all, limits=limits).run(progress)
    if device is not None:
        raise ValueError(f"a device is for the backend {TORCH}")
    if backend in (None, COMPILED):
        from .native import NativeSearch

        try:
            compiled = NativeSearch(
                machine, scope, variant=name, properties=properties, max_states=max_states,
                find_all=find_all, limits=limits)
        except NoCompiler:
            if backend == COMPILED or limits is not None:
                raise
        else:
            return compiled.run(progress)
    elif limits is not None:
        raise ValueError(f"the backend {backend} keeps no limits")
    return explore(
        BACKENDS[backend or CompiledBackend.name](machine, scope), machine, scope,
        variant=name, properties=properties, find_all=find_all, max_states=max_states,
        progress=progress,
    )


__all__ = [
    "BACKENDS",
    "COMPILED",
    "TORCH",
    "CheckpointRefused",
    "Exploration",
    "Lasso",
    "Lasting",
    "Limits",
    "MachineStep",
    "NoCompiler",
    "NoDevice",
    "OutOfMemory",
    "Violation",
    "lasting",
    "search",
]
