"""What is the smallest run that still fails in the same way?

*The same way* is `failure_key`: the kind of finding and the property, for a crash also
what the engine died of and where, for a departure the step that was not permitted.

*Smaller* is shortlex, and `Size` is its definition: first the number of stimuli, since each
is a line that somebody has to read; then what the stimuli and the config cost, where a
field at its default costs nothing, being left out of the line; then the text itself, so
that of two equal runs one is always chosen.  A step counts four times as much as a token:
a longer prompt is understood at a glance, a further step has to be thought through.

The passes only propose; `_Shrinker.consider` plays what is proposed and keeps it if it
fails in the same way and is smaller.  So a pass may be as wild as it likes, and nothing
here knows what any engine or property is about.  Large cuts come first, and what is
tried at first is short (the failing request alone, then ever longer ends of the run), as an
attempt costs what the engine takes to play it.  Deletion is adaptive (`find_integer`):
the number of attempts goes with what has to stay, and not with what can go.  Then
the small changes are repeated until none of them helps.

Everything is deterministic, and the budget is counted in attempts: the same failure comes
down to the same run on any machine.

References: David MacIver and Alastair Donaldson, "Test-Case Reduction via Test-Case
Generation: Insights from the Hypothesis Reducer", ECOOP 2020 (shortlex, adaptive passes);
Andreas Zeller and Ralf Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
TSE 2002 (deleting blocks of halving size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec.structs
from msgspec.structs import replace

from . import events as e
from .engines.protocol import BadStimulus, Engine
from .judge import Finding
from .session import Outcome, play

BUDGET = 600
"""Attempts.  Failures of the broken designs need 60 to 200; an attempt costs an engine in
another process about 0.2 s, so that even one that never gets simple ends in two minutes."""

PAIRS_BELOW = 10
"""Stimuli of a run that is short enough to try deleting every two of them (36 attempts)."""

TOKENS_PER_BLOCK = 4
"""The simplest block: few enough tokens to count, enough for a block to be partly filled."""

SMALL = 60
"""The cost of a run of one group and a few lines: no need to look for something quite else."""

MOST_STEPS = 24
"""Steps that are still simpler than a drain, which goes on until nothing is left to do."""

Stimuli = tuple[e.AnyStimulus, ...]
Progress = Callable[[int, int], None]
"""Called after each attempt with the attempts so far and the stimuli of the best run."""


# --- the same failure ----------------------------------------------------------------


class FailureKey(NamedTuple):
    """What makes two findings the same failure.

    ``what``: for a crash the error, for a departure the step that the machine does not permit.
    ``where``: for a crash the place that the engine names.  ``like``: for a crash the broken
    design that would have failed there, since one assertion may guard against several mistakes.
    """

    kind: str
    property: str
    acceptance: bool
    what: str = ""
    where: str = ""
    like: str = ""


def failure_key(finding: Finding) -> FailureKey:
    """The key under which findings are told apart when shrinking and when counting them."""
    died = finding.died
    return FailureKey(
        finding.kind, finding.property, finding.acceptance,
        died.error if died else finding.rule, died.at if died else "", finding.like)


class NotRepeatable(Exception):
    """The run did not fail in the same way when it was played again.

    ``expected`` is how it failed, ``got`` how it ended now (``None``: without a finding).
    """

    def __init__(self, expected: FailureKey, got: FailureKey | None, detail: str = "") -> None:
        ended = f"in another way ({_shown(got)})" if got else "not at all"
        super().__init__(
            f"the failure ({_shown(expected)}) does not repeat: the same stimuli, played again, "
            f"fail {detail or ended}; nothing was shrunk. An engine that depends on more than its "
            f"stimuli (time, hash seeds, threads, what an earlier run left behind) cannot be "
            f"judged by replaying")
        self.expected, self.got = expected, got


def _shown(key: FailureKey) -> str:
    words = (key.kind, key.property, key.what, key.where and f"at {key.where}")
    return " ".join(w for w in words if w)


# --- the order -------------------------------------------------------------------------


class Size(NamedTuple):
    """How large a run is: the smaller tuple is the simpler run."""

    stimuli: int
    cost: int
    length: int
    text: str


def size(config: e.Config, stimuli: Sequence[e.AnyStimulus]) -> Size:
    """The size of a run."""
    text = "\n".join(map(_text, stimuli)) + _text(config)
    return Size(len(stimuli), _cost(config, stimuli), len(text), text)


def _cost(config: e.Config, stimuli: Sequence[e.AnyStimulus]) -> int:
    return config_cost(config) + sum(map(stimulus_cost, stimuli)) + sum(
        name != _name(i) for i, name in enumerate(_arrivals(stimuli)))


_text = lru_cache(maxsize=1 << 14)(e.encode)


@lru_cache(maxsize=1 << 14)
def stimulus_cost(stimulus: e.AnyStimulus) -> int:
    """What it takes to read a stimulus, in tokens of a prompt."""
    if isinstance(stimulus, e.Arrive):
        segments = sum(
            length + (source if isinstance(source, int) else 20)
            for source, length in stimulus.prompt)
        terms = sum(bool(getattr(stimulus, name) != _default(e.Arrive, name)) for name in _TERMS)
        return (segments + 10 * (len(stimulus.prompt) - 1) + 8 * terms
                + _unless_default(stimulus, "output", 1))
    if isinstance(stimulus, e.Keys):
        return 0 if stimulus.upto is None else 1 + stimulus.upto
    if isinstance(stimulus, e.Step):
        return (4 * stimulus.n + _unless_default(stimulus, "done", 2) + 2 * stimulus.newest
                + 2 * stimulus.accept + 3 * len(stimulus.stop) + 3 * len(stimulus.slow))
    if isinstance(stimulus, e.Refuse):
        return stimulus.n
    if isinstance(stimulus, e.Drain):
        return 4 * (MOST_STEPS + 1) + _unless_default(stimulus, "limit", 1)
    return 0


_OUTPUT = e.Arrive("a", ((0, 1),)).output
_PLAIN: dict[str, Any] = {"done": None, "newest": False, "accept": 0, "stop": (), "slow": ()}
_TERMS = ("salt", "adapter", "max_offload", "max_load", "no_read")
_SETTINGS = ("prompt_only", "gpu_prefix_caching", "async_scheduling", "workers",
             "context_parallel", "policy", "store_threshold", "longest_piece")
_POOLS = ("gpu_blocks", "host_chunks", "tokens_per_step", "max_running")


@lru_cache(maxsize=1 << 10)
def config_cost(config: e.Config) -> int:
    """What it takes to read a config, in tokens of a prompt."""
    groups = sum(
        30 + 5 * group.draft + _unless(group.tokens_per_block, TOKENS_PER_BLOCK, 10)
        + (0 if group.kind == "full" else 10 + group.reach) + 3 * (not group.marked)
        for group in config.groups)
    pools: list[int] = [getattr(config, name) for name in _POOLS
                        if getattr(config, name) != _default(e.Config, name)]
    settings = sum(bool(getattr(config, name) != _default(e.Config, name)) for name in _SETTINGS)
    return (groups + 10 * (config.blocks_per_chunk - 1) + 5 * config.draft_tokens
            + 5 * settings + config.workers - 1 + config.longest_piece
            + sum(5 + pool.bit_length() for pool in pools))


def _unless(value: int, simplest: int, extra: int) -> int:
    return 0 if value == simplest else extra + value


def _unless_default(struct: e.AnyStimulus, name: str, extra: int) -> int:
    value: int = getattr(struct, name)
    return 0 if value == _default(type(struct), name) else extra + value


@cache
def _default(kind: type[msgspec.Struct], name: str) -> Any:
    return next(f.default for f in msgspec.structs.fields(kind) if f.name == name)


# --- runs that make sense -----------------------------------------------------------------


def _arrivals(stimuli: Iterable[e.AnyStimulus]) -> list[str]:
    return [s.r for s in stimuli if isinstance(s, e.Arrive)]


def _name(i: int) -> str:
    """The simplest name of the ``i``-th request."""
    return "abcdefghijklmnopqrstuvwxyz"[i] if i < 26 else f"r{i}"


def _tidy(stimuli: Iterable[e.AnyStimulus], gone: dict[str, e.Arrive]) -> Stimuli:
    """The stimuli without what speaks of requests that do not arrive.  ``gone`` knows the
    arrivals left out: what a later prompt repeats of one is written out."""
    known: set[str] = set()
    kept: list[e.AnyStimulus] = []
    for s in stimuli:
        if isinstance(s, e.Arrive):
            if any(isinstance(source, str) and source not in known for source, _ in s.prompt):
                s = replace(s, prompt=tuple(_written_out(s.prompt, known, gone)))
            known.add(s.r)
        elif isinstance(s, (e.Keys, e.Abort)):
            if s.r not in known:
                continue
        elif isinstance(s, e.Step) and s.stop and not known.issuperset(s.stop):
            s = replace(s, stop=tuple(r for r in s.stop if r in known))
        kept.append(s)
    return tuple(kept)


def _written_out(prompt: Iterable[e.Segment], known: set[str], gone: dict[str, e.Arrive]
                 ) -> Iterator[e.Segment]:
    for source, length in prompt:
        if isinstance(source, int) or source in known:
            yield source, length
            continue
        left = length
        other = gone[source].prompt if source in gone else ()
        for inner, n in _written_out(other, known, gone):
            if left:
                yield inner, min(n, left)
                left -= min(n, left)
        if left:  # it repeats output
            yield 0, left


def _merged(stimuli: Iterable[e.AnyStimulus]) -> Stimuli:
    """Neighbouring steps of one kind as one stimulus: not a change, only fewer lines."""
    merged: list[e.AnyStimulus] = []
    for s in stimuli:
        last = merged[-1] if merged else None
        if isinstance(s, e.Step) and isinstance(last, e.Step) and not last.stop \
                and replace(s, n=1, stop=()) == replace(last, n=1):
            merged[-1] = replace(s, n=s.n + last.n)
        else:
            merged.append(s)
    return tuple(merged)


def find_integer(holds: Callable[[int], bool]) -> int:
    """Some ``n`` with ``holds(n)`` and not ``holds(n + 1)``, where ``holds(0)`` is given: in
    twice the logarithm of ``n`` calls, and few where ``n`` is small."""
    for i in range(1, 4):
        if not holds(i):
            return i - 1
    low, high = 3, 6
    while holds(high):
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# --- shrinking --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shrunk:
    """The smallest run found.  ``exhausted``: attempts ran out before nothing helped any more."""

    outcome: Outcome
    attempts_used: int
    exhausted: bool


def shrink(engine: Engine, outcome: Outcome, *, attempts: int = BUDGET,
           progress: Progress | None = None) -> Shrunk:
    """Shrink a failed run on the engine that failed.

    Raises `NotRepeatable` if the run does not fail in the same way when played again, and
    `ValueError` if it did not fail in the first place.
    """
    shrinker = _Shrinker(engine, outcome, attempts, progress)
    shrinker.repeat()
    exhausted = False
    try:
        shrinker.cut()
        shrinker.polish()
    except _Spent:
        exhausted = True
    return Shrunk(shrinker.best, shrinker.attempts, exhausted)


class _Spent(Exception):
    """No attempts are left."""


class _Shrinker:
    """The best run so far, and the passes that look for a better one."""

    def __init__(self, engine: Engine, outcome: Outcome, budget: int,
                 progress: Progress | None) -> None:
        if outcome.finding is None:
            raise ValueError("this run did not fail: there is nothing to shrink")
        self.engine, self.best = engine, outcome
        self.budget, self.progress = budget, progress
        self.key = failure_key(outcome.finding)
        self.attempts = 0
        self._merges = True
        self._tried: set[tuple[e.Config, Stimuli]] = set()
        self._arrived = {s.r: s for s in outcome.stimuli if isinstance(s, e.Arrive)}

    @property
    def config(self) -> e.Config:
        return self.best.config

    @property
    def stimuli(self) -> Stimuli:
        return self.best.stimuli

    # --- attempts ---------------------------------------------------------------------

    def repeat(self) -> None:
        """Play the run again as it was."""
        try:
            again = play(self.engine, self.config, self.stimuli)
        except BadStimulus as error:
            raise NotRepeatable(self.key, None, f"because of its stimuli ({error})") from error
        got = failure_key(again.finding) if again.finding else None
        if got != self.key:
            raise NotRepeatable(self.key, got)
        self.best = again

    def consider(self, stimuli: Iterable[e.AnyStimulus], config: e.Config | None = None) -> bool:
        """Whether the run proposed is simpler and fails in the same way; if so it is the best."""
        config = config or self.config
        proposed = _tidy(stimuli, self._arrived)
        if self._merges:
            proposed = _merged(proposed)
        if (config, proposed) in self._tried or not self._is_simpler(config, proposed):
            return False
        if self.attempts >= self.budget:
            raise _Spent
        self._tried.add((config, proposed))
        self.attempts += 1
        try:
            outcome = play(self.engine, config, proposed)
        except BadStimulus:
            outcome = None
        same = outcome is not None and outcome.finding is not None \
            and failure_key(outcome.finding) == self.key
        if same and outcome is not None:
            self.best = outcome  # it ends with the stimulus that failed
        if self.progress is not None:
            self.progress(self.attempts, len(self.stimuli))
        return same

    def _is_simpler(self, config: e.Config, stimuli: Stimuli) -> bool:
        if len(stimuli) != len(self.stimuli):
            return len(stimuli) < len(self.stimuli)
        costs = _cost(config, stimuli), _cost(self.config, self.stimuli)
        if costs[0] != costs[1]:
            return costs[0] < costs[1]
        return size(config, stimuli) < size(self.config, self.stimuli)

    def put(self, at: int, *new: e.AnyStimulus) -> bool:
        """Consider ``new`` in the place of one stimulus."""
        return self.consider((*self.stimuli[:at], *new, *self.stimuli[at + 1:]))

    def lower(self, value: int, least: int, propose: Callable[[int], bool]) -> None:
        """Make ``value`` as small as can be, where smaller is simpler: the least first."""
        if value <= least or propose(least):
            return
        low, high = least, value
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if propose(middle) else (middle, high)

    def lower_field(self, at: int, name: str, least: int) -> None:
        """Make a number of one stimulus as small as can be, if it has such a number."""
        s = self.at(at)
        value = getattr(s, name, None)
        if s is None or value is None:
            return
        stimulus = s

        def lowered(n: int) -> bool:
            return self.put(at, replace(stimulus, **{name: n}))

        self.lower(value, least, lowered)

    def lower_size(self, name: str) -> None:
        """Make a number of the config as small as can be."""
        self.lower(getattr(self.config, name), 1,
                   lambda n: self._configured(replace(self.config, **{name: n})))

    # --- large cuts ----------------------------------------------------------------------

    def cut(self) -> None:
        """Get rid of nearly everything in a few attempts."""
        # The whole run comes last: playing it once may take as long as all that follows.
        if not self._take_an_end() and not self.consider(self.stimuli) \
                and _merged(self.stimuli) != self.stimuli:
            # It matters in how many stimuli steps are given: they are left as they are.
            self._merges = False
            self._take_an_end()
        self._with_steps(_PLAIN)
        self._delete_blocks(8)
        self._delete_requests()
        self._delete_blocks(len(self.stimuli))
        self._delete_stimuli()

    def _take_an_end(self) -> bool:
        """The failing request alone; else an end of the run, each twice as long as the last."""
        stimuli = self.stimuli
        finding = self.best.finding
        r = finding.r if finding is not None else ""
        start = max((i for i, s in enumerate(stimuli)
                     if isinstance(s, e.Arrive) and s.r == r), default=None)
        if start is None:
            start = len(stimuli) - 1
        elif self.consider(_without(stimuli[start:], {x for x in self._arrived if x != r})):
            return True
        length = max(1, len(stimuli) - start)
        while length < len(stimuli):
            if self.consider(stimuli[-length:]):
                return True
            length *= 2
        return False

    def _delete_requests(self) -> None:
        """Requests with everything that names them, from the first to arrive."""
        kept = 0
        while True:
            stimuli = self.stimuli
            names = _arrivals(stimuli)[kept:]
            if not names:
                return

            def without(n: int) -> bool:
                gone = set(names[:n])  # noqa: B023 (called in this turn of the loop only)
                return n <= len(names) and self.consider(_without(stimuli, gone))  # noqa: B023

            if not find_integer(without):
                kept += 1

    def _delete_blocks(self, most: int) -> None:
        """Halves, quarters and so on, until the run is in so many parts."""
        parts = 2
        while parts <= min(most, len(self.stimuli) // 2):
            at = 0
            width = -(-len(self.stimuli) // parts)
            while at < len(self.stimuli):
                if not self.consider((*self.stimuli[:at], *self.stimuli[at + width:])):
                    at += width
            parts *= 2

    def _delete_stimuli(self) -> None:
        """Single stimuli and what lies before them, from the last to the first."""
        end = len(self.stimuli)
        while end > 0:
            stimuli = self.stimuli

            def without(n: int) -> bool:
                return n <= end and self.consider(  # noqa: B023
                    (*stimuli[:end - n], *stimuli[end:]))  # noqa: B023

            end = min(end - max(1, find_integer(without)), len(self.stimuli))

    # --- small changes -------------------------------------------------------------------

    def polish(self) -> None:
        """Small changes, until none of them helps."""
        passes: tuple[Callable[[], None], ...] = (
            self._plain_steps, self._simple_config, self._early, self._join_steps, self._no_drain,
            self._fewer_steps, self._plain_terms, self._plain_prompts, self._short_prompts,
            self._small_gpu, self._less_output, self._no_drafts_or_stops,
            self._longer_prompt_for_fewer_steps, self._smaller_fields, self._rename,
            self._delete_requests, self._delete_stimuli, self._delete_pairs, self._in_order,
        )
        before = None
        while before != (self.config, self.stimuli):
            before = (self.config, self.stimuli)
            for change in passes:
                change()

    def at(self, i: int) -> e.AnyStimulus | None:
        """The stimulus at a place, if the run still has one there."""
        return self.stimuli[i] if i < len(self.stimuli) else None

    def each(self, kind: type[e.Stimulus]) -> Iterator[int]:
        """The places of the stimuli of a kind, while the run changes."""
        at = 0
        while at < len(self.stimuli):
            if isinstance(self.stimuli[at], kind):
                yield at
            at += 1

    def _with_steps(self, options: Mapping[str, Any]) -> bool:
        """Give all steps these options."""
        return self.consider(
            replace(s, **options) if isinstance(s, e.Step) else s for s in self.stimuli)

    def _plain_steps(self) -> None:
        """Steps without options: all, all of one option, then each."""
        if self._with_steps(_PLAIN):
            return
        for option, value in _PLAIN.items():
            self._with_steps({option: value})
        for at in self.each(e.Step):
            for option, value in _PLAIN.items():
                s = self.at(at)
                if isinstance(s, e.Step) and getattr(s, option) != value:
                    self.put(at, replace(s, **{option: value}))

    def _early(self) -> None:
        """What comes between steps is done before them, so that they are one stimulus."""
        for at in range(len(self.stimuli)):
            s = self.at(at)
            if s is None or isinstance(s, (e.Step, e.Drain)) or at == 0 \
                    or not isinstance(self.stimuli[at - 1], e.Step):
                continue
            for place in self._places_before(at):
                moved = (*self.stimuli[:place], s, *self.stimuli[place:at],
                         *self.stimuli[at + 1:])
                if self.consider(moved):
                    break

    def _places_before(self, at: int) -> list[int]:
        """The first place where stimulus ``at`` makes sense, then those just before steps."""
        s = self.stimuli[at]
        needs = {s.r} if isinstance(s, (e.Keys, e.Abort)) else set()
        if isinstance(s, e.Arrive):
            needs = {source for source, _ in s.prompt if isinstance(source, str)}
        first = max((i + 1 for i in range(at)
                     if isinstance(x := self.stimuli[i], e.Arrive)
                     and (x.r in needs or isinstance(s, e.Arrive))), default=0)
        steps = [i for i in range(first + 1, at) if isinstance(self.stimuli[i], e.Step)]
        return [first, *steps] if first < at else []

    def _join_steps(self) -> None:
        """Two steps with different options as one stimulus, with the options of either."""
        for at in self.each(e.Step):
            while at + 1 < len(self.stimuli):
                one, two = self.stimuli[at], self.stimuli[at + 1]
                if not isinstance(one, e.Step) or not isinstance(two, e.Step):
                    break
                n = one.n + two.n
                rest = (self.stimuli[:at], self.stimuli[at + 2:])
                if not any(self.consider((*rest[0], s, *rest[1])) for s in (
                        e.Step(n), replace(one, n=n), replace(two, n=n), one, two)):
                    break

    def _no_drain(self) -> None:
        """A few steps in the place of a drain, as many drafts accepted as a drain may."""
        for at in self.each(e.Drain):
            drain = self.stimuli[at]
            if isinstance(drain, e.Drain) and drain.limit != e.Drain().limit:
                self.put(at, e.Drain())
            for accept in sorted({0, self.config.draft_tokens}):
                if self.put(at, e.Step(MOST_STEPS - accept, accept=accept)):
                    break

    def _fewer_steps(self) -> None:
        for at in self.each(e.Step):
            self.lower_field(at, "n", 1)

    def _plain_terms(self) -> None:
        """Requests that ask for nothing else."""
        for name in _TERMS:
            default = _default(e.Arrive, name)
            for at in self.each(e.Arrive):
                s = self.at(at)
                if isinstance(s, e.Arrive) and getattr(s, name) != default:
                    self.put(at, replace(s, **{name: default}))

    def _plain_prompts(self) -> None:
        """One stream for what shares nothing."""
        if self.consider(_plainly(s, 0) for s in self.stimuli):
            return
        for at in self.each(e.Arrive):
            for stream in range(3):
                if self.put(at, _plainly(self.stimuli[at], stream)):
                    break
            self._fewer_segments(at)

    def _fewer_segments(self, at: int) -> None:
        for i in reversed(range(len(getattr(self.at(at), "prompt", ())))):
            s = self.at(at)
            if not isinstance(s, e.Arrive) or i >= len(s.prompt):
                return
            source, length = s.prompt[i]
            others: list[tuple[e.Segment, ...]] = [()] if len(s.prompt) > 1 else []
            if source != 0:
                others += [((stream, length),) for stream in range(3)]
            for other in others:
                if self.put(at, replace(s, prompt=(*s.prompt[:i], *other, *s.prompt[i + 1:]))):
                    break

    def _short_prompts(self) -> None:
        """Each segment as short as can be, at first whole chunks shorter: what matters is often
        how a prompt ends."""
        for at in self.each(e.Arrive):
            for i in range(len(getattr(self.at(at), "prompt", ()))):
                def short(n: int, at: int = at, i: int = i) -> bool:
                    s = self.at(at)
                    return n >= 1 and isinstance(s, e.Arrive) and i < len(s.prompt) \
                        and self.put(at, _with_segment(s, i, n))

                for chunk in sorted({self.config.tokens_per_chunk(g)
                                     for g in range(len(self.config.groups))}):
                    length = self._segment(at, i)
                    for n in range(length % chunk, min(length, 2 * chunk), chunk):
                        if short(n):
                            break
                self.lower(self._segment(at, i), 1, short)

    def _segment(self, at: int, i: int) -> int:
        s = self.at(at)
        return s.prompt[i][1] if isinstance(s, e.Arrive) and i < len(s.prompt) else 1

    def _small_gpu(self) -> None:
        """Where requests have to fill the GPU: a smaller one, with less in it."""
        arrivals = [s for s in self.stimuli if isinstance(s, e.Arrive)]
        if len(arrivals) < 2 or _cost(self.config, self.stimuli) <= SMALL:
            return
        old, groups = self.config, self.config.groups
        for blocks in (3, 6, 12):
            for config in (e.Config((e.Group(TOKENS_PER_BLOCK),)), e.Config(groups), old):
                tokens = blocks * min(
                    config.tokens_per_block(g) for g in range(len(config.groups)))
                small = replace(config, gpu_blocks=blocks * len(config.groups))
                for prompt in (tokens // 3, tokens // 2, None):
                    if small.gpu_blocks < old.gpu_blocks and self.consider((
                            _fitted(s, tokens, prompt, small.gpu_blocks, old.gpu_blocks)
                            for s in self.stimuli), small):
                        return

    def _less_output(self) -> None:
        """The default if it does as well; else a shorter output, and fewer steps with it."""
        for at in self.each(e.Arrive):
            s = self.stimuli[at]
            if isinstance(s, e.Arrive) and not self.put(at, replace(s, output=_OUTPUT)):
                self.lower_field(at, "output", 1)
                self._end_sooner(at)

    def _end_sooner(self, at: int) -> None:
        for output in (1, 2, 3, 4, 8):
            for i in self.each(e.Step):
                s, step = self.at(at), self.at(i)
                if i < at or not isinstance(s, e.Arrive) or not isinstance(step, e.Step):
                    continue
                saved = s.output - output
                if 0 < saved < step.n:
                    shorter = list(self.stimuli)
                    shorter[at] = replace(s, output=output)
                    shorter[i] = replace(step, n=step.n - saved)
                    if self.consider(shorter):
                        return

    def _no_drafts_or_stops(self) -> None:
        """Accepted drafts and stops make counts meet at the right moment; a longer prompt and a
        short output may do so as well."""
        steps = [s for s in self.stimuli if isinstance(s, e.Step)]
        if not self.config.draft_tokens and not any(s.accept or s.stop for s in steps):
            return
        for more in range(8):
            for output in (None, 1, 2, 3):
                if self.consider((_longer(s, more, output) for s in self.stimuli),
                                 replace(self.config, draft_tokens=0)):
                    return

    def _longer_prompt_for_fewer_steps(self) -> None:
        """Tokens that are given need not be decoded."""
        for at in self.each(e.Arrive):
            for i in self.each(e.Step):
                for ends in (True, False):
                    self._trade(at, i, ends)

    def _trade(self, at: int, i: int, ends: bool) -> None:
        """``ends``: so much less is output that the request ends as long as before."""
        stimuli = self.stimuli
        s, step = self.at(at), self.at(i)
        if i < at or not isinstance(step, e.Step) or not isinstance(s, e.Arrive):
            return

        def traded(n: int) -> bool:
            output = s.output - n if ends else s.output
            if n >= step.n or output < 1:
                return False
            changed = list(stimuli)
            longer = _with_segment(s, len(s.prompt) - 1, s.prompt[-1][1] + n)
            changed[at] = replace(longer, output=output)
            changed[i] = replace(step, n=step.n - n)
            return self.consider(changed)

        find_integer(traded)

    def _smaller_fields(self) -> None:
        """Numbers of the other stimuli and of the options of steps."""
        for at in range(len(self.stimuli)):
            for name, least in (("upto", 0), ("accept", 0), ("done", 0), ("n", 1)):
                self.lower_field(at, name, least)
            s = self.at(at)
            if isinstance(s, e.Keys) and s.upto is not None:
                self.put(at, replace(s, upto=None))
            if isinstance(s, e.Step) and len(s.stop) > 1:
                for r in s.stop:
                    self.put(at, replace(s, stop=(r,)))

    def _simple_config(self) -> None:
        config = self.config
        plain = e.Group(TOKENS_PER_BLOCK)
        if self._configured(e.Config((plain,))) \
                or self._configured(e.Config(config.groups, draft_tokens=config.draft_tokens)):
            return
        self._simple_groups()
        for name in ("context_parallel", *_SETTINGS, "draft_tokens"):
            self._configured(replace(self.config, **{name: _default(e.Config, name)}))
        for name in ("blocks_per_chunk", "draft_tokens"):
            self.lower_size(name)
        self._whole_prefills()
        for name in _POOLS:
            default = _default(e.Config, name)
            if getattr(self.config, name) != default and not self._configured(
                    replace(self.config, **{name: default})):
                self.lower_size(name)

    def _whole_prefills(self) -> None:
        """No prefill in pieces, and no steps for them."""
        default = e.Config(self.config.groups).tokens_per_step
        for at in self.each(e.Arrive):
            for i in self.each(e.Step):
                s, step = self.at(at), self.at(i)
                if self.config.tokens_per_step == default or i < at \
                        or not isinstance(s, e.Arrive) or not isinstance(step, e.Step):
                    break
                pieces = -(-sum(n for _, n in s.prompt) // self.config.tokens_per_step)
                if 1 < pieces <= step.n:
                    fewer = list(self.stimuli)
                    fewer[i] = replace(step, n=step.n - pieces + 1)
                    self.consider(fewer, replace(self.config, tokens_per_step=default))

    def _simple_groups(self) -> None:
        for g in reversed(range(len(self.config.groups))):
            groups, blocks = self.config.groups, self.config.gpu_blocks
            if len(groups) > 1:
                fewer = replace(self.config, groups=groups[:g] + groups[g + 1:])
                # A full GPU stays full only if it shrinks with what is in it.
                less = replace(fewer, gpu_blocks=max(1, blocks * (len(groups) - 1) // len(groups)))
                if not self._configured(fewer) and len(_arrivals(self.stimuli)) > 1:
                    self._configured(less)
        for g, group in enumerate(self.config.groups):
            for simpler in (e.Group(TOKENS_PER_BLOCK), replace(group, draft=False, marked=True),
                            replace(group, marked=True), replace(group, kind="full", reach=0),
                            replace(group, tokens_per_block=TOKENS_PER_BLOCK)):
                groups = self.config.groups
                self._configured(replace(
                    self.config, groups=(*groups[:g], simpler, *groups[g + 1:])))

    def _configured(self, config: e.Config) -> bool:
        """Consider another config, with the prompts as they are, or as much longer or shorter
        as the chunks are."""
        if config == self.config:
            return False
        if self.consider(self.stimuli, config):
            return True
        old, new = self.config.tokens_per_chunk(0), config.tokens_per_chunk(0)
        return old != new and self.consider(
            (_rescaled(s, old, new) for s in self.stimuli), config)

    def _rename(self) -> None:
        """Requests a, b, c in the order in which they arrive."""
        names = {old: _name(i) for i, old in enumerate(_arrivals(self.stimuli))}
        if any(old != new for old, new in names.items()):
            self.consider(_renamed(s, names) for s in self.stimuli)

    def _delete_pairs(self) -> None:
        if len(self.stimuli) >= PAIRS_BELOW:
            return
        i = 0
        while i < len(self.stimuli):
            if not any(
                self.consider(s for k, s in enumerate(self.stimuli) if k not in (i, j))
                for j in range(i + 1, len(self.stimuli))
            ):
                i += 1

    def _in_order(self) -> None:
        """Neighbours whose order does not matter, in the order of their text."""
        for end in range(len(self.stimuli) if len(self.stimuli) < PAIRS_BELOW else 0):
            for at in range(end, 0, -1):
                swapped = list(self.stimuli)
                if at >= len(swapped):
                    break
                swapped[at - 1:at + 1] = swapped[at], swapped[at - 1]
                if not self.consider(swapped):
                    break


# --- proposals --------------------------------------------------------------------------------


def _without(stimuli: Iterable[e.AnyStimulus], gone: Set[str]) -> Iterator[e.AnyStimulus]:
    return (s for s in stimuli if not (isinstance(s, e.Arrive) and s.r in gone))


def _plainly(s: e.AnyStimulus, stream: int) -> e.AnyStimulus:
    """An arrival with as many tokens of one stream."""
    if not isinstance(s, e.Arrive):
        return s
    return replace(s, prompt=((stream, sum(length for _, length in s.prompt)),))


def _with_segment(s: e.Arrive, i: int, length: int) -> e.Arrive:
    source, _ = s.prompt[i]
    return replace(s, prompt=(*s.prompt[:i], (source, length), *s.prompt[i + 1:]))


def _fitted(s: e.AnyStimulus, tokens: int, prompt: int | None, new: int, old: int
            ) -> e.AnyStimulus:
    """An arrival that fits into ``tokens``, with a prompt of so many, or with its own, shorter in
    the proportion of ``new`` to ``old``."""
    if not isinstance(s, e.Arrive):
        return s
    s = replace(s, prompt=((s.prompt[0][0], prompt),) if prompt else tuple(
        (source, max(1, n * new // old)) for source, n in s.prompt))
    return replace(s, output=max(1, min(s.output, tokens - sum(n for _, n in s.prompt))))


def _longer(s: e.AnyStimulus, more: int, output: int | None) -> e.AnyStimulus:
    """A step without drafts and stops, or an arrival with so many tokens more."""
    if isinstance(s, e.Step):
        return replace(s, accept=0, stop=())
    if not isinstance(s, e.Arrive):
        return s
    longer = _with_segment(s, len(s.prompt) - 1, s.prompt[-1][1] + more)
    return longer if output is None else replace(longer, output=output)


def _rescaled(s: e.AnyStimulus, old: int, new: int) -> e.AnyStimulus:
    """An arrival whose prompt ends as far from the end of a chunk, in as many chunks."""
    if not isinstance(s, e.Arrive):
        return s
    length = sum(n for _, n in s.prompt)
    chunks = length // old + 1
    wanted = max(1, chunks * new - (chunks * old - length))
    return _with_segment(s, len(s.prompt) - 1, max(1, s.prompt[-1][1] + wanted - length))


def _renamed(s: e.AnyStimulus, names: Mapping[str, str]) -> e.AnyStimulus:
    if isinstance(s, e.Arrive):
        prompt = tuple((names.get(source, source) if isinstance(source, str) else source, n)
                       for source, n in s.prompt)
        return replace(s, r=names[s.r], prompt=prompt)
    if isinstance(s, (e.Keys, e.Abort)):
        return replace(s, r=names.get(s.r, s.r))
    if isinstance(s, e.Step):
        return replace(s, stop=tuple(names.get(r, r) for r in s.stop))
    return s
