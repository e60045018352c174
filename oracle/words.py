"""Events in words: how stimuli and observations read in a report."""

from __future__ import annotations

from collections.abc import Sequence

from . import events as e


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def prompt(segments: Sequence[e.Segment]) -> str:
    """A prompt's tokens: ``7 tokens (4 of request a + 3 of stream 2)``."""
    total = _count(sum(n for _, n in segments), "token")
    parts = [
        f"{n} of request {source}" if isinstance(source, str) else f"{n} of stream {source}"
        for source, n in segments
    ]
    return f"{total} ({' + '.join(parts)})"


def stimulus(s: e.AnyStimulus) -> str:
    """One stimulus as a phrase."""
    if isinstance(s, e.Arrive):
        return f"request {s.r} arrives: {prompt(s.prompt)}, to sample {s.output}{_terms(s)}"
    if isinstance(s, e.Keys):
        if s.upto is None:
            return f"all keys of request {s.r} arrive"
        return f"keys of request {s.r} come late beyond token {s.upto}"
    if isinstance(s, e.Step):
        details = []
        if s.done is not None:
            details.append(_completing(s.done, "newest" if s.newest else "oldest"))
        if s.accept:
            details.append(f"{_count(s.accept, 'draft')} accepted")
        if s.stop:
            details.append(f"{', '.join(s.stop)} {'stops' if len(s.stop) == 1 else 'stop'}")
        if s.slow:
            details.append(f"none on worker {', '.join(map(str, s.slow))}")
        text = "one step" if s.n == 1 else f"{s.n} steps"
        return f"{text}: {', '.join(details)}" if details else text
    if isinstance(s, e.Abort):
        return f"the client of request {s.r} goes away"
    if isinstance(s, e.Refuse):
        return f"the host pool will refuse {_count(s.n, 'offer')}"
    if isinstance(s, e.Reset):
        return "the host pool is reset"
    return "steps until nothing is left"


def _terms(s: e.Arrive) -> str:
    terms = [f"{word} {value}" for word, value in (
        ("salt", s.salt), ("adapter", s.adapter)) if value]
    if s.max_offload is not None:
        terms.append(f"{_count(s.max_offload, 'token')} offloaded at most")
    if s.max_load is not None:
        terms.append(f"{_count(s.max_load, 'token')} loaded at most")
    if s.no_read:
        terms.append("reading no cache")
    return "".join(f", {term}" for term in terms)


def _completing(done: int, which: str) -> str:
    if done == 0:
        return "no transfer completes"
    return f"the {which} transfer completes" if done == 1 \
        else f"the {which} {done} transfers complete"


def _chunks(parts: Sequence[e.Chunks]) -> str:
    texts = []
    for part in parts:
        text = f"{'chunk' if len(part.offered) == 1 else 'chunks'} {_ranges(part.offered)} " \
               f"of group {part.g}"
        if part.declined:
            text += f" ({_ranges(part.declined)} declined)"
        texts.append(text)
    return ", ".join(texts)


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def observation(o: e.AnyObservation) -> str:
    """One observation as a phrase; "" for what a report leaves out."""
    if isinstance(o, e.KeysKnown):
        return f"{o.r}: {_count(o.n, 'key')} in group {o.g}"
    if isinstance(o, e.BlocksKnown):
        return f"{o.r}: {_count(o.n, 'block')} in group {o.g}"
    if isinstance(o, e.Started):
        return f"{o.r} starts" + (f" with {o.cached} cached tokens" if o.cached else "")
    if isinstance(o, e.Loaded):
        return f"{o.r}: {_count(o.upto, 'token')} loaded from the host"
    if isinstance(o, e.Computed):
        return f"{o.r}: {_count(o.n, 'token')} computed"
    if isinstance(o, e.Planned):
        return f"{o.r}: stores {_chunks(o.groups) or 'nothing'}"
    if isinstance(o, e.Refused):
        return f"{o.r}: refused"
    if isinstance(o, e.Cursor):
        return f"{o.r}: cursor {o.n} in group {o.g}"
    if isinstance(o, e.TokensKnown):
        return f"{o.r}: {_count(o.n, 'token')} known"
    if isinstance(o, e.Rejected):
        return f"{o.r}: {_count(o.n, 'draft')} rejected"
    if isinstance(o, e.Preempted):
        return f"{o.r} preempted"
    if isinstance(o, e.Finished):
        return f"{o.r} {'aborted' if o.aborted else 'finished'}"
    if isinstance(o, e.Retired):
        return f"{o.r} forgotten"
    if isinstance(o, e.BadBytes):
        return f"{o.r}: wrong bytes ({o.where})"
    if isinstance(o, e.LookedUp):
        said = "ask again" if o.answer is None else _count(o.answer, "token") + " in the host"
        return f"{o.r}: looked up: {said}"
    if isinstance(o, e.Overwritten):
        return f"{o.by} writes a {o.what} that {o.r} still uses"
    if isinstance(o, e.Unready):
        return f"{o.r}: loads what is not stored yet"
    if isinstance(o, e.Pins):
        return f"wrong pins in the host pool: {o.pinned} by loads, {o.pending} by stores"
    if isinstance(o, e.NotAtRest):
        return f"not at rest: {o.held}"
    if isinstance(o, e.Died):
        return f"dies: {o.error} {o.message}".rstrip()
    return ""
