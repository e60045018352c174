"""What does each stimulus do to the engine?  The scheduler's side of a step, and what was seen.

The workers' side is ``worker``.  The engine core's own loop is copied: it does not step where
there is nothing to do, and hands each step's output back to the scheduler.
"""

from __future__ import annotations

import copy
from collections import deque
from functools import partial
from typing import Any
from zlib import crc32

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from . import coverage, plugin, shims
from .build import build
from .config import Config
from .content import WRONG_TOKEN, Text, parse_prompt
from .ghost import Chunk, Job, Memory, Transfers
from .observe import Planner, Watched
from .pool import Pool
from .postmortem import local
from .serve import BadInput
from .shims.release import Release, Transfer
from .worker import Worker, message_for, starts_of

IDLE_STEPS = 2
"""Steps a drain adds at rest: a store planned in step n is submitted in n + 1."""

LONGEST = 50
"""Times its limit that a drain may go on while the engine gets on."""


class Run:
    """One engine from ``start`` on, and everything that was seen of it."""

    def __init__(self, config: Config, release: Release) -> None:
        self.config = config
        self.release = release
        self.seen: list[dict[str, Any]] = []
        self.drafts = tuple(group.draft for group in config.groups)
        self.sizes = tuple(config.tokens_per_block(g) for g in range(len(config.groups)))
        self.texts: dict[str, Text] = {}
        self.requests: dict[str, Any] = {}
        self.offers = plugin.Offers(self._cursors)
        memories = [Memory(config.groups, self.sizes, config.blocks_per_chunk, self.texts,
                           self.emit) for _ in range(config.workers)]
        transfers = [Transfers(memory) for memory in memories]
        built = build(config, release, self.offers, [
            plugin.Copies(release, queue, config.blocks_per_chunk, partial(self._describe, rank))
            for rank, queue in enumerate(transfers)])
        missing = shims.lacking(release, built.scheduler)
        if missing:
            raise BadInput("this release lacks what the adapter relies on: "
                           + ", ".join(missing))
        self.scheduler = built.scheduler
        self.hasher = built.hasher
        self.tokens_per_hash = built.tokens_per_hash
        self.workers = [
            Worker(config, release, connector, memory, queue, self.texts, self.requests,
                   built.vllm_config)
            for connector, memory, queue in zip(built.workers, memories, transfers)]
        self.aggregator = release.aggregator(self.scheduler.connector, config.workers)
        self.queue: deque[tuple[Any, Any, frozenset[str]]] = deque()
        """Steps that were run and whose output the scheduler has not been given yet."""
        self.planner = Planner(release, self.scheduler.connector.connector_scheduler,
                               len(config.groups), self.emit)
        self.pool = Pool(self.planner.inner.manager)
        connector = self.scheduler.connector
        self._lookup = connector.get_num_new_matched_tokens
        connector.get_num_new_matched_tokens = self._looked_up
        self.meant: list[dict[int, tuple[Any, dict[int, Chunk], int]]] = [
            {} for _ in self.workers]
        """What the host's end of each store planned is meant to hold, for each worker until it
        is told of the job.  Keyed by the object, which is kept beside, so that its number is not
        given to another one."""
        self.readers: list[dict[int, tuple[Any, str, int]]] = [{} for _ in self.workers]
        """The request that each load planned is for, in the same way."""
        self.store_jobs: set[int] = set()
        self.load_count = 0
        self.open: dict[str, Watched] = {}
        self.told_schedule = True
        self.starts: dict[str, int] = {}

    @property
    def shows(self) -> tuple[str, ...]:
        """The kinds of observation made beyond the necessary ones."""
        pool = ("looked_up", "pins") if self.pool.readable else ()
        return (*pool, "overwritten", "unready")

    def close(self) -> None:
        self.scheduler.shutdown()

    def emit(self, event: dict[str, Any]) -> None:
        self.seen.append(event)

    # --- stimuli ---------------------------------------------------------------

    def do(self, ask: dict[str, Any]) -> None:
        handler = getattr(self, f"do_{ask.get('do')}", None)
        if handler is None:
            raise BadInput(f"unknown stimulus {ask.get('do')!r}")
        handler(ask)

    def do_arrive(self, ask: dict[str, Any]) -> None:
        name = ask["r"]
        if name in self.texts:
            raise BadInput(f"request {name!r} has arrived before")
        try:
            prompt = parse_prompt(ask["prompt"], self.texts)
        except KeyError as error:
            raise BadInput(f"the prompt of {name!r} names unknown request {error}") from error
        output = int(ask.get("output", 16))
        self._must_fit(name, len(prompt) + output)
        for feature, asked in (("limits", "max_offload"), ("load limits", "max_load"),
                               ("no read", "no_read"), ("salts", "salt"), ("salts", "adapter")):
            if ask.get(asked) and feature not in self.release.features:
                raise BadInput(f"this release has no such thing as {feature}")
        salt, adapter = ask.get("salt", ""), ask.get("adapter", "")
        text = Text(name, prompt, self.drafts, f"{salt}/{adapter}" if salt or adapter else "")
        self.texts[name] = text
        request = self._request(ask, prompt, output)
        self.requests[name] = request
        self.scheduler.add_request(request)
        watched = self.open[name] = self.planner.arrived(name, request, text)
        watched.most_loaded = 0 if ask.get("no_read") else ask.get("max_load")
        event = {"saw": "arrived", "r": name, "prompt": len(prompt)}
        if ask.get("max_offload") is not None:
            event["limit"] = ask["max_offload"]
        self.emit(event)

    def _request(self, ask: dict[str, Any], prompt: list[int], output: int) -> Any:
        name = ask["r"]
        limits = {key: ask[asked] for key, asked in (
            ("max_offload_tokens", "max_offload"), ("max_load_tokens", "max_load"))
            if ask.get(asked) is not None}
        parameters = SamplingParams(
            max_tokens=output, ignore_eos=True,
            extra_args={"kv_transfer_params": limits} if limits else None)
        if ask.get("no_read"):
            parameters.skip_reading_prefix_cache = True
        more: dict[str, Any] = {}
        if ask.get("salt"):
            more["cache_salt"] = ask["salt"]
        if ask.get("adapter"):
            more["lora_request"] = LoRARequest(
                lora_name=ask["adapter"], lora_int_id=1 + crc32(ask["adapter"].encode()) % 9999,
                lora_path="nowhere")
        return self.release.request(
            request_id=name, prompt_token_ids=prompt, sampling_params=parameters,
            block_hasher=self._hash_blocks, **more)

    def do_keys(self, ask: dict[str, Any]) -> None:
        watched = self._find(ask["r"])
        upto = ask.get("upto")
        if upto is not None and self.config.gpu_prefix_caching:
            raise BadInput("keys cannot be held back with gpu_prefix_caching: vllm's own "
                           "block pool needs the hash of every full block")
        if watched is None:
            return
        if upto is None:
            self._release_keys(watched)
        else:
            # A request that waits has all its keys (lookup asserts it), so never below
            # the prompt.
            watched.key_limit = max(int(upto), len(watched.text.prompt))

    def do_step(self, ask: dict[str, Any]) -> None:
        steps = int(ask.get("n", 1))
        slow = ask.get("slow", ())
        for rank, worker in enumerate(self.workers):
            worker.transfers.budget = 0 if rank in slow else ask.get("done")
            worker.transfers.newest = bool(ask.get("newest", False))
        stop = frozenset(ask.get("stop", ()))
        accept = int(ask.get("accept", 0))
        for left in range(steps, 0, -1):
            # The engine core does not step either when there is nothing to do.
            if self.scheduler.has_requests() or self.queue:
                self._step(accept, stop if left == 1 else frozenset())

    def do_abort(self, ask: dict[str, Any]) -> None:
        watched = self._find(ask["r"])
        if watched is None:
            return
        self.scheduler.finish_requests(watched.name, RequestStatus.FINISHED_ABORTED)
        self._finish(watched, aborted=True)

    def do_refuse(self, ask: dict[str, Any]) -> None:
        self.offers.refuse_next += int(ask.get("n", 1))

    def do_reset(self, ask: dict[str, Any]) -> None:
        if "resets" not in self.release.features:
            raise BadInput("the offload connector of this release cannot be reset")
        self.scheduler.reset_connector_cache()
        # Their late reports are ignored by the engine, so they are never "stored".
        self.store_jobs.clear()
        self.emit({"saw": "reset"})
        self.planner.tell_all_cursors()
        self._retire()

    def do_drain(self, ask: dict[str, Any]) -> None:
        limit = int(ask.get("limit", 1000))
        for watched in self.open.values():
            self._release_keys(watched)
        for worker in self.workers:
            worker.transfers.budget = None
            worker.transfers.newest = False
        steps = idle = 0
        while (self.scheduler.has_requests() or self.queue) and idle < limit \
                and steps < LONGEST * limit:
            before = self._progress()
            self._step(self.config.draft_tokens, frozenset())
            steps += 1
            idle = 0 if self._progress() != before else idle + 1
        for _ in range(IDLE_STEPS if idle < limit else 0):
            self._step(0, frozenset(), idle=True)
        self._tell_rest()
        covered = coverage.take()
        self.emit({"saw": "checked",
                   "stored": sum(worker.memory.stored_positions for worker in self.workers),
                   "read": sum(worker.memory.read_positions for worker in self.workers),
                   **({"covered": covered} if covered else {})})

    def _progress(self) -> tuple[int, int]:
        """What changes as long as an engine gets on: requests open, and tokens sampled in all."""
        return len(self.scheduler.requests), sum(
            request.num_computed_tokens + request.num_tokens
            for request in self.scheduler.requests.values())

    def _must_fit(self, name: str, tokens: int) -> None:
        """Refuse a request that the pool can never hold, as vLLM does at its own front door.

        It does not start unless a request of ``max_model_len`` fits; the scheduler relies on
        it, and would let such a request wait for ever.
        """
        config = self.config
        # Positions of drafts to verify, and as many again for the drafter's look-ahead.
        ahead = config.draft_tokens * (2 if any(self.drafts) else 1)
        needed = sum(-(-(tokens - 1 + ahead) // size) for size in self.sizes)
        if needed > config.gpu_blocks:
            raise BadInput(f"request {name!r} needs {needed} blocks when it is longest, "
                           f"the pool has {config.gpu_blocks}")

    # --- requests ----------------------------------------------------------------

    def _find(self, name: str) -> Watched | None:
        """The request, if it still runs; BadInput if it never arrived."""
        watched = self.open.get(name)
        if watched is None and name not in self.texts:
            raise BadInput(f"no request {name!r} has arrived")
        return watched

    def _hash_blocks(self, request: Any) -> list[Any]:
        """Block hashes of a request; those of tokens beyond its key limit come late."""
        hashes: list[Any] = self.hasher(request)
        watched = self.open.get(request.request_id)
        if watched is None or watched.key_limit is None:
            return hashes
        known = watched.key_limit // self.tokens_per_hash - len(request.block_hashes)
        return hashes[:max(0, known)]

    def _release_keys(self, watched: Watched) -> None:
        if watched.key_limit is not None:
            watched.key_limit = None
            self.release.catch_up(watched.request)

    def _finish(self, watched: Watched, aborted: bool = False) -> None:
        watched.finished = True
        del self.open[watched.name]
        event: dict[str, Any] = {"saw": "finished", "r": watched.name}
        if aborted:
            event["aborted"] = True
        self.emit(event)

    def _retire(self) -> None:
        for name in self.planner.tell_retired():
            self.texts[name].forget()
            if all(name not in worker.known for worker in self.workers):
                self.requests.pop(name, None)

    def _cursors(self, name: str) -> list[int]:
        return self.planner.cursors(name)

    # --- a step --------------------------------------------------------------------

    def _step(self, accept: int, stop: frozenset[str], idle: bool = False) -> None:
        """One round of the engine core's loop: ``step``, or ``step_with_batch_queue`` with two
        batches, whose first round gives nothing back yet."""
        if self.config.draft_tokens:
            self._propose(accept)
        if idle or self.scheduler.has_requests():
            self.told_schedule = False
            output = self.scheduler.schedule()
            self._tell_scheduled(output, output.kv_connector_metadata,
                                 self.release.stores(output.kv_connector_metadata))
            self.queue.appendleft((output, self._execute(output), stop))
            if self.config.async_scheduling and len(self.queue) < 2 and (
                    output.total_num_scheduled_tokens or self.scheduler.has_requests()):
                return
        if self.queue:
            self._update(*self.queue.pop())

    def _execute(self, output: Any) -> Any:
        if len(self.workers) == 1:
            result = self.workers[0].execute(output)
            self.workers[0].memory.in_flight.step_over()
            return result
        # Copies, as they would come from other processes: a step with nothing to report gives
        # back an object that all such steps share, and reports are put together in the first.
        results = [copy.copy(worker.execute(message_for(output))) for worker in self.workers]
        for worker in self.workers:
            worker.memory.in_flight.step_over()
        return self.aggregator.aggregate(results, 0)

    def _update(self, output: Any, result: Any, stop: frozenset[str]) -> None:
        """Give the scheduler the output of a step."""
        rows = output.num_scheduled_tokens
        for name in stop:
            if name in rows and name in self.open:
                tokens = result.sampled_token_ids[result.req_id_to_index[name]]
                if len(tokens):
                    request = self.open[name].request
                    request.max_tokens = request.num_output_tokens + len(tokens)
        self.scheduler.update_from_output(output, result)
        # None where a step without tokens had nothing to report.
        self._tell_stored(result.kv_connector_output)
        self._tell_sampled(output, result)
        self._retire()
        self._tell_pins()

    def _propose(self, accept: int) -> None:
        """Drafts for every running request: the first ``accept`` right, the others wrong.

        The engine core hands them over at the end of the step before; nothing reads them
        in between, and only now is it known how many shall be accepted.
        """
        names, drafts = [], []
        for request in self.scheduler.running:
            if request.num_tokens == request.num_prompt_tokens:
                continue  # a drafter follows a sampled token; a loaded prompt has none yet
            text = self.texts[request.request_id]
            known = request.num_tokens
            names.append(request.request_id)
            drafts.append([text.token(known + i) if i < accept else WRONG_TOKEN
                           for i in range(self.config.draft_tokens)])
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    # --- what was seen ---------------------------------------------------------------

    def _tell_scheduled(self, output: Any, metadata: Any, stores: Any) -> None:
        """The scheduler's decisions and the planner's, in the protocol's order."""
        self.told_schedule = True
        self.starts = starts_of(output)
        watched = self.planner.watched
        admitted = [one.request for one in watched.values() if one.admitted]
        for name in sorted(self.release.preempted(output, admitted)):
            if name in watched:
                watched[name].admitted = False
                self.emit({"saw": "preempted", "r": name})
                self._release_keys(watched[name])
        self._tell_admitted(output, metadata)
        self.planner.tell_known()
        starts = self.starts
        for name, count in output.num_scheduled_tokens.items():
            one = watched[name]
            one.reach = starts[name] + count
            one.computed = min(one.reach, one.request.num_tokens)
            self.emit({"saw": "computed", "r": name, "n": one.computed})
        self._tell_offers(stores)
        self.planner.tell_all_cursors()
        self._retire()

    def _tell_admitted(self, output: Any, metadata: Any) -> None:
        watched = self.planner.watched
        starts = self.starts
        for load in self.release.loads(metadata, self.planner.inner):
            one = watched[load.r]
            self.planner.bind(one)
            plan = self._planned(load.r, False, load.gpu, load.host)
            for readers in self.readers:
                readers[id(load.host)] = load.host, load.r, plan
            upto = starts.get(one.name) or self.release.loaded(
                one.request, one.status, self.config.tokens_per_chunk(0))
            if not one.admitted:
                self._admit(one, self.release.cached(one.status, upto, load, self.sizes[0]))
            number = load.number if load.number is not None else self.load_count
            self.load_count += 1
            self.emit({"saw": "loaded", "r": one.name, "upto": upto, "job": number})
        for name in output.num_scheduled_tokens:
            if not watched[name].admitted:
                self._admit(watched[name], starts[name])

    def _admit(self, watched: Watched, cached: int) -> None:
        watched.admitted = True
        # Admission builds the list of blocks anew; its length may be what it was before.
        watched.blocks = [0] * len(watched.blocks)
        event: dict[str, Any] = {"saw": "started", "r": watched.name}
        if cached:
            event["cached"] = cached
        self.emit(event)

    def _tell_offers(self, stores: Any) -> None:
        """``planned`` and ``refused``, one for each offer put to the host pool."""
        made = self.offers.made
        if not made:
            return
        self.offers.made = []
        by_target: dict[int, Transfer] = {id(job.host): job for job in stores}
        for offer in made:
            watched = self.planner.watched[offer.r]
            self.planner.tell_cursors(watched, offer.cursors)
            groups: dict[int, dict[str, Any]] = {}
            taken = set(offer.taken or ())
            for key in offer.keys:
                found = watched.find_chunk(key)
                if found is None:
                    continue
                part = groups.setdefault(found[0], {"g": found[0], "offered": []})
                part["offered"].append(found[1])
                if offer.taken is not None and key not in taken:
                    part.setdefault("declined", []).append(found[1])
            told = [groups[g] for g in sorted(groups)]
            if offer.taken is None:
                self.emit({"saw": "refused", "r": offer.r, "groups": told})
                continue
            event: dict[str, Any] = {"saw": "planned", "r": offer.r, "groups": told}
            job = by_target.get(id(offer.target))
            if job is not None:
                if job.number is not None:
                    event["job"] = job.number
                    self.store_jobs.add(job.number)
                sizes = self.release.sizes(job.gpu)
                told += [{"g": g, "offered": []} for g, size in enumerate(sizes)
                         if size and g not in groups]
                for part in told:
                    part["blocks"] = sizes[part["g"]]
                self._meant(offer, watched, self._planned(offer.r, True, job.gpu, job.host))
            self.emit(event)
            self.planner.tell_cursors(watched, self.planner.cursors(offer.r))

    def _planned(self, r: str, store: bool, gpu: Any, host: Any) -> int:
        """Watch a transfer from its plan on; the number it is watched by."""
        blocks, slots = gpu.block_ids.tolist(), host.block_ids.tolist()
        return max(worker.memory.in_flight.plan(r, store, blocks, slots, r not in self.open)
                   for worker in self.workers)

    def _meant(self, offer: plugin.Offer, watched: Watched, plan: int) -> None:
        """Keep what the host slots of a store are meant to hold, until its copy is submitted."""
        slots = {}
        for key, slot in zip(offer.taken or (), offer.slots):
            found = watched.find_chunk(key)
            if found is not None:
                slots[slot] = Chunk(watched.text, found[0], found[1])
        for meant in self.meant:
            meant[id(offer.target)] = offer.target, slots, plan

    def _describe(self, rank: int, job: Job, host: Any) -> None:
        """Tell a worker's job what its host slots are meant to hold, and who reads them."""
        if job.store:
            _, job.meant, job.plan = self.meant[rank].pop(id(host), (None, {}, 0))
            return
        _, name, job.plan = self.readers[rank].pop(id(host), (None, "", 0))
        if name in self.open:
            # A request that has gone away meanwhile does not read.
            job.reader = (name, self.texts[name])

    def _tell_stored(self, report: Any) -> None:
        for job in self.release.completed(report, self.planner.inner):
            if job in self.store_jobs:
                self.store_jobs.remove(job)
                self.emit({"saw": "stored", "job": job})

    def _tell_sampled(self, output: Any, result: Any) -> None:
        drafts = output.scheduled_spec_decode_tokens
        for name, tokens in zip(output.num_scheduled_tokens, result.sampled_token_ids):
            watched = self.open.get(name)
            if watched is None:
                continue
            known = watched.request.num_tokens
            if known != watched.tokens:
                watched.tokens = known
                self.emit({"saw": "tokens", "r": name, "n": known})
            # The scheduler pads a request without drafts with -1, which no drafter wrote.
            proposed = sum(draft >= 0 for draft in drafts.get(name, ()))
            rejected = proposed - (len(tokens) - 1) if len(tokens) else 0
            if rejected > 0:
                self.emit({"saw": "rejected", "r": name, "n": rejected})
            if watched.request.is_finished():
                self._finish(watched)
            elif self.config.async_scheduling and watched.admitted:
                # A step in flight computes tokens that were not known when it was scheduled.
                computed = min(watched.reach, known)
                if computed > watched.computed:
                    watched.computed = computed
                    self.emit({"saw": "computed", "r": name, "n": computed, "late": True})

    def _looked_up(self, request: Any, cached: int, *rest: Any, **more: Any) -> Any:
        """The scheduler asks the connector; what it is told, and what the pool holds, is told."""
        answer = self._lookup(request, cached, *rest, **more)
        watched = self.planner.watched.get(request.request_id)
        if watched is not None and self.pool.readable and self.planner.bind(watched):
            event: dict[str, Any] = {
                "saw": "looked_up", "r": watched.name, "tokens": request.num_tokens,
                "cached": cached, "answer": answer[0],
                "pool": [self.pool.states(group.offload_keys) for group in watched.groups]}
            if watched.most_loaded is not None:
                event["limit"] = watched.most_loaded
            if event != watched.looked_up:  # asked again in each step that it waits
                watched.looked_up = event
                self.emit(event)
        return answer

    def _tell_pins(self) -> None:
        """``pins`` if the pool's are not those of the planner's transfers."""
        pinned, pending = self.pool.wrong_pins(*self.release.holders(self.planner.inner))
        if pinned or pending:
            self.emit({"saw": "pins", "pinned": pinned, "pending": pending})

    def _tell_rest(self) -> None:
        """``not_at_rest`` with what is held, if anything is."""
        held = []
        copies = [job for worker in self.workers for job in worker.transfers.queue]
        for label, names in (
            ("requests", list(self.scheduler.requests)),
            *self.release.held(self.planner.inner),
            ("copies not run", copies),
        ):
            if names:
                shown = ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
                held.append(f"{len(names)} {label}: {shown}")
        if self.scheduler.has_requests() and not held:
            held.append("the scheduler says there is still work")
        if held:
            waiting = [name for name, request in self.scheduler.requests.items()
                       if not request.is_finished()]
            self.emit({"saw": "not_at_rest", "held": "; ".join(held), "waiting": waiting})

    def tell_failed(self, error: BaseException) -> None:
        """What a step that raised had decided before it did."""
        if self.told_schedule:
            return  # what the planner knows now rests on tokens that were not told
        output = local(error, "scheduler_output")
        if output is None:
            self.planner.tell_known()
            self.planner.tell_all_cursors()
            return
        found = local(error, *self.release.failed_in)
        self._tell_scheduled(output, None, self.release.failed_stores(found))
