"""What is said to an engine, and what is seen of it: the vocabulary of the oracle.

Two kinds of event, both one JSON object on one line:

- a *stimulus* (key ``do``) is what the outside world does to an engine: a
  request arrives, a scheduler step runs, a request is aborted.  The same
  stimuli drive the machine, ``impl`` and every release of vLLM;
- an *observation* (key ``saw``) is what the engine was then seen to do.  The
  judge turns observations into actions of the machine.

All counts are absolute ("three keys are known"), never increments, so an
observation can be judged without the ones before it having been seen.
``docs/protocol.md`` says the same for implementers of engines in any language.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]

Segment = tuple[Union[Count, Name], Positive]
"""``(stream, length)``: the first ``length`` tokens of a numbered token stream,
or, with a request's name, of everything that request has read and written."""


Kind = Literal["full", "window", "chunked", "mamba"]
"""Full attention, sliding window, chunked local attention, recurrent state."""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One KV-cache group: its block size in tokens, and whether it holds drafter layers.

    ``reach``: of a sliding window, the tokens that attention sees, its own included; of chunked
    local attention, the tokens of one piece.  ``marked``: whether the engine is told which group
    holds the drafter's layers.
    """

    tokens_per_block: Positive
    draft: bool = False
    kind: Kind = "full"
    reach: Count = 0
    marked: bool = True


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The engine to build.  Sizes are in tokens, blocks or chunks, as named.

    ``blocks_per_chunk`` blocks of a group make one chunk, the unit of offloading.
    ``gpu_blocks`` counts usable blocks (vLLM's null block comes on top).
    ``draft_tokens`` > 0 makes every decode step propose that many tokens.

    ``async_scheduling``: a step is scheduled before the output of the one before is known.
    ``workers``: ranks that share each block; ``context_parallel`` of them share its tokens, so
    that a block spans as many times ``tokens_per_block``.  ``policy`` and ``store_threshold``
    (offers of a chunk before it is stored; 0 and 1: none) are the host pool's.
    ``longest_piece`` bounds the tokens of one prompt computed in a step (0: no bound).
    """

    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1)]
    blocks_per_chunk: Positive = 1
    gpu_blocks: Positive = 64
    host_chunks: Positive = 64
    tokens_per_step: Positive = 64
    max_running: Positive = 8
    prompt_only: bool = False
    gpu_prefix_caching: bool = False
    draft_tokens: Count = 0
    async_scheduling: bool = False
    workers: Positive = 1
    context_parallel: Positive = 1
    policy: Literal["lru", "arc"] = "lru"
    store_threshold: Count = 0
    longest_piece: Count = 0

    def tokens_per_block(self, group: int) -> int:
        """Tokens that one block of ``group`` spans."""
        return self.groups[group].tokens_per_block * self.context_parallel

    def tokens_per_chunk(self, group: int) -> int:
        """Tokens in one chunk of ``group``."""
        return self.tokens_per_block(group) * self.blocks_per_chunk


# --- stimuli ---------------------------------------------------------------


class Stimulus(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True,
               omit_defaults=True):
    """Base of all stimuli."""


class Arrive(Stimulus, frozen=True, tag="arrive"):
    """Request ``r`` arrives; it ends by itself after ``output`` sampled tokens.

    Requests of another ``salt`` or ``adapter`` share no content.  ``max_offload`` and
    ``max_load`` bound the tokens that are offloaded and loaded; with ``no_read`` nothing is
    read from any cache.
    """

    r: Name
    prompt: Annotated[tuple[Segment, ...], msgspec.Meta(min_length=1)]
    output: Positive = 16
    salt: str = ""
    adapter: str = ""
    max_offload: Count | None = None
    max_load: Count | None = None
    no_read: bool = False


class Keys(Stimulus, frozen=True, tag="keys"):
    """Keys of ``r`` are known only for its first ``upto`` tokens; ``None``: all of them.

    Contract (vLLM asserts it): a request that waits has all its keys, so the
    limit binds decoded tokens only, and is lifted when the request is preempted.
    """

    r: Name
    upto: Count | None = None


