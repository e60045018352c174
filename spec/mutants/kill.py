"""Which mutants a property notices: every mutant of every scope, searched until one does.

All mutants of a scope are compiled as one program (`schema`), so that a mutant costs a search,
mostly of milliseconds.  A mutant that no property notices in any scope is told by what its
searches counted: it changes nothing there, it permits less, or it permits other things.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from kvoracle.model.scopes import SCOPES, scope
from kvoracle.model.terms import variables_read

from ..explore.limits import Limits
from ..explore.native import NativeSearch, Verdict
from ..properties import EVERYTHING, Property
from .operators import Mutant, folded, mutants
from .schema import WHICH, schema

MOST_STATES = 1_000_000
"""In one search of a mutant: several times what the scopes tried have."""

LEFT_OUT = frozenset({"pair", "slots", "resets", "promotions", "found-loads", "overwrites"})
"""Scopes with more than some 100,000 states: tried only where they are named."""

TRIED = tuple(name for name in SCOPES if name not in LEFT_OUT)

ALONE = 200
"""Mutants that are tried for a property that others were always quicker than."""

_MEMORY = 1 << 30

Fate = Literal["killed", "witness", "less", "same", "other", "unknown"]
"""killed: a property is broken, or a value falls below 0.  witness: a situation that a property
is about is not met any more.  Of survivors: less: some steps are gone and none is new; same: no
scope has a state or a step less or more; other: it permits other things.  unknown: a search was
cut off."""


@dataclass(frozen=True)
class Trial:
    """One mutant in one scope."""

    mutant: str
    scope: str
    verdict: Verdict
    reference: Verdict

    @property
    def fate(self) -> Fate:
        """What this scope alone says of it."""
        v, r = self.verdict, self.reference
        if v.broken or v.negative:
            return "killed"
        if not v.complete:
            return "unknown"
        if r.seen - v.seen:
            return "witness"
        if (v.distinct, v.generated) == (r.distinct, r.generated):
            return "same"
        return "less" if v.distinct <= r.distinct and v.generated <= r.generated else "other"


@dataclass
class Outcome:
    """One mutant: its kind, what killed it and where, or what is seen of it where nothing did.

    ``alone`` are properties, each with its scope, that were found broken when nothing else was
    asked about.
    """

    name: str
    action: str
    kind: str
    trials: list[Trial] = field(default_factory=list)
    alone: dict[str, str] = field(default_factory=dict)

    @property
    def killed(self) -> bool:
        """Whether a property was found broken."""
        return self.fate == "killed"

    @property
    def fate(self) -> Fate:
        """The strongest of what the scopes say."""
        order: tuple[Fate, ...] = ("killed", "witness", "unknown", "other", "less", "same")
        return min((t.fate for t in self.trials), key=order.index, default="same")

    @property
    def killers(self) -> tuple[str, ...]:
        """The properties broken by the first run that breaks one; the witness lost, if none is."""
        for trial in self.trials:
            if trial.fate == "killed":
                broken = trial.verdict.broken or ("a count falls below 0",)
                return (*broken, *(p for p in self.alone if p not in broken))
        for trial in self.trials:
            if trial.fate == "witness":
                return tuple(sorted({p for p, _ in trial.reference.seen - trial.verdict.seen}))
        return ()


Done = Callable[[str, int, int], None]
"""Told the scope, how many of its trials are done, and of how many."""


def kill_table(names: Iterable[str] = TRIED, jobs: int | None = None,
               done: Done | None = None) -> list[Outcome]:
    """Every mutant of the named scopes' machines, each tried in the scopes that have it, the
    smallest first, until a property is broken.

    Raises `UnknownName` for a scope that does not exist, `NoCompiler` without a C compiler.
    """
    outcomes: dict[str, Outcome] = {}
    workers = jobs or len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        reference = dict(pool.imap_unordered(_reference, [scope(n).name for n in names]))
        for name in sorted(reference, key=lambda n: (reference[n].generated, n)):
            found = _trials_of(name).mutants
            for m in found:
                outcomes.setdefault(m.name, Outcome(m.name, m.action, m.kind))
            wanted = [k for k, m in enumerate(found) if not outcomes[m.name].killed]
            trials = pool.imap(_trial, [(name, k) for k in wanted], chunksize=8)
            for n, (k, verdict) in enumerate(zip(wanted, trials), 1):
                outcomes[found[k].name].trials.append(
                    Trial(found[k].name, name, verdict, reference[name]))
                if done is not None:
                    done(name, n, len(wanted))
        asked = list(_unseen(outcomes.values(), reference))
        found_alone = pool.imap(_alone, asked, chunksize=1)
        for name, scope_name, mutant in filter(None, found_alone):
            outcomes[mutant].alone[name] = scope_name
    return list(outcomes.values())


def _unseen(outcomes: Iterable[Outcome],
            names: Iterable[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each property that is never the first to be broken, with the mutants, and the scopes that
    killed them, in which it may be broken as well."""
    killed = [o for o in outcomes if o.killed]
    first = {p for o in killed for p in o.killers}
    crowded = [name for name in names if scope(name).sizes.get("Request", 0) > 1]
    for p in EVERYTHING.values():
        if p.name not in first and not p.derived:
            yield p.name, [
                *((next(t.scope for t in o.trials if t.fate == "killed"), o.name) for o in killed),
                *((name, o.name) for name in crowded for o in killed)]


def _alone(asked: tuple[str, list[tuple[str, str]]]) -> tuple[str, str, str] | None:
    """The first mutant, and the scope, in which the property is broken when it alone is asked
    about; at most `ALONE` are tried."""
    name, places = asked
    tried = 0
    for where, mutant in places:
        made = _trials_of(where, compiled=True)
        assert made.search is not None
        prop = next((p for p in made.search.known if p.name == name), None)
        k = next((i for i, m in enumerate(made.mutants) if m.name == mutant), None)
        if prop is None or k is None or not _reads(prop, where, made.mutants[k].action):
            continue
        before, made.search.chosen = made.search.chosen, [prop]
        try:
            if made.search.verdict(k).broken:
                return name, where, mutant
        finally:
            made.search.chosen = before
        tried += 1
        if tried == ALONE:
            break
    return None


def _reads(prop: Property, where: str, action: str) -> bool:
    """Whether the action writes what the property reads."""
    machine = scope(where).machine()
    read = frozenset[str]() if prop.is_step else variables_read(
        prop.over_states(machine).term)
    return prop.is_step or bool(read & machine.actions[action].written)


@dataclass
class _Trials:
    """The mutants of a scope, compiled as one search."""

    mutants: tuple[Mutant, ...]
    search: NativeSearch | None


@functools.cache
def _trials_of(name: str, compiled: bool = False) -> _Trials:
    where = scope(name)
    machine = folded(where.machine())
    made = schema(machine, mutants(machine))
    if not compiled:
        return _Trials(made.mutants, None)
    numbered = replace(where, sizes={**where.sizes, WHICH.sort.name: len(made.mutants) + 1})
    return _Trials(made.mutants, NativeSearch(
        made.machine, numbered, properties=EVERYTHING.values(), max_states=MOST_STATES,
        limits=Limits(memory=_MEMORY, threads=1), chosen=WHICH, judge=made.judge))


def _trial(asked: tuple[str, int]) -> Verdict:
    """What the search of a scope finds of its k-th mutant."""
    name, k = asked
    search = _trials_of(name, compiled=True).search
    assert search is not None
    return search.verdict(k)


def _reference(name: str) -> tuple[str, Verdict]:
    """What it finds where no mutant is in force."""
    return name, _trial((name, len(_trials_of(name, compiled=True).mutants)))
