"""How many steps could partial-order reduction leave out?  Too few, so there is none.

    python bench/interleavings.py [--scope S] [--states 150]

Partial-order reduction takes, from each state, only the steps of a stubborn set: what is left
out commutes with all of it, now and after anything else.  Here, for a sample of reachable
states, the smallest stubborn set is computed over the actions' instances, cell by cell (which
cells of the state each reads and writes), and the steps it keeps are counted.  Two things that a
sound reduction needs are not even asked for, so the figures are the most it could save: that
no step left out for later is seen by a property, and that none is put off for ever.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvoracle.model.machine import Action, Assign
from kvoracle.model.scopes import SCOPES, Scope
from kvoracle.model.scopes import scope as find_scope
from kvoracle.model.simplify import simplify
from kvoracle.model.terms import (
    Literal,
    Op,
    Quantified,
    Read,
    Term,
    children,
    conjuncts,
    variables_read,
)
from kvoracle.spec.explore.compiled import CompiledBackend
from kvoracle.spec.explore.reference import ReferenceBackend
from kvoracle.spec.properties import PROPERTIES

BREADTH = 6_000
"""States of a scope that the sample is drawn from, in breadth-first order."""


@dataclass(frozen=True)
class Instance:
    """An action with values for its parameters: its guard's parts with the cells each reads,
    and all cells that it reads and writes."""

    action: str
    values: tuple[int, ...]
    guard: tuple[tuple[Term, frozenset[int]], ...]
    reads: frozenset[int]
    writes: frozenset[int]

    def depends_on(self, other: Instance) -> bool:
        """Whether their order may matter."""
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)


class Cells:
    """Which cells of a scope's states terms and changes speak of."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.machine = scope.machine()
        self.python = CompiledBackend(self.machine, scope)
        self.layout = self.python.layout

    def plain(self, term: Term, values: Mapping[Term, Term]) -> Term:
        """The term with values put in and quantifiers written out."""
        term = simplify(term, values, self.scope.constant)
        if isinstance(term, Quantified):
            parts = tuple(self.plain(term.body, dict(zip(term.bounds, map(Literal, at))))
                          for at in self.layout.indices(tuple(b.sort for b in term.bounds)))
            term = Op("and" if term.every else "or", parts) if len(parts) > 1 else parts[0]
        elif isinstance(term, Op):
            term = Op(term.name, tuple(self.plain(a, {}) for a in term.args))
        elif isinstance(term, Read):
            return Read(term.variable, tuple(self.plain(i, {}) for i in term.index), term.after)
        return simplify(term, {}, self.scope.constant)

    def read_by(self, term: Term) -> Iterator[int]:
        """The cells that the term may read."""
        if isinstance(term, Read) and not term.variable.rigid:
            for at in self.layout.indices(term.variable.domain):
                if all(not isinstance(i, Literal) or int(i.value) == k
                       for i, k in zip(term.index, at)):
                    cell = self.layout.cell(term.variable, at)
                    assert cell is not None
                    yield cell
        for child in children(term):
            yield from self.read_by(child)

    def instances(self) -> Iterator[Instance]:
        """Every action with every choice of its parameters that its guard does not exclude."""
        for action in self.machine.actions.values():
            for chosen in self.layout.indices(tuple(p.sort for p in action.parameters)):
                values: Mapping[Term, Term] = dict(zip(action.parameters, map(Literal, chosen)))
                guard = self.plain(action.guard, values)
                if isinstance(guard, Literal) and not guard.value:
                    continue
                parts = tuple((c, frozenset(self.read_by(c))) for c in conjuncts(guard))
                reads, writes = self._changes(action, values)
                yield Instance(action.name, chosen, parts,
                               reads.union(*(cells for _, cells in parts)), writes)

    def _changes(self, action: Action,
                 values: Mapping[Term, Term]) -> tuple[frozenset[int], frozenset[int]]:
        reads: set[int] = set()
        writes: set[int] = set()
        for update in action.updates:
            for at in self.layout.indices(update.variable.domain):
                inner = values
                if isinstance(update, Assign):
                    index = [self.plain(i, values) for i in update.index]
                    read = [*index]
                    here = all(not isinstance(i, Literal) or int(i.value) == k
                               for i, k in zip(index, at))
                else:
                    inner = {**values, **dict(zip(update.bounds, map(Literal, at)))}
                    read = [self.plain(update.condition, inner)]
                    here = not isinstance(read[0], Literal) or bool(read[0].value)
                if here:
                    cell = self.layout.cell(update.variable, at)
                    assert cell is not None
                    writes.add(cell)
                    for term in (*read, self.plain(update.value, inner)):
                        reads.update(self.read_by(term))
        return frozenset(reads), frozenset(writes)


