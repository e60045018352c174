"""The torch reading: the search as a few kernels on a GPU, or the same kernels on processors.

States, table and candidates are tensors, so torch decides where they lie and adds up what has
to be added up; everything else is `kernels.cu` with the machine in it: all steps out of a
state in one kernel, the table on the device.  A block of states of one level is taken at a
time, as large as the buffers allow.  Its candidates stand in the order in which a search by
one thread meets them, and of equal ones the first one wins, so counts, verdicts and
counterexamples are those of every other reading, wherever a search stops.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from kvoracle.model.machine import Machine
from kvoracle.model.scopes import Scope, nearest

from ..properties import Property
from .cuda import Module, NoDevice
from .limits import Limits, OutOfMemory, default_memory, default_threads
from .packed import (
    BROKEN,
    COMPLETE,
    ENOUGH,
    GOES_ON,
    KINDS,
    MEMORY,
    NEGATIVE,
    NONE,
    Counts,
    PackedSearch,
)
from .toolchain import library

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda")

FULL = 0.5
"""The table grows when fuller than this; a GPU looks at slots at random, so not too full."""
FULLEST = 0.85
"""Where there is no memory for a larger one, it becomes as full as this."""

SMALLEST_TABLE = 1 << 12
FEWEST_CANDIDATES = 1 << 12
MOST_CANDIDATES = {"cpu": 1 << 18, "cuda": 1 << 26}
PARENTS = {"cpu": 1 << 13, "cuda": 1 << 22}
"""States of a block at most."""

BUFFER_SHARE = 8
"""One such part of the memory allowed is for buffers, at most."""

MOST_NUMBERS = 2**32 - 2
"""States and a block's candidates are numbered in 32 bits."""

_POINTERS = ("states", "parents", "table", "candidates", "from", "place", "won", "rank",
             "count", "ends", "cuts", "query")
_FIELDS = ("states", "parents", "table", "mask", "distinct", "low", "candidates", "from", "place",
           "won", "rank", "count", "ends", "cuts", "over_states", "over_steps", "wanted", "query",
           "found", "faulty")
_AT = {name: i for i, name in enumerate(_FIELDS)}
_FIRST, _SHOWN = len(_FIELDS), len(_FIELDS) + KINDS
"""``Control`` of kernels.cu, as places in an array of 64-bit numbers."""


class Kernels(Protocol):
    """The compiled kernels of one machine."""

    def launch(self, name: str, control: int, count: int) -> None: ...


class Threads:
    """The kernels compiled by the system's C compiler: each a loop shared by some threads."""

    def __init__(self, source: str, threads: int) -> None:
        self._made, self._threads = library(source), threads

    def launch(self, name: str, control: int, count: int) -> None:
        kernel = getattr(self._made, f"kv_{name}")
        kernel.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
        kernel.restype = None
        kernel(control, count, self._threads)


def _device(name: str) -> None:
    """Raises `UnknownName`, or `NoDevice` where torch cannot use the device."""
    if name not in DEVICES:
        raise nearest("device", name, DEVICES)
    try:
        import torch
    except ImportError:
        raise NoDevice("the backend torch needs torch: pip install 'kvoracle[impl]'") from None
    if name == "cuda" and not torch.cuda.is_available():
        raise NoDevice("no CUDA device that torch can use: --device cpu, or the backend compiled")


