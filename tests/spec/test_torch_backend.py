"""Do the kernels see what every other reading sees, end where it ends, and compile for a GPU?

They run here on processors, by several threads: the text is the same that a GPU is given.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from searched import told

from kvoracle.model.scopes import LARGE, SCOPES, Scope, UnknownName
from kvoracle.oracle import cli
from kvoracle.spec.explore import (
    TORCH,
    CheckpointRefused,
    Exploration,
    Limits,
    NoDevice,
    OutOfMemory,
    cuda,
    device,
    search,
    toolchain,
)
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.variants import VARIANTS, Variant

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("compiler")

MIB = 2**20
DEEP = LARGE["pair-deep"]


def both(scope: Scope, variant: Variant | None = None, **how: Any) -> Exploration:
    """The search by kernels, once it is the same as the compiled one."""
    found = search(scope, variant, TORCH, **how)
    assert told(found) == told(search(scope, variant, **how))
    return found


# --- the same as compiled --------------------------------------------------------------------


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_is_searched_as_compiled(name: str) -> None:
    found = both(SCOPES[name], properties=list(EVERYTHING.values()))
    assert found.complete and not found.violations


KINDS = ["no-key-bound", "rewind-at-clear", "cursor-falls-back", "first-report-counts",
         "pin-dropped-at-issue"]
"""Over states, over steps, over both; on planning and on transfers."""


@pytest.mark.parametrize("name", KINDS)
def test_violations_are_those_of_the_compiled_search(name: str) -> None:
    variant = VARIANTS[name]
    assert both(SCOPES[variant.scope], variant).violation is not None
    assert both(SCOPES[variant.scope], variant, find_all=True).violations


@pytest.mark.parametrize("most", [1, 2, 7, 55, 60, 64, 333, 5_074, 5_075, 5_076])
def test_a_search_stops_where_the_compiled_one_stops(most: int) -> None:
    for find_all in (True, False):
        both(SCOPES["seed"], VARIANTS["rewind-at-clear"], find_all=find_all, max_states=most)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_small_blocks_and_other_threads_change_nothing(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many candidates of one state at once, and states cut off between blocks."""
    plain = told(search(SCOPES["groups"]))
    monkeypatch.setitem(device.PARENTS, "cpu", 700)
    monkeypatch.setitem(device.MOST_CANDIDATES, "cpu", 5_000)
    assert told(search(SCOPES["groups"], backend=TORCH, limits=Limits(threads=threads))) == plain


def test_states_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, weak = "return h ^ h >> 29;", "return h & ~(uint64_t)0xFFFFFFC0;"

    def weakened(source: str) -> Any:
        assert plain in source
        return toolchain.library(source.replace(plain, weak))

    monkeypatch.setattr(device, "library", weakened)
    assert told(search(SCOPES["seed"], backend=TORCH)) == told(search(SCOPES["seed"]))


@pytest.mark.parametrize("name", ["pair", "loads", "workers"])
def test_symmetry_is_that_of_the_compiled_search(name: str) -> None:
    assert both(SCOPES[name], limits=Limits(symmetry=True)).complete


# --- limits ----------------------------------------------------------------------------------


