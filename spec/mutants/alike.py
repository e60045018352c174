"""Mutants that are the same machine written otherwise, for all sizes: proved."""

from __future__ import annotations

import functools

from kvoracle.model.machine import Machine, Part
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import scope

from ..prove.obligations import Proof
from .kill import Outcome
from .operators import Mutant, folded, mutants


def proved_same(outcome: Outcome) -> bool:
    """Whether in each machine in which it was tried, in any state that keeps the invariants, the
    mutant's action permits the same and changes the same, whatever the sizes."""
    parts = {scope(t.scope).parts for t in outcome.trials}
    return bool(parts) and all(_same(p, outcome.name) for p in parts)


@functools.lru_cache(maxsize=None)
def _machine(parts: tuple[Part, ...]) -> tuple[Proof, dict[str, Mutant]]:
    machine = folded(Machine(parts, REFERENCE))
    return Proof(machine), {m.name: m for m in mutants(machine)}


def _same(parts: tuple[Part, ...], name: str) -> bool:
    proof, known = _machine(parts)
    mutant = known[name]
    return proof.compare(mutant.of(proof.machine).actions[mutant.action]).same
