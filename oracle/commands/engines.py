"""``kvoracle engines``: which engines there are, and how to get or drop a release of vLLM."""

from __future__ import annotations

import argparse
import importlib.util

from kvoracle.model.scopes import nearest
from kvoracle.spec.variants import PLANNERS

from .. import exits
from ..console import Status, out, table
from ..engines.registry import EngineUnavailable, expand
from ..engines.vllm import environment
from ..engines.vllm.errors import BadVersion, EnvironmentProblem, NoSuchVersion


def run(arguments: argparse.Namespace) -> int:
    """List, install or remove."""
    if arguments.what == "list":
        return _list(arguments.all)
    try:
        versions = [_version(name) for name in expand(arguments.engine)]
    except EngineUnavailable as gone:
        raise exits.UserError(str(gone), exits.UNJUDGED) from None
    status = Status()
    try:
        if arguments.what == "install":
            for one in environment.install_all(
                    versions, lambda p: status.show(_progress(p))):
                status.clear()
                out(f"vllm=={one.version} is installed ({one.bytes / 1e6:.0f} MB beside the shared "
                    f"environment)")
        else:
            for version in versions:
                environment.remove(version)
                out(f"vllm=={version} is removed")
    except (BadVersion, NoSuchVersion) as error:
        raise exits.UserError(str(error)) from None
    except EnvironmentProblem as error:
        raise exits.UserError(str(error), exits.UNJUDGED) from None
    except OSError as error:
        raise exits.UserError(
            f"cannot use {error.filename or environment.cache()}: {error.strerror} (the folder is "
            f"chosen with KVORACLE_CACHE)") from None
    finally:
        status.clear()
    return exits.HOLDS


def _progress(step: environment.Progress) -> str:
    if step.done is None:
        return step.text
    if not step.total:
        return f"{step.text}: {step.done / 1e6:.0f} MB"
    return (f"{step.text}: {step.done / 1e6:.0f} of {step.total / 1e6:.0f} MB "
            f"({100 * step.done // step.total} %)")


def _version(name: str) -> str:
    if not name.startswith("vllm=="):
        raise nearest("installable engine", name, ["vllm==VERSION", "vllm>=VERSION"])
    return name[len("vllm=="):]


def _list(every: bool) -> int:
    torch = importlib.util.find_spec("torch") is not None
    rows = [
        ("impl", "this package's own implementation",
         "ready" if torch else "needs torch: pip install 'kvoracle[impl]'"),
        ("model", "the machine itself, under the reference design", "ready"),
        ("model:VARIANT", f"a broken design, one of {len(PLANNERS)}", "ready"),
        ("vllm@PATH", "a checkout or fork of vLLM", "ready" if environment.python().exists()
         else "needs the environment of any installed release"),
    ]
    rows += [
        (f"vllm=={one.version}", "installed release", f"ready, {one.bytes / 1e6:.0f} MB")
        for one in environment.installed()
    ]
    if every:
        there = {one.version for one in environment.installed()}
        try:
            rows += [(f"vllm=={version}", "release on the package index", "not installed")
                     for version in environment.released() if version not in there]
        except EnvironmentProblem as error:
            raise exits.UserError(str(error), exits.UNJUDGED) from None
    out(table(("engine", "what it is", "state"), rows))
    if environment.python().exists():
        out(f"shared environment: {environment.shared_size() / 1e9:.1f} GB in "
            f"{environment.cache()}")
    else:
        out("no release of vLLM is installed: kvoracle engines install vllm==0.33.0")
    return exits.HOLDS
