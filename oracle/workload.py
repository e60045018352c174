"""Random runs that look like the field's: what is done to an engine, from a seed.

A run is a config and a list of stimuli.  Features are chosen by *swarm*: each run
turns some off, so that rare combinations are met as often as common ones (Groce et
al., "Swarm Testing", ISSTA 2012).  Requests share system prompts, extend each other's
conversations, come in bursts, are aborted in every state; pools are small, transfers
slow, keys late, drafts rejected.

A run from a seed is the same for ever in one version: of the engine it depends on nothing but
the features that it says it has.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from kvoracle.model.scopes import nearest

from .events import (
    BASIC,
    FEATURES,
    Abort,
    AnyStimulus,
    Arrive,
    Config,
    Drain,
    Group,
    Keys,
    Refuse,
    Reset,
    Segment,
    Step,
    config_needs,
)


@dataclass(frozen=True)
class Profile:
    """What the runs of a workload are made of.

    ``groups``: choices of groups.  ``chances`` are those of each feature to be on in a run; a
    feature that is off does not occur in the run at all.  ``needs`` are features that the runs
    are about (`FEATURES`): an engine without them has nothing to show here.
    """

    name: str
    doc: str
    groups: tuple[tuple[Group, ...], ...]
    needs: tuple[str, ...] = ()
    blocks_per_chunk: tuple[int, ...] = (1, 1, 2)
    gpu_blocks: tuple[int, int] = (16, 40)
    host_chunks: tuple[int, int] = (2, 24)
    prompt: tuple[int, int] = (1, 40)
    output: tuple[int, int] = (1, 24)
    steps: int = 120
    chances: tuple[tuple[str, float], ...] = (
        ("late keys", 0.7), ("aborts", 0.6), ("resets", 0.3), ("refusals", 0.4),
        ("slow transfers", 0.6), ("drafts", 0.5), ("shared prompts", 0.8), ("turns", 0.5),
        ("bursts", 0.4), ("prompt only", 0.1), ("small pieces", 0.5),
    )

    @property
    def plain(self) -> bool:
        """Whether its runs ask for nothing but what an engine has that does not say."""
        return not {name for name, _ in self.chances if name in FEATURES} - set(BASIC)

    def suits(self, features: Collection[str] | None) -> bool:
        """Whether an engine of these features has what the runs are about; None: of all."""
        return features is None or set(self.needs) <= set(features)


ONE = (Group(4),)
USUAL = (
    ("late keys", 0.4), ("aborts", 0.6), ("refusals", 0.3), ("slow transfers", 0.7),
    ("shared prompts", 0.9), ("turns", 0.5), ("bursts", 0.4), ("small pieces", 0.5),
)
"""What runs about something else have too, resets aside: after one, a window's planner stores
blocks that were given away (docs/findings)."""
PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile(
            "storing",
            "store planning: late keys, refusals, drafts, aborts in every state",
            groups=(ONE, (Group(4), Group(4, draft=True)), (Group(4, draft=True),)),
        ),
        Profile(
            "groups",
            "several groups with chunks of different sizes",
            groups=((Group(4), Group(2, draft=True)),
                    (Group(8), Group(4), Group(2, draft=True))),
            gpu_blocks=(48, 96),
        ),
        Profile(
            "resets",
            "host pools reset at any time, twice in a row included",
            groups=(ONE,),
            chances=(("resets", 1.0), ("many resets", 1.0), ("slow transfers", 0.8),
                     ("aborts", 0.5), ("refusals", 0.3), ("shared prompts", 0.8)),
        ),
        Profile(
            "reuse",
            "long shared prefixes and multi-turn conversations over a host pool that holds them",
            groups=(ONE,),
            host_chunks=(24, 64),
            prompt=(8, 64),
        ),
        Profile(
            "async",
            "each step planned before the last one's tokens are known",
            groups=(ONE, (Group(4), Group(4)), (Group(4), Group(2))),
            needs=("async",),
            gpu_blocks=(24, 48),
            chances=(*USUAL, ("async", 1.0), ("resets", 0.3), ("workers", 0.2)),
        ),
        Profile(
            "workers",
            "several ranks, some of them slower, which may share the tokens of a block",
            groups=(ONE, (Group(4), Group(4, draft=True)), (Group(4), Group(2))),
            needs=("workers",),
            chances=(*USUAL, ("workers", 1.0), ("context parallel", 0.3), ("resets", 0.3),
                     ("drafts", 0.4), ("prompt only", 0.1)),
        ),
        Profile(
            "windows",
            "sliding windows and chunked local attention beside full attention",
            groups=((Group(4), Group(4, kind="window", reach=9)),
                    (Group(4), Group(4, kind="window", reach=6)),
                    (Group(4, kind="window", reach=9),),
                    (Group(8), Group(4, kind="window", reach=12)),
                    (Group(4), Group(4, kind="chunked", reach=8)),
                    (Group(4), Group(4, kind="window", reach=5),
                     Group(4, kind="window", reach=16))),
            needs=("windows",),
            gpu_blocks=(32, 64),
            prompt=(4, 48),
            chances=(*USUAL, ("workers", 0.2)),
        ),
        Profile(
            "pools",
            "host pools that choose by ARC or take what is asked for often; bounded requests, "
            "tenants apart",
            groups=(ONE, (Group(4), Group(2))),
            host_chunks=(4, 16),
            chances=(*USUAL, ("arc", 0.6), ("thresholds", 0.4), ("limits", 0.4),
                     ("load limits", 0.3), ("no read", 0.3), ("salts", 0.5), ("pieces", 0.3),
                     ("resets", 0.3)),
        ),
    )
}
DEFAULT = "storing"
CHECKED = ("storing", "groups", "reuse", "workers", "pools")
"""The profiles that `kvoracle check` runs."""


def profile(name: str) -> Profile:
    """The profile of this name; raises `UnknownName`."""
    if name not in PROFILES:
        raise nearest("profile", name, PROFILES)
    return PROFILES[name]


@dataclass(frozen=True)
class Generated:
    """One run: built from ``profile`` and ``seed`` alone."""

    profile: str
    seed: int
    config: Config
    stimuli: tuple[AnyStimulus, ...]

    @property
    def steps(self) -> int:
        """Scheduler steps it asks for, the drain's aside."""
        return sum(s.n for s in self.stimuli if isinstance(s, Step))


