"""Does the facade keep jobs, pins, fences and finished requests straight?"""

from __future__ import annotations

import pytest

from kvoracle.impl import (
    ChunkState,
    GroupSpec,
    HostPool,
    Job,
    JobsInFlight,
    NotReady,
    OffloadConfig,
    Offloader,
    UnknownJob,
    UnknownRequest,
)

KEYS = [b"%d" % i for i in range(20)]


def offloader(*groups: GroupSpec, slots: int = 8, per_chunk: int = 1) -> Offloader:
    return Offloader(OffloadConfig(groups or (GroupSpec(4),), slots, per_chunk))


def running(
    engine: Offloader, name: str, tokens: int, blocks: list[int], keys: list[bytes] = KEYS
) -> None:
    """A request that arrives and computes its whole prompt in this step."""
    engine.on_request(name, tokens)
    for g in range(len(engine.config.groups)):
        engine.on_keys(name, g, keys[: tokens // engine.config.tokens_per_chunk(g)])
        engine.on_blocks(name, g, blocks)
    engine.on_scheduled(name, tokens)


def plan(engine: Offloader) -> list[Job]:
    return [offer.job for offer in engine.plan_stores() if offer.job is not None]


def stored(engine: Offloader, name: str, tokens: int, blocks: list[int]) -> None:
    """The same, stored and gone."""
    running(engine, name, tokens, blocks)
    for job in plan(engine):
        engine.complete(job.id)
    engine.take_fences()
    engine.finish(name, tokens)
    assert engine.retire() == [name]


def test_store_pairs_each_chunk_with_its_key_blocks_and_slot() -> None:
    engine = offloader(GroupSpec(2), per_chunk=2)
    running(engine, "a", 9, [5, 6, 7, 8, 9])
    (offer,) = engine.plan_stores()
    assert offer.job is not None and offer.job.store
    assert [(m.index, m.key, m.blocks) for m in offer.job.moves] == [
        (0, KEYS[0], (5, 6)), (1, KEYS[1], (7, 8)),
    ]
    assert [engine.pool.slot(m.key) for m in offer.job.moves] == [m.slot for m in offer.job.moves]
    engine.complete(offer.job.id)
    assert engine.pool.state(KEYS[1]) is ChunkState.READY


def test_failed_store_leaves_the_key_absent() -> None:
    engine = offloader()
    running(engine, "a", 4, [1])
    (job,) = plan(engine)
    engine.complete(job.id, ok=False)
    assert engine.pool.state(KEYS[0]) is ChunkState.ABSENT and engine.pool.free == 8


def test_refused_chunks_are_offered_again() -> None:
    class Refusing(HostPool):
        def prepare_store(self, keys):  # type: ignore[no-untyped-def]
            return None

    engine = Offloader(OffloadConfig((GroupSpec(4),), 8), pool=Refusing(8))
    running(engine, "a", 8, [1, 2])
    for _ in range(2):
        offer = engine.plan_store("a")
        assert offer is not None and [c.index for c in offer.refused] == [0, 1]
        assert offer.job is None and engine.planner["a"].groups[0].cursor == 0


def test_chunks_present_already_are_passed_over() -> None:
    engine = offloader()
    stored(engine, "a", 4, [1])
    running(engine, "b", 8, [2, 3])
    (offer,) = engine.plan_stores()
    assert offer.present == {KEYS[0]} and offer.job is not None
    assert [(m.index, m.blocks) for m in offer.job.moves] == [(1, (3,))]
    assert engine.planner["b"].groups[0].cursor == 2


def test_hit_is_one_position_in_every_group() -> None:
    engine = offloader(GroupSpec(2), GroupSpec(4))
    engine.on_request("a", 9)
    engine.on_keys("a", 0, KEYS[:4])
    engine.on_keys("a", 1, KEYS[10:12])
    for keys, want in (([0, 1, 2], 0), ([10], 4), ([11], 6), ([3], 8)):
        engine.pool.prepare_store([KEYS[i] for i in keys])
        assert engine.lookup("a").tokens < want or want == 0, "pending is no hit"
        engine.pool.complete_store([KEYS[i] for i in keys])
        assert engine.lookup("a").tokens == want
    assert engine.lookup("a").chunks == (4, 2)


def test_hit_leaves_a_token_to_compute_and_a_chunk_of_a_draft_group() -> None:
    engine = offloader()
    stored(engine, "a", 8, [1, 2])
    running(engine, "b", 8, [])
    assert engine.lookup("b").tokens == 7
    draft = offloader(GroupSpec(4, draft=True))
    stored(draft, "a", 8, [1, 2])
    running(draft, "b", 12, [])
    assert draft.lookup("b").tokens == 4


def test_load_pins_until_complete_and_moves_the_cursor_to_the_hit() -> None:
    engine = offloader(slots=2)
    stored(engine, "a", 8, [1, 2])
    running(engine, "b", 10, [3, 4, 5])
    hit = engine.lookup("b")
    job = engine.plan_load("b", hit)
    assert job is not None and not job.store
    assert [(m.index, m.blocks, m.slot) for m in job.moves] == [
        (0, (3,), engine.pool.slot(KEYS[0])), (1, (4,), engine.pool.slot(KEYS[1])),
    ]
    assert engine.planner["b"].groups[0].cursor == 2
    assert engine.pool.prepare_store([b"other"]) is None, "nothing pinned is evicted"
    with pytest.raises(JobsInFlight):
        engine.plan_load("b", hit)
    engine.complete(job.id)
    assert engine.pool.pinned == 0 and engine.pool.prepare_store([b"other"]) is not None
    with pytest.raises(NotReady):
        engine.plan_load("b", hit)
    with pytest.raises(UnknownJob):
        engine.complete(job.id)


def test_load_may_start_inside_a_chunk() -> None:
    """vLLM PR28951: the GPU has the first block of a chunk of two."""
    engine = offloader(GroupSpec(4), per_chunk=2)
    stored(engine, "a", 16, [1, 2, 3, 4])
    running(engine, "b", 17, [11, 12, 13, 14, 15])
    job = engine.plan_load("b", engine.lookup("b"), local=4)
    assert job is not None
    assert [(m.index, m.blocks, m.offset) for m in job.moves] == [(0, (12,), 1), (1, (13, 14), 0)]
    assert engine.plan_load.__doc__


def test_load_needs_its_blocks() -> None:
    engine = offloader()
    stored(engine, "a", 8, [1, 2])
    running(engine, "b", 9, [3])
    with pytest.raises(NotReady, match="has 1 blocks in group 0, a load of 8 tokens needs 2"):
        engine.plan_load("b", engine.lookup("b"))
    assert engine.pool.pinned == 0


def test_block_given_to_another_request_fences_its_job() -> None:
    engine = offloader()
    running(engine, "a", 8, [1, 2])
    (job,) = plan(engine)
    assert engine.take_fences() == [], "its own blocks of this step need no fence"
    engine.finish("a", 8)
    running(engine, "b", 4, [2], keys=KEYS[10:])
    plan(engine)
    assert engine.take_fences() == [job.id]
    engine.complete(job.id)
    engine.on_blocks("b", 0, [1])
    assert engine.take_fences() == []


def test_late_chunk_of_a_finished_request_is_fenced_in_the_step_that_reuses_its_block() -> None:
    """vLLM PR48596."""
    engine = offloader()
    running(engine, "a", 4, [1], keys=[])
    assert plan(engine) == [] and engine.take_fences() == []
    engine.finish("a", 4)
    assert engine.retire() == [], "the key may still come"
    engine.on_keys("a", 0, KEYS[:1])
    running(engine, "b", 4, [1], keys=KEYS[10:])
    jobs = plan(engine)
    late = next(job for job in jobs if job.request == "a")
    assert engine.take_fences() == [late.id]
    assert engine.retire() == ["a"]
    engine.complete(late.id)
    assert engine.pool.state(KEYS[0]) is ChunkState.READY


def test_finished_request_is_given_up_with_the_first_block_it_needs() -> None:
    engine = offloader()
    running(engine, "a", 6, [1, 2], keys=[])
    engine.take_fences()
    engine.finish("a", 6)
    running(engine, "b", 4, [2], keys=KEYS[10:])
    engine.take_fences()
    assert engine.retire() == [], "block 2 holds no whole chunk"
    running(engine, "c", 4, [1], keys=KEYS[11:])
    engine.take_fences()
    assert engine.retire() == ["a"]
    with pytest.raises(UnknownRequest):
        engine.on_keys("a", 0, KEYS[:1])


def test_preemption_fences_the_jobs_of_the_request_and_keeps_the_cursor() -> None:
    engine = offloader()
    running(engine, "a", 4, [1])
    (job,) = plan(engine)
    engine.take_fences()
    engine.preempt("a")
    assert engine.take_fences() == [job.id]
    assert engine.planner["a"].groups[0] == type(engine.planner["a"].groups[0])(KEYS[:1], [], 1)


def test_abort_before_running_retires_at_once() -> None:
    """vLLM PR49146."""
    engine = offloader()
    engine.on_request("a", 8)
    engine.on_keys("a", 0, KEYS[:2])
    engine.abort("a")
    assert engine.plan_stores() == [] and engine.retire() == ["a"]


def test_reset_fences_every_job_and_ignores_its_report() -> None:
    engine = offloader()
    running(engine, "a", 8, [1, 2])
    running(engine, "b", 4, [3], keys=KEYS[10:])
    jobs = plan(engine)
    engine.take_fences()
    engine.finish("b", 4)
    engine.reset()
    assert engine.pool.free == 8 and engine.jobs == ()
    assert engine.retire() == ["b"]
    engine.on_scheduled("a", 8)
    (again,) = plan(engine)
    assert [m.index for m in again.moves] == [0, 1]
    assert engine.take_fences() == [job.id for job in jobs]
    for job in jobs:
        engine.complete(job.id)
    assert engine.pool.state(KEYS[0]) is ChunkState.PENDING, "an old report completes nothing"
    engine.complete(again.id)
    assert engine.pool.state(KEYS[0]) is ChunkState.READY


def test_planned_jobs_are_what_the_copy_engine_takes() -> None:
    torch = pytest.importorskip("torch")
    from kvoracle.impl.copy import CopyEngine

    layer = torch.arange(40, dtype=torch.float32).reshape(10, 4)
    engine = offloader(GroupSpec(2), per_chunk=2, slots=3)
    copies = CopyEngine([[layer]], slots=3, blocks_per_chunk=2)
    running(engine, "a", 8, [1, 2, 3, 4])
    (job,) = plan(engine)
    copies.store(job.id, job.moves)
    for done in copies.finished():
        engine.complete(done)
    running(engine, "b", 9, [5, 6, 7, 8, 9])
    load = engine.plan_load("b", engine.lookup("b"))
    assert load is not None
    copies.load(load.id, load.moves)
    for done in copies.finished():
        engine.complete(done)
    assert torch.equal(layer[5:9], layer[1:5]) and engine.jobs == ()
