"""What may lookup promise, given what the host pool holds?  Full-attention groups alone.

The rule is vLLM's (``_lookup_complete_chunks``, since 0.30): of each group the chunks that follow
the cached tokens without a gap, of a draft group one less, since the KV at a chunk's end depends
on the token after it (issue #52735: the chunk dropped must be one that was asked for in addition).
What all groups hold is promised.  Groups of different chunk sizes may differ in how far into the
coarser one's last chunk they go, so no more is demanded than whole chunks of each.
"""

from __future__ import annotations

from .events import Config, LookedUp

READY = "R"


def _end(pool: str, start: int) -> int:
    """The chunk at which the run of ready chunks from ``start`` on ends."""
    end = start
    while end < len(pool) and pool[end] == READY:
        end += 1
    return end


def promised(config: Config, seen: LookedUp) -> tuple[int, tuple[int, int] | None]:
    """``(least, lacking)``: the tokens that the answer may not fall short of, and the first chunk,
    as (group, index), that the answer counts on and that is not ready."""
    sizes = [config.tokens_per_chunk(g) for g in range(len(config.groups))]
    coarsest = max(sizes)
    bound, lacking = seen.tokens, None
    for g, (size, pool) in enumerate(zip(sizes, seen.pool)):
        start = seen.cached // size
        end = _end(pool, start)
        bound = min(bound, size * (end - 1 if config.groups[g].draft else end))
        needed = -(-(seen.cached + (seen.answer or 0)) // size)
        if seen.answer and end < needed and lacking is None:
            lacking = (g, end)
    bound -= bound % coarsest
    return max(0, bound - seen.cached), lacking
