"""The whole search compiled to machine code: the quickest exploring reading.

The machine is printed as C (`c_code`), put together with the search (`search.c`) and
compiled by the system's compiler, in about a second, once for each machine and scope.
Counts, verdicts and counterexamples are those of `breadth_first` over the Python reading,
which also replays the few states that make up a counterexample.

C rather than numba: a second of compilation rather than some twenty, threads, prefetching
and packed words at hand, and nothing to install but what nearly every machine has.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvoracle.model.machine import Machine, Predicate, invariant
from kvoracle.model.scopes import ImpossibleConfig, Scope
from kvoracle.model.terms import Bound

from ..properties import EVERYTHING, PROPERTIES, Property
from . import breadth_first, checkpoint
from .bits import BitLayout
from .breadth_first import Exploration, MachineStep, Progress, Successor, Violation
from .c_code import CSource, Judged
from .checkpoint import Asked, CheckpointRefused
from .compiled import CompiledBackend
from .layout import Layout
from .limits import Limits, OutOfMemory, default_memory, default_threads
from .reference import ReferenceBackend
from .toolchain import library

KINDS = 64
"""Properties, and situations, that one search can tell apart (``KINDS`` of search.c)."""

_NONE = 2**64 - 1
_SLICE_SECONDS = 0.25
"""How long the compiled search runs before Python looks for an interrupt."""

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.05
"""Checkpoints are written so often, and take no more than this share of the time."""

_GOES_ON, _COMPLETE, _BROKEN, _ENOUGH, _MEMORY, _NEGATIVE, _REFUSED = range(7)


_NUMBERS = ("distinct", "generated", "cut", "steps", "depth", "low", "high")
_LISTS = ("parent", "nth", "shown", "shown_depth")


class _Counts(ctypes.Structure):
    """``Counts`` of search.c."""

    _fields_ = (*((name, ctypes.c_uint64) for name in _NUMBERS),
                *((name, ctypes.c_uint64 * KINDS) for name in _LISTS))

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NUMBERS} \
            | {name: list(getattr(self, name)) for name in _LISTS}

    @classmethod
    def of(cls, values: dict[str, Any]) -> _Counts:
        lists = ((ctypes.c_uint64 * KINDS)(*values[name]) for name in _LISTS)
        return cls(*(values[name] for name in _NUMBERS), *lists)


def _api(made: ctypes.CDLL) -> Any:
    """The functions of search.c with their types."""
    counts, words, whole = ctypes.POINTER(_Counts), ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("open", words, [whole, ctypes.c_int, whole, whole, whole, ctypes.c_int, whole,
                         ctypes.c_char_p]),
        ("close", None, [words]),
        ("run", ctypes.c_int, [words, ctypes.c_double]),
        ("restore", ctypes.c_int, [words, counts]),
        ("now", counts, [words]),
        ("resumable", counts, [words]),
        ("states", words, [words]),
        ("parents", words, [words]),
        ("capacity", whole, [words]),
        ("memory", whole, [words]),
        ("find", whole, [words, ctypes.c_char_p]),
        ("canonical", None, [ctypes.c_char_p]),
    ):
        function = getattr(made, f"kv_{name}")
        function.restype, function.argtypes = result, arguments
    return made


@dataclass(frozen=True)
class Verdict:
    """A search in short: which properties it found broken, which situations, named by property
    and witness, it saw.  ``negative``: it ended at a step that counts below 0."""

    complete: bool
    negative: bool
    broken: tuple[str, ...]
    seen: frozenset[tuple[str, str]]
    distinct: int
    generated: int


class NativeSearch:
    """One search of a scope by compiled code, from its beginning or from a checkpoint."""

    name = "compiled"

    def __init__(self, machine: Machine, scope: Scope, *, variant: str | None = None,
                 properties: Iterable[Property] | None = None, max_states: int | None = None,
                 find_all: bool = False, limits: Limits | None = None,
                 chosen: Bound | None = None, judge: Machine | None = None) -> None:
        """``chosen``: a variable of the machine whose value is given for each search anew;
        ``judge``: the machine that properties speak of, if another than the one searched."""
        judge = judge or machine
        self.machine, self.scope, self.limits = machine, scope, limits or Limits()
        self.layout = Layout(machine, scope)
        self.bits = BitLayout(self.layout)
        self.find_all = find_all
        self.chosen = [p for p in (properties or PROPERTIES.values()) if p.applies(machine)]
        self.memory = self.limits.memory or default_memory()
        self.asked = Asked(scope.name, variant, tuple(p.name for p in self.chosen), find_all,
                           self.limits.symmetry)
        # All of the catalogue is compiled, so that one library serves every choice from it.
        catalogue = [p for p in EVERYTHING.values() if p.applies(machine)]
        known = {p.name: p for p in self.chosen}
        if all(p is EVERYTHING.get(p.name) for p in self.chosen):
            known = {p.name: p for p in catalogue}
        self.known = list(known.values())
        self.number = {p.name: i for i, p in enumerate(self.known)}
        over_steps = {i: {a.name: p.over_steps(judge, a.name) for a in machine.actions.values()}
                      for i, p in enumerate(self.known) if p.is_step}
        over_states = {i: p.over_states(judge)
                       for i, p in enumerate(self.known) if not p.is_step}
        present = {part.name for part in machine.parts}
        met = {(p.name, w.name): w.function for p in self.known for w in p.witnesses
               if set(w.parts) <= present}
        self.situations = list(met)
        self.judged = Judged(over_states, over_steps, {
            i: invariant(judge, key[1], function)
            for i, (key, function) in enumerate(met.items())})
        if max(len(self.known), len(self.situations)) > KINDS:
            raise ImpossibleConfig(f"more than {KINDS} properties, or situations, in one search")
        source = CSource(machine, scope, self.bits, self.judged, self.limits.symmetry,
                         chosen).text
        self.program = hashlib.sha256(source.encode()).hexdigest()
        self._c = _api(library(source))
        self._search: int | None = None
        self._max_states = max_states
        self.seconds = 0.0

    @functools.cached_property
    def python(self) -> CompiledBackend:
        """The Python reading, for the few states of counterexamples."""
        return CompiledBackend(self.machine, self.scope)

    # --- running ------------------------------------------------------------------

    def run(self, progress: Progress | None = None) -> Exploration:
        """Search until everything is seen, or there is a reason to stop."""
        result = Exploration(self.scope.name, self.asked.variant, self.name)
        result.evaluated = {p.name: 0 for p in self.chosen}
        self._search = self._open()
        try:
            if self.limits.resume is not None:
                self._restore(self.limits.resume)
            if self.limits.checkpoint not in (None, self.limits.resume):
                self._keep_anew()
            return self._run(result, progress)
        finally:
            self._c.kv_close(self._search)
            self._search = None

    def _run(self, result: Exploration, progress: Progress | None) -> Exploration:
        before, started = self.seconds, time.perf_counter()
        last = kept = started
        cost = 0.0

        def clock() -> float:
            return before + time.perf_counter() - started

        if self._broken_at_first() and self._done_at_first():
            return self._fill(result, _BROKEN, clock())
        status = _GOES_ON
        try:
            while status == _GOES_ON:
                status = self._c.kv_run(
                    self._search, min(_SLICE_SECONDS, breadth_first.PROGRESS_SECONDS / 2))
                now = time.perf_counter()
                if progress is not None and (now - last >= breadth_first.PROGRESS_SECONDS):
                    last = now
                    counts = self._counts()
                    self._count(result, counts, clock())
                    progress(result, max(counts.distinct - counts.high, 0))
                if self.limits.checkpoint is not None and status == _GOES_ON and \
                        now - kept >= max(CHECKPOINT_SECONDS, cost / CHECKPOINT_SHARE):
                    self._keep(clock())
                    kept = time.perf_counter()
                    cost = kept - now
        except BaseException:
            if self.limits.checkpoint is not None:
                self._keep(clock())
            raise
        if status == _NEGATIVE:
            self._raise_negative()
        if status == _REFUSED:
            raise OutOfMemory("the system gives no more memory: use less with --max-memory")
        if self.limits.checkpoint is not None and status in (_ENOUGH, _MEMORY):
            self._keep(clock())
        return self._fill(result, status, clock())

    def _open(self) -> int:
        over_states = over_steps = shown = 0
        for p in self.chosen:
            bit = 1 << self.number[p.name]
            over_steps |= bit if p.is_step else 0
            over_states |= 0 if p.is_step else bit
        names = {p.name for p in self.chosen}
        for i, (name, _) in enumerate(self.situations):
            shown |= (name in names) << i
        threads = self.limits.threads or default_threads()
        opened: int | None = self._c.kv_open(
            self.memory, threads, over_states, over_steps, shown, self.find_all,
            self._max_states or 0, self.bits.pack(self.layout.initial))
        if opened is None:
            raise OutOfMemory(
                f"a search needs 5 MiB or more, not {self.memory / 2**20:,.1f}"
                if self.memory < 5 * 2**20 else
                f"the system gives no {self.memory / 2**20:,.1f} MiB: use less")
        return opened

    def _counts(self) -> _Counts:
        counts: _Counts = self._c.kv_now(self._search).contents
        return counts

    def _memory_of(self, distinct: int) -> list[memoryview]:
        """The states and the parents, as they lie in memory."""
        parts = []
        for address, each in ((self._c.kv_states(self._search), 8 * self.bits.words),
                              (self._c.kv_parents(self._search), 4)):
            array = (ctypes.c_char * (distinct * each)).from_address(address)
            parts.append(memoryview(array).cast("B"))
        return parts

    def _keep(self, seconds: float) -> None:
        counts: _Counts = self._c.kv_resumable(self._search).contents
        assert self.limits.checkpoint is not None
        checkpoint.write(self.limits.checkpoint, self.asked, self.program, counts.as_dict(),
                         seconds, self._memory_of(counts.distinct))

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
        counts = _Counts.of(known.counts)
        if counts.distinct >= self._c.kv_capacity(self._search):
            raise OutOfMemory(f"{path} holds {counts.distinct:,} states: more than fit into "
                              f"{self.memory / 2**20:,.1f} MiB")
        parts = self._memory_of(counts.distinct)
        if known.sizes != tuple(map(len, parts)):
            raise CheckpointRefused(f"{path} is damaged: start the search anew")
        checkpoint.read(path, known, parts)
        if not self._c.kv_restore(self._search, ctypes.byref(counts)):
            raise OutOfMemory(f"{path} holds {counts.distinct:,} states: with their table they do "
                              f"not fit into {self.memory / 2**20:,.1f} MiB")
        self.seconds = known.seconds

    def verdict(self, chosen: int) -> Verdict:
        """What a search finds where the chosen variable has this value, without its runs."""
        self._c.kv_choose(chosen)
        self._search = self._open()
        try:
            status = _GOES_ON
            if any(n != _NONE for n in self._counts().nth):  # at first already
                status = _BROKEN
            while status == _GOES_ON:
                status = self._c.kv_run(self._search, _SLICE_SECONDS)
            counts = self._counts()
            return Verdict(
                complete=status == _COMPLETE, negative=status == _NEGATIVE,
                broken=tuple(p.name for p in self.chosen
                             if counts.nth[self.number[p.name]] != _NONE),
                seen=frozenset(w for i, w in enumerate(self.situations)
                               if counts.shown[i] != _NONE),
                distinct=counts.distinct, generated=counts.generated)
        finally:
            self._c.kv_close(self._search)
            self._search = None

    # --- results --------------------------------------------------------------------

    def _count(self, result: Exploration, counts: _Counts, seconds: float) -> None:
        result.distinct, result.generated, result.cut = (
            counts.distinct, counts.generated, counts.cut)
        result.depth, result.seconds = counts.depth, seconds
        result.memory = self._c.kv_memory(self._search)

    def _fill(self, result: Exploration, status: int, seconds: float) -> Exploration:
        counts = self._counts()
        self._count(result, counts, seconds)
        result.complete = status == _COMPLETE
        result.stopped = {_ENOUGH: "max_states", _MEMORY: "memory"}.get(status, "")
        if counts.generated == 0 and status == _BROKEN:
            result.depth = 0
        for p in self.chosen:
            seen = counts.steps if p.is_step else counts.distinct
            result.evaluated[p.name] = self._weight(p) * seen
        names = {p.name for p in self.chosen}
        for i, (name, witness) in enumerate(self.situations):
            if name in names:
                result.witnesses.setdefault(name, {})[witness] = \
                    None if counts.shown[i] == _NONE else counts.shown_depth[i]
        order = [p.name for p in self.chosen]
        result.witnesses = {n: result.witnesses[n] for n in order if n in result.witnesses}
        found = [(counts.parent[i] if counts.parent[i] != _NONE else -1, counts.nth[i], n)
                 for n, i in ((n, self.number[n]) for n in order) if counts.nth[i] != _NONE]
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
        size = 8 * self.bits.words
        address = self._c.kv_states(self._search) + number * size
        return self.bits.unpack(ctypes.string_at(address, size))

    def _parent(self, number: int) -> int:
        address = self._c.kv_parents(self._search) + 4 * number
        return ctypes.c_uint32.from_address(address).value

    def _find(self, state: bytes) -> int:
        found: int = self._c.kv_find(self._search, self.bits.pack(self._canonical(state)))
        return found

    def _canonical(self, state: bytes) -> bytes:
        """The state that stands for this one and its renamings."""
        if not self.limits.symmetry:
            return state
        words = ctypes.create_string_buffer(self.bits.pack(state), 8 * self.bits.words)
        self._c.kv_canonical(words)
        return self.bits.unpack(words.raw)

    def _holds(self, predicate: Predicate, before: bytes, after: bytes | None) -> bool:
        return bool(self.python.check(predicate, every=True)(before, after))

    def _run_to(self, number: int) -> tuple[tuple[MachineStep, ...], bytes]:
        """A run to the state, or to one that differs from it by a renaming, and that state."""
        numbers = [number]
        while numbers[-1]:
            numbers.append(self._parent(numbers[-1]))
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
        new = number != 0 and self._parent(number) == parent and not any(
            self._canonical(s[2]) == target for s in successors[:nth])
        if concrete == kept:
            last = successors[nth]
            broken = self._broken_by(concrete, last, new)
        else:
            alike = ((s, self._broken_by(concrete, s, new))
                     for s in self.python.successors(concrete)[0]
                     if self._canonical(s[2]) == target)
            last, broken = next((s, b) for s, b in alike if name in b)
        return Violation(name, tuple(n for n in broken if n != name), (*run, self._step(last)))

    def _broken_at_first(self) -> list[str]:
        initial = self.layout.initial
        return [p.name for p in self.chosen if not p.is_step and not self._holds(
            self.judged.over_states[self.number[p.name]], initial, None)]

    def _done_at_first(self) -> bool:
        return not self.find_all or len(self._broken_at_first()) == len(self.chosen)

    def _raise_negative(self) -> None:
        state = self._state(self._counts().low)
        ReferenceBackend(self.machine, self.scope).successors(state)
        raise ValueError("a step to a negative value that the plain reading does not take")
