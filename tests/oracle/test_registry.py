"""Names of engines: each means one engine, and a name that means none says what would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvoracle.model.scopes import UnknownName
from kvoracle.oracle.engines.process import EngineProcess
from kvoracle.oracle.engines.registry import EngineUnavailable, NoCheckout, open_engine
from kvoracle.oracle.engines.vllm import environment
from kvoracle.oracle.events import Config, Group, Hello
from kvoracle.spec.variants import PLANNERS

CONFIG = Config((Group(4),))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def installed(cache: Path) -> Path:
    """A cache in which two releases look as if they were installed."""
    for folder, marker in (
            ("venv", '{"torch": "", "base": "", "bytes": 1}'),
            ("overlays/0.30.0", '{"version": "0.30.0", "bytes": 1, "source": ""}'),
            ("overlays/0.29.0", '{"version": "0.29.0", "bytes": 1, "source": ""}')):
        (cache / "vllm" / folder).mkdir(parents=True)
        (cache / "vllm" / folder / environment.MARKER).write_text(marker)
    python = cache / "vllm" / "venv" / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    return cache


@pytest.mark.parametrize("name", ["impl", "model", *(f"model:{v}" for v in PLANNERS)])
def test_engines_of_this_package_call_themselves_by_their_names(name: str) -> None:
    engine = open_engine(name)
    (hello,) = engine.start(CONFIG)
    assert isinstance(hello, Hello) and hello.engine == name
    engine.close()
    engine.close()


@pytest.mark.parametrize(("name", "says"), [
    ("", "no engine ''; there are: impl, model, model:VARIANT, vllm==VERSION, "
         "vllm==VERSION:FAULT, vllm@PATH"),
    ("imp", "did you mean impl"),
    ("IMPL", "there are: impl"),
    ("modle", "did you mean model"),
    ("vllm", "did you mean vllm"),
    ("vllm=0.30.0", "did you mean vllm==VERSION"),
    ("vllm==", "did you mean vllm==VERSION"),
    ("vllm@", "did you mean vllm@PATH"),
    ("impl:fast", "no engine 'impl:fast'"),
    ("model:no-keys", "no variant 'no-keys'; did you mean no-key-bound"),
    ("model:evict-pending", "no variant of planning 'evict-pending'; "),
    ("vllm==0.30.x", "no engine 'vllm==0.30.x': '0.30.x' is not a version"),
])
def test_a_name_that_means_none_says_what_would(name: str, says: str, cache: Path) -> None:
    with pytest.raises(UnknownName) as unknown:
        open_engine(name)
    assert says in str(unknown.value)


def test_a_release_that_is_not_installed_says_how_to_have_it(cache: Path) -> None:
    with pytest.raises(EngineUnavailable) as missing:
        open_engine("vllm==0.30.0")
    assert str(missing.value) == \
        "vllm==0.30.0 is not installed: run `kvoracle engines install vllm==0.30.0`"


def test_a_release_that_does_not_exist_says_which_are_installed(installed: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"run `kvoracle engines install vllm==0\.31\.9` "
                       r"\(there are: vllm==0\.29\.0, vllm==0\.30\.0\)"):
        open_engine("vllm==0.31.9")


@pytest.mark.parametrize("name", ["vllm==0.30.0", "vllm==0.30", "vllm==v0.30.0"])
def test_a_release_has_the_names_that_installing_knows(name: str, installed: Path) -> None:
    engine = open_engine(name)
    assert isinstance(engine, EngineProcess)
    assert engine.argv[0] == str(environment.python())
    assert engine.env is not None
    assert engine.env["PYTHONPATH"].startswith(str(environment.overlay("0.30.0")))
    assert engine.pid is None


def test_a_checkout_is_opened_from_the_home_folder_too(
        installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fork" / "vllm").mkdir(parents=True)
    (tmp_path / "fork" / "vllm" / "__init__.py").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (f"vllm@{tmp_path}/fork", "vllm@~/fork"):
        engine = open_engine(name)
        assert isinstance(engine, EngineProcess) and engine.env is not None
        assert engine.env["PYTHONPATH"].startswith(str(tmp_path / "fork"))


def test_a_checkout_needs_the_shared_environment(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    with pytest.raises(EngineUnavailable, match="the environment that vllm runs in is not inst"):
        open_engine(f"vllm@{tmp_path}")


def test_a_folder_without_vllm_is_no_checkout(installed: Path, tmp_path: Path) -> None:
    with pytest.raises(NoCheckout, match=r"there is no vllm/__init__\.py in it"):
        open_engine(f"vllm@{tmp_path}")
    with pytest.raises(NoCheckout, match="there is no such folder"):
        open_engine(f"vllm@{tmp_path}/missing")


def test_a_cache_that_cannot_be_written_is_no_traceback(
        installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (installed / "vllm" / "state").write_text("a file where a folder is to be")
    with pytest.raises(EngineUnavailable, match=r"cannot use .*: \w+"):
        open_engine(f"vllm@{tmp_path}")


def test_impl_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kvoracle.oracle.engines.impl", raising=False)
    monkeypatch.delitem(sys.modules, "kvoracle.impl.copy", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'kvoracle\[impl\]'"):
        open_engine("impl")
