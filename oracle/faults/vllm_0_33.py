"""Faults for vLLM 0.33.0: its offloading connector, host pool and eviction policy.

Each takes away one thing that the release does right, mostly one that some engine once did
wrong in public.
"""

from __future__ import annotations

from .fault import Edit, Fault

_CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/offloading"
_PLANNER = f"{_CONNECTOR}/scheduler.py"
_WORKER = f"{_CONNECTOR}/worker.py"
_POOL = "vllm/v1/kv_offload/cpu/manager.py"
_LRU = "vllm/v1/kv_offload/cpu/policies/lru.py"


def _planner(old: str, new: str) -> Edit:
    return Edit(_PLANNER, old, new)


def _worker(old: str, new: str) -> Edit:
    return Edit(_WORKER, old, new)


def _pool(old: str, new: str) -> Edit:
    return Edit(_POOL, old, new)


def _lru(old: str, new: str) -> Edit:
    return Edit(_LRU, old, new)


_STILL_PLANNED = """            scheduler_output.finished_req_ids or (),
        ):
            req_status = self._req_status.get(req_id)
            if req_status is None:
                continue
            req = req_status.req
"""

_EVICTS_ONLY_IDLE = _lru("            assert chunk.ref_cnt == 0\n", "")
"""The policy's own guard, without which a wrong eviction is silent."""

# --- planning a store ------------------------------------------------------------------

