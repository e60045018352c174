"""Part *queue*: who has waited longest, and who may start.

Blocks go to those who run, to the first in the queue, and to a request that can be loaded, so
that its load goes on while it waits.  Whoever is preempted comes back to the front.
"""

from __future__ import annotations

from .fencing import READY
from .machine import Part, View
from .pool import Block, has_blocks
from .requests import PREEMPTED, REQUEST, RUNNING, WAITING, Group, Request, Tokens
from .terms import BOOL, Term, forall, not_

part = Part("queue", "queue: who has waited longest, and who may start")
part.variable("ahead", (REQUEST, REQUEST), BOOL, "both wait, and the second one comes first")


def waits(s: View, r: Term) -> Term:
    """Whether the request waits to run, for the first time or again."""
    return (s.life[r] == WAITING) | (s.life[r] == PREEMPTED)


def is_first(s: View, r: Term) -> Term:
    """Whether nobody who waits has waited longer."""
    return forall(REQUEST, lambda q: not_(s.ahead[r, q]))


def _leaves(s: View, r: Term) -> None:
    s.ahead.where(lambda q, p: (q == r) | (p == r), False)


@part.extend("arrive")
def _queues(s: View, r: Request, p: Tokens) -> None:
    del p
    s.ahead.where(lambda q, p: (q == r) & (p != r), lambda q, p: waits(s, p))


@part.extend("preempt")
def _to_the_front(s: View, r: Request) -> None:
    s.ahead.where(lambda q, p: (p == r) & (q != r), lambda q, p: waits(s, q))


@part.extend("allocate")
def _to_whom(s: View, r: Request, g: Group, b: Block) -> None:
    del b
    s.require("runs, is first, or can be loaded",
              (s.life[r] == RUNNING) | is_first(s, r)
              | (s.pooled[s.text[r], g, s.allocated[r, g]] == READY))


@part.extend("start")
def _starts(s: View, r: Request, n: Tokens) -> None:
    s.require("may start", s.rules.care.admits(is_first(s, r)))
    s.require("a block for the next token", has_blocks(s, r, n + 1))
    _leaves(s, r)


@part.extend("report_load")
def _starts_loaded(s: View, r: Request) -> None:
    s.require("may start", s.rules.care.admits(is_first(s, r)))
    _leaves(s, r)


@part.extend("abort")
def _gives_up(s: View, r: Request) -> None:
    _leaves(s, r)
