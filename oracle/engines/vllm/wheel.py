"""What is taken out of a wheel of vLLM?  Its Python files, its data, and what it requires."""

from __future__ import annotations

import email
import zipfile
from pathlib import Path, PurePosixPath

WANTED = (".py", ".json")
"""The compiled parts stay behind: the scheduler, the connector and the host pool are Python."""

LEAVE_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
"""Required by vLLM, but not by these parts (torch is chosen by the environment)."""


def unpack(wheel: Path, folder: Path, version: str) -> int:
    """Unpack what is needed into ``folder``; returns how many bytes that is."""
    size = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if path.suffix not in WANTED or path.is_absolute() or ".." in path.parts:
                continue
            archive.extract(member, folder)
            size += member.file_size
    return size + describe(folder, version)


def describe(folder: Path, version: str) -> int:
    """Write a distribution's metadata beside its files; returns its bytes.

    The version ends in ``+cpu``: by that vLLM chooses its platform on a machine with a GPU,
    and a headless engine is a CPU engine everywhere.
    """
    about = folder / f"vllm-{version}+cpu.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (about / "METADATA").write_text(metadata, encoding="utf-8")
    return len(metadata)


def requirements(wheel: Path) -> list[str]:
    """What the wheel requires, without extras and without :data:`LEAVE_OUT`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(archive.read(name))
    wanted = []
    for requirement in message.get_all("Requires-Dist", []):
        text = str(requirement)
        if "extra ==" in text.replace("extra==", "extra =="):
            continue
        stop = next((i for i, c in enumerate(text) if not (c.isalnum() or c in "-_.")), len(text))
        if text[:stop].lower().replace("_", "-") not in LEAVE_OUT:
            wanted.append(text)
    return wanted
