"""What the tests need: engines, a GPU, and randomness that repeats.

A test marked ``vllm("0.30.0")`` is skipped where that engine is not installed, one marked
``cuda`` where torch sees no GPU.  ``--require-engines`` (``make test``, CI) turns the first
kind of skip into a failure: a run that tested nothing must not be green.  ``--require-tools``
(CI) does so for tests marked ``tool("rumur")``, which need a program or package of that name.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-engines",
        action="store_true",
        help="fail, rather than skip, a test whose vLLM release is not installed",
    )
    parser.addoption(
        "--require-tools",
        action="store_true",
        help="fail, rather than skip, a test that needs a tool that is not installed",
    )
    parser.addoption(
        "--deep",
        action="store_true",
        help="run the tests marked deep too: what others show in part, for every variant",
    )
    parser.addoption(
        "--renew-golden",
        action="store_true",
        help="write the texts that exports are compared with anew",
    )


def pytest_report_header() -> str:
    spec = importlib.util.find_spec("kvoracle.model")
    where = spec.origin if spec else "not installed (make install)"
    return f"kvoracle.model: {where}"


@functools.cache
def _installed() -> frozenset[str]:
    from kvoracle.oracle.engines.vllm import environment

    return frozenset(release.version for release in environment.installed())


@functools.cache
def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("deep") and not item.config.getoption("--deep"):
        pytest.skip("takes long; with --deep")
    wanted = {version for mark in item.iter_markers("vllm") for version in mark.args}
    missing = sorted(wanted - _installed()) if wanted else []
    if missing:
        engines = " ".join(f"vllm=={version}" for version in missing)
        reason = f"needs an engine that is not installed: kvoracle engines install {engines}"
        if item.config.getoption("--require-engines"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    for tool in (tool for mark in item.iter_markers("tool") for tool in mark.args):
        if shutil.which(tool) is None and importlib.util.find_spec(tool) is None:
            reason = f"needs {tool}, which is not installed (Debian: apt-get install {tool})"
            if item.config.getoption("--require-tools"):
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)
    if item.get_closest_marker("cuda") and not _has_cuda():
        pytest.skip("needs an NVIDIA GPU that torch can use")