def test_memory_is_bounded_and_what_fitted_is_said() -> None:
    found = search(DEEP, backend=TORCH, limits=Limits(memory=12 * MIB))
    assert found.stopped == "memory" and not found.complete
    assert 6 * MIB < found.memory <= 12 * MIB and found.distinct > 50_000
    assert search(DEEP, backend=TORCH, limits=Limits(memory=24 * MIB)).distinct \
        > 1.7 * found.distinct
    with pytest.raises(OutOfMemory, match=r"a search needs 5 MiB or more, not 0\.1"):
        search(SCOPES["seed"], backend=TORCH, limits=Limits(memory=MIB // 10))


def test_a_search_goes_on_on_another_backend(tmp_path: Path) -> None:
    """A checkpoint holds states in the order that all backends meet them in."""
    whole = told(search(SCOPES["groups"]))
    for first, then, most in ((TORCH, TORCH, 1), (TORCH, "compiled", 9_000),
                              ("compiled", TORCH, 9_000)):
        path = tmp_path / f"{first}-{then}"
        stopped = search(SCOPES["groups"], backend=first, max_states=most,
                         limits=Limits(checkpoint=path))
        assert stopped.stopped == "max_states"
        assert told(search(SCOPES["groups"], backend=then, limits=Limits(resume=path))) == whole


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    search(SCOPES["seed"], backend=TORCH, max_states=300, limits=Limits(checkpoint=path))
    whole = path.read_bytes()
    for text in (whole[:-1], whole + b"\0", whole[:-9] + b"x" + whole[-8:]):
        path.write_bytes(text)
        with pytest.raises(CheckpointRefused):
            search(SCOPES["seed"], backend=TORCH, limits=Limits(resume=path))


KEPT = """
import sys
from pathlib import Path
from kvoracle.model.scopes import LARGE
from kvoracle.spec.explore import Limits, breadth_first, packed, search
packed.CHECKPOINT_SECONDS, packed.CHECKPOINT_SHARE = float(sys.argv[2]), 1.0
breadth_first.PROGRESS_SECONDS = 0.0
search(LARGE["pair-deep"], backend="torch",
       limits=Limits(memory=100 * 2**20, checkpoint=Path(sys.argv[1])),
       progress=lambda r, frontier: print(r.distinct, flush=True))
"""


@pytest.mark.parametrize(("how", "every"), [(signal.SIGKILL, 0), (signal.SIGINT, 3600)])
def test_a_search_goes_on_after_it_was_killed(
    tmp_path: Path, how: signal.Signals, every: int
) -> None:
    path = tmp_path / "kept"
    with subprocess.Popen([sys.executable, "-c", KEPT, str(path), str(every)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) > 20_000:
                break
        process.send_signal(how)
        process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert path.stat().st_size > 60_000
    went_on = search(DEEP, backend=TORCH, max_states=200_000,
                     limits=Limits(memory=110 * MIB, resume=path))
    assert told(went_on) == told(search(DEEP, max_states=200_000))


def test_the_command_says_how_many_states_fitted_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "kept")
    counts = []
    for asked in (("--scope", "pair-deep", "--max-memory", "6M", "--checkpoint", path),
                  ("--resume", path, "--max-memory", "9M")):
        code, told, _ = _command(capsys, "--backend", "torch", *asked)
        fitted = re.search(r"([\d,]+) states were searched in the memory allowed, [\d.]+ MiB; "
                           rf"kvoracle explore --resume {path} --max-memory SIZE goes on", told)
        assert code == 3 and fitted is not None and "backend torch" in told
        counts.append(int(fitted[1].replace(",", "")))
    assert counts[0] < counts[1]


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvoracle.spec.explore.breadth_first.PROGRESS_SECONDS", 0.0)
    seen: list[int] = []
    found = search(SCOPES["seed"], backend=TORCH,
                   progress=lambda r, frontier: seen.append(r.distinct))
    assert seen == sorted(seen) and seen[-1] == found.distinct and len(seen) >= found.depth


# --- the device ------------------------------------------------------------------------------


def test_an_unknown_device_names_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="no device 'cudo'; did you mean cuda"):
        search(SCOPES["seed"], backend=TORCH, device="cudo")


def test_without_torch_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NoDevice, match=r"needs torch: pip install 'kvoracle\[impl\]'"):
        search(SCOPES["seed"], backend=TORCH)


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.mark.skipif(_cuda(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so_in_one_line(
    capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NoDevice):
        search(SCOPES["seed"], backend=TORCH, device="cuda")
    assert _command(capsys, "--backend", "torch", "--device", "cuda") == (
        3, "", "kvoracle: no CUDA device that torch can use: --device cpu, or the backend "
               "compiled\n")


def _command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["explore", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_device_is_for_torch_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert _command(capsys, "--device", "cpu") == (
        2, "", "kvoracle: --device is for the backend torch\n")


def _source(symmetry: bool) -> str:
    """One property that is not of the catalogue, all of which would be compiled with it."""
    where = SCOPES["late"]
    made = device.DeviceSearch(where.machine(), where, limits=Limits(symmetry=symmetry),
                               properties=[replace(EVERYTHING["StreamOrder"], name="Alone")])
    return made.code.put_into("kernels.cu")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA toolkit")
def test_the_kernels_compile_with_nvcc(tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    path.write_text(_source(symmetry=True), "utf-8")
    done = subprocess.run(["nvcc", "-w", "-std=c++17", "-arch=sm_90", "-ptx", "-o",
                           str(tmp_path / "made"), str(path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[:2_000]


def test_the_kernels_compile_at_run_time() -> None:
    try:
        cuda.nvrtc()
    except NoDevice as error:
        pytest.skip(str(error))
    assert cuda.compiled(_source(symmetry=False), "sm_90").startswith(b"\x7fELF")
    with pytest.raises(NoDevice, match=r"NVRTC does not compile the kernels for sm_90: .*error"):
        cuda.compiled("nonsense", "sm_90")


CUDA_ON_A_PROCESSOR = """
#include <stdint.h>
#include <string.h>
#define __CUDACC__
#define __device__
#define __global__
typedef unsigned long long ull;
static struct { unsigned x; } gridDim = {1}, blockDim = {1}, blockIdx, threadIdx;
static ull __umul64hi(ull a, ull b) { return (unsigned __int128)a * b >> 64; }
static int __ffsll(long long bits) { return __builtin_ffsll(bits); }
static ull atomicCAS(ull *p, ull old, ull value)
{
    ull found = *p;
    if (found == old)
        *p = value;
    return found;
}
static void atomicMin(ull *p, ull value) { *p = value < *p ? value : *p; }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("name", "variant"), [
    ("late", None), ("pair", None), ("workers", "first-report-counts")])
def test_what_a_gpu_is_given_takes_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, variant: str | None
) -> None:
    """The text as CUDA C++, with what differs from C in it, run as a GPU of one thread."""
    class OneThread:
        def __init__(self, source: str, threads: int) -> None:
            text, made = tmp_path / "kernels.cpp", tmp_path / "kernels.so"
            text.write_text(CUDA_ON_A_PROCESSOR + source, "utf-8")
            subprocess.run(["g++", "-std=c++17", "-w", "-O1", "-fPIC", "-shared", "-o", str(made),
                            str(text)], check=True)
            self.made = ctypes.CDLL(str(made))

        def launch(self, kernel: str, control: int, count: int) -> None:
            getattr(self.made, f"kv_{kernel}")(ctypes.c_void_p(control), ctypes.c_uint64(count))

    monkeypatch.setattr(device, "Threads", OneThread)
    design = VARIANTS[variant] if variant else None
    found = both(SCOPES[name], design, find_all=True, limits=Limits(symmetry=name == "late"))
    assert bool(found.violations) == bool(variant)


@pytest.mark.cuda
@pytest.mark.parametrize("name", SCOPES)
def test_a_gpu_sees_the_same(name: str) -> None:
    found = search(SCOPES[name], backend=TORCH, device="cuda", limits=Limits(memory=2**30))
    assert told(found) == told(search(SCOPES[name]))


@pytest.mark.cuda
@pytest.mark.parametrize("name", KINDS)
def test_a_gpu_finds_the_same_runs(name: str) -> None:
    variant = VARIANTS[name]
    where, limits = SCOPES[variant.scope], Limits(memory=2**30)
    found = search(where, variant, TORCH, device="cuda", find_all=True, limits=limits)
    assert told(found) == told(search(where, variant, find_all=True))


@pytest.mark.cuda
def test_a_gpu_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    path, limits = tmp_path / "kept", Limits(memory=2**30)
    search(SCOPES["pair"], backend=TORCH, device="cuda", max_states=9_000,
           limits=replace(limits, checkpoint=path))
    found = search(SCOPES["pair"], backend=TORCH, device="cuda",
                   limits=replace(limits, resume=path))
    assert told(found) == told(search(SCOPES["pair"]))
