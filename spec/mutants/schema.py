"""All mutants of a machine in one, to be compiled once: which one it is, is said when it runs.

Each term that a mutant changes becomes a choice between what stands there in that mutant and
what stands there in all others.  An action is there twice, as it is and with its choices,
so that only the action of the mutant in force is slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvoracle.model.machine import Action, Machine, Requirement
from kvoracle.model.terms import Bound, Sort, Term, ite, not_

from .operators import Mutant, Place, rewritten, with_actions

WHICH = Bound("mutant", Sort("Mutant"))
"""The number of the mutant in force; none of them if it is that of no mutant."""


@dataclass(frozen=True)
class Schema:
    """A machine in which ``WHICH`` chooses the mutant: its place in ``mutants``.

    ``judge`` is the same machine with each action there once: the one that properties speak of.
    """

    machine: Machine
    judge: Machine
    mutants: tuple[Mutant, ...]


def schema(machine: Machine, mutants: Sequence[Mutant]) -> Schema:
    """The machine with all these mutants of it, ordered by action as the machine orders them."""
    ordered = tuple(m for name in machine.actions for m in mutants if m.action == name)
    actions: dict[str, Action] = {}
    whole: dict[str, Action] = {}
    first = 0
    for name, action in machine.actions.items():
        own = [m for m in ordered if m.action == name]
        if not own:
            continue
        chosen = (WHICH >= first) & (WHICH < first + len(own))
        actions[name] = _only(action, not_(chosen))
        whole[name] = _with_choices(action, own, first)
        actions[f"{name} mutated"] = _only(whole[name], chosen)
        first += len(own)
    return Schema(with_actions(machine, actions), with_actions(machine, whole), ordered)


def _only(action: Action, condition: Term) -> Action:
    return replace(action, requirements=(Requirement("in force", condition),
                                         *action.requirements))


def _with_choices(action: Action, mutants: Sequence[Mutant], first: int) -> Action:
    at: dict[Place, list[tuple[int, Term]]] = defaultdict(list)
    for number, mutant in enumerate(mutants, first):
        at[mutant.place].append((number, mutant.changed))

    def choice(place: Place, term: Term) -> Term | None:
        if place not in at:
            return None
        for number, changed in at[place]:
            term = ite(WHICH == number, changed, term)
        return term

    return rewritten(action, choice)
