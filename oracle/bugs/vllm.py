"""Public bugs of vLLM's CPU offloading that can be found without a GPU."""

from __future__ import annotations

from .bug import ELSEWHERE, FIXED, PRESENT, Bug, Source
from .hunt import Met

_SEVERAL = ("storing", "groups", "reuse")


def _of(m: Met, prop: str, like: str = "") -> bool:
    """A finding of this property, for a crash by a design that would have failed so."""
    return m.finding.property == prop and like in m.finding.like


def _in_draft_group(m: Met) -> bool:
    chunk = m.finding.chunk
    return chunk is not None and m.config.groups[chunk[0]].draft


def _dies_at(m: Met, *texts: str) -> bool:
    died = m.finding.died
    return died is not None and all(text in died.at for text in texts)


def _plans_at_finish(s: Source) -> bool:
    """Stores are planned for requests that have just finished (PR48596)."""
    return s.planner(r"chain\(\s*scheduler_output\.num_scheduled_tokens")


def _draft_groups(s: Source) -> bool:
    """The planner knows which groups hold a drafter's layers (PR44784)."""
    return s.planner("is_eagle_group")


# --- what is found ---------------------------------------------------------------------


def _key_bound(m: Met) -> bool:
    return _of(m, "KeysEqBlocks", "no-key-bound")


def _aborted_in_queue(m: Met) -> bool:
    return _of(m, "KeysEqBlocks", "no-block-bound") and not m.history & {"started", "loaded"}


def _tail_jumped_over(m: Met) -> bool:
    return _of(m, "NoHole") and _in_draft_group(m)


def _tail_left_at_finish(m: Met) -> bool:
    return _of(m, "EventuallyStored") and _in_draft_group(m)


def _last_chunk_left(m: Met) -> bool:
    return _of(m, "EventuallyStored") and not _in_draft_group(m)


def _never_computed(m: Met) -> bool:
    return _of(m, "NoVolatileStore") and not m.finding.acceptance


def _tail_stored(m: Met) -> bool:
    return _of(m, "NoVolatileStore") and m.finding.acceptance


def _hit_short(m: Met) -> bool:
    return _of(m, "HitMaximal") and any(g.draft for g in m.config.groups)


def _stranded(m: Met) -> bool:
    return _of(m, "NoStall")


def _reset_twice(m: Met) -> bool:
    return _dies_at(m, " reset_cache: assert not self._current_batch_jobs_to_flush")


def _dropped_job(m: Met) -> bool:
    died = m.finding.died
    return died is not None and died.error == "KeyError" and _dies_at(m, "self._jobs[")


# --- what is in the code ------------------------------------------------------------------


def _lacks_key_bound(s: Source) -> str:
    pairs = s.planner(r"assert len\((offload_keys|new_block_hashes|offload_keys)\) == len\(")
    if not pairs:
        return ELSEWHERE
    return FIXED if s.planner("num_keyed_chunks") else PRESENT


def _lacks_abort(s: Source) -> str:
    if not _plans_at_finish(s):
        return ELSEWHERE
    return FIXED if s.planner("FINISHED_ABORTED") else PRESENT


def _two_bounds(s: Source) -> str:
    if not _draft_groups(s):
        return ELSEWHERE
    return FIXED if s.planner("def storable_chunks") else PRESENT


def _excludes_at_finish(s: Source) -> str:
    if not (_draft_groups(s) and _plans_at_finish(s)):
        return ELSEWHERE
    lifted = s.planner(r"is_decoding and not self\.req\.is_finished\(\)")
    return FIXED if lifted else PRESENT


def _drops_last_chunk(s: Source) -> str:
    return FIXED if _plans_at_finish(s) else PRESENT


def _counts_last_token(s: Source) -> str:
    if not _plans_at_finish(s):
        return ELSEWHERE
    return FIXED if s.planner(r"req\.num_tokens - 1\)") else PRESENT


def _knows_no_drafts(s: Source) -> str:
    return FIXED if _draft_groups(s) else PRESENT


