"""Why no property notices a mutant, where none does.

A mutant that survives every scope is the same machine written otherwise, or one that permits
other things which are none of our properties' business, or it shows a gap.  Each reason here
was found by looking; one that fits no survivor any more is out of date, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .kill import Outcome


@dataclass(frozen=True)
class Reason:
    """Why the mutants whose names fit one of the patterns (`fnmatch`) survive."""

    why: str
    patterns: tuple[str, ...]

    def fits(self, outcome: Outcome) -> bool:
        """Whether it explains this survivor."""
        name = outcome.name.replace("[", "(").replace("]", ")")  # no sets of characters
        return any(fnmatchcase(name, p.replace("[", "(").replace("]", ")")) for p in self.patterns)


LESS = ("it permits less than engines may do, which no safety property can notice; the counts of "
        "its scopes, which are pinned, differ")
"""Why a mutant survives that only takes steps away."""


@dataclass(frozen=True)
class Explained:
    """The survivors: each reason with those it explains, those without one, and the reasons that
    explain nothing."""

    groups: list[tuple[str, list[Outcome]]]
    unexplained: list[Outcome]
    stale: list[Reason]


SAME = "it is the same machine written otherwise, for all sizes: proved"
"""Why a mutant survives that changes nothing in states that keep the invariants."""


def explain(outcomes: Iterable[Outcome], reasons: Sequence[Reason],
            proved_same: Callable[[Outcome], bool]) -> Explained:
    """Sort the survivors by the reason why they survive; the first that fits counts."""
    survivors = [o for o in outcomes if o.fate not in ("killed", "witness")]
    groups: dict[str, list[Outcome]] = {}
    unexplained: list[Outcome] = []
    used: set[Reason] = set()
    for outcome in survivors:
        reason = next((r for r in reasons if r.fits(outcome)), None)
        if reason is not None:
            used.add(reason)
            groups.setdefault(reason.why, []).append(outcome)
        elif outcome.fate == "less":
            groups.setdefault(LESS, []).append(outcome)
        elif outcome.fate == "same" and proved_same(outcome):
            groups.setdefault(SAME, []).append(outcome)
        else:
            unexplained.append(outcome)
    return Explained(list(groups.items()), unexplained, [r for r in reasons if r not in used])




REASONS: tuple[Reason, ...] = (
    Reason(
        "how requests run is the affair of scheduler and client: no promise of offloading is "
        "about it",
        (
            "abort: 'between steps': *",
            "abort: ahead: *",
            "abort: where ahead changes: *",
            "allocate: 'runs, is first, or can be loaded': *",
            "arrive: ahead: *",
            "borrowed_dropped: 'aborted': *",
            "borrowed_over: computed: *",
            "compute: 'further than before': *",
            "dispatch: 'a block for the token to come': *",
            "dispatch: 'one step ahead': *",
            "dispatch: 'runs': *",
            "finish: 'has sampled': *",
            "finish: 'only the last token is not computed': *",
            "keys_arrive: 'a key names known tokens': *",
            "load: 'waits': *",
            "load: computed: *",
            "load: life: *",
            "load_hit: computed: *",
            "load_hit: life: *",
            "look_up_pending: 'waits': *",
            "preempt: 'between steps': *",
            "preempt: ahead: *",
            "promote: 'waits': *",
            "reject: 'everything known is computed': *",
            "reject: 'runs': *",
            "report_load: ahead: *",
            "report_load: computed: *",
            "report_load: where ahead changes: *",
            "rewind: 'back': *",
            "rewind: 'waits': *",
            "run_ahead: 'strays were dispatched before': *",
            "run_ahead: computed: *",
            "sample: 'everything known is computed': *",
            "sample: 'no drafts without a draft group': *",
            "sample: computed: *",
            "set_limit: 'has not started': *",
            "set_limit: 'one limit': *",
            "slide: 'runs': *",
            "start: 'a block for the next token': *",
            "start: 'one token is left to compute': *",
            "start: ahead: *",
            "start: where ahead changes: *",
            "tell: 'waits': *",
        ),
    ),
    Reason(
        "no scope of its parts has so many requests, groups, chunks, slots or workers at once "
        "that it matters; a larger one is missing",
        (
            "borrow: 'a block for each chunk of the hit': *",
            "borrow: 'no store of ours still reads what is written': *",
            "borrowed_dropped: 'all is there': *",
            "borrowed_over: 'all is there': *",
            "bring: 'under way': *",
            "compute: guessed: *",
            "compute: where guessed changes: *",
            "compute: where name changes: *",
            "compute: where tag_g changes: *",
            "compute: where tag_text changes: *",
            "copy_in: 'under way': *",
            "copy_in_fails: 'under way': *",
            "dispatch: 'no store still reads what is written': *",
            "evict: 'may go': *",
            "find: 'all before it were found': *",
            "find: 'has its name': *",
            "find: 'nothing is being loaded': *",
            "launch: 'behind the loads of what it reads': *",
            "launch: 'behind the stores of what it writes': *",
            "launch: 'has seen the step done that read the table': *",
            "launch: 'nor is what it writes yet to be stored': *",
            "load: 'behind the kernels that read what it writes': *",
            "load: 'behind the kernels that write what it writes': *",
            "load: 'behind the stores of what it writes': *",
            "load: 'nor is what it writes yet to be stored': *",
            "load_dropped: 'every worker is done': *",
            "load_fails: 'every worker is done': *",
            "look_up: 'nowhere further': *",
            "look_up: asked: *",
            "look_up_elsewhere: asked: *",
            "look_up_nothing: 'there is nothing': *",
            "look_up_nothing: asked: *",
            "look_up_pending: asked: *",
            "plan_load: 'a block for all that is read': *",
            "plan_load: 'every chunk of the hit can be loaded': *",
            "plan_load: 'no store still reads what is written': *",
            "plan_load: where origin changes: *",
            "plan_load: where pin changes: *",
            "plan_store: flight: *",
            "promote: 'a free slot': *",
            "promote: 'has seen the loads done of what was in the slot': *",
            "promote: 'not in the pool': *",
            "promote: 'room beside it': *",
            "promote_ends: byte_g: *",
            "promote_ends: byte_text: *",
            "refuse: 'no room for what is offered': *",
            "report_load: 'every worker is done': *",
            "reset: where pooled changes: *",
            "reset: where slot changes: *",
            "reset: where slot_c changes: *",
            "reset: where slot_g changes: *",
            "reset: where slot_text changes: *",
            "reset: where taken changes: *",
            "retire: 'nothing of it is under way': *",
            "run_ahead: where tag_end changes: *",
            "run_ahead: where tag_g changes: *",
            "run_ahead: where tag_text changes: *",
            "sample: 'a block for each accepted draft': *",
            "sample: 'no store still reads what is written': *",
            "sample: where tag_end changes: *",
            "sample: where tag_g changes: *",
            "sample: where tag_text changes: *",
            "see: where awaits changes: *",
            "see: where earlier changes: *",
            "see: where fed changes: *",
            "see: where feeder changes: *",
            "slide: 'read no more': *",
            "slide: where place_c changes: *",
            "slide: where place_g changes: *",
            "start: 'a block for all that is read': *",
            "start: 'computes on from what was found': *",
            "store: 'behind the loads of what it reads': *",
            "store: 'behind the loads of what was in the slot': *",
            "tell: 'its key is known': *",
        ),
    ),
    Reason(
        "what is left behind is written anew before anybody reads it",
        (
            "allocate: name: *",
            "bring: tag_g: *",
            "copy_late: byte_end: *",
            "copy_late: byte_g: *",
            "copy_late: byte_text: *",
            "copy_out_fails: byte_end: *",
            "copy_out_fails: byte_g: *",
            "copy_out_fails: byte_text: *",
            "evict: slot: *",
            "evict: slot_c: *",
            "evict: slot_g: *",
            "evict: slot_text: *",
            "give_back: place_c: *",
            "give_back: place_g: *",
            "give_back: table: *",
            "given_up: pooled: *",
            "hand_back: place_c: *",
            "hand_back: place_g: *",
            "hand_back: table: *",
            "launch: on: *",
            "load: sought: *",
            "load_dropped: origin: *",
            "load_fails: origin: *",
            "look_up_elsewhere: verdict: *",
            "lose: lower_true: *",
            "lower_ends: lowered: *",
            "lower_fails: lower_true: *",
            "lower_fails: lowered: *",
            "plan: aged: *",
            "plan_store: mark: *",
            "preempt: place_c: *",
            "preempt: place_g: *",
            "preempt: table: *",
            "preempt: tier: *",
            "promote: slot_c: *",
            "promote: slot_g: *",
            "promote: slot_text: *",
            "promote_ends: byte_g: *",
            "promote_ends: byte_text: *",
            "promote_ends: slot: *",
            "promote_ends: slot_c: *",
            "promote_ends: slot_g: *",
            "promote_ends: slot_text: *",
            "report_load: origin: *",
            "report_load: where mark changes: *",
            "report_store: filler: *",
            "report_store: slot: *",
            "report_store: slot_c: *",
            "report_store: slot_g: *",
            "report_store: slot_text: *",
            "report_store: source: *",
            "report_store: target: *",
            "reset: filler: *",
            "reset: slot: *",
            "reset: slot_c: *",
            "reset: slot_g: *",
            "reset: slot_text: *",
            "reset: source: *",
            "reset: target: *",
            "reset: where slot changes: *",
            "reset: where slot_g changes: *",
            "retire: asked: *",
            "retire: keys: *",
            "retire: limit: *",
            "retire: limited: *",
            "retire: place_c: *",
            "retire: place_g: *",
            "retire: table: *",
            "retire: text: *",
            "retire: tier: *",
            "run_ahead: aimed: *",
            "run_ahead: tag_g: *",
            "run_ahead: tag_text: *",
            "sample: tag_g: *",
            "sample: tag_text: *",
            "sample: where tag_end changes: *",
            "see: block: *",
            "see: carries: *",
            "see: context: *",
            "see: feeder: *",
            "see: fill: *",
            "see: on: *",
            "see: slot: *",
            "see: sought: *",
            "see: table: *",
            "see: where feeder changes: *",
            "see: where fill changes: *",
            "see: writer: *",
            "slide: place_c: *",
            "slide: place_g: *",
            "slide: table: *",
            "slide: where table changes: *",
            "store: aged: *",
            "store: source: *",
        ),
    ),
    Reason(
        "a step more that does nothing, or nothing that was not done already",
        (
            "blocks_told: 'more than before': *",
            "borrow: 'a hit': *",
            "borrow: 'one load': *",
            "borrow: 'within the request': *",
            "borrowed_dropped: 'under way': *",
            "bring: 'once': *",
            "copy_in: 'once': *",
            "copy_in_fails: 'once': *",
            "copy_out_fails: 'once': *",
            "drop: 'may go': *",
            "fall_short: 'not known yet': *",
            "filled: 'was under way': *",
            "give_back: 'has blocks': *",
            "hand_back: 'something was left out': *",
            "join: 'not in it': *",
            "keys_arrive: 'more than before': *",
            "leave: 'in it': *",
            "leave_out: 'has no block yet': *",
            "leave_out: 'nothing is being loaded': *",
            "leave_out: 'some': *",
            "load: 'a hit': *",
            "load: 'not in the batch': *",
            "load: 'within the request': *",
            "load_fails: 'under way': *",
            "look_up: 'every group can go on there': *",
            "look_up: 'nothing is promised yet': *",
            "lose: 'there, and not being read': *",
            "lower_fails: 'being written': *",
            "lower_key: 'not there yet': *",
            "plan_load: 'a hit': *",
            "plan_load: 'further than what was found': *",
            "plan_load: 'within the request': *",
            "plan_store: 'beyond the cursor': *",
            "plan_store: 'planned for': *",
            "promote: 'free': *",
            "promote: 'told': *",
            "refuse: 'planned for': *",
            "refuse: 'something to offer': *",
            "see: 'something to see': *",
            "settle: 'planned for': *",
            "submit: 'once': *",
            "tell: 'not told yet': *",
            "tell: 'only there': *",
            "tier_answers: 'was asked': *",
            "withdraw: 'promised': *",
        ),
    ),
    Reason(
        "more is kept, given up or forgotten than need be: nothing untrue is stored or read, "
        "and what is owed is owed under fairness, not in a state",
        (
            "abort: kept: *",
            "borrowed_dropped: kept: *",
            "load_dropped: kept: *",
            "load_dropped: load_failed: *",
            "load_fails: 'a copy failed': *",
            "load_fails: load_failed: *",
            "plan_store: 'a chunk at a time': *",
            "plan_store: 'declines an offered chunk or none': *",
            "plan_store: excused: *",
            "read_fails: 'being read': *",
            "report_store: failed: *",
            "reset: failed: *",
            "retire: 'nothing storable is left, or not owed': *",
            "retire: excused: *",
            "sent: kept: *",
        ),
    ),
    Reason(
        "a copy before its store is submitted: as early as the fence allows, which covers "
        "planned stores",
        (
            "copy_out: 'under way': *",
            "copy_out_fails: 'under way': *",
        ),
    ),
    Reason(
        "content goes by the text's name here: bytes whose key this request does not know yet "
        "are the same",
        (
            "load: 'every chunk of the hit has its key': *",
            "plan_load: 'every chunk of the hit has its key': *",
        ),
    ),
    Reason(
        "a block is held longer than it need be: it goes when the request ends",
        (
            "hand_back: hold: *",
            "slide: 'a chunk more': *",
            "slide: hold: *",
            "slide: where hold changes: *",
        ),
    ),
    Reason(
        "what a planner passes over counts as covered, and NoHole does not ask whether there was a "
        "null block: that it asks is missing",
        (
            "pass_over: 'planned for': *",
            "pass_over: 'storable but for that': *",
            "pass_over: 'the null block': *",
        ),
    ),
)
