"""Which engine is being talked to?  The one last started; this is where lines become calls."""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

import torch

if not hasattr(torch._C._cpu, "_is_avx512_supported"):
    # 0.17 asks there, and nowhere else; torch has since moved it to torch.cpu.
    torch._C._cpu._is_avx512_supported = lambda: False  # type: ignore[attr-defined]

import vllm

from . import coverage, shims
from .config import Config
from .postmortem import died, in_engine
from .run import Run
from .serve import BadInput


class Session:
    """One process's conversation: at most one engine at a time."""

    def __init__(self) -> None:
        self.version = str(getattr(vllm, "__version__", "unknown"))
        self.run: Run | None = None
        self.dead = False
        # vLLM's modules never go away; collecting them again and again costs a third of a run.
        gc.collect()
        gc.freeze()

    def answer(self, ask: dict[str, Any]) -> list[dict[str, Any]]:
        do = ask.get("do")
        if do == "start":
            return self.start(ask)
        if self.dead:
            raise BadInput("the engine died; start it again")
        if self.run is None:
            raise BadInput("no engine is running; start one first")
        seen: list[dict[str, Any]] = []
        self.run.seen = seen
        try:
            self.run.do(ask)
        except BadInput:
            raise
        except Exception as error:
            traceback.print_exc()
            if not in_engine(error):
                raise
            self.dead = True
            self.run.tell_failed(error)
            seen.append(died(error))
        return seen

    def start(self, ask: dict[str, Any]) -> list[dict[str, Any]]:
        release = shims.pick(self.version)
        if release is None:
            oldest = ".".join(map(str, shims.RANGES[-1][0]))
            raise BadInput(f"vllm {self.version} is older than {oldest}, the oldest this "
                           f"adapter knows")
        if self.run is not None:
            self.run.close()
            self.run = None
        self.dead = False
        coverage.take()
        config = Config.parse(ask.get("config") or {})
        try:
            self.run = Run(config, release)
        except BadInput:
            raise
        except Exception as error:
            print(f"building vllm {self.version} failed", file=sys.stderr)
            traceback.print_exc()
            hint = ""
            if shims.is_newest(release):
                hint = (f"; the adapter was written for releases up to {shims.NEWEST_KNOWN} and "
                        f"tried its newest part")
            raise BadInput(f"vllm {self.version} cannot be built headless: "
                           f"{type(error).__name__}: {error}{hint}") from error
        return [{"saw": "hello", "engine": "vllm", "version": self.version,
                 "unseen": list(release.unseen), "eager": release.eager,
                 "shows": list(self.run.shows), "features": sorted(release.features)}]
