"""How is pip run, and what did it say?  Output to a log, progress out, failures by name."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import NoRegistry, NoRoom, NoSuchVersion, PipFailed


@dataclass(frozen=True)
class Progress:
    """One step of an installation: words, and bytes done and in all where they are known."""

    text: str
    done: int | None = None
    total: int | None = None


Report = Callable[[Progress], None]

_RAW = re.compile(r"Progress (\d+) of (\d+)")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NO_MATCH = "No matching distribution found"
_NO_NETWORK = re.compile(
    r"Max retries exceeded|NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|"
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|"
    r"Connection refused|Connection reset|SSLError|RemoteDisconnected|NameResolutionError|"
    r"Read timed out|connection (?:was )?broken|(?:5\d\d|403) (?:Client|Server) Error", re.I)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded", re.I)

_living: set[int] = set()
_guard = threading.Lock()


class NoMatch(Exception):
    """The registry answered, and has none; carries the versions it does have."""

    def __init__(self, versions: Sequence[str]) -> None:
        super().__init__()
        self.versions = tuple(versions)


def run(python: Path, arguments: Sequence[str], *, doing: str, log: Path, scratch: Path,
        report: Report) -> None:
    """Run ``python -m pip``; returns when it succeeded and removes the log.

    Raises :class:`NoMatch`, :class:`NoRegistry`, :class:`NoRoom` or :class:`PipFailed`; the
    log is kept for the last three.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, PYTHONUNBUFFERED="1", PIP_DISABLE_PIP_VERSION_CHECK="1",
               PIP_NO_INPUT="1", TMPDIR=str(scratch))
    # Ours decide what pip sees: an overlay on PYTHONPATH would look like installed packages.
    for name in ("PYTHONPATH", "PYTHONHOME"):
        env.pop(name, None)
    argv = [str(python), "-m", "pip", *arguments]
    report(Progress(doing))
    lines: list[str] = []
    with open(log, "w", encoding="utf-8") as file:
        file.write(" ".join(argv) + "\n")
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=env, text=True, encoding="utf-8", errors="replace", start_new_session=True)
        with _guard:
            _living.add(process.pid)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                raw = _RAW.match(line)
                if raw:
                    report(Progress(doing, int(raw[1]), int(raw[2])))
                    continue
                file.write(line)
                file.flush()
                lines.append(line.rstrip())
            code = process.wait()
        finally:
            # On Ctrl-C pip must be gone before its folders are removed.
            with contextlib.suppress(OSError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with _guard:
                _living.discard(process.pid)
    if code == 0:
        log.unlink(missing_ok=True)
        return
    failure = explain("\n".join(lines), code, doing, log, scratch)
    if isinstance(failure, NoMatch):
        log.unlink(missing_ok=True)
    raise failure


def explain(said: str, code: int, doing: str, log: Path, scratch: Path) -> Exception:
    """Which failure this output means.  Network first: without one pip also finds no match."""
    errors = [line for line in said.splitlines() if line.startswith("ERROR")] or \
        said.splitlines()[-1:] or [f"exit code {code}"]
    if _NO_ROOM.search(said):
        return NoRoom(scratch)
    network = _NO_NETWORK.search(said)
    versions = _VERSIONS.search(said)
    listed = [v.strip() for v in versions[1].split(",")] if versions else []
    listed = [v for v in listed if v and v != "none"]
    if network and not listed:
        return NoRegistry(network[0], log)
    if _NO_MATCH in said:
        return NoMatch(listed)
    return PipFailed(doing, errors[0].removeprefix("ERROR: "), log)


def stop_all() -> None:
    """End every pip that runs, those in other threads too."""
    with _guard:
        for pid in _living:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)


def nearest(version: str, versions: Sequence[str], count: int = 4) -> list[str]:
    """The existing versions closest to a missing one, in order."""
    def place(text: str) -> tuple[int, ...]:
        found = [int(n) for n in re.findall(r"\d+", text)[:3]]
        return tuple(found + [0] * (3 - len(found)))

    def distance(text: str) -> tuple[int, ...]:
        return tuple(abs(a - b) for a, b in zip(place(text), place(version)))

    return sorted(sorted(set(versions), key=distance)[:count], key=place)


def missing(version: str, versions: Sequence[str]) -> NoSuchVersion:
    return NoSuchVersion(version, nearest(version, versions))
