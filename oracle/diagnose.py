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
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from kvoracle.model.machine import Machine
from kvoracle.model.requests import ABORTED, FINISHED
from kvoracle.model.rules import REFERENCE, Claim, Design, by_blocks, by_keys, by_tokens
from kvoracle.model.run import Run
from kvoracle.model.scopes import ALL_PARTS
from kvoracle.spec.properties import PROPERTIES
from kvoracle.spec.variants import VARIANTS, Variant

from .judge import Finding, Judge, Rulebook, constants


@dataclass(frozen=True)
class Diagnosis:
    """A design that would break ``property`` where the engine died."""

    variant: str
    property: str
    lacks: str
    because: str
    r: str


@lru_cache(maxsize=len(VARIANTS))
def _rulebook(name: str) -> Rulebook:
    variant = VARIANTS[name]
    return Rulebook(Machine(ALL_PARTS, variant.design, variant.overrides))


def _simplicity(variant: Variant) -> tuple[int, int]:
    changed = sum(
        getattr(variant.design, f.name) is not getattr(REFERENCE, f.name)
        for f in fields(Design)
    )
    return changed + len(variant.overrides), list(VARIANTS).index(variant.name)


def diagnose(judge: Judge) -> list[Diagnosis]:
    """What each broken design would have broken in the judge's present state."""
    found = (
        _would_break(variant, judge) for variant in sorted(VARIANTS.values(), key=_simplicity)
    )
    return [d for d in found if d is not None]


def _would_break(variant: Variant, judge: Judge) -> Diagnosis | None:
    for r, slot in judge.tracked.items():
        # A planner looks at what is scheduled in the step, and at what has ended.
        ended = judge.run.get("life", slot) in (FINISHED, ABORTED)
        if not ended and not judge.in_step(r):
            continue
        for g, n in _offers(variant.design, judge, slot):
            broken = _broken_by_offer(variant, judge, slot, g, n)
            if broken is not None:
                return Diagnosis(variant.name, broken, variant.lacks,
                                 _sentence(variant, judge, r, slot, g, n), r)
    return None


def _claim(design: Design, judge: Judge, slot: int, g: int) -> Claim:
    get = judge.run.get
    life = get("life", slot)
    tokens = design.tokens_counted(get("computed", slot), get("tokens", slot), life == ABORTED)
    if get("limited", slot):
        tokens = min(tokens, get("limit", slot))
    return Claim(tokens, get("prompt", slot), life in (FINISHED, ABORTED),
                 judge.config.groups[g].draft, get("blocks", slot, g), get("keys", slot, g),
                 judge.config.tokens_per_chunk(g), judge.config.blocks_per_chunk)


def _offers(design: Design, judge: Judge, slot: int) -> Iterator[tuple[int, int]]:
    """By group, how far the design's planner would offer now, if beyond the cursor."""
    for g in range(len(judge.config.groups)):
        n = design.storable(_claim(design, judge, slot, g))
        if n > judge.run.get("cursor", slot, g):
            yield g, n


def _broken_by_offer(variant: Variant, judge: Judge, slot: int, g: int, n: int) -> str | None:
    rulebook = _rulebook(variant.name)
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


def _sentence(variant: Variant, judge: Judge, r: str, slot: int, g: int, n: int) -> str:
    claim = _claim(variant.design, judge, slot, g)
    cursor = judge.run.get("cursor", slot, g)
    blocks, keys = by_blocks(claim), by_keys(claim)
    group = f" in group {g}" if len(judge.config.groups) > 1 else ""
    return (
        f"request {r}{group} has {_chunks(by_tokens(claim))} by tokens, {blocks} by blocks and "
        f"{keys} by keys, and its cursor is at {cursor}; a planner that lacks {variant.lacks} "
        f"takes {_range(cursor, n - 1)} and pairs {max(0, min(n, keys) - cursor)} keys with the "
        f"blocks of {_chunks(max(0, min(n, blocks) - cursor))}"
    )


def _range(first: int, last: int) -> str:
    return f"chunk {first}" if first == last else f"chunks {first} to {last}"


def _chunks(n: int) -> str:
    return f"{n} chunk" if n == 1 else f"{n} chunks"


def with_diagnosis(finding: Finding, judge: Judge) -> tuple[Finding, list[Diagnosis]]:
    """A crash with the property that was at stake, and the designs it was told by."""
    if finding.kind != "crash":
        return finding, []
    found = diagnose(judge)
    if not found:
        return finding, []
    best = found[0]
    named = replace(finding, property=best.property, r=best.r, like=best.variant,
                    because=f"{best.because} ({finding.because})")
    return named, found