_PLANNING = (
    Fault(
        "no-key-bound", "chunks are counted as storable before their keys have arrived",
        ("KeysEqBlocks",), "vLLM issue #52170",
        (_planner("return min(num_chunks, num_allocated_chunks, num_keyed_chunks)",
                  "return min(num_chunks, num_allocated_chunks)"),),
    ),
    Fault(
        "no-block-bound", "chunks are counted as storable that have no blocks",
        ("KeysEqBlocks",), "vLLM issue #49118",
        (_planner("return min(num_chunks, num_allocated_chunks, num_keyed_chunks)",
                  "return min(num_chunks, num_keyed_chunks)"),),
        harmless="whoever has no blocks has no tokens counted either: a request in the queue has "
        "computed nothing, and one that loads has its cursor behind the load",
    ),
    Fault(
        "stores-volatile-tail", "the last chunk of a draft group is stored while decoding",
        ("NoVolatileStore",), "vLLM PR44784",
        (_planner("group_config.is_eagle_group and is_decoding and not self.req.is_finished()",
                  "False"),),
    ),
    Fault(
        "tail-excluded-at-finish", "the draft group's last chunk stays excluded at the end",
        ("EventuallyStored",), "vLLM issue #52735",
        (_planner(" and is_decoding and not self.req.is_finished()", " and is_decoding"),),
    ),
    Fault(
        "wrong-groups-chunk", "storable chunks of every group are counted in the first one's size",
        ("KeysEqBlocks", "EventuallyStored", "NoVolatileStore"), "vLLM PR41549",
        (_planner("num_offloadable_tokens // group_config.tokens_per_chunk\n"
                  "        is_decoding",
                  "num_offloadable_tokens // self.config.kv_group_configs[0].tokens_per_chunk\n"
                  "        is_decoding"),),
        needs="groups with chunks of different sizes",
    ),
    Fault(
        "ahead-of-the-step", "one token more than this step computes is counted as computed",
        ("NoVolatileStore",), "vLLM issue #33864",
        (_planner("req.num_computed_tokens + num_scheduled_tokens\n",
                  "req.num_computed_tokens + num_scheduled_tokens + 1\n"),
         _planner("num = min(num_computed_tokens, req_status.req.num_tokens)",
                  "num = num_computed_tokens")),
    ),
    Fault(
        "last-token-counted", "a finished request's last token counts, though it is never computed",
        ("NoVolatileStore",), "vLLM PR48596 and its sequel",
        (_planner("max(req.num_prompt_tokens, req.num_tokens - 1)", "req.num_tokens"),),
    ),
    Fault(
        "aborted-counts-all", "an aborted request counts tokens that were never computed",
        ("NoVolatileStore",), "vLLM issue #49118",
        (_planner("                num_tokens_after_batch = req.num_computed_tokens\n",
                  "                num_tokens_after_batch = req.num_tokens\n"),),
    ),
    Fault(
        "finish-gap", "nothing is planned any more for a request that has finished",
        ("EventuallyStored",), "vLLM PR48596",
        (_planner(_STILL_PLANNED, _STILL_PLANNED.replace(
            "scheduler_output.finished_req_ids or (),", "(),")),),
    ),
    Fault(
        "advance-on-refusal", "the cursor moves over chunks that the pool has refused",
        ("NoHole",), "vLLM PR27697",
        (_planner('logger.warning("Request %s: cannot store chunks", req_id)\n',
                  "req_status.advance_stored_idx(num_offloadable_tokens)\n"),),
    ),
    Fault(
        "refusal-ends-the-step", "after a refusal the other requests of the step are not looked at",
        ("EventuallyStored", "NoHole"), "vLLM issue #26329",
        (_planner('logger.warning("Request %s: cannot store chunks", req_id)\n'
                  "                continue",
                  "return store_jobs"),),
    ),
    Fault(
        "cursor-too-far", "the cursor is set one chunk beyond the last one stored",
        ("NoHole", "KeysEqBlocks"), "vLLM issue #46971",
        (_planner("group_state.next_stored_chunk_idx, num_chunks\n",
                  "group_state.next_stored_chunk_idx, num_chunks + 1\n"),),
    ),
    Fault(
        "load-moves-cursor-too-far", "a load puts the cursor one chunk beyond what it loads",
        ("NoHole",), "vLLM PR46824",
        (_planner("group_state.next_stored_chunk_idx = num_chunks\n",
                  "group_state.next_stored_chunk_idx = num_chunks + 1\n"),),
    ),
    Fault(
        "blocks-kept-at-resume", "a preempted request's old blocks stay in front of its new ones",
        ("TrueBytes", "KeysEqBlocks"), "vLLM PR52211",
        (_planner("            if is_full_table:\n", "            if False:\n"),
         _planner("            group_state.block_ids.clear()\n"
                  "            # Restarting at token 0: offer every chunk again.\n",
                  "            pass\n")),
        needs="preemption",
    ),
    Fault(
        "first-block-for-all", "a chunk's every block is copied from its first one",
        ("TrueBytes",), "vLLM PR35831: block ids recorded twice",
        (_planner("block_id = block_ids[gpu_block_idx + i]\n",
                  "block_id = block_ids[gpu_block_idx]\n"),),
        needs="chunks of several blocks",
    ),
    Fault(
        "wrong-group-sizes", "a job names the blocks so far instead of each group's own",
        ("KeysEqBlocks",), "llm-d-kv-cache PR658",
        (_planner("group_sizes.append(num_group_blocks)\n",
                  "group_sizes.append(len(src_block_ids))\n"),),
        needs="two groups",
    ),
    Fault(
        "key-of-first-block", "a chunk's key is the hash of its first block, not of its last",
        ("", "KeyedOnly", "TrueBytes"), "llm-d-kv-cache PR658",
        (_planner("                + group_config.hashes_per_chunk\n                - 1,\n", ""
                  "                + 0,\n"),),
        needs="chunks of several blocks",
    ),
    Fault(
        "key-without-group", "the keys of all groups are alike",
        ("KeysEqBlocks", "TrueBytes", "HitSound"), "vLLM issue #44250",
        (_planner("make_offload_key(req_block_hash, group_config.group_idx)",
                  "make_offload_key(req_block_hash, 0)"),),
        needs="two groups",
    ),
)

# --- fences ------------------------------------------------------------------------------

