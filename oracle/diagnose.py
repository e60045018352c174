"""Which rule does a dead engine seem to lack?

An engine that fails an assertion names no property.  So the machine is brought to the
state in which the engine died, and every broken design of `kvoracle.spec.variants` is
asked what it would do there.  A design that would break a property on this very event,
where the reference design breaks none, behaves like the engine: the property is what
was at stake, and what the design lacks is what the engine seems to lack.  Where several
fit, all are named, the simplest first; where none does, that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields, replace
from itertools import combinations
from typing import Any

from kvoracle.model.machine import Machine
from kvoracle.model.requests import ABORTED, FINISHED
from kvoracle.model.rules import REFERENCE, Design, by_blocks, by_keys, by_tokens
from kvoracle.model.run import Run
from kvoracle.model.scopes import ALL_PARTS
from kvoracle.spec.properties import PROPERTIES
from kvoracle.spec.variants import PLANNERS, Variant

from .claims import claim
from .events import AnyStimulus, Drain, Step
from .judge import Finding, Judge, Rulebook, constants


@dataclass(frozen=True)
class Diagnosis:
    """A design that would break ``property`` where the engine died."""

    variant: str
    property: str
    lacks: str
    because: str
    r: str


@dataclass(frozen=True)
class _Candidate:
    """A broken design, or two of them together."""

    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        return " + ".join(v.name for v in self.variants)

    @property
    def lacks(self) -> str:
        return " and ".join(v.lacks for v in self.variants)

    @property
    def design(self) -> Design:
        changes = {
            f.name: getattr(v.design, f.name) for v in self.variants for f in _changed(v)
        }
        return replace(REFERENCE, **changes)

    def machine(self) -> Machine:
        """The machine with every part under this design."""
        overrides = {k: f for v in self.variants for k, f in v.overrides.items()}
        return Machine(ALL_PARTS, self.design, overrides)


def _changed(variant: Variant) -> list[Field[Any]]:
    return [f for f in fields(Design)
            if getattr(variant.design, f.name) is not getattr(REFERENCE, f.name)]


def _single() -> list[_Candidate]:
    """The broken designs, those that change least first."""
    order = list(PLANNERS.values())
    order.sort(key=lambda v: len(_changed(v)) + len(v.overrides))
    return [_Candidate((v,)) for v in order]


def _pairs() -> Iterator[_Candidate]:
    """Two broken designs together, where they change different rules."""
    for (a,), (b,) in combinations((c.variants for c in _single()), 2):
        if not {f.name for f in _changed(a)} & {f.name for f in _changed(b)}:
            yield _Candidate((a, b))


_RULEBOOKS: dict[str, Rulebook] = {}
"""Compiled when first asked for, by the design's name."""


def _rulebook(candidate: _Candidate) -> Rulebook:
    if candidate.name not in _RULEBOOKS:
        _RULEBOOKS[candidate.name] = Rulebook(candidate.machine())
    return _RULEBOOKS[candidate.name]


def diagnose(judge: Judge) -> list[Diagnosis]:
    """What each broken design would have broken in the judge's present state.

    Two designs together are tried only where none fits by itself.
    """
    for candidates in (_single(), _pairs()):
        found = [d for c in candidates if (d := _would_break(c, judge)) is not None]
        if found:
            return found
    return []


def _would_break(candidate: _Candidate, judge: Judge) -> Diagnosis | None:
    for r, slot in judge.tracked.items():
        # A planner looks at what is scheduled in the step, and at what has ended.
        ended = judge.run.get("life", slot) in (FINISHED, ABORTED)
        if not ended and not judge.in_step(r):
            continue
        for g, n in _offers(candidate.design, judge, slot):
            broken = _broken_by_offer(candidate, judge, slot, g, n)
            if broken is not None:
                return Diagnosis(candidate.name, broken, candidate.lacks,
                                 _sentence(candidate, judge, r, slot, g, n), r)
    return None


def _offers(design: Design, judge: Judge, slot: int) -> Iterator[tuple[int, int]]:
    """By group, how far the design's planner would offer now, if beyond the cursor."""
    for g in range(len(judge.config.groups)):
        n = design.storable(claim(design, judge.run, judge.config, slot, g))
        if n > judge.run.get("cursor", slot, g):
            yield g, n


def _broken_by_offer(candidate: _Candidate, judge: Judge, slot: int, g: int, n: int) -> str | None:
    rulebook = _rulebook(candidate)
    run = Run(rulebook.program, constants(judge.config), dict(judge.run.sizes))
    run.values = {name: dict(values) for name, values in judge.run.values.items()}
    run.apply("plan_store", r=slot, g=g, n=n, d=n)
    broken = {
        check.property.supports or check.property.name
        for check in rulebook.checks["plan_store"]
        if run.broken(check.broken, slot) is not None
    }
    # What an engine does not check does not stop it.
    return next((name for name, p in PROPERTIES.items() if name in broken and p.fatal), None)


def _sentence(candidate: _Candidate, judge: Judge, r: str, slot: int, g: int, n: int) -> str:
    known = claim(candidate.design, judge.run, judge.config, slot, g)
    cursor = judge.run.get("cursor", slot, g)
    blocks, keys = by_blocks(known), by_keys(known)
    group = f" in group {g}" if len(judge.config.groups) > 1 else ""
    return (
        f"request {r}{group} has {_chunks(by_tokens(known))} by tokens, {blocks} by blocks and "
        f"{keys} by keys, and its cursor is at {cursor}; a planner that lacks {candidate.lacks} "
        f"takes {_range(cursor, n - 1)} and pairs {max(0, min(n, keys) - cursor)} keys with the "
        f"blocks of {_chunks(max(0, min(n, blocks) - cursor))}"
    )


def _range(first: int, last: int) -> str:
    return f"chunk {first}" if first == last else f"chunks {first} to {last}"


def _chunks(n: int) -> str:
    return f"{n} chunk" if n == 1 else f"{n} chunks"


def with_diagnosis(finding: Finding, judge: Judge,
                   stimulus: AnyStimulus | None) -> tuple[Finding, list[Diagnosis]]:
    """A crash with the property that was at stake, and the designs it was told by.

    Only steps plan: what dies of another ``stimulus`` did not die of a planning rule.
    """
    if finding.kind != "crash" or not isinstance(stimulus, (Step, Drain)):
        return finding, []
    found = diagnose(judge)
    if not found:
        return finding, []
    best = found[0]
    named = replace(finding, property=best.property, r=best.r, like=best.variant,
                    because=f"{best.because} ({finding.because})")
    return named, found
