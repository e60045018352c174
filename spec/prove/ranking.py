"""That something under way ends, for all sizes, under the fairness of `kvoracle.model.fairness`.

A `Response` names milestones on the way, each with the fair action that reaches it.  While the
thing waits and a milestone, whose turn it is, is not reached,

- the action that reaches it is possible (*enabled*),
- and a step by it reaches it, or ends the waiting (*helpful*);
- once reached it stays reached until the waiting ends, whatever happens (*kept*).

So under weak fairness each is reached: its action stays possible until it is taken.  Of a
milestone there may be several, one for each worker, say; finitely many, so that at some time all
are reached and the next one's turn comes.  The last action ends the waiting itself.  The rank
that falls is the number of milestones not reached.  Actions that cease (`CEASING`) are left out:
the argument begins behind the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import z3

from kvoracle.model.fairness import CEASING, fair
from kvoracle.model.keys import CHUNK, Chunk
from kvoracle.model.loads import loads
from kvoracle.model.machine import Action, Machine, Predicate, View, invariant
from kvoracle.model.pool import WORKER, Worker
from kvoracle.model.requests import GROUP, Group, Request
from kvoracle.model.terms import disjunction, forall, implies, not_, variables_read

from .obligations import Obligation, Proof, constants_aside
from .solver import Answer, Formula, decide


@dataclass(frozen=True)
class Milestone:
    """``reached`` over a state, with the response's parameters and perhaps more of its own;
    ``every`` says that all of these are reached.  One of ``actions``, which are fair in one line
    by just these parameters, reaches it; without ``reached`` they end the waiting."""

    actions: tuple[str, ...]
    reached: Callable[..., Any] | None = None
    every: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Response:
    """Part of a promise about the future: what ``waits`` ends, by milestones in order."""

    promise: str
    name: str
    waits: Callable[..., Any]
    milestones: tuple[Milestone, ...]
    parts: tuple[str, ...]

    def applies(self, machine: Machine) -> bool:
        """Whether the machine has the parts that it speaks of."""
        return set(self.parts) <= {p.name for p in machine.parts}


# --- a store that is under way ends --------------------------------------------------


def _stored(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.flight[r, g, c]


def _submitted(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.submitted[r, g, c]


def _copied(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    return s.copied[r, g, c, w]


def _copied_by_all(s: View, r: Any, g: Any, c: Any) -> Any:
    return forall(WORKER, lambda w: s.copied[r, g, c, w])


STORE_ENDS = Response(
    "EventuallyStored", "a store under way ends", _stored,
    (
        Milestone(("submit",), _submitted, _submitted),
        Milestone(("copy_out",), _copied, _copied_by_all),
        Milestone(("report_store",)),
    ),
    ("pool", "transfers"),
)


# --- a load that is under way ends ---------------------------------------------------


def _loading(s: View, r: Request) -> Any:
    return s.hit[r] > 0


def _loaded(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    return implies(loads(s, r, g, c), s.loaded[r, g, c, w])


def _loaded_by_all(s: View, r: Any) -> Any:
    return forall(GROUP, CHUNK, WORKER, lambda g, c, w: implies(
        loads(s, r, g, c), s.loaded[r, g, c, w]))


LOAD_ENDS = Response(
    "NoStall", "a load under way ends", _loading,
    (
        Milestone(("copy_in",), _loaded, _loaded_by_all),
        Milestone(("report_load", "load_fails", "load_dropped")),
    ),
    ("pool", "transfers", "loads"),
)

RESPONSES = (STORE_ENDS, LOAD_ENDS)


class Responses(Proof):
    """The proof of a machine's invariants, and of responses that assume them."""

    def responses(self, promises: Iterable[str] | None = None) -> Iterator[Obligation]:
        """Decide every obligation of the responses that belong to these promises (None: to any).
        They assume the invariants, after `settled` those that are proved."""
        wanted = None if promises is None else set(promises)
        for response in RESPONSES:
            if response.applies(self.machine) and (wanted is None or response.promise in wanted):
                for k, milestone in enumerate(response.milestones):
                    yield from self._milestone(response, k, milestone)

    def _milestone(self, response: Response, k: int, milestone: Milestone) -> Iterator[Obligation]:
        self._fair_line(milestone)
        turn = self._turn(response, k, milestone)
        known = self._always()
        values, typed = self._parameters(turn.parameters, "turn")
        t = self._translator
        given = t.formula(turn.term, values)
        name = f"{response.name}: {'/'.join(milestone.actions)}"
        possible = self._possible(milestone, turn)
        yield self._asked(name, "enabled", [*known, *typed, given],
                          t.formula(possible.term, dict(zip(possible.parameters,
                                                            values.values()))))
        for label in milestone.actions:
            action = self.machine.actions[label]
            mine = {p.name: v for p, v in zip(turn.parameters, values.values())}
            chosen, enabled = self._enabled(action)
            same = [chosen[p] == mine[p.name] for p in action.parameters if p.name in mine]
            ends = self._ends(response, milestone, list(values.values()), action)
            yield self._asked(name, f"helpful: {label}",
                              [*known, *typed, given, *enabled, *same], ends)
        if milestone.reached is None:
            return
        for action in self.machine.actions.values():
            if action.name in CEASING:
                continue
            reached = self._at(milestone.reached, list(values.values()))
            waits = self._at(response.waits, list(values.values()))
            read = variables_read(invariant(self.machine, name, milestone.reached).term) \
                | variables_read(invariant(self.machine, name, response.waits).term)
            if not read & action.written:
                yield Obligation(name, f"kept: {action.name}", Answer("proved", 0.0),
                                 by_frame=True)
                continue
            _, enabled = self._enabled(action)
            ends = self._ends(response, milestone, list(values.values()), action)
            yield self._asked(name, f"kept: {action.name}",
                              [*known, *typed, *enabled, waits, reached], ends)

    def _fair_line(self, milestone: Milestone) -> None:
        lines = {fair(a) for a in milestone.actions}
        line = next(iter(lines))
        assert len(lines) == 1 and line is not None, milestone

    def _asked(self, name: str, what: str, hypotheses: list[Formula],
               goal: Formula) -> Obligation:
        definitions = self._translator.definitions
        return Obligation(name, what, decide([*hypotheses, *definitions], goal, self.effort))

    def _turn(self, response: Response, k: int, milestone: Milestone) -> Predicate:
        """It waits, all earlier milestones are reached, and this one is not."""
        name = f"turn {k} of {response.name}"
        shape = invariant(self.machine, name, milestone.reached or response.waits)
        view, bounds = View(self.machine), shape.parameters
        of_all = len(invariant(self.machine, name, response.waits).parameters)
        term = response.waits(view, *bounds[:of_all])
        for earlier in response.milestones[:k]:
            assert earlier.every is not None
            term = term & earlier.every(view, *bounds[:of_all])
        if milestone.reached is not None:
            term = term & not_(milestone.reached(view, *bounds))
        return Predicate(name, bounds, term)

    def _possible(self, milestone: Milestone, turn: Predicate) -> Predicate:
        view = View(self.machine)
        return Predicate("possible", turn.parameters, disjunction(
            view.possible(a, **{p.name: p for p in turn.parameters
                                if p.name in {q.name for q in self.machine.actions[a].parameters}})
            for a in milestone.actions))

    def _at(self, function: Callable[..., Any], values: list[Formula],
            action: Action | None = None) -> Formula:
        """A predicate over a state at these values; with an action, over the state after it."""
        predicate = invariant(self.machine, "at", function)
        t = self._translator
        before = None if action is None \
            else constants_aside(t, self._after(action))
        return t.formula(predicate.term, dict(zip(predicate.parameters, values)), before=before)

    def _ends(self, response: Response, milestone: Milestone, values: list[Formula],
              action: Action) -> Formula:
        """After the action the milestone is reached, or nothing waits any more."""
        over = z3.Not(self._at(response.waits, values, action))
        if milestone.reached is None:
            return over
        return z3.Or(over, self._at(milestone.reached, values, action))