def _widens_windows_only(s: Source) -> str:
    if not _draft_groups(s):
        return ELSEWHERE
    windows_only = r"if is_eagle_unverified and sliding_window_size_in_chunks is not None:\s+query"
    return PRESENT if s.planner(windows_only) or not s.planner(
        r"if is_eagle_unverified:\s+query_max") else FIXED


def _holders_in_line(s: Source) -> str:
    return FIXED if s.scheduler("kv_holding_waiting") else PRESENT


def _asserts_in_reset(s: Source) -> str:
    if not s.planner("def reset_cache"):
        return ELSEWHERE
    return PRESENT if s.planner("assert not self._current_batch_jobs_to_flush") else FIXED


def _reset_keeps_jobs(s: Source) -> str:
    if not s.planner("def reset_cache"):
        return ELSEWHERE
    return FIXED if s.planner(r"transfer_jobs\.clear\(\)") else PRESENT


BUGS = (
    Bug("no-key-bound", "vLLM#52170, PR52923",
        "stores are planned for blocks whose keys have not arrived; the assertion ends the engine",
        _SEVERAL, _key_bound, _lacks_key_bound,
        "keys and blocks are asserted to be as many, and nothing bounds the chunks by keys",
        ("late keys",)),
    Bug("aborted-in-queue", "vLLM#49118, PR49146",
        "an aborted request that never ran is planned with all its tokens, and has no blocks",
        _SEVERAL, _aborted_in_queue, _lacks_abort,
        "finished requests are planned for, and aborted ones not told apart",
        ("an abort",)),
    Bug("tail-jumped-over", "vLLM#46971, PR46972",
        "the trailing chunk of a draft group is left out of the store and jumped by the cursor",
        ("groups", "storing"), _tail_jumped_over, _two_bounds,
        "draft groups are known, and no one function says what is storable",
        ("a draft group",)),
    Bug("tail-left-at-finish", "vLLM#52735",
        "the last chunk of a draft group stays excluded when the request has ended",
        ("groups", "storing"), _tail_left_at_finish, _excludes_at_finish,
        "the exclusion is not lifted for finished requests",
        ("a draft group",), ("drafts-unknown",)),
    Bug("widened-for-windows-only", "vLLM#52735, PR52771",
        "a draft group's lookup drops a chunk that it did not ask for in addition",
        ("groups", "reuse"), _hit_short, _widens_windows_only,
        "only window groups ask for one chunk more",
        ("a draft group",)),
    Bug("last-chunk-dropped", "vLLM PR48596",
        "a chunk that fills with a request's last tokens is never stored",
        _SEVERAL, _last_chunk_left, _drops_last_chunk,
        "the planner does not look at finished requests"),
    Bug("last-token-stored", "vLLM PR48596 (sequel)",
        "a chunk that ends with the last sampled token is stored, and that token never computed",
        _SEVERAL, _never_computed, _counts_last_token,
        "finished requests count all their tokens"),
    Bug("drafts-unknown", "vLLM PR44784",
        "the volatile tail of a draft group is stored while drafts can still be rejected",
        ("storing", "groups"), _tail_stored, _knows_no_drafts,
        "the planner knows no draft groups",
        ("a draft group",)),
    Bug("stranded-behind-head", "vLLM#45387, #53868",
        "requests whose load has ended wait, holding blocks, behind one that cannot be admitted",
        _SEVERAL, _stranded, _holders_in_line,
        "requests that hold blocks wait in the common queue"),
    Bug("reset-twice", "docs/findings/vllm-reset-twice.md",
        "two resets of the offload cache in a row end the engine",
        ("resets",), _reset_twice, _asserts_in_reset,
        "reset asserts that nothing is to be flushed, and leaves something to be flushed",
        ("two resets",)),
    Bug("reset-keeps-jobs", "vLLM PR41956 (review)",
        "a reset drops the transfers, and requests keep their numbers",
        ("resets",), _dropped_job, _reset_keeps_jobs,
        "a reset does not clear the requests' own lists of transfers",
        ("a reset",)),
)
