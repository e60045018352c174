"""Random runs that look like the field's: what is done to an engine, from a seed.

A run is a config and a list of stimuli.  Features are chosen by *swarm*: each run
turns some off, so that rare combinations are met as often as common ones (Groce et
al., "Swarm Testing", ISSTA 2012).  Requests share system prompts, extend each other's
conversations, come in bursts, are aborted in every state; pools are small, transfers
slow, keys late, drafts rejected.

A run from a seed is the same for ever in one version: nothing here depends on the
engine's answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from kvoracle.model.scopes import nearest

from .events import (
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
)


@dataclass(frozen=True)
class Profile:
    """What the runs of a workload are made of.

    ``groups``: choices of groups as (tokens per block, draft).  ``chances`` are those of each
    feature to be on in a run; a feature that is off does not occur in the run at all.
    """

    name: str
    doc: str
    groups: tuple[tuple[tuple[int, bool], ...], ...]
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


ONE = ((4, False),)
PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile(
            "storing",
            "store planning: late keys, refusals, drafts, aborts in every state",
            groups=(ONE, ((4, False), (4, True)), ((4, True),)),
        ),
        Profile(
            "groups",
            "several groups with chunks of different sizes",
            groups=(((4, False), (2, True)), ((8, False), (4, False), (2, True))),
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
    )
}
DEFAULT = "storing"
CHECKED = ("storing", "groups", "reuse")
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

    def __init__(self, chosen: Profile, rng: random.Random) -> None:
        self.profile, self.rng = chosen, rng
        self.on = {name for name, chance in chosen.chances if rng.random() < chance}
        self.config = self._config()
        self.names: list[str] = []
        self.lengths: dict[str, int] = {}
        self.limited: set[str] = set()

    def _config(self) -> Config:
        rng, chosen = self.rng, self.profile
        groups = tuple(Group(size, draft) for size, draft in rng.choice(chosen.groups))
        per = rng.choice(chosen.blocks_per_chunk)
        drafts = rng.randint(1, 3) if "drafts" in self.on else 0
        return Config(
            groups=groups,
            blocks_per_chunk=per,
            gpu_blocks=rng.randint(*chosen.gpu_blocks),
            host_chunks=rng.randint(*chosen.host_chunks),
            tokens_per_step=rng.randint(5, 16) if "small pieces" in self.on else 64,
            max_running=rng.randint(2, 6),
            prompt_only="prompt only" in self.on,
            draft_tokens=drafts,
        )

    def _room(self) -> int:
        """Tokens that one request may come to, so that it can run alone."""
        per_token = sum(1 / g.tokens_per_block for g in self.config.groups)
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
        return Arrive(name, tuple(segments), output)

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
        )

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


def generate(chosen: Profile, seed: int, **changes: Any) -> Generated:
    """The run of a profile and a seed; ``changes`` replace fields of its config."""
    writer = _Writer(chosen, random.Random(f"{chosen.name}/{seed}"))
    if changes:
        writer.config = msgspec.structs.replace(writer.config, **changes)
    return Generated(chosen.name, seed, writer.config, tuple(writer.stimuli()))


APART = 1_000_000
"""Distance of the runs of one seed from those of the next: no two seeds share a run."""


def runs(profiles: Sequence[Profile], seed: int) -> Iterator[Generated]:
    """The runs of a seed, without end, the profiles in turn."""
    for i in count():
        yield numbered(profiles, seed, i)


def numbered(profiles: Sequence[Profile], seed: int, number: int) -> Generated:
    """The run of this number, counted from 0, among those of a seed."""
    return generate(profiles[number % len(profiles)], seed * APART + number // len(profiles))


def label(profiles: Sequence[Profile], seed: int, number: int) -> str:
    """How that run is called in reports."""
    return (f"profile {profiles[number % len(profiles)].name}, seed {seed}, "
            f"run {number // len(profiles)}")
