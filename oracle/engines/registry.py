"""Which engine does a name mean?  ``impl``, ``model:no-key-bound``, ``vllm==0.30.0`` ..."""

from __future__ import annotations

import re
from pathlib import Path

from kvoracle.model.scopes import UnknownName, nearest
from kvoracle.spec.variants import PLANNERS, VARIANTS

from .protocol import Engine

KINDS = ("impl", "model", "model:VARIANT", "vllm==VERSION", "vllm==VERSION:FAULT", "vllm@PATH")


class NoCheckout(UnknownName):
    """The path of ``vllm@PATH`` holds no vLLM."""


class EngineUnavailable(Exception):
    """The engine cannot be had here and now; the message says what to do."""


def open_engine(name: str) -> Engine:
    """The engine of this name, not yet started.

    Raises `UnknownName` for a name that means none, `EngineUnavailable` for an engine that is
    not installed.
    """
    if name == "impl":
        try:
            from .impl import impl_engine
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise EngineUnavailable(
                "the engine impl needs torch: pip install 'kvoracle[impl]'") from None
        return impl_engine()
    if name == "model" or name.startswith("model:"):
        from .machine import machine_engine

        design = name[6:] if ":" in name else None
        if design is not None and design not in PLANNERS:
            # Of a design of transfers there is nothing to drive: an engine here plans.
            kind = "variant of planning" if design in VARIANTS else "variant"
            raise nearest(kind, design, PLANNERS)
        return machine_engine(PLANNERS[design] if design is not None else None)
    if re.fullmatch(r"vllm(==|@).+", name):
        return _vllm(name)
    raise nearest("engine", name, KINDS)


def _vllm(name: str) -> Engine:
    from .process import EngineProcess
    from .vllm import EngineMissing, command_for_path, engine_command, environment
    from .vllm.errors import BadVersion

    try:
        if name.startswith("vllm==") and ":" in name:
            return _faulty(*name.split(":", 1))
        if name.startswith("vllm=="):
            argv, env = engine_command(environment.normal(name))
        else:
            checkout = Path(name[len("vllm@"):]).expanduser()
            if not (checkout / "vllm" / "__init__.py").is_file():
                why = "there is no vllm/__init__.py in it" if checkout.is_dir() \
                    else "there is no such folder"
                raise NoCheckout(f"{checkout} is no vLLM checkout: {why}")
            argv, env = command_for_path(checkout)
    except BadVersion as bad:
        raise UnknownName(f"no engine {name!r}: {bad}") from None
    except EngineMissing as missing:
        there = ", ".join(f"vllm=={one.version}" for one in environment.installed())
        raise EngineUnavailable(f"{missing}{there and f' (there are: {there})'}") from None
    except OSError as error:
        raise EngineUnavailable(f"cannot use {error.filename}: {error.strerror}") from None
    return EngineProcess(argv, env)


def _faulty(release: str, fault: str) -> Engine:
    """The release with a fault put into it on purpose."""
    from kvoracle.oracle import faults
    from kvoracle.oracle.faults.engine import faulty_engine

    from .vllm import environment

    try:
        return faulty_engine(environment.normal(release), faults.named(fault))
    except faults.NoSuchText as wrong:
        raise EngineUnavailable(f"{wrong}; faults are written for vllm=="
                                f"{faults.WRITTEN_FOR}") from None
