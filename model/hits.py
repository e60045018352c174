"""Part *hits*: a prefix found in the host pool is loaded instead of computed.

The load completes at once here, and what a lookup may promise is another part; what
matters to the planner is that chunks of the hit need no storing, and that the cursor
is set to their end, forward or, when a preempted request comes back, backward.
"""

from __future__ import annotations

from .machine import Part, View
from .requests import GROUP, PREEMPTED, RUNNING, WAITING, Request, Tokens
from .store import COVERED, NEVER
from .terms import Term, Value, forall, minimum

part = Part("hits", "hits: prefixes loaded from the host pool")


def chunks_touched(tokens: Value, tokens_per_chunk: Term) -> Term:
    """Chunks that hold any of the first ``tokens`` tokens: a group with larger chunks loads
    part of its last one."""
    return (tokens + tokens_per_chunk - 1) // tokens_per_chunk


@part.action("request {r} starts, tokens loaded from the host pool: {n}")
def load(s: View, r: Request, n: Tokens) -> None:
    """Admission with a hit (vLLM: the load sets the cursor to the end of the hit)."""
    s.require("waits", (s.life[r] == WAITING) | (s.life[r] == PREEMPTED))
    s.require("a hit", n >= 1)
    s.require("within the request", n <= s.tokens[r])
    s.require(
        "every chunk of the hit has its key",
        forall(GROUP, lambda g: chunks_touched(n, s.tokens_per_chunk[g]) <= s.keys[r, g]),
    )
    s.life[r] = RUNNING
    # The last token is computed even on a full hit: its logits are needed.
    s.computed[r] = minimum(n, s.tokens[r] - 1)
    s.cursor.where(
        lambda r2, g: r2 == r, lambda r2, g: chunks_touched(n, s.tokens_per_chunk[g])
    )
    s.mark.where(
        lambda r2, g, c: (r2 == r)
        & (c < chunks_touched(n, s.tokens_per_chunk[g]))
        & (s.mark[r2, g, c] == NEVER),
        COVERED,
    )
