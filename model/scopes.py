"""Scopes: named choices of parts and sizes, small enough to search exhaustively.

A scope says which parts the machine is composed of, how many requests, groups and
chunks there are, how far numbers count, and the constants.  A step that would count
further than the scope is *cut*: not taken, and reported as cut, never as a violation.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import (
    connector,
    drafts,
    hits,
    lag,
    limits,
    loads,
    lookup,
    pool,
    queue,
    requests,
    rewinds,
    sharing,
    shelf,
    slots,
    store,
    streams,
    tails,
    tiers,
    transfers,
    windows,
)
from .keys import blocks, keys
from .kinds import FULL, LOCAL, RECURRENT, WINDOW
from .machine import ActionFunction, Machine, Part
from .rules import REFERENCE, Design
from .terms import Plain, Sort, Variable

CORE = (requests.part, keys, blocks, store.part)
ALL_PARTS = (*CORE, hits.part, rewinds.part, limits.part, drafts.part)
"""What the oracle's judge runs: planning, as if transfers completed at once."""

TRANSFER_PARTS = (*CORE, pool.part, slots.part, transfers.part, loads.part)
"""Blocks with content, and stores and loads with a life of their own."""

QUEUE_PARTS = (*TRANSFER_PARTS, queue.part)
"""Transfers under a scheduler that knows who came first."""

CONNECTOR_PARTS = (*TRANSFER_PARTS, connector.part)
"""Transfers beside those of another connector."""

RESIDENT_PARTS = (*TRANSFER_PARTS, sharing.part)
"""Transfers where requests share blocks."""

LAGGING_PARTS = (*TRANSFER_PARTS, lag.part)
"""Transfers where steps are dispatched before the last one's output is known."""

TIER_PARTS = (*TRANSFER_PARTS, tiers.part)
"""A second tier below the host pool."""

DRAFTED_PARTS = (*TRANSFER_PARTS, drafts.part, tails.part)
"""Transfers of draft groups, whose last position is first a guess."""

WINDOW_PARTS = (*TRANSFER_PARTS, lookup.kinds, windows.part)
"""Transfers of groups that keep a window."""

STREAM_PARTS = (streams.part, streams.tables)
"""Kernels and copies queued now and run later: what makes the moments of the others true."""

LOOKUP_PARTS = (requests.part, keys, lookup.kinds, lookup.drafters, shelf.part, lookup.part,
                lookup.slow, lookup.load_limits)
"""What the host pool is asked, and promises, whoever fills it."""

COMPOSITIONS: dict[str, tuple[Part, ...]] = {
    "planning": ALL_PARTS,
    "lookups": LOOKUP_PARTS,
    "transfers": TRANSFER_PARTS,
    "connectors": CONNECTOR_PARTS,
    "residents": RESIDENT_PARTS,
    "lagging": LAGGING_PARTS,
    "tiers": TIER_PARTS,
    "drafted": DRAFTED_PARTS,
    "windows": WINDOW_PARTS,
    "streams": STREAM_PARTS,
}
"""Parts that go together, each composition proved for all sizes; smaller ones first, since what
one shows is not shown again of a larger one that says the same."""


class UnknownName(Exception):
    """A name that does not exist; the message names the nearest ones."""


