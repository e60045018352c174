"""Kernels for an NVIDIA GPU: compiled at run time by NVRTC, launched through the driver.

Both libraries come with what is there already: NVRTC with every build of torch for CUDA (or
with the CUDA toolkit), the driver's with the GPU.  Only their C interfaces are used, which
change less than torch's own.
"""

from __future__ import annotations

import ctypes
import os
import re
import site
import sys
from collections.abc import Iterator
from pathlib import Path

THREADS = 128
"""In a block: a state's cells lie in the threads' local memory, so few."""

_SUCCESS = 0


class NoDevice(Exception):
    """There is no GPU, or no library, to run kernels with; the message says what to do."""


def nvrtc() -> ctypes.CDLL:
    """NVIDIA's run-time compiler; raises `NoDevice`."""
    for path in _places():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise NoDevice("NVRTC, which compiles kernels, is not found (pip install nvidia-cuda-nvrtc)")


def _places() -> Iterator[str]:
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
    folders = [Path(p) for p in (*sys.path, *site.getsitepackages()) if p]
    folders = [p / "nvidia" for p in dict.fromkeys(folders)]
    folders += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    for folder in folders:
        if folder.is_dir():
            for pattern in ("*/lib/libnvrtc.so*", "lib64/libnvrtc.so*"):
                yield from map(str, sorted(folder.glob(pattern), reverse=True))


def compiled(source: str, architecture: str) -> bytes:
    """The kernels as machine code for an architecture such as ``sm_90``; raises `NoDevice`."""
    library = nvrtc()
    program = ctypes.c_void_p()
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device"]
    if library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None,
                                  None) != _SUCCESS:
        raise NoDevice("NVRTC does not work")
    try:
        given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = library.nvrtcCompileProgram(program, len(options), given)
        if status != _SUCCESS:
            said = _text(library, program, "ProgramLog").decode(errors="replace")
            first = next((line for line in said.splitlines() if "error" in line), said[:200])
            raise NoDevice(f"NVRTC does not compile the kernels for {architecture}: "
                           f"{first.strip() or f'error {status}'}")
        return _text(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, text)
    return text.raw


class Module:
    """The kernels of a source, loaded into torch's CUDA context; launched on torch's stream."""

    def __init__(self, source: str) -> None:
        import torch

        major, minor = torch.cuda.get_device_capability()
        code = compiled(source, f"sm_{major}{minor}")
        torch.zeros(1, device="cuda")  # so that there is a context
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise NoDevice("the driver's library libcuda.so.1 is not found") from None
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), code)
        self._kernels = {
            name: self._kernel(name)
            for name in re.findall(r"^KERNEL\((\w+)\)", source, re.M)}
        processors = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._most = 64 * processors.multi_processor_count

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != _SUCCESS:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise NoDevice(f"{name} failed: {(text.value or b'an unknown error').decode()}")

    def _kernel(self, name: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(kernel), self._module,
                   f"kv_{name}".encode())
        return kernel

    def launch(self, name: str, control: int, count: int) -> None:
        """Run a kernel over ``count`` indices, with the control block at an address."""
        import torch

        pointer, number = ctypes.c_uint64(control), ctypes.c_uint64(count)
        arguments = (ctypes.c_void_p * 2)(
            ctypes.addressof(pointer), ctypes.addressof(number))
        blocks = max(1, min(-(-count // THREADS), self._most))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call("cuLaunchKernel", self._kernels[name], blocks, 1, 1, THREADS, 1, 1, 0,
                   stream, arguments, None)
