"""Part *drafts*: EAGLE/MTP draft groups, whose last chunk is volatile while decoding.

The drafter computes its KV at a position from the *next* token as well.  At the last
accepted position that token is a draft; when the draft is rejected, the position is
computed again (vLLM PR #46972, issue #52735).
"""

from __future__ import annotations

from .machine import Part, View
from .requests import GROUP, RUNNING, Request
from .rules import whole_chunks
from .store import HELD, SPOILED
from .terms import BOOL

part = Part("drafts", "drafts: groups of drafter layers, rejection")
part.constant("draft", (GROUP,), BOOL, "the group holds drafter layers")


@part.action("drafts of request {r} are rejected: its last position is rewritten")
def reject(s: View, r: Request) -> None:
    """Happens in the step that computed every known token, beyond the prompt: the first token
    after the prompt is sampled, never a draft.  If the chunk of the rewritten position was
    stored, what the host holds under its key is stale."""
    s.require("runs", s.life[r] == RUNNING)
    s.require("decodes", s.prompt[r] < s.tokens[r])
    s.require("everything known is computed", s.computed[r] == s.tokens[r])
    s.mark.where(
        lambda r2, g, c: (r2 == r)
        & s.draft[g]
        & (c == whole_chunks(s.tokens[r] - 1, s.tokens_per_chunk[g]))
        & (s.mark[r2, g, c] == HELD),
        SPOILED,
    )