class Step(Stimulus, frozen=True, tag="step"):
    """``n`` scheduler steps, each: schedule, plan, run, sample.

    ``done``: how many transfers in flight complete in each step (``None``: all),
    the oldest first, or the newest first with ``newest``.  ``accept``: drafts
    accepted by each decoding request.  ``stop``: requests whose token sampled in
    the last of the steps ends them.  ``slow``: workers, counted from 0, on which
    no transfer completes.
    """

    n: Positive = 1
    done: Count | None = None
    newest: bool = False
    accept: Count = 0
    stop: tuple[Name, ...] = ()
    slow: tuple[Count, ...] = ()


class Abort(Stimulus, frozen=True, tag="abort"):
    """The client of ``r`` goes away."""

    r: Name


class Refuse(Stimulus, frozen=True, tag="refuse"):
    """The host pool refuses the next ``n`` store requests put to it."""

    n: Positive = 1


class Reset(Stimulus, frozen=True, tag="reset"):
    """The host pool is emptied and store progress starts again (``reset_cache``)."""


class Drain(Stimulus, frozen=True, tag="drain"):
    """Keys are released, and steps run until no request is left and no transfer is in flight.

    It ends early after ``limit`` steps without progress; an engine that is not at rest by then
    says so with :class:`NotAtRest`.
    """

    limit: Positive = 1000


AnyStimulus = Union[Arrive, Keys, Step, Abort, Refuse, Reset, Drain]


FEATURES: dict[str, str] = {
    "groups": "several groups, and blocks of several sizes",
    "draft groups": "groups of drafter layers",
    "drafts": "`draft_tokens`",
    "late keys": "the stimulus `keys`",
    "resets": "the stimulus `reset`",
    "prompt only": "`prompt_only`",
    "async": "`async_scheduling`",
    "workers": "`workers`, and `slow` of a step",
    "context parallel": "`context_parallel`",
    "windows": "groups of kind `window`",
    "chunked": "groups of kind `chunked`",
    "mamba": "groups of kind `mamba`",
    "unmarked drafts": "draft groups that are not `marked`",
    "arc": "`policy` `arc`",
    "thresholds": "`store_threshold`",
    "limits": "`max_offload` of a request",
    "load limits": "`max_load` of a request",
    "no read": "`no_read` of a request",
    "salts": "`salt` and `adapter` of a request",
    "pieces": "`longest_piece`",
}
"""What an engine may support, and the fields or stimuli that need it."""

BASIC = ("groups", "draft groups", "drafts", "late keys", "resets", "prompt only")
"""What an engine supports that does not say."""


def config_needs(config: Config) -> set[str]:
    """The features without which no engine can have this config."""
    groups = config.groups
    found = {
        "groups": len(groups) > 1,
        "draft groups": any(g.draft for g in groups),
        "unmarked drafts": any(g.draft and not g.marked for g in groups),
        "windows": any(g.kind == "window" for g in groups),
        "chunked": any(g.kind == "chunked" for g in groups),
        "mamba": any(g.kind == "mamba" for g in groups),
        "drafts": config.draft_tokens > 0,
        "prompt only": config.prompt_only,
        "async": config.async_scheduling,
        "workers": config.workers > 1,
        "context parallel": config.context_parallel > 1,
        "arc": config.policy == "arc",
        "thresholds": config.store_threshold > 1,
        "pieces": config.longest_piece > 0,
    }
    return {name for name, needed in found.items() if needed}


def stimulus_needs(stimulus: AnyStimulus) -> set[str]:
    """The features without which no engine can do this."""
    if isinstance(stimulus, Arrive):
        found = {
            "limits": stimulus.max_offload is not None,
            "load limits": stimulus.max_load is not None,
            "no read": stimulus.no_read,
            "salts": bool(stimulus.salt or stimulus.adapter),
        }
        return {name for name, needed in found.items() if needed}
    if isinstance(stimulus, Keys):
        return {"late keys"}
    if isinstance(stimulus, Reset):
        return {"resets"}
    return {"workers"} if isinstance(stimulus, Step) and stimulus.slow else set()


