"""A search's states in a file, so that it goes on where it was stopped or killed.

A first line that names the format, a line of JSON, a line with the JSON's digest, then the
states and their parents as they lie in memory.  A file is complete or not there: it is
written beside its place and renamed.  What does not fit, in any byte, is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

FORMAT = b"kvoracle checkpoint 1\n"
LONGEST_LINE = 1 << 20
PIECE = 1 << 24


class CheckpointRefused(Exception):
    """A file from which a search cannot go on, or to which it cannot be written; the message
    says why."""


@dataclass(frozen=True)
class Asked:
    """What a search was asked to do: one that goes on must do the same."""

    scope: str
    variant: str | None
    properties: tuple[str, ...]
    find_all: bool
    symmetry: bool

    def difference(self, other: Asked) -> str | None:
        """The first thing in which the two differ, in words."""
        for name, words in _ASKED.items():
            mine, theirs = words(self), words(other)
            if mine != theirs:
                return f"{name} {mine}, not {theirs}"
        return None


_ASKED: dict[str, Callable[[Asked], str]] = {
    "it searches": lambda a: a.scope,
    "its design is": lambda a: a.variant or "the reference",
    "it judges": lambda a: ", ".join(a.properties),
    "it goes on to": lambda a: "every violation" if a.find_all else "the first violation",
    "it tells": lambda a: "no states apart that differ by a renaming" if a.symmetry
                          else "all states apart",
}


@dataclass(frozen=True)
class Header:
    """What stands before the states."""

    asked: Asked
    program: str
    counts: dict[str, Any]
    seconds: float
    sizes: tuple[int, ...]
    digest: str


def write(path: Path, asked: Asked, program: str, counts: dict[str, Any], seconds: float,
          parts: Sequence[memoryview]) -> None:
    """Write a checkpoint in place of the file."""
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    header = {
        "asked": asdict(asked), "program": program, "counts": counts, "seconds": seconds,
        "byteorder": sys.byteorder, "sizes": [len(p) for p in parts],
        "digest": digest.hexdigest(),
    }
    line = json.dumps(header).encode()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            file.write(FORMAT + line + b"\n" + _digest(line) + b"\n")
            for part in parts:
                for at in range(0, len(part), PIECE):
                    file.write(part[at:at + PIECE])
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointRefused(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=32).hexdigest().encode()


def header(path: Path) -> Header:
    """What the file says of itself; raises `CheckpointRefused`."""
    with _opened(path) as file:
        return _header(path, file)


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise CheckpointRefused(f"cannot read {path}: {error.strerror}") from None


def _header(path: Path, file: BinaryIO) -> Header:
    if file.read(len(FORMAT)) != FORMAT:
        raise CheckpointRefused(f"{path} is no checkpoint of this version of kvoracle")
    line = file.readline(LONGEST_LINE).rstrip(b"\n")
    if file.readline(LONGEST_LINE).rstrip(b"\n") != _digest(line):
        raise CheckpointRefused(f"{path} is damaged: start the search anew")
    try:
        found = json.loads(line)
        asked = found["asked"] | {"properties": tuple(found["asked"]["properties"])}
        made = Header(Asked(**asked), found["program"], found["counts"], found["seconds"],
                      tuple(found["sizes"]), found["digest"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointRefused(f"{path} is damaged: start the search anew") from None
    if found["byteorder"] != sys.byteorder:
        raise CheckpointRefused(f"{path} was written on a machine of another byte order")
    return made


def read(path: Path, known: Header, parts: Sequence[memoryview]) -> None:
    """Read the states into ``parts``, which have the sizes of the header."""
    digest = hashlib.blake2b(digest_size=32)
    damaged = CheckpointRefused(f"{path} is damaged: start the search anew")
    with _opened(path) as file:
        if _header(path, file) != known:
            raise CheckpointRefused(f"{path} is being written by another search")
        for part in parts:
            at = 0
            while at < len(part):
                piece = part[at:at + PIECE]
                if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                    raise damaged
                digest.update(piece)
                at += len(piece)
        if file.read(1):
            raise damaged
    if digest.hexdigest() != known.digest:
        raise damaged
