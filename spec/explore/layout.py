"""Where each state variable lives in a packed state: one byte a cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from math import prod

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import ImpossibleConfig, Scope
from kvoracle.model.terms import Sort, Variable


class Layout:
    """Offsets of a machine's variables in a `bytes` state of a scope.

    Raises `ImpossibleConfig` where a value would not fit a byte.
    """

    def __init__(self, machine: Machine, scope: Scope) -> None:
        self.machine, self.scope = machine, scope
        self.shape: dict[str, tuple[int, ...]] = {}
        self.offset: dict[str, int] = {}
        self.limit: dict[str, int] = {}
        at = 0
        for variable in machine.state:
            self.shape[variable.name] = tuple(map(scope.size, variable.domain))
            self.offset[variable.name] = at
            size = scope.size(variable.sort)
            # One past the last member of a symmetric sort: none (`symmetry.with_none`).
            none = variable.sort.symmetric and variable.initial == size
            self.limit[variable.name] = size + none
            if self.limit[variable.name] > 256:
                raise ImpossibleConfig(
                    f"scope {scope.name}: {variable.name} counts to "
                    f"{self.limit[variable.name] - 1}, more than a byte holds"
                )
            at += prod(self.shape[variable.name])
        self.cells = at
        self.initial = bytes(
            v.initial for v in machine.state for _ in range(prod(self.shape[v.name]))
        )

    def cell(self, variable: Variable, index: tuple[int, ...]) -> int | None:
        """The cell's place in the state; None outside the variable's bounds."""
        at = 0
        for i, n in zip(index, self.shape[variable.name]):
            if not 0 <= i < n:
                return None
            at = at * n + i
        return self.offset[variable.name] + at

    def indices(self, domain: tuple[Sort, ...]) -> Iterator[tuple[int, ...]]:
        """Every index over these sorts, in order."""
        return itertools.product(*(range(self.scope.size(s)) for s in domain))

    def unpack(self, state: bytes) -> Mapping[str, dict[tuple[int, ...], int]]:
        """The state as maps by variable name, for people and for reports."""
        return {
            v.name: {
                i: state[self.offset[v.name] + k]
                for k, i in enumerate(self.indices(v.domain))
            }
            for v in self.machine.state
        }
