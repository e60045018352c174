"""A release with a fault in it: a folder of links to the release, its edited files its own."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from .fault import Fault


class NoSuchText(ValueError):
    """An edit does not fit the release: the fault was written for another one."""


def patched(fault: Fault, release: Path, into: Path) -> Path:
    """A folder below ``into`` that is ``release`` but for the fault's edits.

    Raises `NoSuchText` where an edit's text is not there exactly once.
    """
    texts: dict[str, str] = {}
    for edit in fault.edits:
        source = release / edit.file
        text = texts.get(edit.file)
        if text is None:
            if not source.is_file():
                raise NoSuchText(f"fault {fault.name}: the release has no file {edit.file}")
            text = source.read_text(encoding="utf-8")
        times = text.count(edit.old)
        if times != 1:
            first = next(line.strip() for line in edit.old.splitlines() if line.strip())
            raise NoSuchText(f"fault {fault.name}: {edit.file} has its text {times} times instead "
                             f"of once: {first!r} ...")
        texts[edit.file] = text.replace(edit.old, edit.new)
    made = into / fault.name
    _mirror(release, made, {PurePosixPath(file).parts: text for file, text in texts.items()})
    return made


def _mirror(source: Path, target: Path, changed: dict[tuple[str, ...], str]) -> None:
    """``target`` shows what ``source`` holds; only folders on the way to a change are real."""
    target.mkdir(parents=True)
    heads = {path[0] for path in changed}
    for entry in os.scandir(source):
        if entry.name == "__pycache__":
            _compiled(Path(entry.path), target / entry.name, heads)
        elif entry.name not in heads:
            os.symlink(entry.path, target / entry.name)
        else:
            below = {path[1:]: text for path, text in changed.items() if path[0] == entry.name}
            if () in below:
                (target / entry.name).write_text(below[()], encoding="utf-8")
            else:
                _mirror(Path(entry.path), target / entry.name, below)


def _compiled(source: Path, target: Path, changed: set[str]) -> None:
    """What Python has compiled, but for the changed files: its check of the source's date holds
    for links, and what it writes replaces a link and not what it leads to."""
    target.mkdir()
    stems = {name.removesuffix(".py") for name in changed}
    for entry in os.scandir(source):
        if entry.name.partition(".")[0] not in stems:
            os.symlink(entry.path, target / entry.name)
