"""How does a serving engine behave around an offload planner, with no model and no GPU?

A small deterministic scheduler in the manner of vLLM's: a token budget per
step, chunked prefill, paged GPU blocks shared by all groups, the newest request
preempted when blocks run out, first come first served, optional draft tokens.
Of the planner attached to it it knows the calls a connector gets
(:class:`~kvoracle.oracle.engines.planner.Planner`), of the memory that tags can be
written, read and copied (:class:`~kvoracle.oracle.engines.memory.Memory`), so the
same stimuli drive ``impl`` on torch tensors and the formal machine on plain lists.
What is stored, loaded and read is compared as :mod:`kvoracle.oracle.engines.content`
says; a copy moves content at the moment it runs, as late as it may.

One step: admit and allocate, tell the planner, let it plan, then run the jobs
it fenced, the loads, the kernels, the transfers that complete in this step, and
sample.  A store planned in a step is in flight from then on and completes in a
later one, or earlier if fenced.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from zlib import crc32

from kvoracle.oracle.engines.content import Content, Text, key
from kvoracle.oracle.engines.memory import ListMemory, Memory
from kvoracle.oracle.engines.planner import Job, Planner
from kvoracle.oracle.engines.protocol import BadStimulus
from kvoracle.oracle.events import (
    BASIC,
    Abort,
    AnyObservation,
    AnyStimulus,
    Arrive,
    Arrived,
    BlocksKnown,
    Checked,
    Computed,
    Config,
    Cursor,
    Died,
    Drain,
    Finished,
    Hello,
    Keys,
    KeysKnown,
    Loaded,
    NotAtRest,
    Planned,
    Preempted,
    Refuse,
    Refused,
    Rejected,
    Reset,
    Retired,
    Started,
    Step,
    Stored,
    TokensKnown,
    WasReset,
    config_needs,
    stimulus_needs,
)


@dataclass
class _Request:
    text: Text
    prompt: int
    output: int
    groups: int
    computed: int = 0
    scheduled: int = 0  # tokens with work in this step, drafts included
    drafts: int = 0
    key_limit: int | None = None
    ended: bool = False
    blocks: list[list[int]] = field(default_factory=list)
    addresses: list[list[int]] = field(default_factory=list)  # of each position, per group
    keys: list[int] = field(default_factory=list)  # how many the planner was told
    reported: list[list[int]] = field(default_factory=list)  # keys, blocks, cursor

    def __post_init__(self) -> None:
        self.drop_blocks()
        self.keys = [0] * self.groups
        self.reported = [[0, 0, 0] for _ in range(self.groups)]

    def drop_blocks(self) -> None:
        self.blocks = [[] for _ in range(self.groups)]
        self.addresses = [[] for _ in range(self.groups)]
        self.computed = self.scheduled = self.drafts = 0

    @property
    def name(self) -> str:
        return self.text.name

    @property
    def tokens(self) -> list[int]:
        return self.text.tokens

    @property
    def after(self) -> int:
        """Tokens whose KV is written after this step: a draft not accepted does not count."""
        return min(self.computed + self.scheduled, len(self.tokens))


@dataclass
class _Flight:
    """A store in flight: whose chunks, and whether a reset made its report void."""

    job: Job
    r: _Request
    stale: bool = False


def stream_token(stream: int, i: int) -> int:
    """Token ``i`` of a numbered stream (``docs/protocol.md``)."""
    return 3 + (stream * 7919 + i * 104729) % 491


def sampled_token(r: str, i: int) -> int:
    """The token that request ``r`` samples at position ``i`` (``docs/protocol.md``)."""
    return 3 + (crc32(r.encode()) * 31 + i * 7) % 491


class Simulator:
    """One run: a scheduler, a planner and a memory.  Observations collect in ``seen``."""

    def __init__(self, config: Config, planner: Planner, memory: Memory) -> None:
        if config.gpu_prefix_caching:
            raise BadStimulus("this engine has no GPU prefix cache: set gpu_prefix_caching=false")
        self.config = config
        self.planner = planner
        self._memory = memory
        self._content = Content(config, memory)
        self.seen: list[AnyObservation] = []
        self._groups = range(len(config.groups))
        self._requests: dict[str, _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._ended: dict[str, _Request] = {}  # not retired yet
        # Freed blocks are reused last freed first, the order that meets a missing fence soonest.
        self._free = list(range(config.gpu_blocks, 0, -1))
        self._flights: dict[int, _Flight] = {}
        self._loads: list[tuple[_Request, Job, int]] = []

    # --- stimuli -----------------------------------------------------------------

    def handle(self, stimulus: AnyStimulus) -> None:
        """Do one thing.  Names that are unknown or gone by now are ignored: a shorter run
        of the same events must still make sense."""
        if isinstance(stimulus, Arrive):
            self._arrive(stimulus)
        elif isinstance(stimulus, Keys):
            request = self._requests.get(stimulus.r)
            if request is not None:
                request.key_limit = stimulus.upto
        elif isinstance(stimulus, Step):
            for i in range(stimulus.n):
                stop = stimulus.stop if i == stimulus.n - 1 else ()
                self._step(stimulus.done, stimulus.newest, stimulus.accept, stop)
        elif isinstance(stimulus, Abort):
            request = self._requests.get(stimulus.r)
            if request is not None and not request.ended:
                self._end(request, aborted=True)
        elif isinstance(stimulus, Refuse):
            self.planner.refuse(stimulus.n)
        elif isinstance(stimulus, Reset):
            self._reset()
        else:
            self._drain(stimulus)

    def _arrive(self, stimulus: Arrive) -> None:
        if stimulus.r in self._requests:
            raise BadStimulus(f"request {stimulus.r!r} arrived before")
        tokens: list[int] = []
        for source, length in stimulus.prompt:
            if isinstance(source, int):
                tokens += [stream_token(source, i) for i in range(length)]
            else:
                other = self._requests.get(source)
                # Beyond what it has sampled so far, what it would go on to sample.
                known = other.tokens if other is not None else []
                tokens += known[:length]
                if other is not None:
                    tokens += [sampled_token(source, i) for i in range(len(known), length)]
        if not tokens:
            raise BadStimulus(f"the prompt of request {stimulus.r!r} is empty")
        longest = len(tokens) + stimulus.output + self.config.draft_tokens
        need = sum(-(-longest // group.tokens_per_block) for group in self.config.groups)
        if need > self.config.gpu_blocks:
            raise BadStimulus(
                f"request {stimulus.r!r} may need {need} blocks, "
                f"the GPU has {self.config.gpu_blocks}"
            )
        text = Text(stimulus.r)
        self._content.extend(text, tokens)
        request = _Request(text, len(tokens), stimulus.output, len(self.config.groups))
        self._requests[stimulus.r] = request
        self._waiting.append(request)
        self.planner.arrive(stimulus.r, len(tokens))
        self.seen.append(Arrived(stimulus.r, len(tokens)))

    def _reset(self) -> None:
        for flight in self._flights.values():
            flight.stale = True
        self.planner.reset()
        self.seen.append(WasReset())
        for request in self._requests.values():
            if not request.ended or request.name in self._ended:
                self._report_cursor(request)
        self._retire()

    def _drain(self, stimulus: Drain) -> None:
        for request in self._requests.values():
            request.key_limit = None
        for _ in range(stimulus.limit):
            if not self._held():
                break
            self._step(None, False, 0, ())
        self.seen.append(Checked(self._content.stored, self._content.read))
        held = self._held()
        if not held:
            lost = self.config.gpu_blocks - len(self._free)
            held = f"{lost} GPU blocks without an owner" if lost else self.planner.held()
        if held:
            self.seen.append(NotAtRest(held))

    def _held(self) -> str:
        held = [f"{r.name}: waiting" for r in self._waiting]
        held += [f"{r.name}: running" for r in self._running]
        held += [f"{name}: ended, tracked" for name in self._ended]
        held += [f"job {job}: in flight" for job in self._flights]
        return "; ".join(held)

    # --- one step ------------------------------------------------------------------

    def _step(self, done: int | None, newest: bool, accept: int, stop: Sequence[str]) -> None:
        before = list(self._flights)
        scheduled = self._schedule()
        self._tell_keys()
        for request in [*self._waiting, *self._running, *self._ended.values()]:
            self._report_known(request)
        for request in scheduled:
            self.seen.append(Computed(request.name, request.after))
        for request in scheduled:
            self._plan(request, request.after)
        for request in list(self._ended.values()):
            self._plan(request, request.computed)
        fences = self.planner.fence()
        self._retire()

        complete = [job for job in fences if job in self._flights]
        for job in complete:
            self._memory.store(self._flights[job].job)
        for request, load, upto in self._loads:
            self._memory.load(load)
            for g in self._groups:
                bad = self._content.check_load(
                    request.text, g, request.addresses[g], upto, load.id
                )
                self.seen += [bad] if bad else []
            self.planner.done(load.id)
        self._loads.clear()
        for request in scheduled:
            for g in self._groups:
                bad = self._content.check_read(
                    request.text, g, request.addresses[g], request.computed
                )
                self.seen += [bad] if bad else []
        for request in scheduled:
            self._kernel(request, min(accept, request.drafts))
        left = [job for job in before if job not in complete]
        count = len(left) if done is None else done
        for job in (left[::-1] if newest else left)[:count]:
            self._memory.store(self._flights[job].job)
            complete.append(job)
        self._complete(complete)
        for request in scheduled:
            self._sample(request, min(accept, request.drafts), request.name in stop)

    def _schedule(self) -> list[_Request]:
        budget = self.config.tokens_per_step
        scheduled: list[_Request] = []
        preempted = False
        for request in list(self._running):
            # One preempted further up has left the list; the budget goes to the oldest first.
            if request not in self._running or budget == 0:
                continue
            known = len(request.tokens) - request.computed
            decodes = known == 1 and len(request.tokens) > request.prompt
            drafts = self.config.draft_tokens if decodes else 0
            count = min(known + drafts, budget)
            fits = True
            while not self._allocate(request, request.computed + count):
                victim = self._running[-1]
                self._preempt(victim)
                preempted = True
                if victim is request:
                    fits = False
                    break
            if not fits:
                break
            request.scheduled, request.drafts = count, max(0, count - known)
            budget -= count
            scheduled.append(request)
        while (
            self._waiting
            and not preempted
            and budget > 0
            and len(self._running) < self.config.max_running
        ):
            request = self._waiting[0]
            self._tell_keys_of(request)
            hit = self.planner.lookup(request.name)
            count = min(len(request.tokens) - hit, budget)
            if not self._allocate(request, hit + count):
                break
            self._waiting.popleft()
            self._running.append(request)
            self.seen.append(Started(request.name))
            request.computed, request.scheduled, request.drafts = hit, count, 0
            if hit:
                job = self.planner.load(request.name, hit)
                self._loads.append((request, job, hit))
                self.seen.append(Loaded(request.name, hit, job.id))
            budget -= count
            scheduled.append(request)
        return scheduled

    def _allocate(self, request: _Request, tokens: int) -> bool:
        """Give the request blocks for ``tokens`` positions in every group, or nothing."""
        missing = [
            -(-tokens // self.config.groups[g].tokens_per_block) - len(request.blocks[g])
            for g in self._groups
        ]
        if sum(max(0, n) for n in missing) > len(self._free):
            return False
        for g in self._groups:
            new = [self._free.pop() for _ in range(missing[g])]
            if new:
                size = self.config.groups[g].tokens_per_block
                request.blocks[g] += new
                for block in new:
                    request.addresses[g] += range(block * size, (block + 1) * size)
                self.planner.blocks(request.name, g, new)
        return True

    def _free_blocks(self, request: _Request) -> None:
        for blocks in request.blocks:
            self._free += reversed(blocks)
        request.drop_blocks()

    def _preempt(self, request: _Request) -> None:
        self._running.remove(request)
        self._waiting.appendleft(request)
        self._free_blocks(request)
        # A request that waits has all its keys (contract of the vocabulary's Keys).
        request.key_limit = None
        for reported in request.reported:
            reported[1] = 0
        self.planner.preempt(request.name)
        self.seen.append(Preempted(request.name))

    def _tell_keys(self) -> None:
        for request in [*self._waiting, *self._running, *self._ended.values()]:
            self._tell_keys_of(request)

    def _tell_keys_of(self, request: _Request) -> None:
        tokens = len(request.tokens)
        # The limit binds decoded tokens only (the same contract).
        if request.key_limit is not None:
            tokens = min(tokens, max(request.key_limit, request.prompt))
        for g in self._groups:
            size = self.config.tokens_per_chunk(g)
            old, new = request.keys[g], tokens // size
            if new > old:
                ends = range((old + 1) * size - 1, new * size, size)
                tags = request.text.tags
                self.planner.keys(request.name, g, [key(g, tags[i]) for i in ends])
                request.keys[g] = new

    def _report_known(self, request: _Request) -> None:
        for g in self._groups:
            known, reported = self.planner.known(request.name, g), request.reported[g]
            if known.keys != reported[0]:
                reported[0] = known.keys
                self.seen.append(KeysKnown(request.name, g, known.keys))
            if known.blocks != reported[1]:
                reported[1] = known.blocks
                self.seen.append(BlocksKnown(request.name, g, known.blocks))

    def _report_cursor(self, request: _Request) -> None:
        for g in self._groups:
            cursor, reported = self.planner.known(request.name, g).cursor, request.reported[g]
            if cursor != reported[2]:
                reported[2] = cursor
                self.seen.append(Cursor(request.name, g, cursor))

    def _plan(self, request: _Request, computed: int) -> None:
        offer = self.planner.plan(request.name, computed)
        if offer is not None:
            if offer.taken:
                job = offer.job
                self.seen.append(Planned(request.name, offer.taken, job.id if job else None))
                if job is not None:
                    self._flights[job.id] = _Flight(job, request)
            if offer.refused:
                self.seen.append(Refused(request.name, offer.refused))
        self._report_cursor(request)

    def _retire(self) -> None:
        for name in self.planner.retire():
            del self._ended[name]
            self.seen.append(Retired(name))

    def _complete(self, jobs: Sequence[int]) -> None:
        """These transfers have run: judge what they stored, then report them."""
        flights = [self._flights.pop(job) for job in jobs]
        for flight in flights:
            if not flight.stale:
                self.seen += self._content.check_store(flight.r.text, flight.job)
        for flight in flights:
            self.planner.done(flight.job.id)
            if not flight.stale:
                self.seen.append(Stored(flight.job.id))

    def _kernel(self, request: _Request, accepted: int) -> None:
        known = len(request.tokens)
        # Drafts are accepted when they are what sampling would give.
        drafts = [sampled_token(request.name, known + i) for i in range(accepted)]
        start, end = request.computed, request.computed + request.scheduled
        for g in self._groups:
            self._content.write(request.text, g, request.addresses[g], start, end, drafts)

    def _sample(self, request: _Request, accepted: int, stop: bool) -> None:
        complete = request.computed + request.scheduled >= len(request.tokens)
        request.computed = request.after
        drafts, request.scheduled, request.drafts = request.drafts, 0, 0
        if not complete:
            return
        left = request.prompt + request.output - len(request.tokens)
        kept = min(accepted, left - 1)
        at = len(request.tokens)
        new = [sampled_token(request.name, at + i) for i in range(kept + 1)]
        self._content.extend(request.text, new)
        request.computed += kept
        self.planner.tokens(request.name, len(request.tokens))
        self.seen.append(TokensKnown(request.name, len(request.tokens)))
        if drafts > kept:
            self.seen.append(Rejected(request.name, drafts - kept))
        if stop or kept + 1 == left:
            self._end(request, aborted=False)

    def _end(self, request: _Request, aborted: bool) -> None:
        request.ended = True
        computed = request.computed
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._ended[request.name] = request
        self.planner.finish(request.name, computed, aborted)
        self.seen.append(Finished(request.name, aborted))
        self._free_blocks(request)
        request.computed = computed

class SimulatedEngine:
    """An :class:`~kvoracle.oracle.engines.protocol.Engine`: the simulator around some planner."""

    def __init__(
        self,
        name: str,
        planner: Callable[[Config], Planner],
        memory: Callable[[Config], Memory] = ListMemory,
        version: str = "",
        unseen: tuple[str, ...] = (),
        eager: bool = True,
    ) -> None:
        self._hello = Hello(name, version, unseen, eager)
        self._planner, self._memory = planner, memory
        self._run: Simulator | None = None

    def start(self, config: Config) -> list[AnyObservation]:
        """Build a fresh run.  Raises :class:`BadStimulus` for what no such engine can do."""
        self._run = None
        _supported(config_needs(config))
        try:
            self._run = Simulator(config, self._planner(config), self._memory(config))
        except BadStimulus:
            raise
        except Exception as error:  # whatever the engine raises is a finding
            return [self._hello, _died(error)]
        return [self._hello]

    def send(self, stimulus: AnyStimulus) -> list[AnyObservation]:
        """Do one thing to the engine; its failure is the last observation.

        Raises :class:`BadStimulus` for a stimulus that makes no sense.
        """
        run = self._run
        if run is None:
            raise BadStimulus("the engine is not running: start it first")
        _supported(stimulus_needs(stimulus))
        try:
            run.handle(stimulus)
        except BadStimulus:
            run.seen = []
            raise
        except Exception as error:  # whatever the engine raises is a finding
            run.seen.append(_died(error))
            self._run = None
        seen, run.seen = run.seen, []
        return seen

    def send_all(self, stimuli: Iterable[AnyStimulus]) -> list[list[AnyObservation]]:
        """Do several things; ends early where the engine died."""
        answers = []
        for stimulus in stimuli:
            answers.append(self.send(stimulus))
            if self._run is None:
                break
        return answers

    def close(self) -> None:
        """Forget the run."""
        self._run = None


def _supported(needed: set[str]) -> None:
    lacking = sorted(needed.difference(BASIC))
    if lacking:
        raise BadStimulus(f"the simulator has no such thing as {', '.join(lacking)}")


def _died(error: Exception) -> Died:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
    return Died(type(error).__name__, str(error), at)
