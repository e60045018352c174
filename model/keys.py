"""Parts *keys* and *blocks*: the two things a chunk needs beside its tokens, each late.

Keys are hashes of a prefix and come asynchronously; blocks are allocated by the
scheduler and told to the planner, all at once or step by step.  Neither waits for
the other (vLLM PR #52923), and a preempted request loses its blocks but not its keys.
"""

from __future__ import annotations

from typing import Annotated

from .machine import Part, View
from .requests import ABSENT, GROUP, REQUEST, RUNNING, Group, Request
from .rules import whole_chunks
from .terms import Sort, Term

CHUNK = Sort("Chunk")
CHUNKS = Sort("Chunks")
BLOCKS = Sort("Blocks")
Chunk = Annotated[Term, CHUNK]
Chunks = Annotated[Term, CHUNKS]
Blocks = Annotated[Term, BLOCKS]

SIZE = Sort("Size")

keys = Part("keys", "keys: hashes of prefixes, arriving late")
keys.constant("tokens_per_chunk", (GROUP,), SIZE, "tokens in one chunk of the group", initial=1)
keys.variable("keys", (REQUEST, GROUP), CHUNKS, "keys that have arrived")


@keys.action("keys of request {r} known in group {g}: {n}", external=True)
def keys_arrive(s: View, r: Request, g: Group, n: Chunks) -> None:
    """Keys exist for whole chunks of known tokens, and arrive when they do, even after the end."""
    s.require("known", s.life[r] != ABSENT)
    s.require("more than before", s.keys[r, g] < n)
    s.require("a key names known tokens", n <= whole_chunks(s.tokens[r], s.tokens_per_chunk[g]))
    s.keys[r, g] = n


@keys.extend("retire")
def _forget_keys(s: View, r: Request) -> None:
    s.keys.where(lambda r2, g: r2 == r, 0)


blocks = Part("blocks", "blocks: the planner's list of a request's blocks")
blocks.constant("blocks_per_chunk", (GROUP,), SIZE, "blocks in one chunk", initial=1)
blocks.variable("blocks", (REQUEST, GROUP), BLOCKS, "blocks known to the planner")


@blocks.action("blocks of request {r} known in group {g}: {n}")
def blocks_told(s: View, r: Request, g: Group, n: Blocks) -> None:
    """The scheduler allocated blocks and told the planner; how far ahead is its own affair."""
    s.require("runs", s.life[r] == RUNNING)
    s.require("more than before", s.blocks[r, g] < n)
    s.blocks[r, g] = n


@blocks.extend("preempt")
def _lose_blocks(s: View, r: Request) -> None:
    s.blocks.where(lambda r2, g: r2 == r, 0)


@blocks.extend("retire")
def _forget_blocks(s: View, r: Request) -> None:
    s.blocks.where(lambda r2, g: r2 == r, 0)