# --- observations ------------------------------------------------------------


class Observation(msgspec.Struct, frozen=True, tag_field="saw", forbid_unknown_fields=True,
                  omit_defaults=True):
    """Base of all observations."""


class Hello(Observation, frozen=True, tag="hello"):
    """The engine names itself, and the kinds of observation it cannot make (``unseen``).

    Only ``keys``, ``blocks``, ``cursor``, ``retired``, ``stored``, ``bad_bytes`` and ``checked``
    may be unseen; what cannot be judged without them is said to be not judged.

    ``shows``: the kinds it makes beyond those that following it needs, of ``looked_up``,
    ``overwritten``, ``unready`` and ``pins``: what rests on them is judged only if it does.

    ``eager``: its contract says that a storable chunk is offered in the very step in which
    it becomes storable, for every request that has tokens scheduled (vLLM: the docstring of
    ``storable_chunks``, since 0.26).  The oracle holds it to that.

    ``features``: what it supports of a config and of stimuli (`FEATURES`).
    """

    engine: str
    version: str = ""
    unseen: tuple[str, ...] = ()
    eager: bool = False
    shows: tuple[str, ...] = ()
    features: tuple[str, ...] = BASIC


class Arrived(Observation, frozen=True, tag="arrived"):
    """The engine knows request ``r`` of ``prompt`` tokens, of which, and of those it samples, it
    offloads the first ``limit``."""

    r: Name
    prompt: Positive
    limit: Count | None = None


class KeysKnown(Observation, frozen=True, tag="keys"):
    """The planner knows ``n`` keys of ``r`` in group ``g``."""

    r: Name
    g: Count
    n: Count


class BlocksKnown(Observation, frozen=True, tag="blocks"):
    """The planner knows ``n`` blocks of ``r`` in group ``g``."""

    r: Name
    g: Count
    n: Count


class Started(Observation, frozen=True, tag="started"):
    """``r`` is admitted, for the first time or again after preemption.

    Its first ``cached`` tokens need no computing, since the GPU's prefix cache holds them.
    """

    r: Name
    cached: Count = 0


class Loaded(Observation, frozen=True, tag="loaded"):
    """A load was planned, so that the first ``upto`` tokens of ``r`` need no computing."""

    r: Name
    upto: Positive
    job: int


class Computed(Observation, frozen=True, tag="computed"):
    """KV of the first ``n`` tokens of ``r`` is written, this step's kernels included.

    Only tokens that are known count: a draft not yet accepted does not.  ``late``: the step was
    scheduled before (``async_scheduling``), and only now is it known which tokens it computed.
    """

    r: Name
    n: Count
    late: bool = False


class Chunks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One group's part of a store: chunk indices offered, and which were not transferred.

    ``blocks`` is the number of blocks that the job names for the chunks it transfers.
    """

    g: Count
    offered: tuple[Count, ...]
    declined: tuple[Count, ...] = ()
    blocks: Count | None = None


class Planned(Observation, frozen=True, tag="planned"):
    """A store job was planned: the host pool took the offer, whole or in part."""

    r: Name
    groups: tuple[Chunks, ...]
    job: int | None = None


class Refused(Observation, frozen=True, tag="refused"):
    """The host pool refused the offer."""

    r: Name
    groups: tuple[Chunks, ...] = ()


class Cursor(Observation, frozen=True, tag="cursor"):
    """The next chunk of ``r`` in group ``g`` to consider for storing is ``n``."""

    r: Name
    g: Count
    n: Count


class TokensKnown(Observation, frozen=True, tag="tokens"):
    """``r`` has ``n`` tokens, prompt and accepted output together."""

    r: Name
    n: Positive


class Rejected(Observation, frozen=True, tag="rejected"):
    """``n`` draft tokens of ``r`` were rejected: the draft groups' last position is rewritten."""

    r: Name
    n: Positive


