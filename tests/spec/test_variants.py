"""Does every broken design break what it is said to break, by a run that can be followed?"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run
from kvoracle.model.scopes import SCOPES, UnknownName
from kvoracle.spec.explore import Exploration, MachineStep
from kvoracle.spec.properties import EVERYTHING, PROPERTIES
from kvoracle.spec.variants import VARIANTS, Variant, variant

SHORTEST = {  # steps of a shortest run to each property that breaks
    "no-key-bound": {"KeysEqBlocks": 4, "KeyedOnly": 4},
    "no-block-bound": {"KeysEqBlocks": 4, "NoVolatileStore": 4},
    "rewind-at-clear": {"KeyedOnly": 3, "KeysEqBlocks": 4, "MonotoneProgress": 4},
    "no-token-bound": {"NoVolatileStore": 5},
    "cursor-keeps-tail": {"NoHole": 5},
    "cursor-ignores-keys": {"NoHole": 4},
    "cursor-falls-back": {"MonotoneProgress": 8},
    "advance-on-refusal": {"NoHole": 5},
    "no-exclusion": {"NoVolatileStore": 9},
    "counts-last-token": {"NoVolatileStore": 8},
    "prefill-tail-excluded": {"EventuallyStored": 4},
    "exclusion-never-lifted": {"EventuallyStored": 7},
    "no-fence-at-finish": {"ReuseFence": 12, "TrueBytes": 15},
    "no-fence-at-preemption": {"ReuseFence": 12, "TrueBytes": 15},
    "fence-of-submitted": {"ReuseFence": 12, "TrueBytes": 15},
    "load-into-read": {"ReuseFence": 22, "TrueBytes": 25, "LoadedBytes": 31},
    "list-kept-at-reuse": {"ReuseFence": 12, "TrueBytes": 15},
    "abort-frees-at-once": {"ReuseFence": 15},
    "load-beside-stores": {"JobExclusive": 15},
    "pin-dropped-at-issue": {"RefExact": 13, "LoadReady": 14, "ReuseFence": 21, "LoadedBytes": 25},
    "evict-pending": {"ReuseFence": 15, "TrueBytes": 20, "LoadedBytes": 25},
    "late-report-counts": {"TrueBytes": 13, "LoadedBytes": 19},
    "reset-frees-written": {"ReuseFence": 10, "TrueBytes": 15, "LoadedBytes": 21},
    "reset-frees-read": {"LoadReady": 14, "LoadedBytes": 21, "ReuseFence": 21, "TrueBytes": 27},
    "load-pending": {"LoadReady": 11, "LoadedBytes": 13},
    "first-report-counts": {
        "TrueBytes": 10, "WorkerAgreement": 10, "LoadedBytes": 16, "ReuseFence": 19},
    "failed-is-ready": {"TrueBytes": 11, "LoadedBytes": 17, "ReuseFence": 20},
    "failed-stays-pending": {"NoLeak": 11},
    "last-store-waits": {"NoStall": 8},
    "largest-rank-counts": {"WorkerAgreement": 8, "TrueBytes": 12, "LoadedBytes": 18},
    "refused-with-room": {"NoStall": 6},
    "failed-keeps-its-slot": {"NoLeak": 11},
    "copy-down-unheld": {"RefExact": 11, "LoadReady": 12, "TrueBytes": 17},
    "failed-below-is-present": {"TrueBytes": 12, "LoadedBytes": 21},
    "unread-counted-on": {"TierVerdict": 18},
    "one-fails-all": {"TierVerdict": 28},
    "promotions-take-all": {"NoStall": 15},
    "failed-load-starts": {"LoadedBytes": 17, "ReuseFence": 20, "TrueBytes": 24},
    "borrowed-unfenced": {"ReuseFence": 12, "TrueBytes": 15},
    "borrowed-counts-at-once": {
        "LoadedBytes": 3, "ConnectorFence": 4, "ReuseFence": 6, "TrueBytes": 9},
    "cursor-over-borrowed": {"NoHole": 5},
    "first-connector-frees": {"ConnectorFence": 7},
    "sent-is-freed": {"ConnectorFence": 5},
    "store-beside-kernels": {"StreamOrder": 4, "TrueReads": 5},
    "step-late-is-no-event": {"StreamOrder": 6, "TrueReads": 7},
    "late-store-unfenced": {"TrueReads": 8},
    "store-of-what-loads": {"StreamOrder": 4, "TrueReads": 5},
    "store-over-slot": {"StreamOrder": 5, "TrueReads": 7},
    "ready-at-queueing": {"StreamOrder": 3, "TrueReads": 6},
    "kernels-before-load": {"StreamOrder": 4, "TrueReads": 5},
    "kernels-over-store": {"StreamOrder": 4, "TrueReads": 6},
    "load-over-reads": {"StreamOrder": 6, "TrueReads": 8},
    "load-over-writes": {"StreamOrder": 5, "TrueReads": 7},
    "load-over-store": {"StreamOrder": 4, "TrueReads": 6},
    "host-over-slot": {"StreamOrder": 4, "TrueReads": 5},
    "table-written-early": {"StreamOrder": 3, "TrueReads": 5},
    "minimum-of-groups": {"HitSound": 8},
    "group-ignored": {"HitSound": 5},
    "finer-than-span": {"HitSound": 8},
    "all-marked-draft": {"HitMaximal": 12},
    "draft-asks-no-more": {"ProvenTail": 10},
    "tail-popped-late": {"HitMaximal": 12},
    "window-rounded-down": {"HitSound": 8},
    "window-taken-as-aligned": {"HitSound": 10},
    "hit-of-all-tokens": {"HitSound": 8},
    "verdict-kept": {"HitMaximal": 8},
    "retry-for-ever": {"EventuallyAnswered": 3},
    "first-holder-frees": {"RefExact": 7, "LoadedBytes": 9, "ReuseFence": 12, "TrueBytes": 15},
    "finder-not-counted": {"RefExact": 6, "LoadedBytes": 11, "ReuseFence": 14, "TrueBytes": 17},
    "load-over-found": {"ReuseFence": 14, "LoadedBytes": 15},
    "name-kept-at-reuse": {"LoadedBytes": 11},
    "named-before-loaded": {"ReuseFence": 15, "LoadedBytes": 16},
    "first-failure-ends": {"WorkerAgreement": 16},
    "freed-under-a-step": {"ReuseFence": 10, "LoadedBytes": 21},
    "tail-copied": {"NoVolatileStore": 10, "TrueTails": 12},
    "tail-copied-late": {"NoVolatileStore": 10},
    "ended-twice": {"RefExact": 11, "LoadedBytes": 14, "ReuseFence": 17, "TrueBytes": 20},
    "gives-up-at-refusal": {"EventuallyStored": 5},
    "begins-anew-at-refusal": {"MonotoneProgress": 6},
    "never-complete": {"NoStall": 10},
    "pins-kept-at-abort": {"RefExact": 18},
    "strict-queue": {},
    "slides-unfenced": {"ReuseFence": 11, "TrueBytes": 14},
    "null-stored": {"NoVolatileStore": 9, "ReuseFence": 9, "TrueBytes": 12},
    "null-loaded": {"ReuseFence": 19, "LoadedBytes": 22},
    "slides-too-early": {"LoadedBytes": 5},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_breaks_what_it_says_by_a_shortest_run(
    name: str, variant_search: Callable[[str], Exploration]
) -> None:
    found = variant_search(name)
    assert found.complete or found.violations.keys() == found.evaluated.keys()  # all it can break
    assert set(found.violations) == set(VARIANTS[name].breaks)
    assert {p: len(v.run) for p, v in found.violations.items()} == SHORTEST[name]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_counterexample_can_be_followed_step_by_step(
    name: str, variant_search: Callable[[str], Exploration]
) -> None:
    chosen = VARIANTS[name]
    for prop, violation in variant_search(name).violations.items():
        broken = list(_follow(chosen, prop, violation.run))
        assert broken == [False] * (len(violation.run) - 1) + [True], prop


def _follow(chosen: Variant, prop: str, steps: tuple[MachineStep, ...]) -> list[bool]:
    """Whether the property is broken behind each step, in the run reading."""
    scope, known = SCOPES[chosen.scope], EVERYTHING[prop]
    machine = chosen.machine(scope)
    program = Program(machine)
    if known.is_step:
        checks = {a: program.predicate(known.over_steps(machine, a), (), in_step=True)
                  for a in machine.actions}
    else:
        check = program.predicate(known.over_states(machine), ())
        checks = dict.fromkeys(machine.actions, check)
    run = Run(program, scope.constants, {k: v for k, v in scope.sizes.items()
                                         if k in program.index_sorts})
    broken = []
    for step in steps:
        run.step(step.action, **step.values)
        broken.append(run.broken(checks[step.action]) is not None)
    return broken


def test_a_variant_differs_from_the_reference_in_a_rule() -> None:
    designs = [(v.design, *v.overrides.values()) for v in VARIANTS.values()]
    assert (REFERENCE,) not in designs
    assert len(set(designs)) == len(designs)


@pytest.mark.parametrize("chosen", VARIANTS.values(), ids=list(VARIANTS))
def test_a_variant_says_what_it_lacks_and_whence(chosen: Variant) -> None:
    assert chosen.statement and chosen.lacks
    assert re.search(r"vLLM|SGLang|LMCache#|tpu-inference|TensorRT-LLM|Dynamo", chosen.source)
    assert chosen.scope in SCOPES
    assert chosen.breaks or chosen.starves
    assert {*chosen.breaks, *chosen.starves} <= set(PROPERTIES)


def test_an_unknown_variant_names_the_near_ones() -> None:
    assert variant("no-key-bound") is VARIANTS["no-key-bound"]
    with pytest.raises(UnknownName, match="no variant 'no-keys-bound'; did you mean no-key-bound"):
        variant("no-keys-bound")