class Stubborn:
    """The smallest stubborn sets of a scope's states."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.all = list(cells.instances())
        self.number = {(i.action, i.values): k for k, i in enumerate(self.all)}
        self.dependent = [[j for j, other in enumerate(self.all) if one.depends_on(other)]
                          for one in self.all]
        self.writers: dict[int, set[int]] = {}
        for k, one in enumerate(self.all):
            for cell in one.writes:
                self.writers.setdefault(cell, set()).add(k)
        self.reference = ReferenceBackend(cells.machine, cells.scope)

    def kept(self, state: bytes) -> tuple[int, int]:
        """How many steps the smallest stubborn set keeps of the state's."""
        steps = self.cells.python.successors(state)[0]
        enabled = {self.number[action, values] for action, values, _ in steps}
        enabling: dict[int, set[int]] = {}
        least = len(enabled)
        for start in sorted(enabled):
            found, waiting = {start}, [start]
            while waiting and len(found & enabled) < least:
                k = waiting.pop()
                if k not in enabled and k not in enabling:
                    enabling[k] = self._enabling(k, state)
                for j in self.dependent[k] if k in enabled else enabling[k]:
                    if j not in found:
                        found.add(j)
                        waiting.append(j)
            least = min(least, len(found & enabled))
        return least, len(enabled)

    def _enabling(self, k: int, state: bytes) -> set[int]:
        """Without one of these the instance stays impossible: the writers of a part of its guard
        that does not hold."""
        unmet = [set().union(*(self.writers.get(c, set()) for c in cells))
                 for part, cells in self.all[k].guard
                 if not self.reference.value(part, {}, state)]
        return min(unmet, key=len, default=set())  # none: cut by the scope


def sample(python: CompiledBackend, wanted: int) -> list[bytes]:
    """Reachable states, the same ones each time."""
    seen, order = {python.initial}, [python.initial]
    for state in order:
        if len(order) >= BREADTH:
            break
        for _, _, after in python.successors(state)[0]:
            if after not in seen:
                seen.add(after)
                order.append(after)
    return random.Random(1).sample(order, min(wanted, len(order)))


def invisible(scope: Scope) -> int:
    """How many actions change nothing that any property reads."""
    machine = scope.machine()
    read: frozenset[str] = frozenset()
    for p in PROPERTIES.values():
        if p.applies(machine):
            predicates = [p.over_steps(machine, a) for a in machine.actions] if p.is_step \
                else [p.over_states(machine)]
            read = read.union(*(variables_read(q.term) for q in predicates))
    return sum(not a.written & read for a in machine.actions.values())


def main() -> int:
    """Print a line for each scope."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scope", action="append", metavar="S", help="default: all")
    parser.add_argument("--states", type=int, default=150, metavar="N")
    arguments = parser.parse_args()
    print(f"{'scope':<12}{'instances':>10}{'steps kept':>16}{'':>7}{'invisible actions':>20}")
    for name in arguments.scope or SCOPES:
        scope = find_scope(name)
        stubborn = Stubborn(Cells(scope))
        counts = [stubborn.kept(s) for s in sample(stubborn.cells.python, arguments.states)]
        kept, steps = (sum(c) for c in zip(*counts))
        print(f"{name:<12}{len(stubborn.all):>10}{f'{kept:,} of {steps:,}':>16}"
              f"{kept / max(steps, 1):>7.0%}{invisible(scope):>20}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
