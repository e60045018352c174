"""Is what users install whole, light to import, and layered as promised?"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("model", "spec", "impl", "oracle", "scenarios")
TYPED = ("model", "spec", "impl", "oracle")


def _installed(folder: str) -> Path:
    spec = importlib.util.find_spec(f"kvoracle.{folder}")
    assert spec is not None and spec.submodule_search_locations, f"kvoracle.{folder} is missing"
    return Path(next(iter(spec.submodule_search_locations)))


def _files(folder: Path) -> dict[str, bytes]:
    """All files below the folder by relative path, but for what interpreters and editors leave."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith(".")
        and not path.name.endswith("~")
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_of_the_tree_is_installed_as_it_is(folder: str) -> None:
    tree, installed = _files(ROOT / folder), _files(_installed(folder))
    missing = sorted(tree.keys() - installed.keys())
    assert not missing, f"not in the package (package-data in pyproject.toml?): {missing}"
    assert not installed.keys() - tree.keys(), "left over from an earlier build: make clean"
    changed = sorted(name for name, content in tree.items() if installed[name] != content)
    assert not changed, f"the installed package is older than the tree (make install): {changed}"


@pytest.mark.parametrize("folder", TYPED)
def test_types_are_shipped(folder: str) -> None:
    assert (_installed(folder) / "py.typed").is_file()


def test_scenarios_are_shipped() -> None:
    assert list(_installed("scenarios").glob("*.jsonl"))


def test_the_child_is_shipped_as_files_another_interpreter_can_run() -> None:
    child = _installed("oracle") / "engines" / "vllm" / "child"
    assert (child / "__main__.py").is_file()
    assert (child / "shims" / "__init__.py").is_file()


@pytest.mark.parametrize("module", ["kvoracle.oracle.cli", "kvoracle.model"])
def test_imports_are_light(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "print(*sorted({'torch', 'z3', 'numba', 'numpy', 'hypothesis'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_version_is_the_declared_one() -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert declared is not None
    assert importlib.metadata.version("kvoracle") == declared[1]


def test_the_command_reports_its_version() -> None:
    command = Path(sys.executable).parent / "kvoracle"
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["kvoracle", importlib.metadata.version("kvoracle")]


def test_a_plain_install_is_light() -> None:
    requires = importlib.metadata.requires("kvoracle") or []
    always = {
        name[0]
        for line in requires
        if "extra ==" not in line and (name := re.match(r"[\w-]+", line))
    }
    assert always == {"filelock", "msgspec", "platformdirs", "z3-solver"}


def test_every_pin_is_exact() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [p for p in pins if not re.fullmatch(r"[\w.-]+==[\w.]+(; python_version .+)?", p)] == []


# --- layers: what a folder may import besides the standard library and itself -------------
# Order between layers is import-linter's (pyproject.toml); it knows no "nothing but".

MAY_IMPORT = {
    "model": set(),
    "impl": {"torch"},
    "oracle/engines/vllm/child": {"numpy", "torch", "vllm"},
}


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import in the file, those within functions too."""
    package = ["kvoracle", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield node.lineno, ".".join([*base, *([node.module] if node.module else [])])


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_layer_imports_only_what_it_may(folder: str) -> None:
    own = "kvoracle." + folder.replace("/", ".")
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in _imported(path)
        if f"{name}.".partition(".")[0] not in sys.stdlib_module_names | MAY_IMPORT[folder]
        and not f"{name}.".startswith(f"{own}.")
    ]
    assert wrong == []


# --- documents ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_paths_in_documents_exist(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    paths = re.findall(r"`([\w.-]+/[\w./-]*)`", text) + re.findall(r"\]\(([\w./-]+)\)", text)
    top_level = {path.name for path in ROOT.iterdir()}
    missing = [p for p in paths if p.partition("/")[0] in top_level and not (ROOT / p).exists()]
    assert paths
    assert missing == []
