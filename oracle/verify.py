"""What the machine itself comes to: proofs and bounded searches, put together by property.

The verdict on a property is one of three: proved for all sizes; broken, with a shortest
run; or neither proved nor broken within the bounds searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from kvoracle.model.machine import Machine
from kvoracle.model.rules import REFERENCE
from kvoracle.model.scopes import COMPOSITIONS, SCOPES, Scope
from kvoracle.spec.explore import (
    Exploration,
    Lasting,
    MachineStep,
    Violation,
    lasting,
    search,
)
from kvoracle.spec.explore.layout import Layout
from kvoracle.spec.explore.reference import ReferenceBackend
from kvoracle.spec.properties import EVERYTHING, Property, Seen
from kvoracle.spec.variants import Variant

DEFAULT_SCOPES = tuple(SCOPES)


@dataclass(frozen=True)
class Shown:
    """One obligation, of which composition, and what the solver said, there or of a smaller
    composition (``as_in``)."""

    machine: str
    property: str
    action: str
    verdict: str
    seconds: float
    by_frame: bool
    as_in: str = ""


@dataclass
class ProofResult:
    """All obligations of a design."""

    variant: str | None
    obligations: list[Shown] = field(default_factory=list)
    responses: list[Shown] = field(default_factory=list)
    """Of what ends under fairness; they assume the invariants that the obligations prove."""

    @property
    def failed(self) -> list[Shown]:
        """Those not proved."""
        return [o for o in (*self.obligations, *self.responses) if o.verdict != "proved"]

    @property
    def seconds(self) -> float:
        """Solver time, all together."""
        return sum(o.seconds for o in (*self.obligations, *self.responses))

    def of(self, name: str) -> list[Shown]:
        """The obligations of a property, and of the lemmas that carry it."""
        carried = {name} | {p.name for p in EVERYTHING.values() if p.supports == name}
        shared = {"Division"}
        spoken_of = {o.machine for o in self.obligations if o.property == name}
        return [o for o in self.obligations if o.machine in spoken_of and (
            o.property in carried | shared or o.property.endswith(" in range"))]

    def proved(self, name: str) -> bool:
        """Whether the property holds for all sizes: its obligations are proved, and nothing is
        assumed for them that is not."""
        mine = self.of(name)
        return bool(mine) and all(o.verdict == "proved" for o in mine)


def machines_of(variant: Variant | None) -> dict[str, Machine]:
    """What is to be proved of a design: the compositions it belongs to, by name."""
    if variant is None:
        return {name: Machine(parts, REFERENCE) for name, parts in COMPOSITIONS.items()}
    name = next((name for name, parts in COMPOSITIONS.items() if parts is variant.parts),
                variant.scope)
    return {name: variant.whole()}


def prove(variant: Variant | None = None, properties: Iterable[Property] | None = None,
          progress: Callable[[str], None] | None = None) -> ProofResult:
    """Decide every obligation of a design (Z3 is imported here, not before)."""
    from kvoracle.spec.prove.ranking import Responses

    wanted = None if properties is None else list(properties)
    names = None if wanted is None else [p.name for p in wanted]
    result = ProofResult(variant.name if variant else None)
    smaller: dict[str, Responses] = {}
    for name, machine in machines_of(variant).items():
        if wanted is not None and not any(p.applies(machine) for p in wanted):
            continue
        # In a larger composition a property may lean on lemmas of another family: then on all.
        for chosen in (wanted, None) if variant is None and wanted is not None else (wanted,):
            proof = Responses(machine, chosen, smaller=smaller)
            decided = []
            for o in proof.obligations():
                if progress is not None:
                    progress(str(o))
                decided.append(o)
            if all(o.answer.verdict == "proved" for o in decided):
                break
        if any(o.answer.verdict != "proved" for o in decided):
            # Something is broken: what was proved on its assumption is decided again without it.
            decided = proof.settled(decided)
        result.obligations += [
            Shown(name, o.property, o.action, o.answer.verdict, o.answer.seconds, o.by_frame,
                  o.as_in)
            for o in decided
        ]
        result.responses += [
            Shown(name, o.property, o.action, o.answer.verdict, o.answer.seconds, o.by_frame)
            for o in proof.responses(names)
        ]
        smaller[name] = proof
    return result


def counterexample(name: str, variant: Variant | None) -> tuple[str, Violation] | None:
    """A shortest run that breaks the property in some scope, the variant's own scope first."""
    first = [variant.scope] if variant else []
    for scope_name in [*first, *(s for s in DEFAULT_SCOPES if s not in first)]:
        if not EVERYTHING[name].applies(SCOPES[scope_name].machine()):
            continue
        found = search(SCOPES[scope_name], variant, properties=[EVERYTHING[name]])
        if name in found.violations:
            return scope_name, found.violations[name]
    return None


def explored(scopes: Iterable[Scope], variant: Variant | None = None,
             progress: Callable[[Exploration, int], None] | None = None) -> list[Exploration]:
    """Search each scope."""
    return [search(s, variant, progress=progress) for s in scopes]


LASTING = ("draft", "workers", "queue", "verdicts")
"""The scopes in which a check judges promises about the future: each is broken by a design in
one of them."""


def lasted(scopes: Iterable[Scope], progress: Callable[[str], None]) -> list[Lasting]:
    """Judge the promises about the future in those of the scopes that are for it."""
    results = []
    for scope in (s for s in scopes if s.name in LASTING):
        progress(f"looking for runs of {scope.name} that wait for ever")
        results.append(lasting(scope))
    return results


def because(machine: Machine, scope: Scope, violation: Violation) -> str:
    """Why the last state of the run, or the last step, breaks the property."""
    backend = ReferenceBackend(machine, scope)
    states = [backend.initial, *(s.state for s in violation.run)]
    prop, last = EVERYTHING[violation.property], states[-1]
    before = states[-2] if len(states) > 1 else last
    if prop.is_step:
        predicate = prop.over_steps(machine, violation.run[-1].action)
        broken = backend.breaking(predicate, before, last)
    else:
        predicate = prop.over_states(machine)
        broken = backend.breaking(predicate, last)
    assert broken is not None
    where = {p.name: v for p, v in zip(predicate.parameters, broken)}
    many = scope.sizes.get("Group", 1) > 1
    group = f" in group {where['g']}" if many and "g" in where else ""
    return prop.because(Seen(
        partial(backend.get, last), where, str(where.get("r", "")), group,
        partial(backend.get, before), tuple(p.name for p in machine.parts)))


def run_changes(machine: Machine, scope: Scope,
                run: Iterable[MachineStep]) -> list[tuple[str, list[str]]]:
    """A run of the machine: each step in words, and what it changed."""
    layout = Layout(machine, scope)
    before = layout.unpack(layout.initial)
    steps = []
    for step in run:
        after = layout.unpack(step.state)
        steps.append((machine.actions[step.action].describe(step.values), [
            f"{v.name}[{', '.join(map(str, index))}]: {v.sort.show(before[v.name][index])} -> "
            f"{v.sort.show(value)}"
            for v in machine.state
            for index, value in after[v.name].items() if value != before[v.name][index]
        ]))
        before = after
    return steps


def run_lines(machine: Machine, scope: Scope, run: Iterable[MachineStep]) -> list[str]:
    """A run of the machine as numbered steps, each with what it changed."""
    lines = []
    for i, (step, changed) in enumerate(run_changes(machine, scope, run), 1):
        lines += [f"  {i:>3}  {step}", f"         {'; '.join(changed) or 'nothing changes'}"]
    return lines
