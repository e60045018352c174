"""The kinds of fault that keep coming back in offloading code, each with designs that have it.

`page` writes them down for people (``docs/patterns.md``): what goes wrong, the shortest run of
the machine that shows it, and the command that finds that run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvoracle.model.scopes import scope as find_scope
from kvoracle.spec.explore import search
from kvoracle.spec.properties import EVERYTHING
from kvoracle.spec.variants import variant as find_variant

from .verify import because, run_changes


@dataclass(frozen=True)
class Pattern:
    """A kind of fault: its name, how it comes about, where it was seen, and the variants that
    have it, each with the property to show it by."""

    name: str
    how: str
    seen: tuple[str, ...]
    shown_by: tuple[tuple[str, str], ...]


PATTERNS = (
    Pattern(
        "Two bounds computed in two places",
        "How far one may go is computed twice, from counts that do not move together: keys, "
        "blocks, computed tokens. Most of the time the two agree. Where one lags, two lists of "
        "different length are paired.",
        ("vLLM #52170", "vLLM #49118", "vLLM PR41549", "LMCache #2158", "LMCache #2327",
         "llm-d-kv-cache PR658"),
        (("no-key-bound", "KeysEqBlocks"), ("no-block-bound", "KeysEqBlocks"),
         ("hit-of-all-tokens", "HitSound"))),
    Pattern(
        "The cursor moves over something not done",
        "A count of what has been handled goes past a chunk that was refused, has no key yet, or "
        "was left out for another reason. Nobody comes back to it, and every later prefix hit "
        "ends there.",
        ("vLLM PR27697", "vLLM #46971", "vLLM PR46824", "vLLM #54415"),
        (("cursor-keeps-tail", "NoHole"), ("advance-on-refusal", "NoHole"))),
    Pattern(
        "A pin dropped when the copy is issued, not when it is done",
        "What protects the source of a copy is let go as soon as the copy is queued. The copy "
        "runs later, and reads what has come into its place since.",
        ("SGLang PR31427", "SGLang PR27631", "LMCache #4133"),
        (("pin-dropped-at-issue", "LoadReady"),)),
    Pattern(
        "A block freed on one path while a job on another still uses it",
        "Preemption, the end of a request, an abort, a window that slides: each frees blocks, "
        "each needs the fence, and each was fixed by itself.",
        ("vLLM PR48596", "vLLM PR42959", "vLLM PR45357", "vLLM PR56104", "vLLM #46951",
         "vLLM #52360", "vLLM #47282"),
        (("no-fence-at-finish", "ReuseFence"), ("no-fence-at-preemption", "ReuseFence"),
         ("abort-frees-at-once", "ReuseFence"), ("slides-unfenced", "ReuseFence"))),
    Pattern(
        "Completion taken from one of several",
        "A transfer has several parts: workers, connectors, handles. The first report is taken "
        "for the end of all.",
        ("tpu-inference PR3152", "vllm-ascend PR3332", "vLLM #46240", "vLLM PR56104"),
        (("first-report-counts", "WorkerAgreement"), ("first-connector-frees", "ConnectorFence"))),
    Pattern(
        "Failure reported as success",
        "A copy has failed, and what depends on it goes on as if it had not: a key becomes "
        "readable without bytes, or stays promised for ever.",
        ("LMCache #3388", "LMCache #4991", "vLLM #49176", "Mooncake #3465", "SGLang PR27108"),
        (("failed-is-ready", "TrueBytes"), ("failed-stays-pending", "NoLeak"),
         ("failed-load-starts", "LoadedBytes"))),
    Pattern(
        "Groups disagree",
        "Groups of different kinds can go on at different positions. Each is asked for its own "
        "best, and the answers are put together by a minimum, or one group's rule is applied to "
        "all, or the common position is moved after all have agreed.",
        ("vLLM #46453", "vLLM #51094", "vLLM #52735", "vLLM #51761", "vLLM PR55168",
         "SGLang #39830", "SGLang #39147"),
        (("minimum-of-groups", "HitSound"), ("group-ignored", "HitSound"),
         ("finer-than-span", "HitSound"), ("all-marked-draft", "HitMaximal"),
         ("tail-popped-late", "HitMaximal"))),
    Pattern(
        "What is queued is taken for done",
        "The host has queued a kernel or a copy and goes on as if it had run. On another stream, "
        "or on the host itself, the next operation overtakes it.",
        ("vLLM PR31341", "vLLM #45704", "vLLM #47282", "SGLang PR36738", "SGLang PR22811",
         "TensorRT-LLM PR15546"),
        (("store-beside-kernels", "TrueReads"), ("load-over-reads", "TrueReads"),
         ("load-over-writes", "TrueReads"), ("kernels-before-load", "TrueReads"),
         ("host-over-slot", "TrueReads"), ("table-written-early", "TrueReads"))),
    Pattern(
        "A fix opens the next hole",
        "A store is queued a step late, so as not to race with the kernels that write its block. "
        "Now the block may be written again in that step; and where lateness stands in for the "
        "event, the kernels may still not have run.",
        ("vLLM PR31341", "vLLM PR48596"),
        (("late-store-unfenced", "TrueReads"), ("step-late-is-no-event", "StreamOrder"))),
    Pattern(
        "A sanity check that is itself wrong",
        "An assertion, or the bound behind it, holds in every case that its author had in mind: "
        "keys come with their blocks, a window ends where a chunk does. What is right breaks it, "
        "and takes the engine down, or makes it promise what it cannot load.",
        ("vLLM #48959", "vLLM PR27648", "vLLM PR49052"),
        (("window-taken-as-aligned", "HitSound"),)),
)
"""In the order of the page."""


def page() -> str:
    """``docs/patterns.md``: all patterns with their shortest runs, found anew."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Faults that keep coming back"
    yield ""
    yield ("Offloading code fails in few ways, again and again, in engines that share no line. "
           "For each kind, this page has designs that have it, as variants of the model, and for "
           "each the shortest run that shows it. The runs are searched for when the page is "
           "written: breadth first, so none in the named scope is shorter.")
    for number, pattern in enumerate(PATTERNS, 1):
        yield ""
        yield f"## {number}. {pattern.name}"
        yield ""
        yield pattern.how
        yield ""
        yield f"Seen in: {', '.join(pattern.seen)}."
        for name, prop in pattern.shown_by:
            yield from _shown(name, prop)


def _shown(name: str, prop: str) -> Iterator[str]:
    variant = find_variant(name)
    where = find_scope(variant.scope)
    found = search(where, variant, properties=[EVERYTHING[prop]])
    violation = found.violations[prop]
    machine = variant.machine(where)
    yield ""
    yield f"### {name}"
    yield ""
    yield (f"{_sentence(variant.statement)} It lacks {variant.lacks} ({variant.source}). "
           f"It breaks **{prop}**: {EVERYTHING[prop].statement}.")
    yield ""
    yield f"Scope `{where.name}`: {where.doc}. After {len(violation.run)} steps, " \
          f"{because(machine, where, violation)}."
    yield ""
    yield "| step | what happens | what changes |"
    yield "|---|---|---|"
    for i, (step, changed) in enumerate(run_changes(machine, where, violation.run), 1):
        yield f"| {i} | {_cell(step)} | {_cell('; '.join(changed) or 'nothing')} |"
    yield ""
    yield f"Found again by `kvoracle explore --scope {where.name} --variant {name} " \
          f"--property {prop}`."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
