"""What happens in the end: the fairness that promises about the future rest on.

Without it nothing ever need happen, and no promise of the kind "sooner or later" holds.  The
actions of a line of `FAIR` are *weakly fair*: while one of them stays possible without a break,
one of them is taken, for each choice of the parameters named by itself.  An action in `CEASING`
happens only so many times.  About all others nothing is assumed: they may happen or not, for
ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fair:
    """Actions of which one is taken if one stays possible; each choice of ``by`` for itself."""

    actions: tuple[str, ...]
    by: tuple[str, ...]
    because: str


FAIR: tuple[Fair, ...] = (
    # the scheduler
    Fair(("start",), ("r",), "a scheduler that has room starts what waits"),
    Fair(("compute",), ("r",), "each step computes something of every request that has room"),
    Fair(("sample",), ("r",), "the step that computes the last known token samples the next one"),
    Fair(("finish",), ("r",), "a request that could end and computes no more ends"),
    Fair(("allocate",), ("r", "g"), "a block that nobody holds goes to whoever asks for one"),
    Fair(("preempt",), ("r",), "a request that runs and can compute no further loses its blocks to "
                               "those that can: a scheduler that finds no room takes some"),
    Fair(("run_ahead",), ("r",), "a step that was dispatched runs"),
    Fair(("blocks_told",), ("r", "g"), "the planner is told what was allocated in the same step"),
    Fair(("hand_back",), ("r",), "a request that waits gives back a list that is of no use"),
    Fair(("load_hit",), ("r",), "what was promised is loaded when there is room"),
    # the planner
    Fair(("plan_store",), ("r", "g"), "each step the planner looks at every request that it "
                                      "tracks, and a pool that has room takes what is offered"),
    Fair(("retire",), ("r",), "the planner forgets a request to which nothing is owed"),
    Fair(("look_up", "look_up_nothing", "look_up_pending", "look_up_elsewhere"), ("r",),
         "each step the scheduler asks anew about a request that waits"),
    # the workers, and what lies beyond them
    Fair(("submit",), ("r", "g", "c"), "a planned store is submitted in a later step, also when "
                                       "no request is left to run (vLLM PR42611)"),
    Fair(("copy_out",), ("r", "g", "c", "w"), "a copy handed to a stream is carried out"),
    Fair(("report_store",), ("r", "g", "c"), "workers report in each step what they are done with"),
    Fair(("copy_late",), ("h", "w"), "a copy handed to a stream is carried out"),
    Fair(("copy_in",), ("r", "g", "c", "w"), "a copy handed to a stream is carried out"),
    Fair(("report_load", "load_fails", "load_dropped"), ("r",),
         "workers report in each step what they are done with, and what went wrong"),
    Fair(("filled", "given_up"), ("t", "g", "c"), "a store under way ends, well or badly"),
    Fair(("tier_answers",), ("r",), "a tier answers, or is taken for absent after some time"),
    Fair(("lower_ends", "lower_fails"), ("t", "g", "c"), "a copy to a second tier ends, well or "
                                                         "badly"),
    Fair(("promote_ends", "read_fails"), ("t", "g", "c"), "a read from it ends, well or badly"),
    Fair(("bring",), ("r", "g", "c", "w"), "another connector's copies are carried out too"),
    Fair(("borrowed_over", "borrowed_dropped"), ("r",), "another connector reports too"),
    Fair(("sent",), ("r",), "another connector reports too"),
)
"""Why each is taken in the end.  Not fair, since nobody need ever do them: arrivals, keys,
aborts, resets, refusals, evictions, the choice to load, failures."""

CEASING: Mapping[str, str] = {
    "reset": "whoever resets the pool for ever does not want it to hold anything",
    "leave_out": "blocks are left out for a load, and a load that is not to be had is given up",
    "copy_out_fails": "a worker that fails every time is broken, and is replaced",
    "copy_in_fails": "a worker that fails every time is broken, and is replaced",
}
"""By action, why it happens only so many times: no run repeats it for ever."""


def fair(action: str) -> Fair | None:
    """The line of an action that is fair."""
    return next((line for line in FAIR if action in line.actions), None)
