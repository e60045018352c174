"""Does what an engine was seen to do follow from the machine?

Refinement, not equality: every observation is an action of the machine with
parameters.  The judge checks that the machine permits it, makes the same step, and
checks the properties that the step could have broken.  What to store, when to refuse,
how far to allocate are the engine's choice; a property never is.

Where an observation is not permitted, the step is made all the same, to see which
property it breaks.  If it breaks none, that is a *departure*: the engine does what the
machine knows no action for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from kvoracle.model.machine import Action, Machine
from kvoracle.model.requests import PREEMPTED, RUNNING, WAITING
from kvoracle.model.rules import REFERENCE
from kvoracle.model.run import Program, Run, Undo
from kvoracle.model.scopes import ALL_PARTS
from kvoracle.model.store import NEVER
from kvoracle.model.terms import variables_read
from kvoracle.spec.properties import EVERYTHING, PLANNING, Property, Seen

from . import events as e
from .lookups import promised
from .observed import DIRECT

Kind = Literal["violation", "crash", "departure"]


@dataclass(frozen=True)
class Finding:
    """Something an engine did that it should not have.

    ``at`` is the index of the stimulus in the run; ``because`` completes the sentence
    "*property* is broken because ...".  ``acceptance``: only the acceptance of drafts
    suffers, never the output.  ``died`` holds the evidence of a crash, ``like`` the broken
    design that would have failed there.  ``rule`` says of a departure which action and
    requirement it is about, without the run's names and numbers: departures of one rule are
    the same departure.  ``chunk``: the one it is about, as (group, index).
    """

    kind: Kind
    property: str
    because: str
    at: int
    r: str = ""
    acceptance: bool = False
    died: e.Died | None = None
    like: str = ""
    rule: str = ""
    chunk: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Check:
    """A property as a search for what breaks it in one request's part of the state."""

    property: Property
    broken: Callable[..., tuple[int, ...] | None]
    parameters: tuple[str, ...]


class Rulebook:
    """The machine compiled for judging, with the checks that each action calls for."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.program = Program(machine)
        checks: list[tuple[frozenset[str], _Check]] = []
        steps: list[tuple[Property, dict[str, _Check]]] = []
        for p in EVERYTHING.values():
            # What follows from the others in any state is an obligation at rest: Retired.
            if p.derived or not p.applies(machine):
                continue
            if p.is_step:
                steps.append((p, {a: self._step_check(p, a) for a in machine.actions}))
            else:
                predicate = p.over_states(machine)
                broken = self.program.predicate(predicate, ("r",))
                names = tuple(x.name for x in predicate.parameters)
                # What is true of no chunk breaks no promise: the guards hold the counts.
                if p.lemma and "c" not in names:
                    continue
                checks.append((variables_read(predicate.term), _Check(p, broken, names)))
        self.checks: dict[str, list[_Check]] = {}
        for action in machine.actions.values():
            self.checks[action.name] = [c for reads, c in checks if reads & action.written] + [
                by_action[action.name] for _, by_action in steps
            ]

    def _step_check(self, p: Property, action: str) -> _Check:
        predicate = p.over_steps(self.machine, action)
        broken = self.program.predicate(predicate, ("r",), in_step=True)
        return _Check(p, broken, tuple(x.name for x in predicate.parameters))

    def action(self, name: str) -> Action:
        """The action of this name."""
        return self.machine.actions[name]


@lru_cache(maxsize=1)
def reference() -> Rulebook:
    """The reference design with every part, compiled once a process."""
    return Rulebook(Machine(ALL_PARTS, REFERENCE))


def constants(config: e.Config) -> dict[str, tuple[int, ...]]:
    """The scope constants of an engine's configuration, a value a group."""
    groups = range(len(config.groups))
    return {
        "tokens_per_chunk": tuple(config.tokens_per_chunk(g) for g in groups),
        "blocks_per_chunk": tuple(config.blocks_per_chunk for _ in groups),
        # Of a group that nobody marks the engine cannot know that it holds a drafter's layers.
        "draft": tuple(int(config.groups[g].draft and config.groups[g].marked) for g in groups),
    }


@dataclass(frozen=True)
class _Rest:
    """The observations still to come in one answer, looked at without copying them."""

    seen: Sequence[e.AnyObservation]
    start: int

    def __iter__(self) -> Iterator[e.AnyObservation]:
        for i in range(self.start, len(self.seen)):
            yield self.seen[i]