class Preempted(Observation, frozen=True, tag="preempted"):
    """``r`` lost its blocks and waits again."""

    r: Name


class Finished(Observation, frozen=True, tag="finished"):
    """``r`` ended, by itself or (``aborted``) because its client went away."""

    r: Name
    aborted: bool = False


class Retired(Observation, frozen=True, tag="retired"):
    """The planner forgot ``r``: nothing of it will be stored any more."""

    r: Name


class Stored(Observation, frozen=True, tag="stored"):
    """Store job ``job`` is complete on every worker."""

    job: int


class WasReset(Observation, frozen=True, tag="reset"):
    """The host pool was emptied."""


class BadBytes(Observation, frozen=True, tag="bad_bytes"):
    """Bytes that are not what they should be were written under a key, or read.

    ``where`` is ``store`` (the host now holds them under the key of ``chunk``),
    ``load`` or ``read`` (attention of ``r`` reads position ``position``).
    """

    where: Literal["store", "load", "read"]
    r: Name
    g: Count
    want: str
    got: str
    chunk: Count | None = None
    position: Count | None = None
    job: int | None = None


class LookedUp(Observation, frozen=True, tag="looked_up"):
    """Lookup was asked how many of ``r``'s tokens beyond ``cached`` can be loaded.

    ``answer`` is what it promised; ``None``: ask again later.  ``tokens``: those the request has.
    ``pool``: for each group, what the host pool then held of the request's chunks, a letter for
    each key known: ``R`` ready, ``P`` pending (its store is under way), ``.`` nothing.
    ``limit``: the request wants no more (``max_load``; 0 with ``no_read``).
    """

    r: Name
    tokens: Positive
    pool: tuple[str, ...]
    cached: Count = 0
    answer: Count | None = None
    limit: Count | None = None


class Overwritten(Observation, frozen=True, tag="overwritten"):
    """``by`` wrote a GPU block, or a host slot, that a transfer of ``r`` had still to read, or
    wrote it before an older write of ``r`` that was still to come."""

    what: Literal["block", "slot"]
    r: Name
    by: str


class Unready(Observation, frozen=True, tag="unready"):
    """A load of ``r`` ran, and read a host slot that a store has still to fill."""

    r: Name


class Pins(Observation, frozen=True, tag="pins"):
    """Between two steps, pins in the host pool are not those of the transfers under way.

    ``pinned``: chunks pinned by more or fewer loads than there are; ``pending``: chunks that wait
    for a store where there is none, or do not where there is one.
    """

    pinned: Count = 0
    pending: Count = 0


class Checked(Observation, frozen=True, tag="checked"):
    """How many positions' content was compared so far (never zero in a run that stored), and
    which points of its code the engine went through, if it was asked to count them."""

    stored: Count
    read: Count
    covered: tuple[Count, ...] = ()


class NotAtRest(Observation, frozen=True, tag="not_at_rest"):
    """A drain ended with work left: what is held, in words; ``waiting``: requests not finished."""

    held: str
    waiting: tuple[Name, ...] = ()


class Died(Observation, frozen=True, tag="died"):
    """The engine failed an assertion, raised, hung or vanished."""

    error: str
    message: str = ""
    at: str = ""
    stderr: str = ""


AnyObservation = Union[
    Hello, Arrived, KeysKnown, BlocksKnown, Started, Loaded, Computed, Planned, Refused, Cursor,
    TokensKnown, Rejected, Preempted, Finished, Retired, Stored, WasReset, BadBytes, Checked,
    LookedUp, Overwritten, Unready, Pins, NotAtRest, Died,
]

_encoder = msgspec.json.Encoder()
stimulus_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyStimulus)
observation_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyObservation)


def encode(value: msgspec.Struct) -> str:
    """One event or config as one line of JSON, without the line's end."""
    return _encoder.encode(value).decode()