_FENCES = (
    Fault(
        "no-flush", "workers are told of no transfer to wait for",
        ("ReuseFence", "TrueBytes"), "vLLM PR48596",
        (_planner("jobs_to_flush=self._current_batch_jobs_to_flush,", "jobs_to_flush=set(),"),),
    ),
    Fault(
        "flush-not-awaited", "the worker submits what is to be flushed, and does not wait",
        ("ReuseFence", "TrueBytes"), "LMCache PR4955",
        (_worker("            self.worker.wait(kv_connector_metadata.jobs_to_flush)\n",
                 "            pass\n"),),
    ),
    Fault(
        "no-flush-at-preemption", "stores of a preempted request are not waited for",
        ("ReuseFence", "TrueBytes"), "vLLM issue #52360",
        (_planner("self._current_batch_jobs_to_flush.update(jobs_to_flush)\n", "pass\n"),),
        needs="preemption, slow transfers",
    ),
    Fault(
        "no-fence-at-finish", "blocks of stores under way are not fenced when their request ends",
        ("ReuseFence", "TrueBytes"), "vLLM issue #46951",
        (_planner("            for bid in job_status.deferred_fence_block_ids or ():\n"
                  "                self._block_id_to_pending_jobs",
                  "            for bid in ():\n"
                  "                self._block_id_to_pending_jobs"),
         _planner("                    self._remove_pending_job(\n"
                  "                        job_id, job_status.deferred_fence_block_ids\n"
                  "                    )\n", "                    pass\n")),
        needs="slow transfers",
    ),
    Fault(
        "no-fence-for-last-store", "a store planned after the end does not fence what is reused "
        "in that very step",
        ("ReuseFence", "TrueBytes"), "vLLM PR48596",
        (_planner("                        self._current_batch_jobs_to_flush.add(job_id)\n",
                  "                        pass\n"),),
    ),
    Fault(
        "loads-not-fenced", "blocks given to a request that loads are not looked up in the fence",
        ("ReuseFence", "TrueBytes"), "vLLM PR46960",
        (_planner("                block.block_id for block in group_blocks "
                  "if block.block_id != 0\n",
                  "                block.block_id for block in group_blocks "
                  "if num_external_tokens == 0 and block.block_id != 0\n"),),
        needs="slow transfers",
    ),
    Fault(
        "reset-forgets-jobs", "a reset does not wait for the transfers under way",
        ("ReuseFence", "TrueBytes", "LoadedBytes"), "vLLM PR41956 (review)",
        (_planner("        self._current_batch_jobs_to_flush.update(self._jobs.keys())\n", ""),),
        needs="resets",
    ),
    Fault(
        "reset-keeps-fences", "a reset leaves the map of fenced blocks as it is",
        ("NoLeak", "RefExact"), "vLLM PR41956 (review)",
        (_planner("        self._block_id_to_pending_jobs.clear()\n", ""),),
        needs="resets",
    ),
)

# --- completion ----------------------------------------------------------------------------

_COMPLETION = (
    Fault(
        "complete-early", "a store counts as complete as soon as it is planned",
        ("RefExact", "LoadReady", "TrueBytes"), "tpu-inference PR3152",
        (_planner("            keys_to_store = set(store_output.keys_to_store)\n",
                  "            keys_to_store = set(store_output.keys_to_store)\n"
                  "            self.manager.complete_store(keys_to_store, "
                  "req_status.req_context)\n"),),
        needs="slow transfers",
    ),
    Fault(
        "loads-reported-early", "a load is reported when it is submitted",
        ("LoadReady", "LoadedBytes"), "LMCache#3388",
        (_worker("        finished_recving: set[str] = set()\n",
                 "        finished_recving: set[str] = {r for r in self._load_jobs.values() if r}\n"
                 "        self._load_jobs = {j: None for j in self._load_jobs}\n"),),
        needs="slow transfers",
    ),
    Fault(
        "never-complete", "a store that is over leaves its chunks pending for ever",
        ("NoStall", "RefExact", "NoLeak"), "Dynamo#3730",
        (_pool("                if chunk is not None and not chunk.is_ready:\n"
               "                    chunk.ref_cnt = 0\n",
               "                if False:\n"
               "                    chunk.ref_cnt = 0\n"),),
    ),
    Fault(
        "load-beside-stores", "a request is looked up, and loaded, while its stores are under way",
        ("JobExclusive",), "vLLM issue #46240",
        (_planner("        if req_status.transfer_jobs:\n            logger.debug(\n"
                  '                "Delaying request %s since it still',
                  "        if False:\n            logger.debug(\n"
                  '                "Delaying request %s since it still'),
         _planner("        assert not req_status.transfer_jobs\n", "")),
        needs="preemption, slow transfers",
        harmless="a preempted request's stores are waited for in the step that preempts it, and "
        "it is looked up in a later one",
    ),
    Fault(
        "forgotten-too-early", "a finished request is forgotten with transfers under way",
        ("NoCrash",), "Dynamo PR6681",
        (_planner("            if not req_status.transfer_jobs:\n"
                  "                del self._req_status[req_id]\n",
                  "            del self._req_status[req_id]\n"),),
        needs="slow transfers",
    ),
    Fault(
        "never-forgotten", "a request whose last transfer ends after it did is kept for ever",
        ("NoLeak",), "vllm-ascend#10098",
        (_planner("if req_status.finished_signaled and not req_status.transfer_jobs:",
                  "if False:"),),
        needs="slow transfers",
    ),
    Fault(
        "late-reports-count", "reports of transfers from before a reset are taken as new ones",
        ("NoCrash", "RefExact"), "vLLM issue #51637",
        (_planner("        self._stale_job_threshold = self._job_counter\n", ""),),
        needs="resets, slow transfers",
    ),
)

