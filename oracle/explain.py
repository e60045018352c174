"""A finding explained: data first, text second.

Answers, in this order: what is wrong and whose fault it is; the property and why it
matters; the shortest run as a table and why it is shortest; the line that replays it;
what could not be seen.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from kvoracle.spec.properties import EVERYTHING

from . import events as e
from . import words
from .console import table
from .diagnose import Diagnosis
from .observed import OBSERVED
from .scenario import UNMET, shipped
from .session import Outcome

ROWS_SEEN = 12
"""Observations shown for one stimulus; the last ones, since the last one is what failed."""

LINES_SEEN = 8
"""Lines of an engine's standard error that are shown, the last ones."""


@dataclass(frozen=True)
class Row:
    """One stimulus of the run, and what was seen of it."""

    number: int
    done: str
    seen: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """Everything a report says of one finding."""

    engine: str
    kind: str
    property: str
    statement: str
    why: str
    because: str
    acceptance: bool
    behaves_like: tuple[Diagnosis, ...]
    config: dict[str, Any]
    rows: tuple[Row, ...]
    minimal: str
    replay: str
    unseen: tuple[str, ...]
    error: str = ""
    at: str = ""
    stderr: str = ""
    rule: str = ""

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return asdict(self)


def explain(outcome: Outcome, replay: str, minimal: str, name: str) -> Explanation:
    """The explanation of a run's finding.  ``name`` is what the engine was asked for by, should
    it not have got so far as to name itself."""
    finding, judge = outcome.finding, outcome.judge
    assert finding is not None and judge is not None
    statement, why = _property(finding.property)
    rows = tuple(
        Row(i, words.stimulus(s), tuple(t for t in map(words.observation, seen) if t))
        for i, (s, seen) in enumerate(outcome.log, 1)
    )
    died = finding.died or e.Died("")
    return Explanation(
        outcome.engine or name, finding.kind, finding.property, statement, why, finding.because,
        finding.acceptance, tuple(outcome.diagnoses), _config(outcome.config), rows, minimal,
        replay, tuple(sorted(judge.unseen)), died.error, died.at, died.stderr,
        finding.rule,
    )


def _property(name: str) -> tuple[str, str]:
    if name in OBSERVED:
        return OBSERVED[name].statement, OBSERVED[name].why
    if name in EVERYTHING:
        return EVERYTHING[name].statement, EVERYTHING[name].why
    return "", ""


def _config(config: e.Config) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(config)
    return data


def headline(x: Explanation) -> str:
    """What is wrong, in one sentence."""
    if x.rule == UNMET:
        return f"{x.engine} does not do what the scenario expects: {x.because}"
    if x.kind == "departure":
        return f"{x.engine} does what the machine knows no action for: {x.because}"
    broken = f"{x.engine} breaks {x.property}"
    if x.acceptance:
        broken += " (acceptance of drafts only, not output)"
    return f"{broken} because {x.because}"


def _like(behaves_like: Sequence[Diagnosis]) -> str:
    if not behaves_like:
        return "No broken design that is known would have failed here."
    best, others = behaves_like[0], behaves_like[1:]
    text = f"It behaves like the design {best.variant}: it seems to lack {best.lacks}."
    if others:
        text += f" ({', '.join(d.variant for d in others)} would have failed here as well.)"
    return text


def text(x: Explanation, width: int = 100) -> str:
    """The explanation for people, in ``width`` columns."""

    def wrap(paragraph: str, indent: str = "", hanging: str = "") -> list[str]:
        # Names are kept whole, so that they can be searched for.
        return textwrap.wrap(paragraph, width, initial_indent=indent,
                             subsequent_indent=indent + hanging, break_on_hyphens=False,
                             break_long_words=False)

    lines = wrap(headline(x).rstrip(".") + ".")
    if x.kind == "crash":
        lines += wrap(_like(x.behaves_like))
        if x.at:
            lines += wrap(f"It died at {x.at}")
        lines += _evidence(x, width)
    if x.statement:
        lines += ["", *wrap(f"{x.property}: {x.statement}."), *wrap(x.why)]
    lines += ["", *wrap(f"The run ({x.minimal}):")]
    lines += wrap(f"config {', '.join(f'{k} {v}' for k, v in _short(x.config).items())}", "  ")
    for row in x.rows:
        lines += wrap(f"{row.number:>3}  {row.done}", "  ", "     ")
        seen = row.seen[-ROWS_SEEN:]
        dropped = len(row.seen) - len(seen)
        shown = ([f"({dropped} more)"] if dropped else []) + list(seen)
        if shown:
            # No line ends between a request's name and what is said of it.
            told = "; ".join(shown).replace(": ", ":\0")
            lines += [line.replace("\0", " ") for line in wrap(told, "         ")]
    if x.unseen:
        lines += ["", *wrap(f"Not seen, and so not judged: {', '.join(x.unseen)}.")]
    if x.replay:
        lines += ["", f"replay: {x.replay}"]
    return "\n".join(lines)


def _evidence(x: Explanation, width: int) -> list[str]:
    """What a process that is simply gone left behind.  One that says where it died has said
    it all, and its log names times and process numbers, no two runs the same."""
    last = x.stderr.rstrip().splitlines()[-LINES_SEEN:]
    if x.at or not last:
        return []
    return ["Its standard error ends:", *(f"  | {line}"[:width].rstrip() for line in last)]


