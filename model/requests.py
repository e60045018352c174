"""Part *requests*: what a request is, and how it lives and ends.

A request waits, runs, may be preempted and come back, and ends by itself or because
its client goes away, in any state.  A scheduler step computes some of its known
tokens; when all are computed the step samples the next one.
"""

from __future__ import annotations

from typing import Annotated

from .machine import Part, View
from .terms import Sort, Term, enumeration

REQUEST = Sort("Request", symmetric=True)
GROUP = Sort("Group")
TOKENS = Sort("Tokens")
ACCEPTED = Sort("Accepted")
LIFE = enumeration("Life", "absent", "waiting", "running", "preempted", "finished", "aborted")
ABSENT, WAITING, RUNNING, PREEMPTED, FINISHED, ABORTED = range(6)

Request = Annotated[Term, REQUEST]
Group = Annotated[Term, GROUP]
Tokens = Annotated[Term, TOKENS]
Accepted = Annotated[Term, ACCEPTED]

part = Part("requests", "requests: arrival, computing, sampling, preemption, the ways to end")
part.variable("life", (REQUEST,), LIFE, "where the request stands")
part.variable("prompt", (REQUEST,), TOKENS, "tokens of its prompt")
part.variable("tokens", (REQUEST,), TOKENS, "tokens known: prompt and accepted output")
part.variable("computed", (REQUEST,), TOKENS,
              "tokens whose KV is written, those of the step in flight included, drafts not")


def ended(s: View, r: Term) -> Term:
    """Whether the request has finished or was aborted, and is not forgotten yet."""
    return (s.life[r] == FINISHED) | (s.life[r] == ABORTED)


def between_steps(s: View, r: Term) -> Term:
    """Whether no sampling of the request is outstanding.

    A step that computes the last known token samples the next one, so the two counts are
    equal only within a step.  (A step of lag, as in async scheduling, is another part.)
    """
    return s.computed[r] < s.tokens[r]


@part.action("request {r} arrives, tokens in its prompt: {p}", external=True)
def arrive(s: View, r: Request, p: Tokens) -> None:
    """A request enters the queue; it has computed nothing."""
    s.require("new", s.life[r] == ABSENT)
    s.require("a prompt is not empty", p >= 1)
    s.life[r] = WAITING
    s.prompt[r] = p
    s.tokens[r] = p


@part.action("request {r} starts, tokens in the GPU's prefix cache: {n}")
def start(s: View, r: Request, n: Tokens) -> None:
    """Admission, for the first time or after preemption.  The last token is always computed,
    since its logits are needed (vLLM: a hit is capped at one token less than the request)."""
    s.require("waits", (s.life[r] == WAITING) | (s.life[r] == PREEMPTED))
    s.require("one token is left to compute", n < s.tokens[r])
    s.life[r] = RUNNING
    s.computed[r] = n


@part.action("request {r} is computed, tokens so far: {n}")
def compute(s: View, r: Request, n: Tokens) -> None:
    """A step's kernels write the KV of known tokens: a piece of prefill, or one decoded token."""
    s.require("runs", s.life[r] == RUNNING)
    s.require("further than before", s.computed[r] < n)
    s.require("known tokens only", n <= s.tokens[r])
    s.computed[r] = n


@part.action("request {r} samples a token, drafts accepted before it: {a}")
def sample(s: View, r: Request, a: Accepted) -> None:
    """The step's output becomes known.  The KV of accepted drafts was written in this step."""
    s.require("runs", s.life[r] == RUNNING)
    s.require("everything known is computed", s.computed[r] == s.tokens[r])
    if not s.has("drafts"):
        s.require("no drafts without a draft group", a == 0)
    s.tokens[r] = s.tokens[r] + a + 1
    s.computed[r] = s.computed[r] + a


@part.action("request {r} is preempted")
def preempt(s: View, r: Request) -> None:
    """Its blocks are taken away; it will compute again from the start, or from a hit."""
    s.require("runs", s.life[r] == RUNNING)
    if not s.has("lag"):
        s.require("between steps", between_steps(s, r))
    s.life[r] = PREEMPTED
    s.computed[r] = 0


@part.action("request {r} finishes")
def finish(s: View, r: Request) -> None:
    """Its last token is sampled; that token's KV is never computed."""
    s.require("runs", s.life[r] == RUNNING)
    s.require("has sampled", s.tokens[r] > s.prompt[r])
    s.require("only the last token is not computed", s.computed[r] + 1 == s.tokens[r])
    s.life[r] = FINISHED


@part.action("the client of request {r} goes away", external=True)
def abort(s: View, r: Request) -> None:
    """It may have computed nothing, and have no block (vLLM issue #49118)."""
    s.require(
        "lives",
        (s.life[r] == WAITING) | (s.life[r] == RUNNING) | (s.life[r] == PREEMPTED),
    )
    if not s.has("lag"):
        s.require("between steps", between_steps(s, r))
    s.life[r] = ABORTED


@part.action("the planner forgets request {r}")
def retire(s: View, r: Request) -> None:
    """Nothing is owed to it any more; its name may be used again."""
    s.require("ended", ended(s, r))
    s.life[r] = ABSENT
    s.prompt[r] = 0
    s.tokens[r] = 0
    s.computed[r] = 0
