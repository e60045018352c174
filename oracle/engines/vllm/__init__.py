"""Where is the ``vllm==X`` engine?  The command line that starts it, from what is installed.

See ``environment`` for how a release is installed, and ``child`` for the program itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from . import environment, wheel
from .environment import EngineMissing

__all__ = ["CHILD", "ENVIRONMENT", "EngineMissing", "command_for_overlay", "command_for_path",
           "engine_command"]

CHILD = Path(__file__).parent / "child"

ENVIRONMENT = {
    # Keys are hashes salted per process, and sets of them are iterated: without this
    # the host pool's evictions differ from run to run.
    "PYTHONHASHSEED": "0",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
    # A scheduler does no arithmetic; idle threads only slow the other engines.
    "OMP_NUM_THREADS": "1",
}
"""What a child needs to be set before it starts."""


def engine_command(version: str) -> tuple[list[str], dict[str, str]]:
    """``(argv, env)`` of a child that drives release ``version``.

    Raises :class:`EngineMissing` if it is not installed; it says how to install it.
    """
    overlay = environment.overlay(version)
    if not environment.is_installed(version):
        raise EngineMissing(version)
    return _command(overlay, environment.state(version))


def command_for_overlay(overlay: Path, version: str) -> tuple[list[str], dict[str, str]]:
    """``(argv, env)`` of a child that drives ``overlay``, a changed copy of release ``version``."""
    return _command(overlay, environment.state(version))


def command_for_path(checkout: Path) -> tuple[list[str], dict[str, str]]:
    """``(argv, env)`` of a child that drives a checkout or an unpacked wheel (``vllm@PATH``).

    The shared environment must be there, which any installed release provides.
    """
    if not environment.python().exists():
        raise EngineMissing(None)
    # A checkout is no distribution, and vLLM asks for the name and version of one.
    about = environment.state("path") / "about"
    wheel.describe(about, "0.0.0")
    return _command(checkout, environment.state("path"), about)


def _command(overlay: Path, state: Path, *more: Path) -> tuple[list[str], dict[str, str]]:
    env = dict(os.environ)
    env.update(
        ENVIRONMENT,
        # First on the path: its Python files hide those of the release the shared
        # environment was made with.
        PYTHONPATH=os.pathsep.join(map(str, (overlay, *more))),
        # What vLLM finds out about a model's class it keeps here, under a name without a
        # version: releases that share it make each other spend eleven seconds.
        VLLM_CACHE_ROOT=str(state),
    )
    for name in ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    return [str(environment.python()), str(CHILD)], env
