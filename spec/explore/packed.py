"""What the searches of packed states have in common, whatever runs them.

An engine (`native`: C on the processors; `device`: kernels on a GPU) stores all states and
their parents in the order in which a search by one thread meets them, and says where each
property breaks first.  From that follow, here, verdicts and counts; counterexamples, for which
the Python reading takes the few steps again; checkpoints; memory.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvoracle.model.machine import Machine, Predicate, invariant
from kvoracle.model.scopes import ImpossibleConfig, Scope
from kvoracle.model.terms import Bound

from ..properties import EVERYTHING, PROPERTIES, Property
from . import breadth_first, checkpoint
from .bits import BitLayout
from .breadth_first import Exploration, MachineStep, Progress, Successor, Violation
from .c_code import Judged, MachineCode
from .checkpoint import Asked, CheckpointRefused
from .compiled import CompiledBackend
from .layout import Layout
from .limits import Limits, OutOfMemory
from .reference import ReferenceBackend
from .symmetry import Renamings, with_none

KINDS = 64
"""Properties, and situations, that one search can tell apart (``KINDS`` of search.c)."""

NONE = 2**64 - 1
SLICE_SECONDS = 0.25
"""How long an engine runs before Python looks for an interrupt."""

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.05
"""Checkpoints are written so often, and take no more than this share of the time."""

GOES_ON, COMPLETE, BROKEN, ENOUGH, MEMORY, NEGATIVE, REFUSED = range(7)

NUMBERS = ("distinct", "generated", "cut", "steps", "depth", "low", "high")
LISTS = ("parent", "nth", "shown", "shown_depth")


class Counts(ctypes.Structure):
    """``Counts`` of search.c."""

    _fields_ = (*((name, ctypes.c_uint64) for name in NUMBERS),
                *((name, ctypes.c_uint64 * KINDS) for name in LISTS))

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in NUMBERS} \
            | {name: list(getattr(self, name)) for name in LISTS}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Counts:
        lists = ((ctypes.c_uint64 * KINDS)(*values[name]) for name in LISTS)
        return cls(*(values[name] for name in NUMBERS), *lists)


class PackedSearch(abc.ABC):
    """One search of a scope, from its beginning or from a checkpoint."""

    name: str
    memory: int
    """Bytes that states, table and buffers may take."""

    def __init__(self, machine: Machine, scope: Scope, *, variant: str | None = None,
                 properties: Iterable[Property] | None = None, max_states: int | None = None,
                 find_all: bool = False, limits: Limits | None = None,
                 chosen: Bound | None = None, judge: Machine | None = None) -> None:
        """``chosen``: a variable of the machine that the engine is told the value of;
        ``judge``: the machine that properties speak of, if another than the one searched."""
        self.limits = limits or Limits()
        self.original, self.scope = machine, scope
        self.machine = machine = with_none(machine, scope) if self.limits.symmetry else machine
        judge = judge or machine
        self.layout = Layout(machine, scope)
        self.bits = BitLayout(self.layout)
        self.find_all = find_all
        self.chosen = [p for p in (properties or PROPERTIES.values()) if p.applies(machine)]
        self.asked = Asked(scope.name, variant, tuple(p.name for p in self.chosen), find_all,
                           self.limits.symmetry)
        # All of the catalogue is compiled, so that one library serves every choice from it.
        catalogue = [p for p in EVERYTHING.values() if p.applies(machine)]
        if len(catalogue) > KINDS or not all(p is EVERYTHING.get(p.name) for p in self.chosen):
            catalogue = self.chosen
        self.known = catalogue
        self.number = {p.name: i for i, p in enumerate(self.known)}
        over_steps = {i: {a.name: p.over_steps(judge, a.name) for a in machine.actions.values()}
                      for i, p in enumerate(self.known) if p.is_step}
        over_states = {i: p.over_states(judge)
                       for i, p in enumerate(self.known) if not p.is_step}
        present = {part.name for part in machine.parts}
        met = {(p.name, w.name): w.function for p in self.known for w in p.witnesses
               if set(w.parts) <= present}
        if len(met) > KINDS:
            asked = {p.name for p in self.chosen}
            met = {key: function for key, function in met.items() if key[0] in asked}
        self.situations = list(met)
        self.judged = Judged(over_states, over_steps, {
            i: invariant(judge, key[1], function)
            for i, (key, function) in enumerate(met.items())})
        if max(len(self.known), len(self.situations)) > KINDS:
            raise ImpossibleConfig(
                f"more than {KINDS} properties, or situations, in one search: name fewer")
        self.renamings = Renamings(self.layout) if self.limits.symmetry else None
        self.code = MachineCode(machine, scope, self.bits, self.judged, self.renamings,
                                chosen)
        self.program = self.code.digest
        self._max_states = max_states
        self.seconds = 0.0

    @functools.cached_property
    def python(self) -> CompiledBackend:
        """The Python reading, for the few states of counterexamples."""
        return CompiledBackend(self.machine, self.scope)

    # --- the engine ---------------------------------------------------------------

    @abc.abstractmethod
    def start(self) -> None:
        """Take memory, and see the initial state; raises `OutOfMemory`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Give the memory back."""

    @abc.abstractmethod
    def advance(self, seconds: float) -> int:
        """Search for about so many seconds; whether it goes on, or why it ends."""

    @abc.abstractmethod
    def counts(self) -> Counts:
        """What was seen so far, or until the search ended."""

    @abc.abstractmethod
    def resumable(self) -> Counts:
        """The counts to take the search up from: those before a block that ended it."""

    @abc.abstractmethod
    def kept(self, distinct: int) -> list[memoryview]:
        """So many states (8 bytes a word), and their parents (4 bytes each)."""

    @abc.abstractmethod
    def restore(self, counts: Counts, fill: Callable[[list[memoryview]], None]) -> bool:
        """Take up a search whose states and parents ``fill`` reads; whether they fit."""

    @property
    @abc.abstractmethod
    def capacity(self) -> int:
        """No more states than this can be stored."""

    @abc.abstractmethod
    def in_use(self) -> int:
        """Bytes that states, table and buffers take."""

    @abc.abstractmethod
    def words_of(self, number: int) -> bytes:
        """A stored state."""

    @abc.abstractmethod
    def parent_of(self, number: int) -> int:
        """The number of the state that a stored state was first met from."""

    @abc.abstractmethod
    def number_of(self, words: bytes) -> int:
        """The number of a state, or `NONE`."""

    def asked_bits(self) -> tuple[int, int, int]:
        """The properties over states, those over steps and the situations to look for."""
        over_states = over_steps = shown = 0
        for p in self.chosen:
            bit = 1 << self.number[p.name]
            over_steps |= bit if p.is_step else 0
            over_states |= 0 if p.is_step else bit
        names = {p.name for p in self.chosen}
        for i, (name, _) in enumerate(self.situations):
            shown |= (name in names) << i
        return over_states, over_steps, shown

    # --- running ------------------------------------------------------------------

    def run(self, progress: Progress | None = None) -> Exploration:
        """Search until everything is seen, or there is a reason to stop."""
        result = Exploration(self.scope.name, self.asked.variant, self.name)
        result.evaluated = {p.name: 0 for p in self.chosen}
        self.start()
        try:
            if self.limits.resume is not None:
                self._restore(self.limits.resume)
            if self.limits.checkpoint not in (None, self.limits.resume):
                self._keep_anew()
            return self._run(result, progress)
        finally:
            self.stop()

    def _run(self, result: Exploration, progress: Progress | None) -> Exploration:
        before, started = self.seconds, time.perf_counter()
        last = kept = started
        cost = 0.0

        def clock() -> float:
            return before + time.perf_counter() - started

        if self._broken_at_first() and self._done_at_first():
            return self._fill(result, BROKEN, clock())
        status = GOES_ON
        try:
            while status == GOES_ON:
                status = self.advance(min(SLICE_SECONDS, breadth_first.PROGRESS_SECONDS / 2))
                now = time.perf_counter()
                if progress is not None and (now - last >= breadth_first.PROGRESS_SECONDS):
                    last = now
                    counts = self.counts()
                    self._count(result, counts, clock())
                    progress(result, max(counts.distinct - counts.high, 0))
                if self.limits.checkpoint is not None and status == GOES_ON and \
                        now - kept >= max(CHECKPOINT_SECONDS, cost / CHECKPOINT_SHARE):
                    self._keep(clock())
                    kept = time.perf_counter()
                    cost = kept - now
        except BaseException:
            if self.limits.checkpoint is not None:
                self._keep(clock())
            raise
        if status == NEGATIVE:
            self._raise_negative()
        if status == REFUSED:
            raise OutOfMemory("the system gives no more memory: use less with --max-memory")
        if self.limits.checkpoint is not None and status in (ENOUGH, MEMORY):
            self._keep(clock())
        return self._fill(result, status, clock())

    def _keep(self, seconds: float) -> None:
        counts = self.resumable()
        assert self.limits.checkpoint is not None
        checkpoint.write(self.limits.checkpoint, self.asked, self.program, counts.as_dict(),
                         seconds, self.kept(counts.distinct))

    def _keep_anew(self) -> None:
        """A place that cannot be written shows now, not hours later."""
        path = self.limits.checkpoint
        if path is not None and path.exists():
            raise CheckpointRefused(
                f"{path} exists: go on from it (--resume), remove it, or name another")
        self._keep(self.seconds)

    def _restore(self, path: Path) -> None:
        known = checkpoint.header(path)
        difference = known.asked.difference(self.asked)
        if difference is not None:
            raise CheckpointRefused(f"{path} is of another search: {difference}")
        if known.program != self.program:
            raise CheckpointRefused(
                f"{path} is of another machine or another version of kvoracle: start anew")
        counts = Counts.of(known.counts)
        if counts.distinct >= self.capacity:
            raise OutOfMemory(f"{path} holds {counts.distinct:,} states: more than fit into "
                              f"{self.memory / 2**20:,.1f} MiB")

        def fill(parts: list[memoryview]) -> None:
            if known.sizes != tuple(map(len, parts)):
                raise CheckpointRefused(f"{path} is damaged: start the search anew")
            checkpoint.read(path, known, parts)

        if not self.restore(counts, fill):
            raise OutOfMemory(f"{path} holds {counts.distinct:,} states: with their table they do "
                              f"not fit into {self.memory / 2**20:,.1f} MiB")
        self.seconds = known.seconds

    # --- results --------------------------------------------------------------------

    def _count(self, result: Exploration, counts: Counts, seconds: float) -> None:
        result.distinct, result.generated, result.cut = (
            counts.distinct, counts.generated, counts.cut)
        result.depth, result.seconds = counts.depth, seconds
        result.memory = self.in_use()

    def _fill(self, result: Exploration, status: int, seconds: float) -> Exploration:
        counts = self.counts()
        self._count(result, counts, seconds)
        result.complete = status == COMPLETE
        result.stopped = {ENOUGH: "max_states", MEMORY: "memory"}.get(status, "")
        if counts.generated == 0 and status == BROKEN:
            result.depth = 0
        for p in self.chosen:
            seen = counts.steps if p.is_step else counts.distinct
            result.evaluated[p.name] = self._weight(p) * seen
        names = {p.name for p in self.chosen}
        for i, (name, witness) in enumerate(self.situations):
            if name in names:
                result.witnesses.setdefault(name, {})[witness] = \
                    None if counts.shown[i] == NONE else counts.shown_depth[i]
        order = [p.name for p in self.chosen]
        result.witnesses = {n: result.witnesses[n] for n in order if n in result.witnesses}
        found = [(counts.parent[i] if counts.parent[i] != NONE else -1, counts.nth[i], n)
                 for n, i in ((n, self.number[n]) for n in order) if counts.nth[i] != NONE]
        for parent, nth, name in sorted(found, key=lambda f: f[:2]):
            result.violations[name] = self._violation(name, parent, nth)
        return result

    def _weight(self, prop: Property) -> int:
        number = self.number[prop.name]
        predicates = list(self.judged.over_steps[number].values()) if prop.is_step \
            else [self.judged.over_states[number]]
        return max(breadth_first.instances(p, self.scope) for p in predicates)

    # --- counterexamples -------------------------------------------------------------

    def _state(self, number: int) -> bytes:
        return self.bits.unpack(self.words_of(number))

    def _find(self, state: bytes) -> int:
        return self.number_of(self.bits.pack(self._canonical(state)))

    def _canonical(self, state: bytes) -> bytes:
        """The state that stands for this one and its renamings."""
        return state if self.renamings is None else \
            self.renamings.least(state, self.bits.order)

    def _holds(self, predicate: Predicate, before: bytes, after: bytes | None) -> bool:
        return bool(self.python.check(predicate, every=True)(before, after))

    def _run_to(self, number: int) -> tuple[tuple[MachineStep, ...], bytes]:
        """A run to the state, or to one that differs from it by a renaming, and that state."""
        numbers = [number]
        while numbers[-1]:
            numbers.append(self.parent_of(numbers[-1]))
        state, run = self.layout.initial, []
        for following in list(reversed(numbers))[1:]:
            wanted = self._state(following)
            action, values, state = next(
                s for s in self.python.successors(state)[0] if self._canonical(s[2]) == wanted)
            run.append(self._step((action, values, state)))
        return tuple(run), state

    def _step(self, successor: Successor) -> MachineStep:
        action, values, state = successor
        names = (p.name for p in self.machine.actions[action].parameters)
        return MachineStep(action, dict(zip(names, values)), state)

    def _broken_by(self, before: bytes, successor: Successor, new: bool) -> list[str]:
        action, _, after = successor
        return [
            p.name for p in self.chosen
            if (p.is_step and not self._holds(
                self.judged.over_steps[self.number[p.name]][action], before, after))
            or (not p.is_step and new and not self._holds(
                self.judged.over_states[self.number[p.name]], after, None))
        ]

    def _violation(self, name: str, parent: int, nth: int) -> Violation:
        if parent < 0:
            others = tuple(n for n in self._broken_at_first() if n != name)
            return Violation(name, others, ())
        run, concrete = self._run_to(parent)
        kept = self._state(parent)
        successors = self.python.successors(kept)[0]
        target = self._canonical(successors[nth][2])
        # New with this very step: met from this state first, and by no earlier step of it.
        number = self._find(target)
        new = number != 0 and self.parent_of(number) == parent and not any(
            self._canonical(s[2]) == target for s in successors[:nth])
        if concrete == kept:
            last = successors[nth]
            broken = self._broken_by(concrete, last, new)
        else:
            alike = ((s, self._broken_by(concrete, s, new))
                     for s in self.python.successors(concrete)[0]
                     if self._canonical(s[2]) == target)
            last, broken = next((s, b) for s, b in alike if name in b)
        return Violation(name, tuple(n for n in broken if n != name),
                         self._as_written(name, (*run, self._step(last))))

    def _as_written(self, name: str, run: tuple[MachineStep, ...]) -> tuple[MachineStep, ...]:
        """The run taken again in the machine without none; it must break the property there."""
        if self.renamings is None or self.machine is self.original:
            return run
        plain = CompiledBackend(self.original, self.scope)
        before = state = plain.initial
        taken: list[MachineStep] = []
        for step in run:
            before, state = state, self.renamings.named(step.state)
            if (step.action, tuple(step.values.values()), state) not in plain.successors(before)[0]:
                raise ImpossibleConfig(
                    f"scope {self.scope.name}: {step.action} looks at what points at no member of "
                    "a symmetric sort; without symmetry")
            taken.append(replace(step, state=state))
        known = next(p for p in self.chosen if p.name == name)
        predicate = known.over_steps(self.original, run[-1].action) if known.is_step \
            else known.over_states(self.original)
        pair = (before, state) if known.is_step else (state, None)
        if plain.check(predicate, every=True)(*pair):
            raise ImpossibleConfig(
                f"scope {self.scope.name}: {name} looks at what points at no member of a symmetric "
                "sort; without symmetry")
        return tuple(taken)

    def _broken_at_first(self) -> list[str]:
        initial = self.layout.initial
        return [p.name for p in self.chosen if not p.is_step and not self._holds(
            self.judged.over_states[self.number[p.name]], initial, None)]

    def _done_at_first(self) -> bool:
        return not self.find_all or len(self._broken_at_first()) == len(self.chosen)

    def _raise_negative(self) -> None:
        state = self._state(self.counts().low)
        ReferenceBackend(self.machine, self.scope).successors(state)
        raise ValueError("a step to a negative value that the plain reading does not take")
