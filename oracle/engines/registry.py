"""Which engine does a name mean?  ``impl``, ``model:no-key-bound``, ``vllm==0.30.0`` ..."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kvoracle.model.scopes import UnknownName, nearest
from kvoracle.spec.variants import PLANNERS, VARIANTS

from .protocol import Engine

KINDS = ("impl", "model", "model:VARIANT", "vllm==VERSION", "vllm==VERSION:FAULT", "vllm@PATH")


class NoCheckout(UnknownName):
    """The path of ``vllm@PATH`` holds no vLLM."""


class EngineUnavailable(Exception):
    """The engine cannot be had here and now; the message says what to do."""


def expand(names: Iterable[str]) -> list[str]:
    """The engines that are named, each once: ``vllm>=0.20,<=0.33`` is each release in the range.

    Raises `UnknownName` for a range that cannot be read or holds none, `EngineUnavailable` where
    it is not known which releases there are.
    """
    from .vllm import environment, versions
    from .vllm.errors import BadVersion, EnvironmentProblem, NoRegistry

    found: list[str] = []
    for name in names:
        if not versions.is_range(name):
            found.append(name)
            continue
        try:
            found += [f"vllm=={one}" for one in versions.resolve(name, environment.released())]
        except BadVersion as bad:
            raise UnknownName(f"no engine {name!r}: {bad}") from None
        except NoRegistry as gone:
            raise EngineUnavailable(str(gone)) from None
        except EnvironmentProblem as none:
            raise UnknownName(str(none)) from None
    return list(dict.fromkeys(found))


def single(name: str) -> str:
    """The one engine that is named; a range must hold exactly one release."""
    found = expand([name])
    if len(found) > 1:
        raise UnknownName(f"{name!r} names {len(found)} engines ({found[0]} to {found[-1]}), and "
                          f"one is wanted here")
    return found[0]


def open_engine(name: str) -> Engine:
    """The engine of this name, not yet started.

    Raises `UnknownName` for a name that means none, `EngineUnavailable` for an engine that is
    not installed.
    """
    name = single(name)
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
