"""Part *rewinds*: a planner that goes back while a request waits to run again.

What it stored of the request may have been evicted since, so it offers it once more
(vLLM does from 0.33 on: each lookup sets the cursor to 0).
"""

from __future__ import annotations

from .keys import Chunks
from .machine import Part, View
from .requests import PREEMPTED, WAITING, Group, Request

part = Part("rewinds", "rewinds: the cursor goes back while a request waits")


@part.action("the planner goes back to chunk {n} of request {r} in group {g}")
def rewind(s: View, r: Request, g: Group, n: Chunks) -> None:
    """Everything from ``n`` on is considered again."""
    s.require("waits", (s.life[r] == WAITING) | (s.life[r] == PREEMPTED))
    s.require("back", n < s.cursor[r, g])
    s.cursor[r, g] = n
