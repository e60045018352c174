"""Does the pool agree with a plain dict that remembers when each key was last used?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvoracle.impl import BadConfig, ChunkState, HostPool, NotReady, UnbalancedPin

SLOTS = 3
KEYS = 6
KEY = st.integers(0, KEYS - 1).map(lambda i: b"%d" % i)
PICK = st.integers(0, 5)
OFFER = st.lists(KEY, min_size=1, max_size=3, unique=True)


class PoolAgainstDict(RuleBasedStateMachine):
    """``held``: key -> [state, pins, slot, last use].  Slow and obvious."""

    pool_type = HostPool

    def __init__(self) -> None:
        super().__init__()
        self.pool = self.pool_type(SLOTS)
        self.held: dict[bytes, list[int | str]] = {}
        self.clock = 0

    def use(self, key: bytes) -> None:
        self.clock += 1
        self.held[key][3] = self.clock

    def touch(self, keys: list[bytes]) -> None:
        for key in reversed(keys):
            if key in self.held and self.held[key][0] == "ready" and self.held[key][1] == 0:
                self.use(key)

    @rule(keys=OFFER)
    def store(self, keys: list[bytes]) -> None:
        self.touch(keys)
        slots, evicted, taken = [], [], 0
        for key in keys:
            if key not in self.held:
                if len(self.held) == SLOTS:
                    idle = [
                        k for k, (state, pins, _, _) in self.held.items()
                        if state == "ready" and pins == 0 and k not in keys
                    ]
                    if not idle:
                        break
                    oldest = min(idle, key=lambda k: self.held[k][3])
                    evicted.append(oldest)
                    del self.held[oldest]
                self.held[key] = ["pending", 0, -1, 0]
                slots.append(key)
            taken += 1
        grant = self.pool.prepare_store(keys)
        if keys and taken == 0:
            assert grant is None
            return
        assert grant is not None
        assert (grant.taken, list(grant.slots), list(grant.evicted)) == (taken, slots, evicted)
        for key, slot in grant.slots.items():
            self.held[key][2] = slot

    def some(self, state: str, pinned: bool | None, pick: int) -> bytes | None:
        """A held key in this state, so that most rules do something."""
        keys = [
            k for k, (s, pins, _, _) in self.held.items()
            if s == state and pinned in (None, pins != 0)
        ]
        return keys[pick % len(keys)] if keys else None

    @rule(pick=PICK, ok=st.sampled_from([True, True, False]))
    def complete(self, pick: int, ok: bool) -> None:
        key = self.some("pending", None, pick)
        if key is None:
            return
        self.pool.complete_store([key], ok)
        if ok:
            self.held[key][0] = "ready"
            self.use(key)
        else:
            del self.held[key]

    @rule(pick=PICK)
    def pin(self, pick: int) -> None:
        key = self.some("ready", None, pick)
        if key is not None:
            assert self.pool.pin([key]) == [self.held[key][2]]
            self.held[key][1] += 1  # type: ignore[operator]

    @rule(pick=PICK)
    def unpin(self, pick: int) -> None:
        key = self.some("ready", True, pick)
        if key is not None:
            self.pool.unpin([key])
            self.held[key][1] -= 1  # type: ignore[operator]
            if self.held[key][1] == 0:
                self.use(key)

    @rule(key=KEY)
    def misuse(self, key: bytes) -> None:
        state, pins, _, _ = self.held.get(key, ["absent", 0, None, 0])
        if state != "pending":
            with pytest.raises(NotReady):
                self.pool.complete_store([key])
        if state != "ready":
            with pytest.raises(NotReady):
                self.pool.pin([key])
        if pins == 0:
            with pytest.raises(UnbalancedPin):
                self.pool.unpin([key])

    @precondition(lambda self: self.clock % 7 == 6)
    @rule()
    def reset(self) -> None:
        self.pool.reset()
        self.held.clear()

    @invariant()
    def same(self) -> None:
        for i in range(KEYS):
            key = b"%d" % i
            state, pins, slot, _ = self.held.get(key, ["absent", 0, None, 0])
            assert self.pool.state(key) is ChunkState(state)
            assert self.pool.pins(key) == pins
            assert self.pool.slot(key) == slot
        slots = [entry[2] for entry in self.held.values()]
        assert len(set(slots)) == len(slots) and all(s in range(SLOTS) for s in slots)
        assert self.pool.free == SLOTS - len(self.held)
        assert len(self.pool) == len(self.held)
        states = [entry[0] for entry in self.held.values()]
        assert self.pool.pending == states.count("pending")
        assert self.pool.pinned == sum(entry[1] != 0 for entry in self.held.values())


TestPoolAgainstDict = PoolAgainstDict.TestCase
TestPoolAgainstDict.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class EvictsPinned(HostPool):
    def pin(self, keys: Sequence[bytes]) -> list[int]:
        slots = super().pin(keys)
        self._evictable.update(dict.fromkeys(keys))
        return slots


class EvictsNewest(HostPool):
    def touch(self, keys: Iterable[bytes]) -> None:
        """Use is not remembered."""


class LosesFailedSlots(HostPool):
    def complete_store(self, keys: Iterable[bytes], ok: bool = True) -> None:
        super().complete_store(keys, ok)
        if not ok:
            self._free.pop()


@pytest.mark.parametrize("broken", [EvictsPinned, EvictsNewest, LosesFailedSlots])
def test_the_comparison_sees_a_broken_pool(broken: type[HostPool]) -> None:
    class Broken(PoolAgainstDict):
        pool_type = broken

    quick = settings(
        max_examples=200,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(Broken, settings=quick)


def test_offer_larger_than_the_pool_is_taken_in_part() -> None:
    pool = HostPool(2)
    grant = pool.prepare_store([b"a", b"b", b"c"])
    assert grant is not None and grant.taken == 2 and list(grant.slots) == [b"a", b"b"]
    assert pool.prepare_store([b"c"]) is None, "both slots are pending"
    pool.complete_store([b"a", b"b"])
    grant = pool.prepare_store([b"c"])
    assert grant is not None and grant.evicted == (b"a",)


def test_chunk_found_present_is_not_evicted_by_its_own_offer() -> None:
    pool = HostPool(1)
    pool.prepare_store([b"a"])
    pool.complete_store([b"a"])
    grant = pool.prepare_store([b"a", b"b"])
    assert grant is not None and grant.taken == 1 and not grant.slots
    assert pool.state(b"a") is ChunkState.READY


@pytest.mark.parametrize("slots", [0, -3])
def test_empty_pool_is_refused(slots: int) -> None:
    with pytest.raises(BadConfig, match=f"got {slots}$"):
        HostPool(slots)
