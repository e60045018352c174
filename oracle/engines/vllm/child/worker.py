"""What does one worker do with a scheduler's message?  The order of calls is vLLM's own.

``GPUModelRunner.execute_model`` calls ``handle_preemptions`` first, then either
``kv_connector_no_forward`` or the forward inside ``maybe_get_kv_connector_output``; with
speculative decoding the connector is finalised only after the drafter has run.  All three
are the release's own ``KVConnectorModelRunnerMixin``, so that a release's own ordering of
loads and stores is what is checked.
"""

from __future__ import annotations

import copy
from typing import Any

import vllm.distributed.kv_transfer.kv_transfer_state as kv_transfer_state
from vllm.forward_context import set_forward_context
from vllm.v1.outputs import ModelRunnerOutput

from .config import Config
from .content import Text
from .ghost import REJECTED, Memory, Transfers
from .shims.release import Release


class Worker:
    """One rank: its side of the connector, its memory, and what it was told of requests.

    ``texts`` and ``requests`` (the engine's own request objects) are shared by all ranks.
    """

    def __init__(self, config: Config, release: Release, connector: Any, memory: Memory,
                 transfers: Transfers, texts: dict[str, Text], requests: dict[str, Any],
                 vllm_config: Any) -> None:
        self.config = config
        self.release = release
        self.connector = connector
        self.memory = memory
        self.transfers = transfers
        self.texts = texts
        self.requests = requests
        self.vllm_config = vllm_config
        self.speculative = vllm_config.speculative_config is not None
        self.tables: dict[str, list[list[int]]] = {}
        self.known: dict[str, int] = {}
        """Tokens of each request that this worker knows: the prompt, and what it has sampled."""
        self.targets = [g for g, group in enumerate(config.groups) if not group.draft]
        self.drafters = [g for g, group in enumerate(config.groups) if group.draft]

    def execute(self, output: Any) -> Any:
        """Run one step; the ``ModelRunnerOutput`` that the scheduler is then given."""
        kv_transfer_state._KV_CONNECTOR_AGENT = self.connector
        mixin = self.release.mixin()
        self._update_tables(output)
        self.release.prepare(self.connector, output)
        for block in getattr(output, "kv_cache_block_copies", None) or ():
            self.memory.gpu[block.dst_block_id] = self.memory.gpu.get(block.src_block_id, ())
        if not output.total_num_scheduled_tokens:
            return mixin.kv_connector_no_forward(output, self.vllm_config)
        starts = starts_of(output)
        with set_forward_context(None, self.vllm_config), \
                self.release.forward(output, self.speculative) as report:
            sampled = self._forward(output, starts)
        self._draft(output, starts, sampled)
        if self.speculative:
            self.release.after_drafts()
        for name, tokens in zip(output.num_scheduled_tokens, sampled):
            self.known[name] += len(tokens)
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=self.release.sampled(sampled), logprobs=None, prompt_logprobs_dict={},
            pooler_output=None, kv_connector_output=report,
        )

    def _update_tables(self, output: Any) -> None:
        """Block tables, kept from the scheduler's messages as a model runner keeps them."""
        tables = self.tables
        for name in output.finished_req_ids:
            tables.pop(name, None)
            self.known.pop(name, None)
        for name in self.release.preempted(output, ()):
            tables.pop(name, None)
        for data in output.scheduled_new_reqs:
            tables[data.req_id] = [list(blocks) for blocks in data.block_ids]
            self.known[data.req_id] = self.requests[data.req_id].num_tokens
        cached = output.scheduled_cached_reqs
        resumed = self.release.resumed(cached)
        for name, blocks in zip(cached.req_ids, cached.new_block_ids):
            if name in resumed:
                tables[name] = [list(group) for group in blocks]
                self.known[name] = self.requests[name].num_tokens
            elif blocks:
                for table, new in zip(tables[name], blocks):
                    table.extend(new)

    def _forward(self, output: Any, starts: dict[str, int]) -> list[list[int]]:
        """The target's kernels: write what is scheduled, read what is computed, sample.

        A layer writes all requests' KV before any attention reads it, so a request may share
        a block that another one fills in this very step.
        """
        sampled: list[list[int]] = []
        for name, count in output.num_scheduled_tokens.items():
            text, table, start = self.texts[name], self.tables[name], starts[name]
            known = self.known[name]
            drafts = output.scheduled_spec_decode_tokens.get(name, ())
            end = start + count
            for group in self.targets:
                tags = text.tags(group, start, min(end, known))
                if end > known:
                    tags += text.speculative(group, known, list(drafts)[:end - known])
                self.memory.write(table[group], group, start, tags, name)
            if end < known:
                sampled.append([])
                continue
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == text.token(known + accepted):
                accepted += 1
            sampled.append([text.token(known + i) for i in range(accepted + 1)])
        self._read(output, starts, self.targets)
        return sampled

    def _draft(self, output: Any, starts: dict[str, int], sampled: list[list[int]]) -> None:
        """The drafter's kernels, after sampling: they read each token one position early."""
        if not self.drafters:
            return
        ahead = self.config.draft_tokens
        for (name, count), tokens in zip(output.num_scheduled_tokens.items(), sampled):
            text, start = self.texts[name], starts[name]
            end = start + count
            sure = min(end, self.known[name] + max(0, len(tokens) - 1))
            for group in self.drafters:
                table = self.tables[name][group]
                self.memory.write(table, group, start, text.tags(group, start, sure), name)
                if end + ahead > sure:
                    # Rejected drafts, and the drafter's own look-ahead: overwritten before
                    # anybody may rely on them.
                    self.memory.write(table, group, sure, (REJECTED,) * (end + ahead - sure),
                                      name)
        self._read(output, starts, self.drafters)

    def _read(self, output: Any, starts: dict[str, int], groups: list[int]) -> None:
        for name in output.num_scheduled_tokens:
            text, table = self.texts[name], self.tables[name]
            for group in groups:
                self.memory.read(text, table[group], group, starts[name])


def starts_of(output: Any) -> dict[str, int]:
    """Tokens computed before a step, as the scheduler told the workers."""
    starts = {data.req_id: data.num_computed_tokens for data in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    starts.update(zip(cached.req_ids, cached.num_computed_tokens))
    return starts


def message_for(output: Any) -> Any:
    """The scheduler's message as one of several workers receives it: its own to take apart.

    The ends of a transfer stay the same objects, by which the harness knows them.
    """
    own = copy.copy(output)
    own.kv_connector_metadata = _own(output.kv_connector_metadata)
    return own


def _own(metadata: Any) -> Any:
    if metadata is None:
        return None
    own = copy.copy(metadata)
    for name, value in list(vars(own).items()):
        if isinstance(value, (dict, list, set)):
            setattr(own, name, copy.copy(value))
        elif isinstance(value, tuple) and value and hasattr(value[0], "__dict__"):
            setattr(own, name, tuple(_own(part) for part in value))
    return own