class DeviceSearch(PackedSearch):
    """One search of a scope by kernels.

    Raises `NoDevice`, `NoCompiler` (``cpu`` takes the system's C compiler).
    """

    name = "torch"

    def __init__(self, machine: Machine, scope: Scope, *, device: str = "cpu",
                 variant: str | None = None, properties: Iterable[Property] | None = None,
                 max_states: int | None = None, find_all: bool = False,
                 limits: Limits | None = None) -> None:
        _device(device)
        super().__init__(machine, scope, variant=variant, properties=properties,
                         max_states=max_states, find_all=find_all, limits=limits)
        import torch

        self._torch = torch
        self.device = device
        if self.limits.memory:
            self.memory = self.limits.memory
        elif device == "cpu":
            self.memory = default_memory()
        else:
            self.memory = torch.cuda.mem_get_info()[0] * 3 // 4
        source = self.code.put_into("kernels.cu")
        self._kernels: Kernels = Module(source) if device == "cuda" else \
            Threads(source, self.limits.threads or default_threads())
        self._tensors: dict[str, torch.Tensor] = {}
        self._control = torch.zeros(0)
        self._now = self._before = self._stopped = Counts()
        self._status = GOES_ON
        self._parents = 0

    # --- memory -------------------------------------------------------------------

    def _tensor(self, name: str, size: int, kind: str) -> None:
        torch = self._torch
        make = torch.zeros if name == "table" else torch.empty
        try:
            self._tensors[name] = make(size, dtype=getattr(torch, kind), device=self.device)
        except RuntimeError:  # torch's OutOfMemoryError is one, too
            self._tensors.clear()
            raise OutOfMemory(
                f"the system gives no {self.memory / 2**20:,.1f} MiB: use less") from None

    def _shares(self) -> tuple[int, int, int]:
        """How many candidates of a block, slots and states the memory allowed is for."""
        words = 8 * self.bits.words
        each = words + 4 + 8 + 4 + 4
        candidates = min(MOST_CANDIDATES[self.device], self.memory // BUFFER_SHARE // each)
        rest = self.memory - candidates * each - 3 * 8 * self._most_parents(candidates)
        slots, states = SMALLEST_TABLE, 0
        while True:
            fits = min(int(FULLEST * slots), (rest - 8 * slots) // (words + 4),
                       MOST_NUMBERS - candidates)
            if fits <= states:
                break
            states, slots = fits, 2 * slots
        if candidates < FEWEST_CANDIDATES or states < FEWEST_CANDIDATES:
            raise OutOfMemory(
                f"a search needs 5 MiB or more, not {self.memory / 2**20:,.1f}")
        return candidates, slots // 2, states

    def _most_parents(self, candidates: int) -> int:
        return min(PARENTS[self.device], candidates)

    def start(self) -> None:
        torch, words = self._torch, self.bits.words
        self._candidates, self._most_slots, self._capacity = self._shares()
        parents = self._most_parents(self._candidates)
        self._parents = min(parents, max(self._candidates // 32, 1))
        for name, size, kind in (
            ("states", self._capacity * words, "int64"), ("parents", self._capacity, "int32"),
            ("candidates", self._candidates * words, "int64"),
            ("from", self._candidates, "int32"), ("place", self._candidates, "int64"),
            ("won", self._candidates, "int32"), ("rank", self._candidates, "int32"),
            ("count", parents, "int64"), ("ends", parents, "int64"), ("cuts", parents, "int64"),
            ("query", words, "int64"),
        ):
            self._tensor(name, size, kind)
        self._control = torch.zeros(_SHOWN + KINDS, dtype=torch.int64)
        self._on_device = self._control.to(self.device)
        over_states, over_steps, situations = self.asked_bits()
        self._situations = situations
        self._set("over_states", over_states)
        self._set("over_steps", over_steps)
        initial = self.bits.pack(self.layout.initial)
        self._tensors["states"][:words] = self._words(initial)
        self._tensors["parents"][0] = -1
        self._now = Counts(distinct=1, high=1, depth=1)
        for i in range(KINDS):
            self._now.parent[i] = self._now.nth[i] = self._now.shown[i] = NONE
        for p in self._broken_at_first():
            self._now.nth[self.number[p]] = 0
        for i, predicate in self.judged.situations.items():
            if situations >> i & 1 and self.python.check(predicate, every=False)(
                    self.layout.initial, None):
                self._now.shown[i] = 0
        self._status = GOES_ON
        self._renew_table(SMALLEST_TABLE)

    def stop(self) -> None:
        self._tensors.clear()
        if self.device == "cuda":
            self._torch.cuda.empty_cache()

    def _words(self, packed: bytes) -> torch.Tensor:
        return self._torch.frombuffer(bytearray(packed), dtype=self._torch.int64)

    def _renew_table(self, slots: int) -> None:
        self._tensors.pop("table", None)
        if self.device == "cuda":
            self._torch.cuda.empty_cache()
        self._tensor("table", slots, "int64")
        for name in _POINTERS:
            self._set(name, self._tensors[name].data_ptr())
        self._set("mask", slots - 1)
        self._launch("refill", self._now.distinct)

    # --- kernels ------------------------------------------------------------------

    def _set(self, name: str, value: int) -> None:
        self._control[_AT[name]] = value - 2**64 if value >= 2**63 else value

    def _launch(self, *names_and_counts: Any) -> None:
        """Run kernels one after another over the same control block."""
        self._on_device.copy_(self._control)
        for name, count in zip(names_and_counts[::2], names_and_counts[1::2]):
            self._kernels.launch(name, self._on_device.data_ptr(), count)

    def _read(self) -> list[int]:
        values: list[int] = self._on_device.tolist()
        return [v + 2**64 if v < 0 else v for v in values]

    # --- blocks -------------------------------------------------------------------

    def advance(self, seconds: float) -> int:
        until = time.perf_counter() + seconds
        while self._status == GOES_ON:
            self._block()
            if time.perf_counter() >= until:
                break
        return self._status

    def _block(self) -> None:
        """Expand as many of the level's states as the buffers take."""
        torch, now, t = self._torch, self._now, self._tensors
        self._before = Counts.of(now.as_dict())
        n = min(now.high - now.low, self._parents)
        self._control[_AT["faulty"]:] = -1
        wanted = sum(1 << i for i in range(KINDS)
                     if self._situations >> i & 1 and now.shown[i] == NONE)
        for name, value in (("distinct", now.distinct), ("low", now.low), ("wanted", wanted)):
            self._set(name, value)
        self._launch("count", n)
        torch.cumsum(t["count"][:n], 0, out=t["ends"][:n])
        total = int(t["ends"][n - 1])
        room = self._room(total)
        if total > room:
            n = int(torch.searchsorted(
                t["ends"][:n], torch.tensor([room], device=self.device), right=True))
            total = int(t["ends"][n - 1]) if n else 0
        if not n:
            self._stopped, self._status = self._before, MEMORY
            return
        faulty = self._read()[_AT["faulty"]]
        self._control[_AT["faulty"]] = -1
        won = 0
        if total:
            self._launch("expand", n, "insert", total, "settle", total)
            torch.cumsum(t["won"][:total], 0, dtype=torch.int32, out=t["rank"][:total])
            self._kernels.launch("commit", self._on_device.data_ptr(), total)
            won = int(t["rank"][total - 1])
        now.distinct += won
        self._finish(n, total, faulty if faulty < n else NONE, self._read())
        # As many states next as probably fill the buffers.
        self._parents = max(1, min(self._most_parents(self._candidates), 2 * n,
                                   n * self._candidates * 7 // (8 * max(total, 1))))

    def _room(self, total: int) -> int:
        """How many candidates may be taken at once, if all of them turn out to be new; the
        table grows for them where it can."""
        distinct: int = self._now.distinct
        wanted = min(total, self._candidates, self._capacity - distinct)
        slots = self._tensors["table"].numel()
        fitting = slots
        while fitting < self._most_slots and distinct + wanted > FULL * fitting:
            fitting *= 2
        if fitting > slots:
            self._renew_table(fitting)
        most = FULL if fitting < self._most_slots else FULLEST
        return max(0, min(wanted, int(most * fitting) - distinct))

    # --- what a block did: `finish_block` of search.c, by torch --------------------------

    def _parent_at(self, position: int, n: int) -> int:
        """Which of the block's states the candidate comes from."""
        ends = self._tensors["ends"][:n]
        place = self._torch.tensor([position], device=self.device)
        return int(self._torch.searchsorted(ends, place, right=True))

    def _end(self, parent: int) -> int:
        return int(self._tensors["ends"][parent]) if parent >= 0 else 0

    def _won(self, candidates: int) -> int:
        """How many of the first candidates are new states."""
        return int(self._tensors["rank"][candidates - 1]) if candidates else 0

    def _finish(self, n: int, total: int, faulty: int, seen: list[int]) -> None:
        now, before = self._now, self._before
        asked = [self.number[p.name] for p in self.chosen if now.nth[self.number[p.name]] == NONE]
        fresh = {i: seen[_FIRST + i] for i in asked if seen[_FIRST + i] != NONE}
        stop: int | None = None
        if fresh and not self.find_all:
            stop = min(fresh.values())
        elif fresh and len(fresh) == len(asked):
            stop = max(fresh.values())
        limit = self._enough_after(n) if self._max_states and \
            now.distinct >= self._max_states else None
        if stop is not None and limit is not None:
            if stop < self._end(limit):
                limit = None
            else:
                stop = None
        end = self._end(limit) if limit is not None else stop + 1 if stop is not None else total
        if faulty != NONE and (faulty <= limit if limit is not None
                               else stop is None or stop >= self._end(faulty - 1)):
            self._stopped = before
            self._stopped.low += faulty
            self._status = NEGATIVE
            return
        for kind, position in fresh.items():
            if position < end:
                parent = self._parent_at(position, n)
                now.parent[kind] = before.low + parent
                now.nth[kind] = position - self._end(parent - 1)
        for kind in range(KINDS):
            if now.shown[kind] == NONE and seen[_SHOWN + kind] != NONE:
                now.shown[kind], now.shown_depth[kind] = seen[_SHOWN + kind], now.depth
        if stop is not None:
            self._stop_at(self._parent_at(stop, n), stop + 1, BROKEN)
        elif limit is not None:
            self._stop_at(limit, self._end(limit), ENOUGH)
        else:
            self._go_on(n, total)

    def _enough_after(self, n: int) -> int:
        """The first parent after whose steps there are enough states."""
        torch = self._torch
        ends = self._tensors["ends"][:n]
        won = torch.where(ends > 0, self._tensors["rank"][(ends - 1).clamp(min=0)], 0)
        assert self._max_states is not None
        return int((self._before.distinct + won < self._max_states).sum())

    def _stop_at(self, parent: int, judged: int, status: int) -> None:
        """The counts of a search by one thread that ends here."""
        stopped = Counts.of(self._now.as_dict())
        stopped.distinct = self._before.distinct + self._won(judged)
        stopped.generated += self._end(parent)
        stopped.steps += judged
        stopped.cut += int(self._tensors["cuts"][:parent + 1].sum())
        for kind in range(KINDS):
            if NONE > stopped.shown[kind] >= stopped.distinct:
                stopped.shown[kind] = NONE
        self._stopped, self._status = stopped, status

    def _go_on(self, n: int, total: int) -> None:
        now = self._now
        now.generated += total
        now.steps += total
        now.cut += int(self._tensors["cuts"][:n].sum())
        now.low += n
        if now.low < now.high:
            return
        if now.distinct == now.high:
            now.depth -= 1
            self._status = COMPLETE
        else:
            now.high = now.distinct
            now.depth += 1

    # --- what was seen ------------------------------------------------------------

    def counts(self) -> Counts:
        return self._now if self._status in (GOES_ON, COMPLETE) else self._stopped

    def resumable(self) -> Counts:
        return self._now if self._status in (GOES_ON, COMPLETE) else self._before

    def _memory_of(self, name: str, size: int) -> memoryview:
        """The beginning of a tensor, on this side."""
        return self._view(self._tensors[name][:size].cpu())

    @staticmethod
    def _view(tensor: torch.Tensor) -> memoryview:
        size = tensor.numel() * tensor.element_size()
        whole = (ctypes.c_char * size).from_address(tensor.data_ptr())
        whole.kept = tensor  # type: ignore[attr-defined]
        return memoryview(whole).cast("B")

    def kept(self, distinct: int) -> list[memoryview]:
        """The states and the parents; of a GPU, copies."""
        return [self._memory_of("states", distinct * self.bits.words),
                self._memory_of("parents", distinct)]

    def restore(self, counts: Counts, fill: Callable[[list[memoryview]], None]) -> bool:
        distinct = counts.distinct
        if not counts.low <= counts.high <= distinct <= self._capacity or not distinct:
            return False
        if self.device == "cpu":
            fill(self.kept(distinct))
        else:
            sizes = {"states": distinct * self.bits.words, "parents": distinct}
            held = {name: self._torch.empty(size, dtype=self._tensors[name].dtype)
                    for name, size in sizes.items()}
            fill([self._view(tensor) for tensor in held.values()])
            for name, tensor in held.items():
                self._tensors[name][:sizes[name]] = tensor.to(self.device)
        self._control[_AT["faulty"]:] = -1
        self._launch("check", distinct)
        if self._read()[_AT["faulty"]] != NONE:
            return False
        self._now = Counts.of(counts.as_dict())
        slots = SMALLEST_TABLE
        while slots < self._most_slots and distinct > FULL * slots:
            slots *= 2
        if distinct > FULLEST * slots:
            return False
        self._renew_table(slots)
        return True

    @property
    def capacity(self) -> int:
        return self._capacity

    def in_use(self) -> int:
        """Of states and parents only those that are there: their room is taken at once, but by
        processors used as it fills."""
        held = ("states", "parents")
        buffers = sum(t.numel() * t.element_size() for n, t in self._tensors.items()
                      if n not in held)
        states: int = self._now.distinct * (8 * self.bits.words + 4)
        return buffers + states

    def words_of(self, number: int) -> bytes:
        at = number * self.bits.words
        chosen = self._tensors["states"][at:at + self.bits.words].cpu()
        return ctypes.string_at(chosen.data_ptr(), 8 * self.bits.words)

    def parent_of(self, number: int) -> int:
        return int(self._tensors["parents"][number]) & 0xFFFFFFFF

    def number_of(self, words: bytes) -> int:
        self._tensors["query"].copy_(self._words(words))
        self._launch("find", 1)
        return self._read()[_AT["found"]]


__all__ = ["DEVICES", "DeviceSearch", "NoDevice"]
