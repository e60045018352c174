"""Which chunks of a request may be stored now?

The planner keeps, per request, what the serving engine has told it: how many
tokens are known and how many of them have their KV computed, and per group the
keys and the block ids known so far, and the *cursor*, the next chunk to
consider.  It knows nothing of the host pool: :meth:`StorePlanner.due` lists
what should be offered, :meth:`StorePlanner.taken` is told what the pool took.

The rule (:meth:`StorePlanner.storable`) is the smallest of three bounds, each
learned the hard way by vLLM:

- chunks whose tokens are computed, less the last chunk of a draft group while
  the request decodes, since its KV may be rewritten when drafts are rejected
  (PR46972: the exclusion must hold wherever the cursor is derived, or the
  chunk is passed over for good; PR52771: it ends when the request finishes);
- chunks whose blocks are known (PR49146: an aborted request that never ran has
  keys but no blocks);
- chunks whose keys are known (PR52923: keys may arrive later than blocks).

It is evaluated in one place, ``due``; the cursor moves by the chunks that
``due`` returned, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvoracle.impl.config import OffloadConfig
from kvoracle.impl.errors import KeysBlocksMismatch, RequestExists, UnknownRequest


@dataclass(slots=True)
class GroupState:
    """One group's part of a request: keys and block ids in order, and the cursor (chunks)."""

    keys: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cursor: int = 0


@dataclass(slots=True)
class RequestState:
    """What is known of one request.  ``prompt``, ``tokens`` and ``computed`` count tokens."""

    name: str
    prompt: int
    groups: tuple[GroupState, ...]
    tokens: int
    computed: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk to offer: its index in the request, its key, its blocks in order."""

    group: int
    index: int
    key: bytes
    blocks: tuple[int, ...]


class StorePlanner:
    """Per-request store progress.  Every method but :meth:`arrive` raises
    :class:`UnknownRequest` for a request that is not tracked."""

    def __init__(self, config: OffloadConfig) -> None:
        self.config = config
        self._requests: dict[str, RequestState] = {}

    # --- what the engine tells ---------------------------------------------

    def arrive(self, name: str, prompt: int) -> None:
        """Track a new request of ``prompt`` tokens."""
        if name in self._requests:
            raise RequestExists(f"request {name!r} is tracked already")
        groups = tuple(GroupState() for _ in self.config.groups)
        self._requests[name] = RequestState(name, prompt, groups, tokens=prompt)

    def add_keys(self, name: str, group: int, keys: Iterable[bytes]) -> None:
        """Further keys of ``group``, in chunk order."""
        self[name].groups[group].keys.extend(keys)

    def add_blocks(self, name: str, group: int, blocks: Iterable[int]) -> None:
        """Further blocks of ``group``, in order of position."""
        self[name].groups[group].blocks.extend(blocks)

    def set_tokens(self, name: str, tokens: int) -> None:
        """``tokens`` tokens are known, prompt and accepted output together."""
        self[name].tokens = tokens

    def set_computed(self, name: str, computed: int) -> None:
        """KV of the first ``computed`` tokens is written once this step's kernels have run."""
        self[name].computed = computed

    def preempt(self, name: str) -> None:
        """The blocks are gone and nothing is computed; what was stored stays stored."""
        request = self[name]
        request.computed = 0
        for state in request.groups:
            state.blocks.clear()

    def finish(self, name: str, computed: int) -> None:
        """No token will be added or rewritten: the draft exclusion ends (vLLM PR52771)."""
        request = self[name]
        request.finished = True
        request.computed = computed

    def forget(self, name: str) -> None:
        """Stop tracking the request."""
        self[name]
        del self._requests[name]

    def reset(self) -> None:
        """The host pool was emptied: everything is to be offered again."""
        for request in self._requests.values():
            for state in request.groups:
                state.cursor = 0

    # --- what may be stored -------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._requests

    def __getitem__(self, name: str) -> RequestState:
        try:
            return self._requests[name]
        except KeyError:
            raise UnknownRequest(f"request {name!r} is not tracked") from None

    def offloadable(self, request: RequestState) -> int:
        """Tokens whose KV is computed and final enough to consider, prompt first."""
        tokens = min(request.computed, request.tokens)
        return min(tokens, request.prompt) if self.config.prompt_only else tokens

    def computed_chunks(self, request: RequestState, group: int) -> int:
        """Leading chunks whose KV is computed and, in a draft group, no longer volatile."""
        tokens = self.offloadable(request)
        chunks = tokens // self.config.tokens_per_chunk(group)
        decoding = tokens > request.prompt
        if self.config.groups[group].draft and decoding and not request.finished:
            chunks = max(0, chunks - 1)
        return chunks

    def allocated_chunks(self, request: RequestState, group: int) -> int:
        """Leading chunks all of whose blocks are known."""
        return len(request.groups[group].blocks) // self.config.blocks_per_chunk

    def storable(self, request: RequestState, group: int) -> int:
        """Leading chunks of ``group`` that may be stored now (the rule above)."""
        return min(
            self.computed_chunks(request, group),
            self.allocated_chunks(request, group),
            len(request.groups[group].keys),
        )

    def due(self, name: str) -> list[Chunk]:
        """Chunks from each group's cursor up to what is storable, by the position they end at.

        Ordered across groups, so that a pool with little room advances all groups together:
        a hit needs every group.
        """
        request = self[name]
        per_chunk = self.config.blocks_per_chunk
        chunks: list[Chunk] = []
        for group, state in enumerate(request.groups):
            for index in range(state.cursor, self.storable(request, group)):
                blocks = tuple(state.blocks[index * per_chunk : (index + 1) * per_chunk])
                if index >= len(state.keys) or len(blocks) != per_chunk:
                    raise KeysBlocksMismatch(
                        f"chunk {index} of {name!r} in group {group} has "
                        f"{len(state.keys)} keys and {len(state.blocks)} blocks known"
                    )
                chunks.append(Chunk(group, index, state.keys[index], blocks))
        if len(request.groups) > 1:
            size = self.config.tokens_per_chunk
            chunks.sort(key=lambda chunk: ((chunk.index + 1) * size(chunk.group), chunk.group))
        return chunks

    def taken(self, name: str, chunks: Sequence[Chunk]) -> None:
        """The pool took these leading chunks of ``due`` (stored or already present)."""
        request = self[name]
        for chunk in chunks:
            request.groups[chunk.group].cursor = chunk.index + 1

    def loaded(self, name: str, tokens: int) -> None:
        """The first ``tokens`` tokens come from the host: go on behind the last chunk loaded.

        The one place besides :meth:`reset` where a cursor may move back: after a
        preemption the host may hold less than was once stored, and what is
        computed again can be offered again.  A chunk loaded in part is on the
        host whole.
        """
        for group, state in enumerate(self[name].groups):
            state.cursor = -(-tokens // self.config.tokens_per_chunk(group))

    def storable_at_most(self, name: str, group: int) -> int:
        """What would be storable if every key were known."""
        request = self[name]
        return min(self.computed_chunks(request, group), self.allocated_chunks(request, group))

    def exhausted(self, name: str) -> bool:
        """Whether a finished request has nothing left that a late key could make storable."""
        request = self[name]
        return request.finished and all(
            self.storable_at_most(name, g) <= state.cursor
            for g, state in enumerate(request.groups)
        )