def nearest(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for an unknown ``name``, with what was probably meant."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(names)}"
    return UnknownName(f"no {kind} {name!r}; {hint}")


class ImpossibleConfig(Exception):
    """Sizes no engine could have."""


@dataclass(frozen=True)
class Scope:
    """Parts, sizes by sort name, constants by name (one value an index, group by group).

    ``without`` names actions that do not happen here: what another scope searches, so that
    this one stays small.
    """

    name: str
    doc: str
    parts: tuple[Part, ...]
    sizes: Mapping[str, int]
    constants: Mapping[str, tuple[Plain, ...]]
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for sort, size in self.sizes.items():
            if size < 1:
                raise ImpossibleConfig(f"scope {self.name}: {sort} has {size} members, needs 1")
        declared = {v.name: v for p in self.parts for v in p.variables if v.rigid}
        for name, values in self.constants.items():
            if name not in declared:
                raise nearest("constant", name, declared)
            least = declared[name].initial  # what proofs assume
            if min(values) < least:
                raise ImpossibleConfig(
                    f"scope {self.name}: {name} is {min(values)}, must be >= {least}")
            wanted = self.size(declared[name].domain[0])
            if len(values) != wanted:
                raise ImpossibleConfig(
                    f"scope {self.name}: {name} has {len(values)} values, needs {wanted}")

    def machine(self, design: Design = REFERENCE,
                overrides: Mapping[str, ActionFunction] | None = None) -> Machine:
        """The scope's machine under a design."""
        return Machine(self.parts, design, overrides, self.without)

    def size(self, sort: Sort) -> int:
        """How many members the sort has here; numbers count from 0 to one less."""
        if sort.is_bool:
            return 2
        if sort.names:
            return len(sort.names)
        if sort.name not in self.sizes:
            raise ImpossibleConfig(f"scope {self.name}: no size is given for {sort.name}")
        return self.sizes[sort.name]

    def constant(self, variable: Variable, index: tuple[int, ...]) -> Plain:
        """The constant's value here; outside its domain, its default."""
        values = self.constants.get(variable.name)
        if values is None or not 0 <= index[0] < len(values):
            return bool(variable.initial) if variable.sort.is_bool else variable.initial
        return values[index[0]]


def _sizes(requests: int, groups: int, tokens: int, chunks: int, blocks: int = 0,
           accepted: int = 0, **more: int) -> dict[str, int]:
    """Sizes with every number counted up to the value given; ``more`` by the sort's name."""
    return more | {
        "Request": requests, "Group": groups, "Tokens": tokens + 1, "Chunk": chunks,
        "Chunks": chunks + 1, "Blocks": blocks + 1, "Accepted": accepted + 1,
    }


# What the scopes of transfers leave to others, to stay small: requests that come back after
# their end, planning without an offer, failures.
_ELSEWHERE = ("retire", "settle", "refuse", "reset", "fall_short")
_FAILURES = ("copy_out_fails", "copy_in_fails")
_LOADS = ("plan_load", "copy_in", "report_load", "load_fails", "load_dropped")
_KERNELS = ("join", "leave", "launch")

# What a scope of lookups needs, and what it leaves out: requests that go on.
_LOOKING = (requests.part, keys, lookup.kinds, shelf.part, lookup.part)
_NOT_ADMITTED = ("start", "compute", "sample", "preempt", "finish", "abort", "retire", "given_up")

SCOPES: dict[str, Scope] = {
    scope.name: scope
    for scope in (
        Scope(
            "seed",
            "one request, one group, two chunks of two tokens: the case of vLLM PR #52923",
            CORE,
            _sizes(requests=1, groups=1, tokens=5, chunks=2, blocks=2),
            {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,)},
        ),
        Scope(
            "draft",
            "a draft group: the volatile tail, rejected drafts, prefill to decoding",
            (*CORE, drafts.part),
            _sizes(requests=1, groups=1, tokens=7, chunks=3, blocks=3, accepted=1),
            {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,), "draft": (True,)},
        ),
        Scope(
            "limits",
            "a draft group of a request of which only some tokens may be offloaded",
            (*CORE, limits.part, drafts.part),
            _sizes(requests=1, groups=1, tokens=4, chunks=2, blocks=2, accepted=1),
            {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,), "draft": (True,)},
        ),
        Scope(
            "groups",
            "a full and a draft group with different chunk sizes, chunks of two blocks, hits, "
            "a planner that goes back",
            (*CORE, hits.part, rewinds.part, drafts.part),
            _sizes(requests=1, groups=2, tokens=4, chunks=2, blocks=2),
            {"tokens_per_chunk": (4, 2), "blocks_per_chunk": (2, 2), "draft": (False, True)},
        ),
        Scope(
            "pair",
            "two requests that share a host pool: reset and refusal between them",
            CORE,
            _sizes(requests=2, groups=1, tokens=3, chunks=1, blocks=1),
            {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,)},
        ),
        Scope(
            "reuse",
            "two requests, one block: a store under way when the block goes to the other one",
            (*CORE, pool.part, slots.part, transfers.part),
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=2, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, "copy_out_fails", "evict"),
        ),
        Scope(
            "fences",
            "two requests, one block: a load into it after the other one was preempted",
            TRANSFER_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=2, Slot=2,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict", "sample", "finish", "abort"),
        ),
        Scope(
            "loads",
            "two requests of one text, two blocks: loads of one key, pins, eviction",
            TRANSFER_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=2, Text=1, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "sample", "finish", "abort"),
        ),
        Scope(
            "pieces",
            "one request of two chunks: a load of the first when the second is still stored",
            TRANSFER_PARTS,
            _sizes(requests=1, groups=1, tokens=3, chunks=2, blocks=2, Block=2, Text=1, Slot=2,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict", "finish", "abort"),
        ),
        Scope(
            "two-groups",
            "one request, two groups, two blocks and slots: which group's chunk lies where",
            TRANSFER_PARTS,
            _sizes(requests=1, groups=2, tokens=2, chunks=1, blocks=1, Block=2, Text=1, Slot=2,
                   Worker=1),
            {"tokens_per_chunk": (1, 1), "blocks_per_chunk": (1, 1)},
            without=("retire", "settle", "refuse", "fall_short", *_FAILURES, "sample", "finish",
                     "abort"),
        ),
        Scope(
            "slots",
            "two requests of two texts, one slot: its key is loaded, goes, another takes its place",
            TRANSFER_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=2, Text=2, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "sample", "finish", "abort"),
        ),
        Scope(
            "resets",
            "two requests of two texts, one slot: a reset while its key is stored or loaded",
            TRANSFER_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=2, Text=2, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=("retire", "settle", "refuse", "fall_short", *_FAILURES, "evict", "sample",
                     "finish", "abort"),
        ),
        Scope(
            "ranks",
            "one request, two workers with different numbers of slots; refusals",
            TRANSFER_PARTS,
            _sizes(requests=1, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=1, Slot=2,
                   Worker=2),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=("retire", "settle", "reset", *_FAILURES, "finish", "abort"),
        ),
        Scope(
            "tiers",
            "one request of two chunks, two slots, a second tier: copied down, lost, read again",
            TIER_PARTS,
            _sizes(requests=1, groups=1, tokens=2, chunks=2, blocks=2, Block=2, Text=1, Slot=2,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "sample", "finish", "abort"),
        ),
        Scope(
            "promotions",
            "one request of two chunks, three slots: both are read from the second tier together",
            (*CORE, pool.part, slots.part, transfers.part, tiers.part),
            _sizes(requests=1, groups=1, tokens=3, chunks=2, blocks=2, Block=2, Text=1, Slot=3,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, "copy_out_fails", "lower_fails", "lose", "copy_late", "sample",
                     "finish", "abort"),
        ),
        Scope(
            "last-slot",
            "one request, one slot: it is not taken to read from the second tier",
            TIER_PARTS,
            _sizes(requests=1, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=1, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "sample", "finish", "abort"),
        ),
        Scope(
            "workers",
            "one request, two workers of which one is late or fails",
            TRANSFER_PARTS,
            _sizes(requests=1, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=1, Slot=1,
                   Worker=2),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
        ),
        Scope(
            "queue",
            "two requests of one text, one block: who may start when the first has no room",
            QUEUE_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=1, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict"),
        ),
        Scope(
            "borrowed",
            "two requests, one block: another connector brings one of them into it",
            CONNECTOR_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=2, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, *_LOADS, "evict", "abort", "borrowed_dropped"),
        ),
        Scope(
            "sent",
            "two requests of one text, one block: one that ended is loaded, brought, and sent",
            CONNECTOR_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=1, blocks=1, Block=1, Text=1, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict", "preempt"),
        ),
        Scope(
            "sharing",
            "two requests of one text, two blocks: found while held and when freed, let go of",
            RESIDENT_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=2, blocks=1, Block=2, Text=1, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict", "preempt", "abort"),
        ),
        Scope(
            "found-loads",
            "two requests of one text, two blocks: loads beside blocks that were found",
            RESIDENT_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=2, blocks=1, Block=2, Text=1, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, "copy_out_fails", "evict", "sample", "finish", "abort",
                     "give_back"),
        ),
        Scope(
            "residue",
            "two requests of two texts, one block: what is in a freed block, found or written over",
            RESIDENT_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=2, blocks=1, Block=1, Text=2, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=("settle", "refuse", "reset", "fall_short", *_FAILURES, "evict", "abort",
                     "keys_arrive"),
        ),
        Scope(
            "lag",
            "two requests of one text, two blocks: steps that run after their request has ended",
            LAGGING_PARTS,
            _sizes(requests=2, groups=1, tokens=2, chunks=2, blocks=1, Block=2, Text=1, Slot=1,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict", "abort", "preempt"),
        ),
        Scope(
            "tail",
            "one request of one chunk in a draft group, stored and loaded; it ends and comes again",
            DRAFTED_PARTS,
            _sizes(requests=1, groups=1, tokens=3, chunks=1, blocks=1, accepted=1, Block=2, Text=1,
                   Slot=1, Worker=1),
            {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,), "draft": (True,)},
            without=("settle", "refuse", "reset", "fall_short", *_FAILURES, "evict", "abort"),
        ),
        Scope(
            "tails",
            "one request of two chunks in a draft group: accepted drafts, one chunk after another",
            DRAFTED_PARTS,
            _sizes(requests=1, groups=1, tokens=5, chunks=2, blocks=2, accepted=1, Block=2, Text=1,
                   Slot=2, Worker=1),
            {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,), "draft": (True,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict", "abort"),
        ),
        Scope(
            "slides",
            "one request of three chunks, two blocks: its window slides while a store reads",
            WINDOW_PARTS,
            _sizes(requests=1, groups=1, tokens=3, chunks=3, blocks=3, Block=2, Text=1, Slot=2,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,), "kind": (WINDOW,)},
            without=(*_ELSEWHERE, *_FAILURES, *_LOADS, "leave_out", "hand_back", "evict",
                     "preempt", "sample", "finish", "abort"),
        ),
        Scope(
            "window-loads",
            "one request of three chunks, two blocks: preempted, and loaded but for the first",
            WINDOW_PARTS,
            _sizes(requests=1, groups=1, tokens=3, chunks=3, blocks=3, Block=2, Text=1, Slot=2,
                   Worker=1),
            {"tokens_per_chunk": (1,), "blocks_per_chunk": (1,), "kind": (WINDOW,)},
            without=(*_ELSEWHERE, *_FAILURES, "evict", "sample", "finish", "abort"),
        ),
        Scope(
            "streams",
            "a block and a host slot: kernels, stores and loads under way, two at a time",
            (streams.part,),
            {"Operation": 2, "Event": 1, "Block": 1, "Slot": 1, "KV": 2},
            {},
        ),
        Scope(
            "overwrites",
            "two blocks: a load into one that kernels read when they write the other",
            (streams.part,),
            {"Operation": 2, "Event": 1, "Block": 2, "Slot": 1, "KV": 2},
            {},
            without=("plan", "store", "evict", "see"),
        ),
        Scope(
            "one-slot",
            "a host slot and two blocks: copies only, the slot used again",
            (streams.part,),
            {"Operation": 2, "Event": 1, "Block": 2, "Slot": 1, "KV": 2},
            {},
            without=_KERNELS,
        ),
        Scope(
            "copies",
            "a block and two host slots: copies only, the block used again",
            (streams.part,),
            {"Operation": 2, "Event": 1, "Block": 1, "Slot": 2, "KV": 2},
            {},
            without=_KERNELS,
        ),
        Scope(
            "late",
            "three operations and no event: a store that is queued after the next step's kernels",
            (streams.part,),
            {"Operation": 3, "Event": 1, "Block": 2, "Slot": 1, "KV": 2},
            {},
            without=("load", "promote", "evict", "leave", "record", "wait", "see"),
        ),
        Scope(
            "tables",
            "two steps' kernels, two tables of the host's that tell them where to write",
            STREAM_PARTS,
            {"Operation": 2, "Event": 1, "Block": 2, "Slot": 1, "KV": 1, "Table": 2},
            {},
            without=("plan", "store", "load", "promote", "evict"),
        ),
        Scope(
            "lookups",
            "full attention and a recurrent group: where both can go on",
            _LOOKING,
            _sizes(requests=1, groups=2, tokens=5, chunks=2, Text=1),
            {"tokens_per_chunk": (2, 2), "kind": (FULL, RECURRENT)},
            without=_NOT_ADMITTED,
        ),
        Scope(
            "windows",
            "a sliding window and chunked local attention whose reach is not made of whole chunks",
            _LOOKING,
            _sizes(requests=1, groups=2, tokens=5, chunks=2, Text=1),
            {"tokens_per_chunk": (2, 2), "kind": (WINDOW, LOCAL), "reach": (2, 3)},
            without=_NOT_ADMITTED,
        ),
        Scope(
            "draft-lookups",
            "a draft group, asked for one chunk more, beside a recurrent one of larger chunks",
            (*_LOOKING, lookup.drafters),
            _sizes(requests=1, groups=2, tokens=4, chunks=3, Text=1),
            {"tokens_per_chunk": (1, 2), "kind": (FULL, RECURRENT), "drafter": (True, False)},
            without=_NOT_ADMITTED,
        ),
        Scope(
            "spans",
            "chunks that can only be loaded whole, beside smaller ones",
            _LOOKING,
            _sizes(requests=1, groups=2, tokens=4, chunks=3, Text=1),
            {"tokens_per_chunk": (1, 2), "undivided": (False, True)},
            without=_NOT_ADMITTED,
        ),
        Scope(
            "verdicts",
            "lookups repeated, put off, limited; requests that go on, are preempted, come back",
            (*_LOOKING, lookup.slow, lookup.load_limits),
            _sizes(requests=1, groups=1, tokens=3, chunks=2, Text=1),
            {"tokens_per_chunk": (1,)},
        ),
    )
}
"""The scopes that a check searches, each in seconds."""

LARGE: dict[str, Scope] = {
    scope.name: scope
    for scope in (
        Scope(
            "two-groups-deep",
            "the request and the groups of two-groups, to the request's end and its forgetting",
            TRANSFER_PARTS,
            _sizes(requests=1, groups=2, tokens=2, chunks=1, blocks=1, Block=2, Text=1, Slot=2,
                   Worker=1),
            {"tokens_per_chunk": (1, 1), "blocks_per_chunk": (1, 1)},
            without=("settle", "refuse", "fall_short", "copy_in_fails"),
        ),
        Scope(
            "pair-deep",
            "the two requests of pair, each as large as that of seed and one token longer",
            CORE,
            _sizes(requests=2, groups=1, tokens=6, chunks=2, blocks=2),
            {"tokens_per_chunk": (2,), "blocks_per_chunk": (1,)},
        ),
    )
}
"""The scopes that take minutes and gigabytes, searched only by name."""


def scope(name: str) -> Scope:
    """The scope of this name, a large one too; raises `UnknownName`."""
    known = SCOPES | LARGE
    try:
        return known[name]
    except KeyError:
        raise nearest("scope", name, known) from None
