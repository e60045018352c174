"""What does each stimulus do to the engine?  The order of calls inside a step is vLLM's own.

``GPUModelRunner.execute_model`` calls ``handle_preemptions`` first, then either
``kv_connector_no_forward`` or the forward inside ``maybe_get_kv_connector_output``; with
speculative decoding the connector is finalised only after the drafter has run.  All three
are the release's own ``KVConnectorModelRunnerMixin``, so that a release's own ordering of
loads and stores is what is checked.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from vllm.forward_context import set_forward_context
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from . import plugin, shims
from .build import Config, build
from .content import WRONG_TOKEN, Text, parse_prompt
from .ghost import REJECTED, Chunk, Job, Memory, Transfers
from .observe import Planner, Watched
from .postmortem import local
from .serve import BadInput

IDLE_STEPS = 2
"""Steps a drain adds at rest: a store planned in step n is submitted in n + 1."""


class Run:
    """One engine from ``start`` on, and everything that was seen of it."""

    unseen: tuple[str, ...] = ()

    def __init__(self, config: Config, shim: ModuleType) -> None:
        self.config = config
        self.seen: list[dict[str, Any]] = []
        drafts = tuple(group.draft for group in config.groups)
        sizes = tuple(group.tokens_per_block for group in config.groups)
        self.drafts = drafts
        self.memory = Memory(sizes, config.blocks_per_chunk, self.emit)
        self.transfers = Transfers(self.memory)
        self.manager = plugin.WatchedManager(**shim.pool_size(config.host_chunks))
        self.manager.watch(self._cursors)
        self.ghost = plugin.GhostWorker(self.transfers, self._describe)
        built = build(config, shim, self.manager, self.ghost)
        self.vllm_config = built.vllm_config
        self.scheduler = built.scheduler
        self.worker = built.worker
        self.hasher = built.hasher
        self.tokens_per_hash = built.tokens_per_hash
        missing = shims.lacking(self.scheduler, KVConnectorModelRunnerMixin)
        if missing:
            raise BadInput("this release lacks what the adapter relies on: "
                           + ", ".join(missing))
        self.planner = Planner(self.scheduler.connector.connector_scheduler, self.emit)
        self.texts = self.memory.texts
        self.tables: dict[str, list[list[int]]] = {}
        self.offers: dict[int, plugin.Offer] = {}
        self.store_jobs: dict[int, str] = {}
        self.open: dict[str, Watched] = {}
        self.done_names: set[str] = set()
        self.told_schedule = True
        self.starts: dict[str, int] = {}

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
        text = Text(name, prompt, self.drafts)
        self.texts[name] = text
        parameters = SamplingParams(max_tokens=output, ignore_eos=True)
        request = Request(request_id=name, prompt_token_ids=prompt, pooling_params=None,
                          sampling_params=parameters, block_hasher=self._hash_blocks)
        self.scheduler.add_request(request)
        missing = self.planner.arrived(name, request, text)
        if missing:
            raise BadInput("this release lacks what the adapter relies on: "
                           + ", ".join(missing))
        self.open[name] = self.planner.watched[name]
        self.emit({"saw": "arrived", "r": name, "prompt": len(prompt)})

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
        self.transfers.budget = ask.get("done")
        self.transfers.newest = bool(ask.get("newest", False))
        stop = frozenset(ask.get("stop", ()))
        accept = int(ask.get("accept", 0))
        for left in range(steps, 0, -1):
            # The engine core does not step either when there is nothing to do.
            if self.scheduler.has_requests():
                self._step(accept, stop if left == 1 else frozenset())

    def do_abort(self, ask: dict[str, Any]) -> None:
        watched = self._find(ask["r"])
        if watched is None:
            return
        self.scheduler.finish_requests(watched.name, RequestStatus.FINISHED_ABORTED)
        self._finish(watched, aborted=True)

    def do_refuse(self, ask: dict[str, Any]) -> None:
        self.manager.refuse_next += int(ask.get("n", 1))

    def do_reset(self, ask: dict[str, Any]) -> None:
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
        self.transfers.budget = None
        self.transfers.newest = False
        steps = 0
        while self.scheduler.has_requests() and steps < limit:
            self._step(self.config.draft_tokens, frozenset())
            steps += 1
        for _ in range(min(IDLE_STEPS, limit - steps)):
            self._step(0, frozenset())
        self._tell_rest()
        self.emit({"saw": "checked", "stored": self.memory.stored_positions,
                   "read": self.memory.read_positions})

    def _must_fit(self, name: str, tokens: int) -> None:
        """Refuse a request that the pool can never hold, as vLLM does at its own front door.

        It does not start unless a request of ``max_model_len`` fits; the scheduler relies on
        it, and would let such a request wait for ever.
        """
        config = self.config
        # Positions of drafts to verify, and as many again for the drafter's look-ahead.
        ahead = config.draft_tokens * (2 if any(self.drafts) else 1)
        needed = sum(-(-(tokens - 1 + ahead) // group.tokens_per_block)
                     for group in config.groups)
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
            watched.request.update_block_hashes()

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

    def _cursors(self, name: str) -> list[int]:
        return self.planner.cursors(name)

    # --- a step --------------------------------------------------------------------

    def _step(self, accept: int, stop: frozenset[str]) -> None:
        if self.config.draft_tokens:
            self._propose(accept)
        self.told_schedule = False
        output = self.scheduler.schedule()
        self.starts = self._starts(output)
        self._tell_scheduled(output, output.kv_connector_metadata.store_jobs)
        result = self._execute(output)
        rows = output.num_scheduled_tokens
        for name in stop:
            if name in rows and result.sampled_token_ids[result.req_id_to_index[name]]:
                request = self.open[name].request
                request.max_tokens = request.num_output_tokens + len(
                    result.sampled_token_ids[result.req_id_to_index[name]])
        # None where a step without tokens had nothing to report.
        report = result.kv_connector_output
        reports = report.kv_connector_worker_meta if report is not None else None
        self.scheduler.update_from_output(output, result)
        self._tell_stored(reports)
        self._tell_sampled(output, result)
        self._retire()

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

    def _execute(self, output: Any) -> Any:
        mixin = KVConnectorModelRunnerMixin
        self._update_tables(output)
        self.worker.handle_preemptions(output.kv_connector_metadata)
        for copy in getattr(output, "kv_cache_block_copies", None) or ():
            self.memory.gpu[copy.dst_block_id] = self.memory.gpu.get(copy.src_block_id, ())
        if not output.total_num_scheduled_tokens:
            return mixin.kv_connector_no_forward(output, self.vllm_config)
        speculative = self.vllm_config.speculative_config is not None
        with set_forward_context(None, self.vllm_config), mixin.maybe_get_kv_connector_output(
            output, defer_finalize=speculative
        ) as report:
            sampled = self._forward(output)
        self._draft(output, sampled)
        if speculative:
            mixin.finalize_kv_connector()
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled, logprobs=None, prompt_logprobs_dict={},
            pooler_output=None, kv_connector_output=report,
        )

    def _update_tables(self, output: Any) -> None:
        """Block tables, kept from the scheduler's messages as a model runner keeps them."""
        tables = self.tables
        for name in output.finished_req_ids:
            tables.pop(name, None)
        for name in output.preempted_req_ids or ():
            tables.pop(name, None)
        new = {data.req_id for data in output.scheduled_new_reqs}
        for name, groups, whole in yield_req_data(output):
            if whole or name in new:
                tables[name] = [list(blocks) for blocks in groups]
            elif groups:
                for table, blocks in zip(tables[name], groups):
                    table.extend(blocks)

    def _starts(self, output: Any) -> dict[str, int]:
        """Tokens computed before this step, as the scheduler told the workers."""
        starts = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens))
        return starts

    def _forward(self, output: Any) -> list[list[int]]:
        """The target's kernels: write what is scheduled, read what is computed, sample.

        A layer writes all requests' KV before any attention reads it, so a request may share
        a block that another one fills in this very step.
        """
        starts = self.starts
        targets = [group for group, draft in enumerate(self.drafts) if not draft]
        sampled: list[list[int]] = []
        for name, count in output.num_scheduled_tokens.items():
            watched = self.planner.watched[name]
            text, table, start = watched.text, self.tables[name], starts[name]
            known = watched.request.num_tokens
            drafts = output.scheduled_spec_decode_tokens.get(name, ())
            end = start + count
            for group in targets:
                tags = text.tags(group, start, min(end, known))
                if end > known:
                    tags += text.speculative(group, known, list(drafts)[:end - known])
                self.memory.write(table[group], group, start, tags)
            if end < known:
                sampled.append([])
                continue
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == text.token(known + accepted):
                accepted += 1
            sampled.append([text.token(known + i) for i in range(accepted + 1)])
        self._read(output, starts, targets)
        return sampled

    def _draft(self, output: Any, sampled: list[list[int]]) -> None:
        """The drafter's kernels, after sampling: they read each token one position early."""
        groups = [group for group, draft in enumerate(self.drafts) if draft]
        if not groups:
            return
        starts = self.starts
        ahead = self.config.draft_tokens
        for (name, count), tokens in zip(output.num_scheduled_tokens.items(), sampled):
            watched = self.planner.watched[name]
            start = starts[name]
            end = start + count
            sure = min(end, watched.request.num_tokens + max(0, len(tokens) - 1))
            for group in groups:
                table = self.tables[name][group]
                self.memory.write(table, group, start, watched.text.tags(group, start, sure))
                if end + ahead > sure:
                    # Rejected drafts, and the drafter's own look-ahead: overwritten before
                    # anybody may rely on them.
                    self.memory.write(table, group, sure, (REJECTED,) * (end + ahead - sure))
        self._read(output, starts, groups)

    def _read(self, output: Any, starts: dict[str, int], groups: list[int]) -> None:
        for name in output.num_scheduled_tokens:
            text, table = self.planner.watched[name].text, self.tables[name]
            for group in groups:
                self.memory.read(text, table[group], group, starts[name])

    # --- what was seen ---------------------------------------------------------------

    def _tell_scheduled(self, output: Any, jobs: dict[int, Any]) -> None:
        """The scheduler's decisions and the planner's, in the protocol's order."""
        self.told_schedule = True
        watched = self.planner.watched
        for name in sorted(output.preempted_req_ids or ()):
            if name in watched:
                watched[name].admitted = False
                self.emit({"saw": "preempted", "r": name})
                self._release_keys(watched[name])
        self._tell_admitted(output)
        self.planner.tell_known()
        starts = self.starts
        for name, count in output.num_scheduled_tokens.items():
            self.emit({"saw": "computed", "r": name,
                       "n": min(starts[name] + count, watched[name].request.num_tokens)})
        self._tell_offers(jobs)
        self.planner.tell_all_cursors()
        self._retire()

    def _tell_admitted(self, output: Any) -> None:
        watched = self.planner.watched
        starts = self.starts
        metadata = output.kv_connector_metadata
        loads = metadata.load_jobs if metadata is not None else (
            self.planner.inner._current_batch_load_jobs)
        for job, transfer in loads.items():
            one = watched[transfer.req_id]
            if not one.admitted:
                self._admit(one, one.status.num_locally_computed_tokens)
            upto = starts.get(one.name, one.request.num_computed_tokens)
            self.emit({"saw": "loaded", "r": one.name, "upto": upto, "job": job})
        for name in output.num_scheduled_tokens:
            if not watched[name].admitted:
                self._admit(watched[name], starts[name])

    def _admit(self, watched: Watched, cached: int) -> None:
        watched.admitted = True
        # Admission builds the list of blocks anew; its length may be what it was before.
        watched.blocks = [0] * len(watched.groups)
        event: dict[str, Any] = {"saw": "started", "r": watched.name}
        if cached:
            event["cached"] = cached
        self.emit(event)

    def _tell_offers(self, jobs: dict[int, Any]) -> None:
        """``planned`` and ``refused``, one for each offer put to the host pool."""
        offers = self.manager.offers
        if not offers:
            return
        self.manager.offers = []
        by_target = {id(job.dst_spec): (number, job) for number, job in jobs.items()}
        for offer in offers:
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
            number, job = by_target.get(id(offer.target), (None, None))
            if number is not None and job is not None:
                event["job"] = number
                self.store_jobs[number] = offer.r
                self.offers[number] = offer
                for part in told:
                    part["blocks"] = job.src_spec.group_sizes[part["g"]]
            self.emit(event)
            self.planner.tell_cursors(watched, [g.next_stored_chunk_idx for g in watched.groups])

    def _describe(self, job: Job, spec: Any) -> None:
        """Tell a job what its host slots are meant to hold, and who reads them."""
        if not job.store:
            name = self._loading(job.id)
            if name is not None:
                job.reader = (name, self.texts[name])
            return
        offer = self.offers.pop(job.id, None)
        if offer is None or offer.taken is None:
            return
        watched = self.planner.watched.get(offer.r)
        for key, slot in zip(offer.taken, offer.slots):
            found = watched.find_chunk(key) if watched is not None else None
            if found is not None:
                job.meant[slot] = Chunk(self.texts[offer.r], found[0], found[1])

    def _loading(self, job: int) -> str | None:
        """The request a load is for, unless it has gone away meanwhile."""
        status = self.planner.inner._jobs.get(job)
        name = status.req_id if status is not None else None
        return name if name in self.open else None

    def _tell_stored(self, reports: Any) -> None:
        if reports is None:
            return
        for job in reports.completed_jobs:
            if job in self.store_jobs and job not in self.planner.inner._jobs:
                del self.store_jobs[job]
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
            rejected = proposed - (len(tokens) - 1) if tokens else 0
            if rejected > 0:
                self.emit({"saw": "rejected", "r": name, "n": rejected})
            if watched.request.is_finished():
                self._finish(watched)

    def _tell_rest(self) -> None:
        """``not_at_rest`` with what is held, if anything is."""
        held = []
        inner = self.planner.inner
        for label, names in (
            ("requests", list(self.scheduler.requests)),
            ("requests the planner keeps", list(inner._req_status)),
            ("transfer jobs", list(inner._jobs)),
            ("copies not run", list(self.transfers.queue)),
        ):
            if names:
                shown = ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
                held.append(f"{len(names)} {label}: {shown}")
        if self.scheduler.has_requests() and not held:
            held.append("the scheduler says there is still work")
        if held:
            self.emit({"saw": "not_at_rest", "held": "; ".join(held)})

    def tell_failed(self, error: BaseException) -> None:
        """What a step that raised had decided before it did."""
        if self.told_schedule:
            self.planner.tell_known()
            return
        output = local(error, "scheduler_output")
        if output is None:
            self.planner.tell_known()
            self.planner.tell_all_cursors()
            return
        self.starts = self._starts(output)
        jobs = local(error, "store_jobs", "_build_store_jobs") or {}
        self._tell_scheduled(output, jobs)
