"""Does the planner offer exactly what may be stored, and does the cursor follow what was taken?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoracle.impl import (
    BadConfig,
    GroupSpec,
    KeysBlocksMismatch,
    OffloadConfig,
    RequestExists,
    StorePlanner,
    UnknownRequest,
)
from kvoracle.impl.planner import RequestState

KEYS = [b"%d" % i for i in range(100)]


def one_group(size: int = 4, draft: bool = False, **more: object) -> StorePlanner:
    return StorePlanner(OffloadConfig((GroupSpec(size, draft),), host_slots=8, **more))  # type: ignore[arg-type]


def offered(planner: StorePlanner, take: bool = True) -> list[int]:
    chunks = planner.due("a")
    if take:
        planner.taken("a", chunks)
    return [chunk.index for chunk in chunks]


def may_store(
    chunk: int, size: int, per_chunk: int, draft: bool, prompt_only: bool,
    prompt: int, tokens: int, computed: int, finished: bool, blocks: int, keys: int,
) -> bool:
    """The rule again, chunk by chunk and position by position."""
    positions = range(chunk * size, (chunk + 1) * size)
    counted = [p for p in range(tokens) if p < computed and not (prompt_only and p >= prompt)]
    if any(p not in counted for p in positions):
        return False
    decoding = any(p >= prompt for p in counted)
    # While decoding, the last whole chunk of a draft group may be rewritten.
    if draft and decoding and not finished and positions[-1] + size not in counted:
        return False
    own = range(chunk * per_chunk, (chunk + 1) * per_chunk)
    return chunk < keys and all(block < blocks for block in own)


@settings(max_examples=400, deadline=None)
@given(
    block=st.integers(1, 4), per_chunk=st.integers(1, 3), draft=st.booleans(),
    prompt_only=st.booleans(), prompt=st.integers(1, 12), output=st.integers(0, 12),
    computed=st.integers(0, 30), finished=st.booleans(), blocks=st.integers(0, 20),
    keys=st.integers(0, 12),
)
def test_offers_every_chunk_that_may_be_stored_and_no_other(
    block: int, per_chunk: int, draft: bool, prompt_only: bool, prompt: int, output: int,
    computed: int, finished: bool, blocks: int, keys: int,
) -> None:
    config = OffloadConfig((GroupSpec(block, draft),), 4, per_chunk, prompt_only)
    planner = StorePlanner(config)
    planner.arrive("a", prompt)
    planner.set_tokens("a", prompt + output)
    planner.set_computed("a", computed)
    planner.add_blocks("a", 0, range(1, blocks + 1))
    planner.add_keys("a", 0, KEYS[:keys])
    if finished:
        planner.finish("a", computed)
    want = [
        c for c in range(40)
        if may_store(c, block * per_chunk, per_chunk, draft, prompt_only, prompt, prompt + output,
                     computed, finished, blocks, keys)
    ]
    assert offered(planner) == want
    assert planner["a"].groups[0].cursor == len(want)
    assert offered(planner) == []


EVENT = st.one_of(
    st.tuples(st.just("key"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("block"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("compute"), st.integers(1, 9)),
    st.tuples(st.just("token"), st.integers(1, 3)),
    st.tuples(st.just("plan"), st.integers(0, 4)),
    st.tuples(st.just("preempt")),
    st.tuples(st.just("reset")),
    st.tuples(st.just("load"), st.integers(0, 12)),
    st.tuples(st.just("finish")),
)


@settings(max_examples=200, deadline=None)
@given(events=st.lists(EVENT, max_size=40))
def test_cursor_moves_back_only_at_reset_and_load(events: list[tuple[object, ...]]) -> None:
    config = OffloadConfig((GroupSpec(2), GroupSpec(3, draft=True)), 4)
    planner = StorePlanner(config)
    planner.arrive("a", 5)
    state = planner["a"]
    for name, *args in events:
        before = [group.cursor for group in state.groups]
        numbers = [arg for arg in args if isinstance(arg, int)]
        if name == "key":
            planner.add_keys("a", numbers[0], KEYS[: numbers[1]])
        elif name == "block":
            planner.add_blocks("a", numbers[0], range(1, numbers[1] + 1))
        elif name == "compute":
            planner.set_computed("a", state.computed + numbers[0])
        elif name == "token":
            planner.set_tokens("a", state.tokens + numbers[0])
        elif name == "plan":
            # The pool takes any leading part of an offer.
            chunks = planner.due("a")
            taken = chunks[: numbers[0]]
            planner.taken("a", taken)
            for g, group in enumerate(state.groups):
                assert group.cursor == before[g] + sum(c.group == g for c in taken)
            rest = planner.due("a")
            assert rest == chunks[len(taken) :], "what was not taken is offered again"
            continue
        elif name == "preempt":
            planner.preempt("a")
        elif name == "finish":
            planner.finish("a", state.computed)
        elif name == "reset":
            planner.reset()
            assert [group.cursor for group in state.groups] == [0, 0]
            continue
        else:
            planner.loaded("a", numbers[0])
            assert [g.cursor for g in state.groups] == [-(-numbers[0] // 2), -(-numbers[0] // 3)]
            continue
        assert [group.cursor for group in state.groups] == before


def test_key_later_than_block_leaves_the_chunk_for_later() -> None:
    """vLLM PR52923."""
    planner = one_group()
    planner.arrive("a", 8)
    planner.set_computed("a", 8)
    planner.add_blocks("a", 0, [1, 2])
    planner.add_keys("a", 0, KEYS[:1])
    assert offered(planner) == [0]
    planner.add_keys("a", 0, KEYS[1:2])
    assert offered(planner) == [1]


def test_without_the_key_bound_the_last_guard_raises() -> None:
    class NoKeyBound(StorePlanner):
        def storable(self, request: RequestState, group: int) -> int:
            return self.storable_at_most(request.name, group)

    planner = NoKeyBound(OffloadConfig((GroupSpec(4),), host_slots=8))
    planner.arrive("a", 8)
    planner.set_computed("a", 8)
    planner.add_blocks("a", 0, [1, 2])
    planner.add_keys("a", 0, KEYS[:1])
    with pytest.raises(KeysBlocksMismatch, match="chunk 1 of 'a' in group 0 has 1 keys and 2 blo"):
        planner.due("a")


def test_aborted_before_it_ran_offers_nothing() -> None:
    """vLLM PR49146: keys exist, blocks do not."""
    planner = one_group()
    planner.arrive("a", 8)
    planner.add_keys("a", 0, KEYS[:2])
    planner.finish("a", 0)
    assert offered(planner) == []
    assert planner.exhausted("a")


def test_last_chunk_of_a_draft_group_waits_for_the_end_of_decoding() -> None:
    """vLLM PR46972 and PR52771."""
    planner = one_group(draft=True)
    planner.arrive("a", 6)
    planner.add_blocks("a", 0, [1, 2, 3])
    planner.add_keys("a", 0, KEYS[:3])
    planner.set_computed("a", 4)
    assert offered(planner) == [0], "prefill: nothing is volatile"
    planner.set_tokens("a", 9)
    planner.set_computed("a", 8)
    assert offered(planner) == [], "decoding: the last chunk is volatile"
    planner.finish("a", 8)
    assert offered(planner) == [1], "finished: it is not"


def test_late_key_is_waited_for_after_the_finish() -> None:
    planner = one_group()
    planner.arrive("a", 4)
    planner.add_blocks("a", 0, [1])
    planner.finish("a", 4)
    assert not planner.exhausted("a")
    planner.add_keys("a", 0, KEYS[:1])
    assert offered(planner) == [0]
    assert planner.exhausted("a")


def test_groups_are_offered_by_the_position_their_chunks_end_at() -> None:
    planner = StorePlanner(OffloadConfig((GroupSpec(2), GroupSpec(4)), host_slots=8))
    planner.arrive("a", 8)
    planner.set_computed("a", 8)
    for g in (0, 1):
        planner.add_blocks("a", g, [1, 2, 3, 4])
        planner.add_keys("a", g, KEYS[:4])
    ends = [(c.index + 1) * (2, 4)[c.group] for c in planner.due("a")]
    assert ends == sorted(ends) == [2, 4, 4, 6, 8, 8]


def test_requests_must_be_announced_once() -> None:
    planner = one_group()
    with pytest.raises(UnknownRequest, match=r"^request 'a' is not tracked$"):
        planner.due("a")
    planner.arrive("a", 1)
    with pytest.raises(RequestExists):
        planner.arrive("a", 1)
    planner.forget("a")
    with pytest.raises(UnknownRequest):
        planner.forget("a")


@pytest.mark.parametrize("size", [0, -1, True, 2.0])
def test_impossible_sizes_are_refused_in_one_line(size: int) -> None:
    for build in (
        lambda: GroupSpec(size),
        lambda: OffloadConfig((GroupSpec(1),), host_slots=size),
        lambda: OffloadConfig((GroupSpec(1),), 1, blocks_per_chunk=size),
    ):
        with pytest.raises(BadConfig, match=r"at least 1, got") as caught:
            build()
        assert "\n" not in str(caught.value)
    with pytest.raises(BadConfig):
        OffloadConfig((), host_slots=1)
