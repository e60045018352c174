"""Where to look next: runs that went where no run had been are kept, and changed.

Two things are counted of a run: the points of the engine's own offloading code that it went
through (and how often, to a power of two), and the situations of the model that it led to (how
a request's tokens, blocks, keys and cursor stand to each other, and where it is in its life).  A
run that reaches a new point is kept in the *corpus*; new runs are made from the kept ones by
cutting, repeating, splicing and small changes, and every second one from nothing, so that a
corpus that leads nowhere costs little.  (AFL and libFuzzer work so.)
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvoracle.model.requests import FINISHED

from . import events as e
from .judge import Judge
from .scenario import FORMAT, Header, MalformedScenario, Scenario, parse
from .workload import Profile, generate

FRESH = 0.5
"""The share of runs that are made from nothing."""

LONGEST = 2
"""A changed run has at most so many times the steps of its profile."""


@dataclass(frozen=True)
class Kept:
    """A run of the corpus: its number, itself as a scenario's text, the points it reached."""

    number: int
    text: str
    points: tuple[int, ...]


@dataclass
class Corpus:
    """The runs that reached something new, in the order in which they came."""

    kept: list[Kept] = field(default_factory=list)
    reached: Counter[int] = field(default_factory=Counter)

    def offer(self, run: Kept) -> bool:
        """Keep the run if it reached a point that none before did."""
        new = any(p not in self.reached for p in run.points)
        self.reached.update(run.points)
        if new:
            self.kept.append(run)
        return new

    def choose(self, rng: random.Random) -> Kept:
        """A run, the likelier the rarer the points are that it reached."""
        weights = [1 / min(self.reached[p] for p in k.points) for k in self.kept]
        return rng.choices(self.kept, weights)[0]


class Situations:
    """The situations of the model that a run led to, as points."""

    def __init__(self) -> None:
        self.points: set[int] = set()

    def watch(self, judge: Judge) -> None:
        """Look at where each request stands now."""
        get, config = judge.run.get, judge.config
        for r in judge.tracked.values():
            life = get("life", r)
            for g in range(len(config.groups)):
                size = config.tokens_per_chunk(g)
                counts = (get("computed", r) // size, get("tokens", r) // size,
                          get("blocks", r, g) // config.blocks_per_chunk, get("keys", r, g),
                          get("cursor", r, g))
                order = tuple((a > b) - (a < b) for i, a in enumerate(counts)
                              for b in counts[:i])
                decodes = get("tokens", r) > get("prompt", r)
                seen = (life, decodes, config.groups[g].draft, get("excused", r), order,
                        life >= FINISHED and counts[4] == 0)
                self.points.add(zlib.crc32(repr(seen).encode()))


def text_of(config: e.Config, stimuli: Sequence[e.AnyStimulus]) -> str:
    """A run as a scenario's text: the same run, the same text."""
    return Scenario(Header(FORMAT, "kept", config), tuple(stimuli)).text()


def changed(corpus: Corpus, profile: Profile, rng: random.Random,
            features: Collection[str] | None = None) -> str | None:
    """A run made from those of the corpus; None where what came out is no run, or is one of
    the corpus again."""
    first = parse(corpus.choose(rng).text, "corpus")
    config, stimuli = first.header.config, list(first.stimuli)
    for _ in range(rng.randint(1, 3)):
        way = rng.randrange(6)
        if way == 0:
            stimuli = _cut(stimuli, rng)
        elif way == 1:
            stimuli = _repeated(stimuli, rng)
        elif way == 2:  # what led somewhere, and then what led elsewhere
            other = parse(corpus.choose(rng).text, "corpus")
            stimuli = [*stimuli[:rng.randint(len(stimuli) // 2, len(stimuli))],
                       *other.stimuli[rng.randint(0, len(other.stimuli) // 2):]]
        elif way == 3:
            stimuli = _inserted(stimuli, profile, rng, features)
        elif way == 4:
            config = _other_sizes(config, profile, rng)
        else:
            stimuli = _tweaked(stimuli, config, rng)
    resets = profile.steps if dict(profile.chances).get("many resets") else 1
    text = text_of(config, list(_sensible(stimuli, profile.steps * LONGEST, resets)))
    try:
        parse(text, "changed")
    except MalformedScenario:
        return None
    return text


def _slice(stimuli: Sequence[e.AnyStimulus], rng: random.Random) -> tuple[int, int]:
    start = rng.randint(0, len(stimuli))
    return start, min(len(stimuli), start + 2 ** rng.randint(0, 5))


def _cut(stimuli: list[e.AnyStimulus], rng: random.Random) -> list[e.AnyStimulus]:
    start, end = _slice(stimuli, rng)
    return stimuli[:start] + stimuli[end:]


def _repeated(stimuli: list[e.AnyStimulus], rng: random.Random) -> list[e.AnyStimulus]:
    start, end = _slice(stimuli, rng)
    return stimuli[:end] + stimuli[start:end] + stimuli[end:]


def _inserted(stimuli: list[e.AnyStimulus], profile: Profile, rng: random.Random,
              features: Collection[str] | None) -> list[e.AnyStimulus]:
    fresh = generate(profile, rng.getrandbits(40), features).stimuli
    start, end = _slice(fresh, rng)
    at = rng.randint(0, len(stimuli))
    return [*stimuli[:at], *fresh[start:end], *stimuli[at:]]


def _other_sizes(config: e.Config, profile: Profile, rng: random.Random) -> e.Config:
    other = generate(profile, rng.getrandbits(40)).config
    name = rng.choice(("gpu_blocks", "host_chunks", "tokens_per_step", "max_running"))
    return replace(config, **{name: getattr(other, name)})


def _tweaked(stimuli: list[e.AnyStimulus], config: e.Config,
             rng: random.Random) -> list[e.AnyStimulus]:
    if not stimuli:
        return stimuli
    at = rng.randrange(len(stimuli))
    one = stimuli[at]
    if isinstance(one, e.Step):
        one = rng.choice((
            replace(one, done=rng.choice((None, 0, 1))),
            replace(one, accept=rng.randint(0, config.draft_tokens)),
            replace(one, n=rng.choice((1, 1, 2, 3)))))
    elif isinstance(one, e.Arrive):
        one = replace(one, output=max(1, one.output + rng.choice((-1, 1, 4))))
    elif isinstance(one, e.Keys) and one.upto is not None:
        one = replace(one, upto=rng.choice((None, one.upto + 1, max(0, one.upto - 1))))
    return [*stimuli[:at], one, *stimuli[at + 1:]]


def _sensible(stimuli: Iterable[e.AnyStimulus], steps: int,
              resets: int) -> Iterator[e.AnyStimulus]:
    """The stimuli as a run: each name arrives once, and is spoken of afterwards; one drain, at
    the end; so many steps and resets at most."""
    names: dict[str, str] = {}
    arrived = 0
    for s in stimuli:
        if isinstance(s, e.Arrive):
            prompt = tuple((names.get(source, 2 + arrived) if isinstance(source, str)
                            else source, n) for source, n in s.prompt)
            names[s.r] = f"r{arrived}"
            arrived += 1
            yield replace(s, r=names[s.r], prompt=prompt)
        elif isinstance(s, (e.Keys, e.Abort)):
            if s.r in names:
                yield replace(s, r=names[s.r])
        elif isinstance(s, e.Step):
            if s.n <= steps:
                steps -= s.n
                yield replace(s, stop=tuple(names[r] for r in s.stop if r in names))
        elif isinstance(s, e.Reset):
            if resets > 0:
                resets -= 1
                yield s
        elif not isinstance(s, e.Drain):
            yield s
    yield e.Drain()