class _Writer:
    """Writes one run: keeps what has arrived, so that later stimuli can speak of it."""

    def __init__(self, chosen: Profile, rng: random.Random,
                 features: Collection[str] | None) -> None:
        self.profile, self.rng = chosen, rng
        on = {name for name, chance in chosen.chances if rng.random() < chance}
        lacking = set() if features is None else set(FEATURES) - set(features)
        self.on, self.lacking = on - lacking, lacking
        self.config = self._config()
        self.names: list[str] = []
        self.lengths: dict[str, int] = {}
        self.limited: set[str] = set()

    def _config(self) -> Config:
        rng, chosen, on = self.rng, self.profile, self.on
        groups = rng.choice([
            groups for groups in chosen.groups
            if not config_needs(Config(groups=groups)) & self.lacking] or [ONE])
        per = rng.choice(chosen.blocks_per_chunk)
        drafts = rng.randint(1, 3) if "drafts" in on else 0
        config = Config(
            groups=groups,
            blocks_per_chunk=per,
            gpu_blocks=rng.randint(*chosen.gpu_blocks),
            host_chunks=rng.randint(*chosen.host_chunks),
            tokens_per_step=rng.randint(5, 16) if "small pieces" in on else 64,
            max_running=rng.randint(2, 6),
            prompt_only="prompt only" in on,
            draft_tokens=drafts,
            async_scheduling="async" in on,
            policy="arc" if "arc" in on else "lru",
            store_threshold=2 if "thresholds" in on else 0,
            longest_piece=rng.randint(3, 9) if "pieces" in on else 0,
        )
        if "workers" in on:
            parallel = 2 if "context parallel" in on else 1
            config = msgspec.structs.replace(
                config, workers=2 if parallel > 1 else rng.randint(2, 3),
                context_parallel=parallel)
        # No engine starts that cannot give each running request a token.
        return msgspec.structs.replace(
            config, max_running=min(config.max_running, config.tokens_per_step))

    def _room(self) -> int:
        """Tokens that one request may come to, so that it can run alone."""
        config = self.config
        per_token = sum(1 / config.tokens_per_block(g) for g in range(len(config.groups)))
        spare = len(self.config.groups) + self.config.draft_tokens + 1
        return max(2, int((self.config.gpu_blocks - spare) / per_token) - spare)

    def arrive(self) -> Arrive:
        rng, room = self.rng, self._room()
        output = min(rng.randint(*self.profile.output), max(1, room // 3))
        length = max(1, min(rng.randint(*self.profile.prompt), room - output))
        segments: list[Segment] = []
        left = length
        if self.names and "turns" in self.on and rng.random() < 0.4:
            # The next turn of a conversation repeats the last one, answer included.
            other = rng.choice(self.names[-4:])
            part = min(self.lengths[other], left)
            segments.append((other, part))
            left -= part
        elif "shared prompts" in self.on and rng.random() < 0.7:
            part = rng.randint(1, left)
            segments.append((rng.randint(0, 1), part))
            left -= part
        if left:
            segments.append((2 + len(self.names), left))
        name = f"r{len(self.names)}"
        self.names.append(name)
        self.lengths[name] = length + output
        return Arrive(name, tuple(segments), output, **self._terms(length))

    def _terms(self, length: int) -> dict[str, Any]:
        """What else a request asks for."""
        rng, on = self.rng, self.on
        terms: dict[str, Any] = {}
        if "limits" in on and rng.random() < 0.4:
            terms["max_offload"] = rng.randint(0, length + 4)
        if "load limits" in on and rng.random() < 0.4:
            terms["max_load"] = rng.randint(0, length)
        if "no read" in on and rng.random() < 0.2:
            terms["no_read"] = True
        if "salts" in on and rng.random() < 0.5:
            terms[rng.choice(("salt", "adapter"))] = rng.choice("xy")
        return terms

    def _recent(self) -> str:
        return self.rng.choice(self.names[-4:])

    def step(self) -> Step:
        rng = self.rng
        slow = "slow transfers" in self.on
        return Step(
            done=rng.choice((None, None, 0, 1)) if slow else None,
            newest=slow and rng.random() < 0.3,
            accept=rng.randint(0, self.config.draft_tokens),
            stop=(self._recent(),) if self.names and rng.random() < 0.05 else (),
            slow=self._slow(),
        )

    def _slow(self) -> tuple[int, ...]:
        workers = self.config.workers
        if workers == 1 or self.rng.random() < 0.5:
            return ()
        return (self.rng.randrange(workers),)

    def keys(self) -> Keys:
        r = self._recent()
        if r in self.limited and self.rng.random() < 0.6:
            self.limited.discard(r)
            return Keys(r)
        self.limited.add(r)
        return Keys(r, self.rng.randint(0, self.lengths[r]))

    def stimuli(self) -> Iterator[AnyStimulus]:
        rng, steps = self.rng, 0
        # More than one reset a run is a profile of its own: "resets".
        resets = 1 if "resets" in self.on else 0
        chance = 0.29
        if "many resets" in self.on:
            resets, chance = self.profile.steps, 0.34
        while steps < self.profile.steps:
            roll = rng.random()
            if roll < 0.16 or not self.names:
                burst = rng.randint(2, 5) if "bursts" in self.on and rng.random() < 0.3 else 1
                for _ in range(burst):
                    yield self.arrive()
            elif roll < 0.24 and "late keys" in self.on:
                yield self.keys()
            elif roll < 0.28 and "aborts" in self.on:
                yield Abort(self._recent())
            elif roll < chance and resets > 0:
                resets -= 1
                yield Reset()
            elif roll < 0.32 and "refusals" in self.on:
                yield Refuse(rng.randint(1, 3))
            else:
                steps += 1
                yield self.step()
        yield Drain()


def generate(chosen: Profile, seed: int, features: Collection[str] | None = None,
             **changes: Any) -> Generated:
    """The run of a profile and a seed; ``changes`` replace fields of its config.

    ``features``: what the engine supports; what it does not is left out (None: nothing is).
    """
    writer = _Writer(chosen, random.Random(f"{chosen.name}/{seed}"), features)
    if changes:
        writer.config = msgspec.structs.replace(writer.config, **changes)
    return Generated(chosen.name, seed, writer.config, tuple(writer.stimuli()))


APART = 1_000_000
"""Distance of the runs of one seed from those of the next: no two seeds share a run."""


def runs(profiles: Sequence[Profile], seed: int,
         features: Collection[str] | None = None) -> Iterator[Generated]:
    """The runs of a seed, without end, the profiles in turn."""
    for i in count():
        yield numbered(profiles, seed, i, features)


def numbered(profiles: Sequence[Profile], seed: int, number: int,
             features: Collection[str] | None = None) -> Generated:
    """The run of this number, counted from 0, among those of a seed."""
    return generate(profiles[number % len(profiles)], seed * APART + number // len(profiles),
                    features)


def label(profiles: Sequence[Profile], seed: int, number: int) -> str:
    """How that run is called in reports."""
    return (f"profile {profiles[number % len(profiles)].name}, seed {seed}, "
            f"run {number // len(profiles)}")
