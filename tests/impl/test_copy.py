"""Do the right bytes arrive, on both paths, and are impossible moves refused before any copy?"""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from kvoracle.impl import BadConfig, BadMove, ChunkMove, UnknownJob

pytest.importorskip("torch")
import torch

from kvoracle.impl.copy import CopyEngine

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
PATHS = [
    ("cpu", False),
    ("cpu", True),
    pytest.param("cuda", True, marks=[pytest.mark.cuda, NO_CUDA]),
]


def layers_of(device: str, blocks: int = 9) -> list[list[torch.Tensor]]:
    """Two groups of different shapes and types."""
    torch.manual_seed(0)
    return [
        [torch.randn(blocks, 4, 3).to(device) for _ in range(3)],
        [torch.randint(0, 99, (blocks, 5), dtype=torch.int16).to(device) for _ in range(2)],
    ]


def move(group: int, slot: int, blocks: tuple[int, ...], offset: int = 0) -> ChunkMove:
    return ChunkMove(group, 0, b"", slot, blocks, offset)


def clones(layers: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    return [[t.clone() for t in group] for group in layers]


@pytest.mark.parametrize(("device", "staged"), PATHS)
@pytest.mark.parametrize("staging_bytes", [1, 200, 1 << 20])
def test_chunks_come_back_in_other_blocks(device: str, staged: bool, staging_bytes: int) -> None:
    layers = layers_of(device)
    engine = CopyEngine(layers, 4, 2, device, staged, staging_bytes)
    before = clones(layers)
    engine.store(0, [move(0, 3, (1, 2)), move(0, 0, (8, 4)), move(1, 2, (5, 1))])
    engine.wait(0)
    for group in layers:
        for layer in group:
            layer.zero_()
    engine.load(1, [move(0, 3, (7, 3)), move(0, 0, (6,), offset=1), move(1, 2, (2, 8))])
    engine.wait(1)
    want = {0: {7: 1, 3: 2, 6: 4}, 1: {2: 5, 8: 1}}
    for g, group in enumerate(layers):
        for layer, old in zip(group, before[g]):
            for block in range(9):
                source = want[g].get(block)
                expected = old[source] if source is not None else torch.zeros_like(old[0])
                assert torch.equal(layer[block], expected)


@pytest.mark.parametrize(("device", "staged"), PATHS)
def test_random_jobs_agree_with_a_dict(device: str, staged: bool) -> None:
    layers = layers_of(device)
    engine = CopyEngine(layers, 5, 3, device, staged, staging_bytes=150)
    host: dict[tuple[int, int, int], list[torch.Tensor]] = {}
    rng = random.Random(1)
    for job in range(60):
        g, offset = rng.randrange(2), rng.randrange(3)
        slots = rng.sample(range(5), 2)
        ids = rng.sample(range(9), 2 * (3 - offset))
        moves = [
            move(g, slot, tuple(ids[i :: 2]), offset) for i, slot in enumerate(slots)
        ]
        if rng.random() < 0.5:
            engine.store(job, moves)
            for m in moves:
                for i, block in enumerate(m.blocks):
                    # Groups share the slots: the other group's rows are overwritten.
                    host.pop((1 - g, m.slot, m.offset + i), None)
                    host[g, m.slot, m.offset + i] = [t[block].clone() for t in layers[g]]
            engine.wait(job)
        else:
            moves = [
                m for m in moves
                if all((g, m.slot, m.offset + i) in host for i in range(len(m.blocks)))
            ]
            expected = clones(layers)
            for m in moves:
                for i, block in enumerate(m.blocks):
                    for t, value in zip(expected[g], host[g, m.slot, m.offset + i]):
                        t[block] = value
            engine.load(job, moves)
            engine.wait(job)
            assert all(
                torch.equal(a, b) for got, want in zip(layers, expected) for a, b in zip(got, want)
            )


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(
    "bad",
    [move(2, 0, (1,)), move(0, 4, (1,)), move(0, -1, (1,)), move(0, 0, (9,)), move(0, 0, (-1,)),
     move(0, 0, (1, 2, 3)), move(0, 0, (1, 2), offset=1)],
    ids=str,
)
def test_impossible_move_copies_nothing(staged: bool, bad: ChunkMove) -> None:
    engine = CopyEngine(layers_of("cpu"), 4, 2, staged=staged)
    with pytest.raises(BadMove):
        engine.store(0, [move(0, 1, (1, 2)), bad])
    assert not engine.host.any()
    with pytest.raises(UnknownJob):
        engine.poll(0)


def test_jobs_are_reported_once() -> None:
    engine = CopyEngine(layers_of("cpu"), 4)
    engine.store(5, [move(0, 1, (1,))])
    assert engine.poll(5)
    with pytest.raises(UnknownJob):
        engine.store(5, [])
    assert engine.finished() == [5]
    assert engine.finished() == []
    with pytest.raises(UnknownJob):
        engine.wait(5)


def test_tensors_that_do_not_fit_are_refused() -> None:
    good = torch.zeros(4, 8)
    bad: list[list[list[torch.Tensor]]] = [
        [],
        [[]],
        [[good, torch.zeros(4, 9)]],
        [[torch.zeros(8)]],
        [[torch.zeros(8, 4).t()]],
    ]
    for layers in bad:
        with pytest.raises(BadConfig):
            CopyEngine(layers, 2)
    with pytest.raises(BadConfig, match="slots must be"):
        CopyEngine([[good]], 0)


def test_planning_does_not_import_torch() -> None:
    code = "import sys, kvoracle.impl; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.cuda
@NO_CUDA
def test_store_waits_for_kernels_and_kernels_wait_for_loads() -> None:
    layer = torch.zeros(4, 1 << 20, device="cuda")
    engine = CopyEngine([[layer]], 4, device="cuda")
    for round_ in range(1, 6):
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
        layer[1] = round_
        engine.store(2 * round_, [move(0, 0, (1,))])
        engine.fence([2 * round_])
        layer[1] = -1
        engine.wait(2 * round_)
        engine.load(2 * round_ + 1, [move(0, 0, (2,))])
        assert float((layer[2] + 0).min()) == float(layer[2].max()) == round_
        engine.wait(2 * round_ + 1)
