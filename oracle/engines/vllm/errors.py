"""What can go wrong with installed releases of vLLM; each message says what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class EnvironmentProblem(Exception):
    """Base of all of them."""


class EngineMissing(EnvironmentProblem):
    """The release, or the environment all releases share, is not installed."""

    def __init__(self, version: str | None) -> None:
        self.version = version
        what = f"vllm=={version}" if version else "the environment that vllm runs in"
        add = f"vllm=={version}" if version else "vllm==0.33.0 (any release brings it)"
        super().__init__(f"{what} is not installed: run `kvoracle engines install {add}`")


class BadVersion(EnvironmentProblem):
    """Not the name of a release."""

    def __init__(self, version: str) -> None:
        super().__init__(f"{version!r} is not a version: write it as in `vllm==0.33.0`")


class NoSuchVersion(EnvironmentProblem):
    """The registry has no such release."""

    def __init__(self, version: str, near: Sequence[str]) -> None:
        self.version = version
        self.near = tuple(near)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        super().__init__(f"there is no vllm {version} for this machine and Python{hint}")


class NoRegistry(EnvironmentProblem):
    """The package registry did not answer."""

    def __init__(self, reason: str, log: Path | None = None) -> None:
        more = f" (all of pip's output: {log})" if log else ""
        super().__init__("the package registry cannot be reached: check the network, the proxy "
                         f"or pip's index-url, and try again; pip said: {reason}{more}")


class NoRoom(EnvironmentProblem):
    """The disk is full, or would be."""

    def __init__(self, folder: Path, needed: int | None = None, free: int | None = None) -> None:
        if needed is not None and free is not None:
            text = (f"{folder} needs {needed / 1e9:.1f} GB free for this and has "
                    f"{free / 1e9:.1f} GB")
        else:
            text = f"the disk of {folder} is full"
        super().__init__(f"{text}: make room, or choose another disk with KVORACLE_CACHE")


class PipFailed(EnvironmentProblem):
    """pip failed for another reason."""

    def __init__(self, doing: str, reason: str, log: Path) -> None:
        self.log = log
        super().__init__(f"pip failed while {doing}: {reason} (all of its output: {log})")


class NoVenv(EnvironmentProblem):
    """This Python cannot make virtual environments."""

    def __init__(self, reason: str) -> None:
        super().__init__("this Python cannot make a virtual environment (on Debian and Ubuntu, "
                         f"install python3-venv): {reason}")


class Unusable(EnvironmentProblem):
    """The release is there but does not start."""

    def __init__(self, version: str, reason: str) -> None:
        super().__init__(f"vllm {version} was fetched but cannot be driven, so it is not "
                         f"kept: {reason}")
