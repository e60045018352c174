"""Facts about whole division, proved on numbers and then assumed of symbolic chunk sizes.

``x // y`` with both symbolic is beyond what a solver does well amid quantifiers.  The
proofs need no more of it than these facts, so they are stated once, each is proved by
itself, and the proofs about the machine see only them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvoracle.model.terms import Bound, Sort, Term, implies

NUMBER = Sort("Number")


@dataclass(frozen=True)
class Fact:
    """A statement over numbers, all of them 0 or more.

    ``quotients`` are the divisions whose presence makes the fact worth knowing: the solver
    is given the fact for every such pair that occurs.
    """

    name: str
    variables: tuple[Bound, ...]
    statement: Term
    quotients: tuple[Term, ...]


def _fact(name: str, size: int, statement: Callable[..., tuple[Term, tuple[Term, ...]]]) -> Fact:
    variables = tuple(Bound(n, NUMBER) for n in "xyz"[:size])
    term, quotients = statement(*variables)
    return Fact(name, variables, term, quotients)


FACTS = (
    _fact(
        "a quotient lies between 0 and the dividend", 2,
        lambda x, y: (implies(y >= 1, (x // y >= 0) & (x // y <= x)), (x // y,)),
    ),
    _fact(
        "more tokens never make fewer chunks", 3,
        lambda x, y, z: (implies((y >= 1) & (x <= z), x // y <= z // y), (x // y, z // y)),
    ),
    _fact(
        "a chunk's tokens more make at most one chunk more", 3,
        lambda x, y, z: (
            implies((y >= 1) & (x <= z) & (z <= x + y), z // y <= x // y + 1),
            (x // y, z // y),
        ),
    ),
)
