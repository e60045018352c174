"""What must hold of a draft group's bytes: none of them follows from a guess once it is served.

These speak of how many drafts are accepted, never of the output: a promise that is broken here is
of the class *acceptance*.
"""

from __future__ import annotations

from typing import Any

from kvoracle.model.fencing import READY
from kvoracle.model.keys import Chunk
from kvoracle.model.machine import View
from kvoracle.model.pool import HOLDS, Block, Text, Worker
from kvoracle.model.requests import FINISHED, REQUEST, Group, Request
from kvoracle.model.rules import whole_chunks
from kvoracle.model.slots import Slot
from kvoracle.model.tails import unsettled
from kvoracle.model.terms import exists, implies, not_

from .property import Property, Seen, Witness
from .transferring import TRANSFERS

TAILS = ("pool", "slots", "transfers", "loads", "drafts", "tails")


def _lemma(name: str, statement: str, why: str, function: Any, because: Any) -> Property:
    return Property(name=name, statement=statement, why=why,
                    source="vLLM PR #44784, docstring of storable_chunks", function=function,
                    because=because, lemma=True, supports="TrueTails", parts=TAILS,
                    family=TRANSFERS)


# --- TrueTails -------------------------------------------------------------------


def _true_tails(s: View, t: Text, g: Group, c: Chunk, w: Worker) -> Any:
    return implies((s.pooled[t, g, c] == READY) & s.draft[g],
                   not_(s.byte_guessed[s.slot[t, g, c], w]))


def _guessed(seen: Seen) -> str:
    t, g, c = (seen.where[k] for k in "tgc")
    return (f"the key of chunk {c} of text {t}{seen.group} is ready, and in its slot "
            f"{seen.get('slot', t, g, c)} worker {seen.where['w']} holds drafter KV whose last "
            "position follows from a guess")


def _stored_beside_a_guess(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.flight[r, g, c] & unsettled(s, r, g, c + 1)


def _tail_of_the_finished(s: View, r: Request, g: Group, c: Chunk) -> Any:
    last = c == whole_chunks(s.computed[r] - 1, s.tokens_per_chunk[g])
    return (s.life[r] == FINISHED) & s.draft[g] & (s.prompt[r] < s.computed[r]) & last & (
        s.pooled[s.text[r], g, c] == READY)


def _loads_its_tail(s: View, r: Request, g: Group, c: Chunk) -> Any:
    return s.pin[r, g, c] & s.draft[g] & (s.prompt[r] < s.tokens[r]) & (
        c == whole_chunks(s.tokens[r] - 1, s.tokens_per_chunk[g]))


TRUE_TAILS = Property(
    name="TrueTails",
    statement="the bytes under a draft group's key follow from tokens that are known, to the last "
              "position",
    why="A drafter computes its KV at a position from the next token too, in the first place from "
        "a draft, and anew when that is decided. Bytes that were copied in between stay under the "
        "key as the guess left them. Whoever loads them drafts worse; the output does not change.",
    source="vLLM PR #44784, #46972, docstring of storable_chunks",
    function=_true_tails,
    because=_guessed,
    witnesses=(
        Witness("a chunk is stored while a guess lies in the next one", _stored_beside_a_guess),
        Witness("the tail of a request that has finished is ready", _tail_of_the_finished),
        Witness("a chunk with a request's last output token is loaded", _loads_its_tail),
    ),
    bugs=("vLLM PR44784", "vLLM PR55055"),
    parts=TAILS,
    family=TRANSFERS,
)


# --- strengthening invariants ----------------------------------------------------


def _guess_is_in_step(s: View, b: Block, w: Worker) -> Any:
    return implies(s.guessed[b, w], exists(REQUEST, lambda r: (s.hold[b, r] == HOLDS) & unsettled(
        s, r, s.place_g[b], s.place_c[b])))


GUESS_IS_IN_STEP = _lemma(
    "GuessIsInStep", "a guess lies only where a step in flight writes once more",
    "The output of the step settles it, so that what a request leaves behind when it ends, or is "
    "preempted, is final.",
    _guess_is_in_step,
    lambda seen: f"in block {seen.where['b']} of worker {seen.where['w']} lies a guess, and no "
                 "step in flight will write it once more")


def _guess_is_not_read(s: View, r: Request, g: Group, c: Chunk, w: Worker) -> Any:
    reading = s.flight[r, g, c] & (s.copied[r, g, c, w] == 0)
    return implies(reading, not_(s.guessed[s.source[r, g, c], w]))


GUESS_IS_NOT_READ = _lemma(
    "GuessIsNotRead", "no store reads a block in which a guess lies",
    "The second writing of the tail waits for nobody. It need not, as long as the tail is not "
    "offered before its request has ended or gone further.",
    _guess_is_not_read,
    lambda seen: f"the store of chunk {seen.where['c']} of request {seen.request}{seen.group} "
                 "reads a block in which a guess lies")


def _guess_stays_on_the_gpu(s: View, h: Slot, w: Worker) -> Any:
    return not_(s.byte_guessed[h, w])


GUESS_STAYS_ON_THE_GPU = _lemma(
    "GuessStaysOnTheGpu", "no guess lies in any slot",
    "What a load brings back into a block is then no guess either, and a slot may be given to any "
    "key, whatever was copied to it before.",
    _guess_stays_on_the_gpu,
    lambda seen: f"in slot {seen.where['h']} of worker {seen.where['w']} lies a guess")

DRAFTING = (TRUE_TAILS,)
DRAFTING_LEMMAS = (GUESS_IS_IN_STEP, GUESS_IS_NOT_READ, GUESS_STAYS_ON_THE_GPU)
