"""Part *shelf*: the host pool as a lookup sees it, and what may happen to it meanwhile.

Keys are stored by somebody, become ready or are given up, and are evicted; a hit is loaded at
once.  How stores and loads come about is the parts *transfers* and *loads*; this one keeps the
machine of lookups small.
"""

from __future__ import annotations

from .fencing import MISSING, PENDING, POOLED, READY
from .keys import CHUNK, Chunk
from .lookup import keep_promise, promised
from .machine import Part, View
from .pool import TEXT, Text
from .requests import GROUP, REQUEST, RUNNING, Group, Request, Tokens
from .terms import exists

part = Part("shelf", "shelf: a host pool that others fill and empty")
part.variable("text", (REQUEST,), TEXT, "what the request says, prompt and output")
part.variable("pooled", (TEXT, GROUP, CHUNK), POOLED, "what the host pool says of the key")


@part.extend("arrive", ", its text: {t}")
def _says(s: View, r: Request, p: Tokens, t: Text) -> None:
    s.text[r] = t


@part.extend("retire")
def _forget(s: View, r: Request) -> None:
    s.text[r] = 0


@part.action("chunk {c} of text {t} in group {g} is being stored", external=True)
def fill(s: View, t: Text, g: Group, c: Chunk) -> None:
    """By a request with the same prefix, or from another tier."""
    s.require("is not in the pool", s.pooled[t, g, c] == MISSING)
    s.pooled[t, g, c] = PENDING


@part.action("chunk {c} of text {t} in group {g} is stored", external=True)
def filled(s: View, t: Text, g: Group, c: Chunk) -> None:
    """All workers have reported."""
    s.require("was under way", s.pooled[t, g, c] == PENDING)
    s.pooled[t, g, c] = READY


@part.action("the store of chunk {c} of text {t} in group {g} has failed", external=True)
def given_up(s: View, t: Text, g: Group, c: Chunk) -> None:
    """The key is given up."""
    s.require("was under way", s.pooled[t, g, c] == PENDING)
    s.pooled[t, g, c] = MISSING


@part.action("chunk {c} of text {t} in group {g} is evicted")
def drop(s: View, t: Text, g: Group, c: Chunk) -> None:
    """Which key goes is the engine's choice, but for those that a lookup has promised."""
    s.require("may go", s.rules.care.evictable(s.pooled[t, g, c], exists(
        REQUEST, lambda q: (s.text[q] == t) & promised(s, q, g, c))))
    s.pooled[t, g, c] = MISSING


@part.action("request {r} starts with what was promised")
def load_hit(s: View, r: Request) -> None:
    """The load takes no time here."""
    s.require("promised", s.promise[r] > 0)
    keep_promise(s, r)
    s.life[r] = RUNNING