# --- the host pool ---------------------------------------------------------------------------

_POOLING = (
    Fault(
        "no-pin", "a load does not pin the chunks it reads",
        ("RefExact", "ReuseFence", "LoadReady", "LoadedBytes"), "SGLang PR31427",
        (_pool("            if chunk.ref_cnt == 0:\n"
               "                self._policy.mark_non_evictable(key)\n",
               "            if False:\n"
               "                self._policy.mark_non_evictable(key)\n"),
         _pool("            chunk.ref_cnt += 1\n", ""),
         _pool("        for key in keys:\n"
               "            chunk = self._policy.get(key)\n"
               '            assert chunk is not None, f"Chunk {key!r} not found"\n',
               "        for key in ():\n"
               "            chunk = self._policy.get(key)\n"
               '            assert chunk is not None, f"Chunk {key!r} not found"\n')),
        needs="slow transfers",
    ),
    Fault(
        "never-unpinned", "the pin of a load outlives it",
        ("RefExact",), "LMCache#987",
        (_pool("            chunk.ref_cnt -= 1\n", "            continue\n"),),
    ),
    Fault(
        "one-unpins-all", "the first load that ends takes the pins of all",
        ("RefExact",), "LMCache#2954",
        (_pool("            chunk.ref_cnt -= 1\n", "            chunk.ref_cnt = 0\n"),),
        needs="two loads of one chunk",
    ),
    Fault(
        "evicts-pinned", "a chunk may be evicted while a load reads it",
        ("RefExact", "ReuseFence", "LoadReady", "LoadedBytes"), "SGLang PR27444",
        (_lru("        # key must have been evictable before it was pinned.\n"
              "        self._evictable.remove(key)",
              "        pass"),
         _EVICTS_ONLY_IDLE,
         _pool("                self._num_evictable_cache_chunks -= 1  # ref_cnt 0 -> 1\n", ""),
         _pool("                self._num_evictable_cache_chunks += 1  # ref_cnt 1 -> 0\n", "")),
        needs="slow transfers",
    ),
    Fault(
        "evicts-pending", "a chunk may be evicted while its store is under way",
        ("RefExact", "ReuseFence", "TrueBytes"), "TensorRT-LLM#12542",
        (_lru("        if chunk.ref_cnt == 0:\n            self._evictable.add(key)",
              "        if True:\n            self._evictable.add(key)"),
         _EVICTS_ONLY_IDLE,
         _pool("        self._num_write_pending_chunks += len(keys_to_store)\n",
               "        self._num_write_pending_chunks += len(keys_to_store)\n"
               "        self._num_evictable_cache_chunks += len(keys_to_store)\n"),
         _pool("                    self._num_evictable_cache_chunks += 1\n", "")),
        needs="slow transfers",
    ),
    Fault(
        "wrong-slot-freed", "an evicted chunk gives back another's slot",
        ("RefExact", "ReuseFence", "TrueBytes", "LoadedBytes"), "SGLang PR13501",
        (_pool("self._free_list.append(chunk.chunk_id)", "self._free_list.append(0)"),),
    ),
    Fault(
        "slot-given-twice", "a slot stays in the free list when it is given out",
        ("RefExact", "ReuseFence", "TrueBytes", "LoadedBytes"), "SGLang PR13501",
        (_pool("self._free_list.pop()", "self._free_list[-1]"),),
    ),
    Fault(
        "one-slot-too-many", "the pool counts one slot more than it has",
        ("NoCrash", "RefExact"), "vLLM PR50653",
        (_pool("return len(self._free_list) + self._num_chunks - self._num_allocated_chunks",
               "return 1 + len(self._free_list) + self._num_chunks - self._num_allocated_chunks"),),
    ),
    Fault(
        "reset-keeps-pool", "a reset clears the planner and not the pool",
        ("RefExact", "NoStall", "NoLeak"), "vLLM issue #57727",
        (_planner("        self.manager.reset_cache()\n", ""),),
        needs="resets, slow transfers",
    ),
    Fault(
        "reset-keeps-cursors", "a reset empties the pool, and cursors stay where they are",
        ("NoHole", "EventuallyStored"), "vLLM PR41956 (review)",
        (_planner("            for group_state in status.group_states:\n"
                  "                group_state.next_stored_chunk_idx = 0\n", ""),),
        needs="resets",
    ),
    Fault(
        "slots-in-reverse", "a job's slots are named in the reverse order of its keys",
        ("TrueBytes", "LoadedBytes"), "TensorRT-LLM PR13124",
        (_pool("CPULoadStoreSpec([chunk.chunk_id for chunk in chunks])",
               "CPULoadStoreSpec([chunk.chunk_id for chunk in chunks][::-1])"),),
    ),
)

