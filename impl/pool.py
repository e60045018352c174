"""Which chunk is in which host slot, and which slot may be taken for another?

A key is absent, pending (a store into its slot is in flight) or ready.  Ready
keys are evicted least recently used first, unless pinned by a load.  Every
operation costs O(1) per key named; nothing scans the pool.

The life of a slot follows the contract in the docstrings of vLLM's
``OffloadingManager``: a slot is written only while pending, read only while
ready and pinned, and reused only when neither.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from kvoracle.impl.config import _positive
from kvoracle.impl.errors import NotReady, UnbalancedPin


class ChunkState(Enum):
    """Where a key stands in the pool."""

    ABSENT = "absent"
    PENDING = "pending"
    READY = "ready"


@dataclass(slots=True)
class _Entry:
    slot: int
    ready: bool = False
    pins: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The pool's answer to an offer.

    It took the first ``taken`` keys: those in ``slots`` are to be written there, the
    others among them were present already.  ``evicted`` lists the keys that made room.
    """

    taken: int
    slots: dict[bytes, int]
    evicted: tuple[bytes, ...]


class HostPool:
    """A pool of ``slots`` host slots, each for one chunk."""

    def __init__(self, slots: int) -> None:
        _positive("host_slots", slots)
        self.slots = slots
        self._entries: dict[bytes, _Entry] = {}
        # Ready and unpinned keys, least recently used first.
        self._evictable: OrderedDict[bytes, None] = OrderedDict()
        self._free = list(range(slots - 1, -1, -1))
        self._pending = 0
        self._pinned = 0

    # --- questions ----------------------------------------------------------

    def state(self, key: bytes) -> ChunkState:
        """Whether ``key`` is absent, pending or ready."""
        entry = self._entries.get(key)
        if entry is None:
            return ChunkState.ABSENT
        return ChunkState.READY if entry.ready else ChunkState.PENDING

    def slot(self, key: bytes) -> int | None:
        """The slot of ``key``, pending or ready."""
        entry = self._entries.get(key)
        return None if entry is None else entry.slot

    def pins(self, key: bytes) -> int:
        """How many loads hold ``key``."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.pins

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def pending(self) -> int:
        """Keys whose store is in flight."""
        return self._pending

    @property
    def pinned(self) -> int:
        """Keys held by at least one load."""
        return self._pinned

    def __len__(self) -> int:
        return len(self._entries)

    # --- stores --------------------------------------------------------------

    def prepare_store(self, keys: Sequence[bytes]) -> Grant | None:
        """Offer ``keys`` in order; the pool takes as many leading ones as it can.

        ``None`` is a refusal: not even the first could be placed, and nothing
        changed but which chunks were used last.  Keys of the offer itself are
        never evicted for it (a chunk just found present must stay so).

        Taking a part rather than refusing the whole matters for small pools: an
        offer larger than the pool would otherwise be refused for ever.
        """
        self.touch(keys)
        offered = set(keys)
        slots: dict[bytes, int] = {}
        evicted: list[bytes] = []
        taken = 0
        for key in keys:
            if key not in self._entries:
                slot = self._take_slot(offered, evicted)
                if slot is None:
                    break
                self._entries[key] = _Entry(slot)
                self._pending += 1
                slots[key] = slot
            taken += 1
        if keys and taken == 0:
            return None
        return Grant(taken, slots, tuple(evicted))

    def _take_slot(self, offered: set[bytes], evicted: list[bytes]) -> int | None:
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._evictable), None)
        # The offer's own keys were touched: once one of them is oldest, only they are left.
        if oldest is None or oldest in offered:
            return None
        del self._evictable[oldest]
        evicted.append(oldest)
        return self._entries.pop(oldest).slot

    def complete_store(self, keys: Iterable[bytes], ok: bool = True) -> None:
        """The stores into pending ``keys`` ended; without ``ok`` the keys are dropped again.

        Raises :class:`NotReady` for a key that is not pending.
        """
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or entry.ready:
                raise NotReady(f"no store into {key.hex()} is in flight: {self.state(key).value}")
            self._pending -= 1
            if ok:
                entry.ready = True
                self._evictable[key] = None
            else:
                del self._entries[key]
                self._free.append(entry.slot)

    # --- loads ----------------------------------------------------------------

    def pin(self, keys: Sequence[bytes]) -> list[int]:
        """Hold ``keys`` for a load and answer their slots.  :class:`NotReady` pins none."""
        for key in keys:
            if self.state(key) is not ChunkState.READY:
                raise NotReady(f"chunk {key.hex()} cannot be loaded: {self.state(key).value}")
        slots = []
        for key in keys:
            entry = self._entries[key]
            if entry.pins == 0:
                del self._evictable[key]
                self._pinned += 1
            entry.pins += 1
            slots.append(entry.slot)
        return slots

    def unpin(self, keys: Iterable[bytes]) -> None:
        """A load of ``keys`` ended.  Raises :class:`UnbalancedPin` if there was none."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or entry.pins == 0:
                raise UnbalancedPin(f"chunk {key.hex()} is not pinned")
            entry.pins -= 1
            if entry.pins == 0:
                self._pinned -= 1
                self._evictable[key] = None

    def touch(self, keys: Iterable[bytes]) -> None:
        """``keys`` were used just now; the first of them counts as the most recent.

        So the end of a prefix is evicted before its front: without its end a prefix still
        serves a shorter hit, without its front it serves none.
        """
        for key in reversed(list(keys)):
            if key in self._evictable:
                self._evictable.move_to_end(key)

    def reset(self) -> None:
        """Forget every key.  Transfers still in flight are the caller's to fence."""
        self._entries.clear()
        self._evictable.clear()
        self._free = list(range(self.slots - 1, -1, -1))
        self._pending = self._pinned = 0
