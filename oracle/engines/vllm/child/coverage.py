"""Which parts of vLLM's offloading code has a run been through, and how often?

With ``KVORACLE_COVERAGE`` set, the modules of offloading are changed as they are imported: the
beginning of each function and of each branch counts.  That costs a tenth of what tracing does,
and nothing outside these modules.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

WATCHED = ("kv_offload", "offloading")
"""What the name of a module of offloading contains."""

_NAME = "__kvoracle_reached__"

_reached: dict[int, int] = defaultdict(int)


def install() -> bool:
    """Count from now on, if it is asked for; before vLLM is imported."""
    if not os.environ.get("KVORACLE_COVERAGE"):
        return False
    setattr(builtins, _NAME, _reached)
    sys.meta_path.insert(0, _Finder())
    return True


def take() -> list[int]:
    """The points reached since the last call, each with how often, to a power of two, in order."""
    points = sorted(place * 32 + times.bit_length() for place, times in _reached.items())
    _reached.clear()
    return points


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if not (name.startswith("vllm.") and any(w in name for w in WATCHED)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:  # not from the cache, and not into it
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        _Counting(fullname).visit(tree)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Counting(ast.NodeTransformer):
    """Puts a count at the beginning of each function and branch."""

    def __init__(self, module: str) -> None:
        self._module = module

    def _counted(self, body: list[ast.stmt], kind: str) -> list[ast.stmt]:
        first = body[0]
        place = zlib.crc32(f"{self._module}:{first.lineno}:{kind}".encode())
        count = ast.parse(f"{_NAME}[{place}] += 1").body[0]
        for node in ast.walk(count):
            ast.copy_location(node, first)
        return [count, *body]

    def generic_visit(self, node: ast.AST) -> Any:
        super().generic_visit(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While,
                             ast.ExceptHandler)):
            node.body = self._counted(node.body, "in")
        elif isinstance(node, ast.If):
            node.body = self._counted(node.body, "then")
            node.orelse = self._counted(node.orelse, "else") if node.orelse else \
                self._counted([ast.copy_location(ast.Pass(), node)], "else")
        return node
