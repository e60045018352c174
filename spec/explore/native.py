"""The whole search compiled to machine code: the quickest exploring reading on processors.

The machine is printed as C (`c_code`), put together with the search (`search.c`) and
compiled by the system's compiler, in about a second, once for each machine and scope.
Counts, verdicts and counterexamples are those of `breadth_first` over the Python reading,
which also replays the few states that make up a counterexample.

C rather than numba: a second of compilation rather than some twenty, threads, prefetching
and packed words at hand, and nothing to install but what nearly every machine has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope
from kvoracle.model.terms import Bound

from ..properties import Property
from .limits import Limits, OutOfMemory, default_memory, default_threads
from .packed import (
    BROKEN,
    COMPLETE,
    GOES_ON,
    NEGATIVE,
    NONE,
    SLICE_SECONDS,
    Counts,
    PackedSearch,
)
from .toolchain import library

SMALLEST = 5 * 2**20
"""Bytes without which no search begins."""


def search_api(made: ctypes.CDLL) -> Any:
    """The functions of search.c with their types."""
    counts, words, whole = ctypes.POINTER(Counts), ctypes.c_void_p, ctypes.c_uint64
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


class NativeSearch(PackedSearch):
    """One search of a scope by compiled code."""

    name = "compiled"

    def __init__(self, machine: Machine, scope: Scope, *, variant: str | None = None,
                 properties: Iterable[Property] | None = None, max_states: int | None = None,
                 find_all: bool = False, limits: Limits | None = None,
                 chosen: Bound | None = None, judge: Machine | None = None) -> None:
        """``chosen``: a variable of the machine whose value is given for each search anew."""
        super().__init__(machine, scope, variant=variant, properties=properties,
                         max_states=max_states, find_all=find_all, limits=limits,
                         chosen=chosen, judge=judge)
        self.memory = self.limits.memory or default_memory()
        self._c = search_api(library(self.code.put_into("search.c")))
        self._search: int | None = None

    def start(self) -> None:
        threads = self.limits.threads or default_threads()
        opened: int | None = self._c.kv_open(
            self.memory, threads, *self.asked_bits(), self.find_all, self._max_states or 0,
            self.bits.pack(self.layout.initial))
        if opened is None:
            raise OutOfMemory(
                f"a search needs 5 MiB or more, not {self.memory / 2**20:,.1f}"
                if self.memory < SMALLEST else
                f"the system gives no {self.memory / 2**20:,.1f} MiB: use less")
        self._search = opened

    def stop(self) -> None:
        self._c.kv_close(self._search)
        self._search = None

    def advance(self, seconds: float) -> int:
        status: int = self._c.kv_run(self._search, seconds)
        return status

    def counts(self) -> Counts:
        counts: Counts = self._c.kv_now(self._search).contents
        return counts

    def resumable(self) -> Counts:
        counts: Counts = self._c.kv_resumable(self._search).contents
        return counts

    def kept(self, distinct: int) -> list[memoryview]:
        """The states and the parents, as they lie in memory."""
        parts = []
        for address, each in ((self._c.kv_states(self._search), 8 * self.bits.words),
                              (self._c.kv_parents(self._search), 4)):
            array = (ctypes.c_char * (distinct * each)).from_address(address)
            parts.append(memoryview(array).cast("B"))
        return parts

    def restore(self, counts: Counts, fill: Callable[[list[memoryview]], None]) -> bool:
        fill(self.kept(counts.distinct))
        return bool(self._c.kv_restore(self._search, ctypes.byref(counts)))

    @property
    def capacity(self) -> int:
        most: int = self._c.kv_capacity(self._search)
        return most

    def in_use(self) -> int:
        used: int = self._c.kv_memory(self._search)
        return used

    def words_of(self, number: int) -> bytes:
        size = 8 * self.bits.words
        return ctypes.string_at(self._c.kv_states(self._search) + number * size, size)

    def parent_of(self, number: int) -> int:
        address = self._c.kv_parents(self._search) + 4 * number
        return ctypes.c_uint32.from_address(address).value

    def number_of(self, words: bytes) -> int:
        found: int = self._c.kv_find(self._search, words)
        return found

    def verdict(self, chosen: int) -> Verdict:
        """What a search finds where the chosen variable has this value, without its runs."""
        self._c.kv_choose(chosen)
        self.start()
        try:
            status = GOES_ON
            if any(n != NONE for n in self.counts().nth):  # at first already
                status = BROKEN
            while status == GOES_ON:
                status = self.advance(SLICE_SECONDS)
            counts = self.counts()
            return Verdict(
                complete=status == COMPLETE, negative=status == NEGATIVE,
                broken=tuple(p.name for p in self.chosen
                             if counts.nth[self.number[p.name]] != NONE),
                seen=frozenset(w for i, w in enumerate(self.situations)
                               if counts.shown[i] != NONE),
                distinct=counts.distinct, generated=counts.generated)
        finally:
            self.stop()