# --- lookup and loads ------------------------------------------------------------------------

_LOADING = (
    Fault(
        "hit-one-short", "lookup promises one chunk less than the pool holds",
        ("HitMaximal",), "vLLM issue #52735",
        (_planner("        return hit_count if not defer_lookup else None\n",
                  "        return max(0, hit_count - 1) if not defer_lookup else None\n"),),
    ),
    Fault(
        "hit-one-long", "lookup promises one chunk more than the pool holds",
        ("HitSound",), "vLLM issue #52617",
        (_planner("        return hit_count if not defer_lookup else None\n",
                  "        return hit_count + 1 if not defer_lookup else None\n"),),
    ),
    Fault(
        "one-group-looked-up", "lookup asks for the first group alone",
        ("HitSound",), "vLLM issue #46453",
        (_planner("self._full_attention_groups + self._sliding_window_groups",
                  "(self._full_attention_groups + self._sliding_window_groups)[:1]"),),
        needs="two groups",
    ),
    Fault(
        "draft-chunk-not-widened", "lookup of a draft group does not ask for the chunk it drops",
        ("HitMaximal",), "vLLM issue #52735",
        (_planner("                    query_max = min(\n"
                  "                        max_hit_size_tokens + tokens_per_chunk,\n",
                  "                    query_max = min(\n"
                  "                        max_hit_size_tokens,\n"),),
        needs="draft groups",
    ),
    Fault(
        "pending-is-a-hit", "a chunk whose store is under way is served",
        ("HitSound", "LoadReady", "LoadedBytes"), "LMCache#4991",
        (_pool("            return LookupResult.HIT_PENDING\n",
               "            return LookupResult.HIT\n"),
         _pool('            assert chunk.is_ready, f"Chunk {key!r} is not ready for reading"\n',
               "")),
        needs="slow transfers",
    ),
    Fault(
        "no-block-offset", "a load is described as starting at the first block",
        ("LoadedBytes", "KeysEqBlocks"), "vLLM issue #28950",
        (_planner("            block_indices.append(load_start_gpu_block_idx)\n",
                  "            block_indices.append(0)\n"),),
        needs="a hit on the GPU inside of a chunk of several blocks",
        harmless="the GPU's own prefix cache is off, so every load starts at block 0",
    ),
    Fault(
        "load-shifted", "a load takes each chunk's successor",
        ("NoHole", "HitSound", "LoadedBytes"), "LMCache#2206",
        (_planner("offload_keys[start_chunk_idx:end_chunk_idx]\n",
                  "offload_keys[start_chunk_idx + 1:end_chunk_idx + 1]\n"),),
    ),
)

FAULTS: tuple[Fault, ...] = (*_PLANNING, *_FENCES, *_COMPLETION, *_POOLING, *_LOADING)
