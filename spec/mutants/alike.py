"""Mutants that are the same machine written otherwise, for all sizes: proved."""

from __future__ import annotations

import functools

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import scope

from ..prove.obligations import Proof
from .kill import Outcome
from .operators import Mutant, folded, mutants


def proved_same(outcome: Outcome) -> bool:
    """Whether in each machine in which it was tried, in any state that keeps the invariants, the
    mutant's action permits the same and changes the same, whatever the sizes."""
    machines = {tuple(p.name for p in scope(t.scope).parts): t.scope for t in outcome.trials}
    return bool(machines) and all(_same(name, outcome.name) for name in machines.values())


@functools.cache
def _machine(name: str) -> tuple[Proof, dict[str, Mutant]]:
    machine = folded(Machine(scope(name).parts, REFERENCE))
    return Proof(machine), {m.name: m for m in mutants(machine)}


def _same(where: str, name: str) -> bool:
    proof, known = _machine(where)
    mutant = known[name]
    return proof.compare(mutant.of(proof.machine).actions[mutant.action]).same
