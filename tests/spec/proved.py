"""Proofs of larger compositions, without what transfers have shown already: that is shown once."""

from __future__ import annotations

import functools

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import TRANSFER_PARTS
from kvoracle.spec.prove.obligations import Obligation, Proof


@functools.cache
def _transfers() -> Proof:
    proof = Proof(Machine(TRANSFER_PARTS, REFERENCE))
    assert all(o.answer.verdict == "proved" for o in proof.obligations())
    return proof


def beyond_transfers(machine: Machine) -> tuple[Obligation, ...]:
    """All obligations of a composition that has the parts of transfers, decided."""
    return tuple(Proof(machine, smaller={"transfers": _transfers()}).obligations())
