"""Part *limits*: how much of a request may be offloaded at all.

Either a number of tokens given with the request (vLLM: ``max_offload_tokens``) or, where
an engine is set to offload prompts only, the prompt's (``offload_prompt_only``).
"""

from __future__ import annotations

from .machine import Part, View
from .requests import REQUEST, TOKENS, WAITING, Request, Tokens
from .terms import BOOL, Term, ite, minimum

part = Part("limits", "limits: only the first tokens of a request may be offloaded")
part.variable("limited", (REQUEST,), BOOL, "whether there is a limit")
part.variable("limit", (REQUEST,), TOKENS, "the tokens that may be offloaded")


@part.action("at most {n} tokens of request {r} may be offloaded", external=True)
def set_limit(s: View, r: Request, n: Tokens) -> None:
    """Comes with the request, before anything of it is planned."""
    s.require("has not started", s.life[r] == WAITING)
    s.require("one limit", s.limited[r] == 0)
    s.limited[r] = True
    s.limit[r] = n


@part.extend("retire")
def _forget_limit(s: View, r: Request) -> None:
    s.limited[r] = False
    s.limit[r] = 0


def offloadable(s: View, r: Term, tokens: Term) -> Term:
    """Of the first ``tokens`` tokens, those that may be offloaded."""
    limited: Term = ite(s.limited[r] == 1, minimum(tokens, s.limit[r]), tokens)
    return limited
