"""A faulty release as an engine: ``vllm==0.33.0:no-flush``."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from kvoracle.oracle.engines.process import EngineProcess
from kvoracle.oracle.engines.vllm import EngineMissing, command_for_overlay, environment

from .fault import Fault
from .overlay import patched


def faulty_engine(version: str, fault: Fault) -> EngineProcess:
    """The release with the fault in it; its folder is gone when the engine is.

    Raises `EngineMissing` for a release that is not installed and `NoSuchText` for one that the
    fault was not written for.
    """
    if not environment.is_installed(version):
        raise EngineMissing(version)
    folder = Path(tempfile.mkdtemp(prefix="kvoracle-fault-"))
    try:
        overlay = patched(fault, environment.overlay(version), folder)
        engine = EngineProcess(*command_for_overlay(overlay, version))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(engine, shutil.rmtree, folder, ignore_errors=True)
    return engine
