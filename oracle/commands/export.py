"""``kvoracle export``: the machine written down for another checker or solver."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvoracle.model.scopes import Scope
from kvoracle.model.scopes import scope as find_scope
from kvoracle.spec.variants import Variant
from kvoracle.spec.variants import variant as find_variant

from .. import exits
from ..console import out

Files = dict[str, str]
"""Texts by file name."""


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and say what to do with them."""
    variant = find_variant(arguments.variant) if arguments.variant else None
    folder = Path(arguments.out)
    if arguments.format == "smt2":
        if arguments.scope:
            raise exits.UserError("a proof is for all sizes: smt2 takes no --scope")
        design = variant.name if variant else "reference"
        folder /= f"smt2-{design}"
        files, then = _smt2(variant), f"cvc5 {folder}/*.smt2"
    else:
        scope = find_scope(arguments.scope or (variant.scope if variant else "seed"))
        files, then = (_tla if arguments.format == "tla" else _murphi)(scope, variant, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise exits.UserError(f"cannot write to {folder}: {error.strerror}") from None
    if len(files) > 3:
        out(f"{len(files)} files in {folder}")
    else:
        for name in files:
            out(f"{folder / name}")
    out(f"then: {then}")
    return exits.HOLDS


def _smt2(variant: Variant | None) -> Files:
    from kvoracle.spec.export.smt2 import smt2

    return {f"{script.name}.smt2": script.text for script in smt2(variant)}


def _tla(scope: Scope, variant: Variant | None, folder: Path) -> tuple[Files, str]:
    from kvoracle.spec.export.tla import tla

    made = tla(scope, variant)
    return ({f"{made.name}.tla": made.module, f"{made.name}.cfg": made.configuration},
            f"java -cp tla2tools.jar tlc2.TLC {folder / made.name}")


def _murphi(scope: Scope, variant: Variant | None, folder: Path) -> tuple[Files, str]:
    from kvoracle.spec.export.murphi import murphi

    name = f"kvoracle_{scope.name}" + (f"_{variant.name}" if variant else "")
    name = name.replace("-", "_")
    model = folder / f"{name}.m"
    return ({model.name: murphi(scope, variant)},
            f"rumur --deadlock-detection off --output {name}.c {model} && "
            f"cc -O2 -std=c11 -mcx16 -o {name} {name}.c -lpthread && ./{name}")