def _short(config: dict[str, Any]) -> dict[str, Any]:
    groups = [
        f"{g['tokens_per_block']} tokens/block{' draft' if g.get('draft') else ''}"
        f"{'' if g.get('marked', True) else ' (not marked)'}"
        + (f" {g['kind']} {g.get('reach') or ''}".rstrip() if g.get("kind") else "")
        for g in config["groups"]
    ]
    return {"groups": f"[{', '.join(groups)}]",
            **{k: v for k, v in config.items() if k != "groups"}}


# --- in full ---------------------------------------------------------------------------


def at_fault(x: Explanation) -> str:
    """Whether engine or design is to blame, and how that is known."""
    if x.rule == UNMET:
        return "The engine or the scenario is at fault: nothing but the scenario expects this."
    if x.engine.startswith("model"):
        return "The design is at fault: this engine is the machine itself, run with that design."
    if x.kind == "departure":
        return ("The engine may be at fault, or the model: no property is broken yet, but the "
                "machine knows no such action.")
    if x.property in EVERYTHING:
        return (f"The engine is at fault and not the design: the reference design keeps "
                f"{x.property} for all sizes (kvoracle prove {x.property}).")
    return "The engine is at fault: no design permits this."


def features(config: e.Config, stimuli: Sequence[e.AnyStimulus],
             seen: Iterable[e.AnyObservation] = ()) -> set[str]:
    """What is special about a run, in the words of its config, stimuli and what was seen."""
    observed = {type(o) for o in seen}
    return {name for name, there in {
        "several groups": len(config.groups) > 1,
        "a draft group": any(g.draft for g in config.groups),
        "drafts": config.draft_tokens > 0,
        "chunks of several blocks": config.blocks_per_chunk > 1,
        "late keys": any(isinstance(s, e.Keys) for s in stimuli),
        "an abort": any(isinstance(s, e.Abort) for s in stimuli),
        "a refusal": any(isinstance(s, e.Refuse) for s in stimuli),
        "a reset": any(isinstance(s, e.Reset) for s in stimuli),
        "two resets": sum(isinstance(s, e.Reset) for s in stimuli) > 1,
        "slow transfers": any(isinstance(s, e.Step) and s.done is not None for s in stimuli),
        "a request that ends": bool(observed & {e.Finished}),
        "preemption": bool(observed & {e.Preempted}),
        "a load": bool(observed & {e.Loaded}),
        "several requests": sum(isinstance(s, e.Arrive) for s in stimuli) > 1,
    }.items() if there}


def missed(x: Explanation, outcome: Outcome) -> str:
    """Why what was checked before this run did not see it."""
    mine = features(outcome.config, outcome.stimuli,
                    (o for _, seen in outcome.log for o in seen))
    others: set[str] = set()
    known = False
    for scenario in shipped().values():
        known |= scenario.stimuli[:len(outcome.log)] == outcome.stimuli
        others |= features(scenario.header.config, scenario.stimuli)
    reasons = ["proofs and searches are about the design, and the engine does not follow it"
               if not x.engine.startswith("model") else
               "the reference design was proved and searched, and this is another one"]
    alone = sorted(mine - others)
    if known:
        reasons.append("this run is among the shipped scenarios")
    elif alone:
        reasons.append(f"no shipped scenario has {', '.join(alone)}")
    elif mine:
        reasons.append(f"no shipped scenario has {', '.join(sorted(mine))} in this order")
    if x.kind != "crash":
        reasons.append("the engine itself goes on as if nothing had happened")
    if x.unseen:
        reasons.append(f"it does not show {', '.join(x.unseen)}")
    return f"Why earlier checks did not see it: {'; '.join(reasons)}."


def full_text(x: Explanation, outcome: Outcome, width: int = 100) -> str:
    """The explanation in the order in which somebody asks: what is wrong and whose fault it is,
    the property, the shortest run, how to see it again, why it was not seen before."""

    def wrap(paragraph: str) -> list[str]:
        return textwrap.wrap(paragraph, width, break_on_hyphens=False, break_long_words=False)

    lines = [*wrap(headline(x).rstrip(".") + "."), *wrap(at_fault(x))]
    if x.kind == "crash":
        lines += wrap(_like(x.behaves_like))
        if x.at:
            lines += wrap(f"It died at {x.at}")
        lines += _evidence(x, width)
    if x.statement:
        lines += ["", *wrap(f"{x.property}: {x.statement}."), *wrap(x.why)]
    lines += ["", *wrap(f"The run ({x.minimal}):"),
              *wrap(f"config {', '.join(f'{k} {v}' for k, v in _short(x.config).items())}"), ""]
    narrow = max(16, (width - 12) // 3)
    rows = [[str(row.number), "\n".join(textwrap.wrap(row.done, narrow)),
             "\n".join(textwrap.wrap("; ".join(row.seen[-ROWS_SEEN:]), width - narrow - 10))]
            for row in x.rows]
    lines += table(["step", "action", "what matters"], rows).splitlines()
    if x.unseen:
        lines += ["", *wrap(f"Not seen, and so not judged: {', '.join(x.unseen)}.")]
    if x.replay:
        lines += ["", f"replay: {x.replay}"]
    lines += ["", *wrap(missed(x, outcome))]
    return "\n".join(lines)