class _Found(Exception):
    """Carries a finding out of the observation at hand."""

    def __init__(self, kind: Kind, prop: str, because: str, r: str = "",
                 acceptance: bool = False, rule: str = "",
                 chunk: tuple[int, int] | None = None) -> None:
        super().__init__(because)
        self.kind, self.property, self.because = kind, prop, because
        self.r, self.acceptance, self.rule, self.chunk = r, acceptance, rule, chunk

    def at(self, stimulus: int) -> Finding:
        """The finding, met in answer to this stimulus."""
        return Finding(self.kind, self.property, self.because, stimulus, self.r,
                       self.acceptance, rule=self.rule, chunk=self.chunk)


def _in_words(action: Action, values: Mapping[str, int], r: str) -> str:
    """The step, with the request by its name."""
    shown = {p.name: p.sort.show(values[p.name]) for p in action.parameters} | {"r": r}
    return action.label(shown) if callable(action.label) else action.label.format(**shown)


def _departure(rule: str, because: str, r: str) -> _Found:
    return _Found("departure", "", because, r, rule=rule)


@dataclass
class Judge:
    """Judges one run of one engine; stops at the first finding, since after it the state of
    the machine and of the engine have parted."""

    config: e.Config
    rulebook: Rulebook = field(default_factory=reference)

    def __post_init__(self) -> None:
        groups = len(self.config.groups)
        self.run = Run(self.rulebook.program, constants(self.config), {"Group": groups})
        self.judged = 0
        self.overlook: frozenset[str] = frozenset()
        """Properties, and rules of departures, that are known to be broken: a run goes on behind
        them.  What is then found of planning may come of that; what is seen directly does not."""
        self.evaluated: dict[str, int] = dict.fromkeys([*PLANNING, *DIRECT], 0)
        self.unseen: set[str] = set()
        self.not_judged: frozenset[str] = frozenset()
        self.earlier = 0
        self.stored = self.read = 0
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._rejected: set[str] = set()
        self._eager = False
        self._shows: frozenset[str] = frozenset()
        self._due: set[str] = set()
        self._loading: set[str] = set()
        self._jobs: dict[int, str] = {}
        self._admitted: dict[str, bool] = {}  # in this step, or not computed yet; whether it is
        self._in_step: set[str] = set()
        self._followed = [g for g, group in enumerate(self.config.groups) if group.kind == "full"]

    @property
    def unfollowed(self) -> list[str]:
        """Of what, in words, only bytes, deaths and leftovers are judged, not the planning."""
        kinds = {group.kind for group in self.config.groups} - {"full"}
        return [f"planning and lookup of {kind} groups" for kind in sorted(kinds)]

    # --- requests and their slots ---------------------------------------------------

    def slot(self, r: str) -> int | None:
        """The machine's number for a request it tracks."""
        return self._slots.get(r)

    @property
    def tracked(self) -> dict[str, int]:
        """The requests that the machine tracks, with their numbers."""
        return dict(self._slots)

    def in_step(self, r: str) -> bool:
        """Whether the request was last seen to be computed, with its token not sampled yet."""
        return r in self._in_step

    def _slot(self, r: str) -> int:
        slot = self._slots.get(r)
        if slot is None:
            raise _departure("unknown request", f"the engine speaks of request {r!r}, which it "
                             "never said had arrived", r)
        return slot

    def _group(self, r: str, g: int) -> None:
        if g >= len(self.config.groups):
            raise _departure("unknown group", f"the engine speaks of group {g} of request {r}, "
                             f"and there are {len(self.config.groups)}, counted from 0", r)

    # --- making steps ------------------------------------------------------------------

    def _step(self, action: str, name: str, /, **values: int) -> Undo:
        """Make a step that the machine should permit, and check what it could break."""
        unmet = self.run.unmet(action, **values)
        if unmet is not None and self.config.async_scheduling and (action, unmet.name) in _LAG:
            unmet = None
        detail = "" if unmet is None else self.run.explain(unmet.term, action, values)
        undo = self.run.apply(action, **values)
        self._check(action, name, values.get("r"))
        if unmet is not None:
            step = _in_words(self.rulebook.action(action), values, name)
            raise _departure(f"{action}: {unmet.name}",
                             f"the machine does not permit that {step}: {unmet.name!r} is not "
                             f"met ({detail})", name)
        return undo

    def _check(self, action: str, r: str, slot: int | None) -> None:
        if slot is None:  # a reset: it clears, and clearing is kept by every property
            return
        for check in self.rulebook.checks[action]:
            name = check.property.supports or check.property.name
            if name in self.not_judged:
                continue
            self.evaluated[name] += 1
            values = self.run.broken(check.broken, slot)
            if values is not None:
                where = dict(zip(check.parameters, values))
                raise _Found("violation", name, self._because(check.property, r, where), r,
                             self._acceptance(check.property, where),
                             chunk=(where["g"], where["c"]) if "c" in where else None)

    def _acceptance(self, prop: Property, where: dict[str, int]) -> bool:
        """Whether only drafts can suffer: a draft group's chunk that is whole but not final."""
        g = where.get("g")
        if prop.name not in ("TailNotHeld", "NoVolatileStore") or g is None:
            return False
        computed = self.run.get("computed", where["r"]) // self.run.get("tokens_per_chunk", g)
        return self.config.groups[g].draft and where["c"] < computed

    def _because(self, prop: Property, r: str, where: dict[str, int]) -> str:
        group = f" in group {where['g']}" if "g" in where and len(self.config.groups) > 1 else ""
        return prop.because(Seen(self.run.get, where, r, group, self.run.before))

    # --- observations --------------------------------------------------------------------

    def judge(self, observations: Sequence[e.AnyObservation], at: int) -> Finding | None:
        """Judge what was seen in answer to stimulus number ``at``; the first finding, if any."""
        for i, observation in enumerate(observations):
            self.judged += 1
            try:
                self._observe(observation, _Rest(observations, i + 1))
            except _Found as found:
                if (found.property or found.rule) not in self.overlook:
                    return found.at(at)
            if isinstance(observation, e.Died):
                because = f"the engine died: {observation.error}"
                if observation.message:
                    because += f": {observation.message}"
                return Finding("crash", "NoCrash", because, at, died=observation)
        return None

    def _observe(self, seen: e.AnyObservation, rest: Iterable[e.AnyObservation]) -> None:
        if self._due and isinstance(seen, _AFTER_PLANNING) and seen.r in self._due:
            self._due.discard(seen.r)
            self._all_offered(seen.r)
        handler = _HANDLERS.get(type(seen))
        if handler is not None:
            handler(self, seen, rest)

    def _arrived(self, seen: e.Arrived, rest: Iterable[e.AnyObservation]) -> None:
        if seen.r in self._slots:
            raise _departure("arrives twice", f"request {seen.r!r} arrives twice", seen.r)
        slot = self._slots[seen.r] = self._free.pop() if self._free else len(self._slots)
        self._step("arrive", seen.r, r=slot, p=seen.prompt)
        limit = seen.limit
        if self.config.prompt_only:
            limit = seen.prompt if limit is None else min(limit, seen.prompt)
        if limit is not None:
            self._step("set_limit", seen.r, r=slot, n=limit)

    def _keys(self, seen: e.KeysKnown, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        self._group(seen.r, seen.g)
        if seen.n != self.run.get("keys", slot, seen.g):
            self._step("keys_arrive", seen.r, r=slot, g=seen.g, n=seen.n)

    def _blocks(self, seen: e.BlocksKnown, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        self._group(seen.r, seen.g)
        if seen.g not in self._followed:
            return
        # A planner may keep its list of a request that does not run until it runs again.
        if self.run.get("life", slot) == RUNNING \
                and seen.n != self.run.get("blocks", slot, seen.g):
            self._step("blocks_told", seen.r, r=slot, g=seen.g, n=seen.n)

    @staticmethod
    def _admission(rest: Iterable[e.AnyObservation], r: str) -> Iterator[e.AnyObservation]:
        """What is still to be seen of ``r`` in the step that admits it."""
        for other in rest:
            if getattr(other, "r", None) == r:
                if isinstance(other, (e.Computed, e.TokensKnown, e.Preempted, e.Finished)):
                    return
                yield other

    def _started(self, seen: e.Started, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        self._admitted[seen.r] = False
        if seen.r in self._loading:  # the load that admitted it was told of before
            self._loading.discard(seen.r)
        elif not any(isinstance(o, e.Loaded) for o in self._admission(rest, seen.r)):
            self._step("start", seen.r, r=slot, n=seen.cached)

    def _loaded(self, seen: e.Loaded, rest: Iterable[e.AnyObservation]) -> None:
        # A lookup goes by the keys, though a step's counts are told after its admissions.
        for other in self._admission(rest, seen.r):
            if isinstance(other, e.KeysKnown):
                self._keys(other, rest)
        slot = self._slot(seen.r)
        self.evaluated["JobExclusive"] += "stored" not in self.unseen
        self.evaluated["LoadReady"] += "unready" in self._shows
        under_way = [job for job, r in self._jobs.items() if r == seen.r]
        if under_way:
            raise _Found("violation", "JobExclusive",
                         f"a load of request {seen.r} is planned while its store job "
                         f"{under_way[0]} is under way", seen.r)
        if seen.upto > self.run.get("tokens", slot):
            raise _departure("load: within the request",
                             f"{seen.upto} tokens of request {seen.r} are loaded, which has "
                             f"{self.run.get('tokens', slot)}", seen.r)
        self._step("load", seen.r, r=slot, n=seen.upto)
        self._admitted[seen.r] = False
        self._loading.add(seen.r)

    def _computed(self, seen: e.Computed, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        if seen.n != self.run.get("computed", slot):
            self._step("compute", seen.r, r=slot, n=seen.n)
        if seen.late:
            return
        self._loading.discard(seen.r)
        self._in_step.add(seen.r)
        if self._admitted.get(seen.r):
            del self._admitted[seen.r]
        elif seen.r in self._admitted:
            self._admitted[seen.r] = True
        if self._eager:
            self._due.add(seen.r)

    def _all_offered(self, r: str) -> None:
        """An eager planner has passed over the request: nothing storable is left."""
        slot = self._slot(r)
        self.evaluated["EventuallyStored"] += 1
        for g in self._followed:
            chunk = self._owed(slot, g)
            if chunk is not None:
                raise _Found("violation", "EventuallyStored",
                             f"the step passed over request {r} and left chunk {chunk} of group "
                             f"{g}, whose tokens, blocks and key are there, and the pool had not "
                             f"refused it", r, chunk=(g, chunk))

    def _owed(self, slot: int, g: int) -> int | None:
        """The first storable chunk that was never offered.  One that was, and lies beyond the
        cursor only since a load set it back, may be offered again or not."""
        chunk = self.run.get("cursor", slot, g)
        while self.run.unmet("plan_store", r=slot, g=g, n=chunk + 1, d=chunk + 1) is None:
            if self.run.get("mark", slot, g, chunk) == NEVER:
                return chunk
            chunk += 1
        return None

    def _tokens(self, seen: e.TokensKnown, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        more = seen.n - self.run.get("tokens", slot)
        # The rejection rewrites the position before the sampled token: it comes first.
        # What follows of the request is of this step until something else is seen of it.
        following = next((o for o in rest if getattr(o, "r", None) == seen.r), None)
        if isinstance(following, e.Rejected):
            self._rewritten(seen.r, slot)
            self._rejected.add(seen.r)
        self._step("sample", seen.r, r=slot, a=more - 1)
        self._admitted.pop(seen.r, None)
        self._in_step.discard(seen.r)

    def _reject(self, seen: e.Rejected, rest: Iterable[e.AnyObservation]) -> None:
        if seen.r in self._rejected:
            self._rejected.discard(seen.r)
        else:
            self._rewritten(seen.r, self._slot(seen.r))

    def _rewritten(self, r: str, slot: int) -> None:
        # The token after a prompt is no draft: where drafts are rejected beside it, they are
        # there to fill a batch up (vLLM since 0.29), and nothing is rewritten.
        if self.run.get("tokens", slot) > self.run.get("prompt", slot):
            self._step("reject", r, r=slot)

    def _planned(self, seen: e.Planned, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        if seen.job is not None:
            self._jobs[seen.job] = seen.r
            self.evaluated["ReuseFence"] += "overwritten" in self._shows
        for part in seen.groups:
            self._group(seen.r, part.g)
            if part.g not in self._followed:
                continue
            self._counts(seen.r, part)
            self._gone_back(seen.r, part.g, min(part.offered, default=0))
            for n, d in self._offers(seen.r, part):
                self._offer(seen.r, slot, part.g, n, d)

    def _offer(self, r: str, slot: int, g: int, n: int, d: int) -> None:
        """An offer of the chunks up to ``n``, ``d`` declined.

        A planner that stores a chunk earlier than the rule of vLLM PR #52923 says, and breaks
        nothing by it, is finer than the rule and not wrong: that is counted, not reported.
        """
        self._assume(slot, g, n)
        values = {"r": slot, "g": g, "n": n, "d": d}
        unmet = self.run.unmet("plan_store", **values)
        allowed = self.run.get("computed", slot)
        if self.run.get("limited", slot):
            allowed = min(allowed, self.run.get("limit", slot))
        within = n <= allowed // self.config.tokens_per_chunk(g)
        if unmet is not None and unmet.name == "storable" and within:
            self.run.apply("plan_store", **values)
            self._check("plan_store", r, slot)
            self.earlier += 1
        else:
            self._step("plan_store", r, **values)

    def _assume(self, slot: int, g: int, n: int) -> None:
        """Of what the engine cannot show, take as much as the offer needs: not judged."""
        if "keys" in self.unseen and self.run.get("keys", slot, g) < n:
            self.run.apply("keys_arrive", r=slot, g=g, n=n)
        blocks = n * self.config.blocks_per_chunk
        if "blocks" in self.unseen and self.run.get("blocks", slot, g) < blocks:
            self.run.apply("blocks_told", r=slot, g=g, n=blocks)

    def _counts(self, r: str, part: e.Chunks) -> None:
        transferred = len(set(part.offered) - set(part.declined))
        if part.blocks is not None and part.blocks != transferred * self.config.blocks_per_chunk:
            raise _Found(
                "violation", "KeysEqBlocks",
                f"the job of request {r} names {part.blocks} blocks of group {part.g} for "
                f"{transferred} chunks of {self.config.blocks_per_chunk} blocks each", r)

    def _offers(self, r: str, part: e.Chunks) -> Iterator[tuple[int, int]]:
        """The offer as offers of the machine, each with at most one chunk declined.

        Chunks behind the cursor were offered before.  A chunk left out between the cursor
        and the last one offered was passed over, unless it was offered once before a load set
        the cursor back.
        """
        slot = self._slot(r)
        cursor = self.run.get("cursor", slot, part.g)
        offered = {c for c in part.offered if c >= cursor}
        end = max(offered, default=cursor - 1) + 1
        taken = offered.difference(part.declined)
        for c in range(cursor, end):
            if c not in offered and self.run.get("mark", slot, part.g, c) == NEVER:
                raise _Found("violation", "NoHole", f"chunk {c} of request {r} in group {part.g} "
                             f"is passed over: chunk {end - 1} is offered, and chunk {c} never "
                             f"was", r, chunk=(part.g, c))
            if c not in taken:
                yield c + 1, c
        if end - 1 in taken:
            yield end, end

    def _stored(self, seen: e.Stored, rest: Iterable[e.AnyObservation]) -> None:
        if seen.job not in self._jobs:
            raise _departure("unknown job", f"store job {seen.job} is complete, and no such job "
                             "was planned or is in flight", "")
        del self._jobs[seen.job]

    def _refused(self, seen: e.Refused, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        self._due.discard(seen.r)
        if self.run.unmet("refuse", r=slot) is None:
            self._step("refuse", seen.r, r=slot)

    def _cursor(self, seen: e.Cursor, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        self._group(seen.r, seen.g)
        if seen.g not in self._followed:
            return
        self._gone_back(seen.r, seen.g, seen.n)
        cursor = self.run.get("cursor", slot, seen.g)
        self.evaluated["NoHole"] += 1
        self.evaluated["MonotoneProgress"] += 1
        if seen.n < cursor:
            raise _Found("violation", "MonotoneProgress",
                         f"the cursor of request {seen.r} in group {seen.g} moves back from "
                         f"{cursor} to {seen.n}", seen.r)
        for c in range(cursor, seen.n):
            if self.run.get("mark", slot, seen.g, c) == NEVER:
                raise _Found("violation", "NoHole",
                             f"chunk {c} of request {seen.r} in group {seen.g} is behind the "
                             f"cursor {seen.n} and was never offered", seen.r,
                             chunk=(seen.g, c))

    def _gone_back(self, r: str, g: int, n: int) -> None:
        """A planner may go back while a request waits.  That it did shows, at the latest, in
        the step that admits the request again: what is told of a step is what came of it."""
        slot = self._slot(r)
        waits = self.run.get("life", slot) in (WAITING, PREEMPTED)
        if n < self.run.get("cursor", slot, g) and (waits or r in self._admitted):
            self.run.apply("rewind", r=slot, g=g, n=n)

    def _preempted(self, seen: e.Preempted, rest: Iterable[e.AnyObservation]) -> None:
        self._step("preempt", seen.r, r=self._slot(seen.r))
        self._admitted.pop(seen.r, None)

    def _finished(self, seen: e.Finished, rest: Iterable[e.AnyObservation]) -> None:
        self._step("abort" if seen.aborted else "finish", seen.r, r=self._slot(seen.r))

    def _retired(self, seen: e.Retired, rest: Iterable[e.AnyObservation]) -> None:
        slot = self._slot(seen.r)
        self.evaluated["EventuallyStored"] += 1
        unmet = self.run.unmet("retire", r=slot)
        if unmet is not None and unmet.name == "ended":
            raise _departure("retire: ended", f"request {seen.r} is forgotten while it lives",
                             seen.r)
        for g in self._followed if unmet is not None else ():
            chunk = self._owed(slot, g)
            if chunk is not None:
                raise _Found("violation", "EventuallyStored",
                             f"request {seen.r} is forgotten with chunk {chunk} of group {g} never "
                             f"offered, though its tokens, blocks and key were there and the pool "
                             f"had not refused it", seen.r, chunk=(g, chunk))
        self.run.apply("retire", r=slot)
        self._free.append(self._slots.pop(seen.r))
        self._admitted.pop(seen.r, None)
        for names in (self._rejected, self._due, self._loading, self._in_step):
            names.discard(seen.r)

    def _reset(self, seen: e.WasReset, rest: Iterable[e.AnyObservation]) -> None:
        self._due.clear()
        # Their reports may come late, but they are nobody's any more.
        self._jobs = dict.fromkeys(self._jobs, "")
        self._step("reset", "")

    def _bad_bytes(self, seen: e.BadBytes, rest: Iterable[e.AnyObservation]) -> None:
        prop = "TrueBytes" if seen.where == "store" else "LoadedBytes"
        what = f"position {seen.position}" if seen.chunk is None else f"chunk {seen.chunk}"
        what = {
            "store": f"chunk {seen.chunk} of request {seen.r} in group {seen.g} was stored with",
            "load": f"{what} of request {seen.r} in group {seen.g} was loaded with",
            "read": f"attention of request {seen.r} reads position {seen.position} of group "
                    f"{seen.g}, which holds",
        }[seen.where]
        raise _Found("violation", prop, f"{what} {seen.got} instead of {seen.want}", seen.r)

    def _not_at_rest(self, seen: e.NotAtRest, rest: Iterable[e.AnyObservation]) -> None:
        if seen.waiting:
            many = len(seen.waiting) > 1
            raise _Found("violation", "NoStall",
                         f"request{'s' if many else ''} {', '.join(seen.waiting)} "
                         f"{'wait' if many else 'waits'} for ever, though every transfer was let "
                         f"complete ({seen.held})", seen.waiting[0])
        raise _Found("violation", "NoLeak", f"at rest there is still held: {seen.held}")

    def _overwritten(self, seen: e.Overwritten, rest: Iterable[e.AnyObservation]) -> None:
        what = "GPU block" if seen.what == "block" else "host slot"
        raise _Found("violation", "ReuseFence",
                     f"{seen.by} writes a {what} that a transfer of request {seen.r} had still to "
                     f"use", seen.r)

    def _unready(self, seen: e.Unready, rest: Iterable[e.AnyObservation]) -> None:
        raise _Found("violation", "LoadReady",
                     f"a load of request {seen.r} reads a host slot that a store has still to fill",
                     seen.r)

    def _pins(self, seen: e.Pins, rest: Iterable[e.AnyObservation]) -> None:
        wrong = []
        if seen.pinned:
            wrong.append(f"{seen.pinned} of its chunks are pinned by more or fewer loads than are "
                         f"under way")
        if seen.pending:
            wrong.append(f"{seen.pending} wait for a store and there is none, or do not and there "
                         f"is one")
        raise _Found("violation", "RefExact", "in the host pool " + " and ".join(wrong))

    def _looked_up(self, seen: e.LookedUp, rest: Iterable[e.AnyObservation]) -> None:
        if seen.answer is None:  # ask again: whether it ever ends is seen at rest
            return
        if self.unfollowed:  # what a window's group must hold is another rule
            return
        least, lacking = promised(self.config, seen)
        bounded = seen.limit is not None and seen.limit < least
        self.evaluated["HitSound"] += 1
        self.evaluated["HitMaximal"] += not bounded
        if lacking is not None:
            g, chunk = lacking
            raise _Found("violation", "HitSound",
                         f"lookup promises request {seen.r} {seen.answer} tokens beyond "
                         f"{seen.cached}, and chunk {chunk} of group {g} is not in the host pool, "
                         f"or not yet (groups hold {', '.join(seen.pool)})", seen.r)
        if seen.answer < least and not bounded:
            raise _Found("violation", "HitMaximal",
                         f"lookup promises request {seen.r} {seen.answer} tokens beyond "
                         f"{seen.cached}, and the host pool holds {least} in every group (chunks: "
                         f"{', '.join(seen.pool)})", seen.r)

    def _hello(self, seen: e.Hello, rest: Iterable[e.AnyObservation]) -> None:
        self.unseen = set(seen.unseen)
        blind = self.unseen - set(_SPEAK_OF)
        if blind:
            raise _departure("hello", f"the engine cannot show {', '.join(sorted(blind))}, without "
                             "which it cannot be followed", "")
        self.not_judged = frozenset(
            name for kind in self.unseen for name in _SPEAK_OF[kind])
        self._eager = seen.eager
        self._shows = frozenset(seen.shows)

    def _checked(self, seen: e.Checked, rest: Iterable[e.AnyObservation]) -> None:
        self.stored, self.read = seen.stored, seen.read
        self.evaluated["NoStall"] += 1
        self.evaluated["RefExact"] += "pins" in self._shows


_LAG = frozenset((
    ("abort", "between steps"), ("preempt", "between steps"),
    ("sample", "runs"), ("finish", "runs"), ("finish", "only the last token is not computed"),
))
"""What async scheduling does not keep: a token may be outstanding whatever happens, and becomes
known of a request that has lost its blocks meanwhile."""

_SPEAK_OF = {
    "keys": ("KeysEqBlocks", "KeyedOnly", "EventuallyStored"),
    "blocks": ("KeysEqBlocks", "EventuallyStored"),
    "cursor": (),
    "bad_bytes": ("TrueBytes", "LoadedBytes"),
    "retired": (),
    "stored": (),
    "checked": (),
}
"""The kinds of observation that an engine may be unable to make, and the properties that cannot
be judged without each.  Without cursors, NoHole is judged by what is offered and what is not."""

_AFTER_PLANNING = (e.KeysKnown, e.BlocksKnown, e.Computed, e.TokensKnown, e.Finished, e.Preempted)
"""Whatever of a request comes after its counts shows that the planner has passed over it."""

_HANDLERS: dict[type, Callable[..., None]] = {
    e.Hello: Judge._hello, e.Arrived: Judge._arrived, e.KeysKnown: Judge._keys,
    e.BlocksKnown: Judge._blocks, e.Started: Judge._started, e.Loaded: Judge._loaded,
    e.Computed: Judge._computed, e.TokensKnown: Judge._tokens, e.Rejected: Judge._reject,
    e.Planned: Judge._planned, e.Refused: Judge._refused, e.Cursor: Judge._cursor,
    e.Preempted: Judge._preempted, e.Finished: Judge._finished, e.Retired: Judge._retired,
    e.WasReset: Judge._reset, e.BadBytes: Judge._bad_bytes, e.NotAtRest: Judge._not_at_rest,
    e.Checked: Judge._checked, e.Stored: Judge._stored, e.Overwritten: Judge._overwritten,
    e.Unready: Judge._unready, e.Pins: Judge._pins, e.LookedUp: Judge._looked_up,
}
