"""Which engine does a name mean?  ``impl``, ``model:no-key-bound``, ``vllm==0.30.0`` ..."""

from __future__ import annotations

import re
from pathlib import Path

from kvoracle.model.scopes import nearest
from kvoracle.spec.variants import variant

from .protocol import Engine

KINDS = ("impl", "model", "model:VARIANT", "vllm==VERSION", "vllm@PATH")


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

        return machine_engine(variant(name[6:]) if ":" in name else None)
    if re.fullmatch(r"vllm(==|@).+", name):
        return _vllm(name)
    raise nearest("engine", name, KINDS)


def _vllm(name: str) -> Engine:
    from .process import EngineProcess
    from .vllm import EngineMissing, command_for_path, engine_command

    try:
        if name.startswith("vllm=="):
            argv, env = engine_command(name[len("vllm=="):])
        else:
            checkout = Path(name[len("vllm@"):])
            if not (checkout / "vllm" / "__init__.py").exists():
                raise EngineUnavailable(
                    f"{checkout} is no vLLM checkout: there is no vllm/__init__.py in it")
            argv, env = command_for_path(checkout)
    except EngineMissing as missing:
        raise EngineUnavailable(str(missing)) from None
    return EngineProcess(argv, env)
