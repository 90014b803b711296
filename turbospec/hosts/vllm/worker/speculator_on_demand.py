# pyright: basic, reportMissingImports=false
"""Runs the speculator of vLLM's model runner V2 as many passes as a step drafts tokens: none at K = 0, K passes at K.

V2's speculators run their first pass in every step, and the draft model runs all passes of the longest draft. DFlash
and DSpark make the full draft in one pass. Here a pass of a step that drafts nothing is skipped and its input kept
(`kept_inputs`). When a request drafts again, one pass computes its kept tokens and its new ones.

The orders come with the scheduler's output, as on V1 (`drafter_on_demand`). This module runs in the worker and must not
import numba. The drafter's KV cache never changes an output, only how many draft tokens are accepted.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag, orders_of
from turbospec.hosts.vllm.worker.host_to_device import to_device
from turbospec.hosts.vllm.worker.kept_inputs import KeptInputs
from turbospec.hosts.vllm.worker.replaced import replaced

log = logging.getLogger("turbospec")


def install(model_runner) -> None:
    """Make a worker's model runner follow the orders in the scheduler's output; its speculator has a KV cache."""
    speculator = model_runner.speculator
    alone = model_runner.parallel_config.tensor_parallel_size == 1
    on_demand = SpeculatorOnDemand(speculator, alone=alone)
    execute = model_runner.execute_model

    def execute_model(scheduler_output, *given, **named):
        if scheduler_output.total_num_scheduled_tokens:  # a step without tokens has no orders, and changes nothing
            on_demand.take(scheduler_output)
        return execute(scheduler_output, *given, **named)

    model_runner.execute_model = execute_model
    speculator.propose = on_demand.propose
    log.info("TurboSpec runs the drafter only in steps that draft")


def install_without_cache(model_runner) -> None:
    """Make a speculator without a KV cache, such as n-gram look-up, do nothing in steps that draft nothing."""
    speculator = model_runner.speculator
    propose = speculator.propose

    def propose_if_any(input_batch, *given, num_speculative_tokens=None, **named):
        if num_speculative_tokens == 0:
            return speculator.drafts[: input_batch.num_reqs]
        return propose(input_batch, *given, num_speculative_tokens=num_speculative_tokens, **named)

    speculator.propose = propose_if_any
    log.info("TurboSpec runs the drafter only in steps that draft")


def install_passes(model_runner) -> None:
    """Make a draft model that runs in every step run as many passes as the step drafts tokens, and at least one.

    vLLM's runs all passes of the longest draft.
    """
    speculator = model_runner.speculator
    propose = speculator.propose

    def propose_length(input_batch, *given, num_speculative_tokens=None, **named):
        longest = speculator.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        with replaced(speculator, num_speculative_steps=max(longest, 1)):
            propose(input_batch, *given, num_speculative_tokens=num_speculative_tokens, **named)
        return speculator.draft_tokens[: input_batch.num_reqs]

    speculator.propose = propose_length
    log.info("TurboSpec runs one drafter pass for each token that a step drafts, and the first in every step")


class SpeculatorOnDemand:
    """Wraps a speculator's `propose`.

    Args:
        speculator: one of vLLM's for model runner V2 that runs a model of its own.
        alone: whether no other worker runs the same steps; see `KeptInputs`.
    """

    def __init__(self, speculator, *, alone: bool) -> None:
        self._speculator = speculator
        self._propose = speculator.propose
        self._takes_hidden = hasattr(speculator, "hidden_states")
        """Whether the drafter takes the target's hidden states. One that does not, a draft model, ignores
        `num_speculative_tokens` and drafts the full block."""
        self._builds_metadata = not self._takes_hidden or speculator.speculative_config.parallel_drafting
        """Whether the drafter computes the attention metadata of its first pass itself."""
        self._kept = KeptInputs(with_hidden=self._takes_hidden, alone=alone)
        self._orders: DrafterOrders | None = None

    def take(self, scheduler_output) -> None:
        """Read the orders for the step that is executed next."""
        self._orders = orders_of(scheduler_output)
        self._kept.update(self._orders)

    def propose(
        self,
        input_batch,
        attn_metadata,
        slot_mappings,
        last_hidden_states,
        aux_hidden_states,
        *others,
        num_speculative_tokens=None,
        **named,
    ):
        """Like the speculator's own: (n, longest draft) token ids, valid up to `num_speculative_tokens`."""
        given = (input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states)
        orders, self._orders = self._orders, None
        if orders is None:
            return self._propose(*given, *others, num_speculative_tokens=num_speculative_tokens, **named)
        lengths = dict(zip(input_batch.req_ids, input_batch.num_scheduled_tokens.tolist(), strict=True))
        self._kept.keep(orders, lengths, input_batch.input_ids, aux_hidden_states or [last_hidden_states])
        drafts = self._speculator.draft_tokens[: input_batch.num_reqs]
        if orders.skip:
            return drafts
        caught_up = False
        if orders.catch_up:
            with self._kept.degrade_on_error():
                given, caught_up = self._caught_up(orders.catch_up, lengths, given), True
        longest = self._speculator.num_speculative_steps if num_speculative_tokens is None else num_speculative_tokens
        with replaced(self._speculator, **self._of_passes(longest, eager=caught_up)):
            self._propose(*given, *others, num_speculative_tokens=num_speculative_tokens, **named)
        return drafts

    def _of_passes(self, number: int, *, eager: bool) -> dict[str, object]:
        """The speculator's attributes for a number of passes.

        Args:
            number: of passes; the first one always runs.
            eager: whether the first pass runs without CUDA graph. A graph would read the attention metadata of the
                target's pass, which lacks the tokens that are caught up.
        """
        if not self._takes_hidden:  # it would draft the full block
            return {"num_speculative_steps": max(number, 1)}
        if eager and not self._builds_metadata:
            return {"prefill_cudagraph_manager": _NoGraphs()}
        return {}

    def _caught_up(self, catch_up: Mapping[str, KvLag], lengths: Mapping[str, int], given: tuple) -> tuple:
        """The inputs of a first pass with each request's kept tokens before its own.

        Args:
            catch_up: the lag of each request.
            lengths: tokens of each request in the step.
            given: the input batch, attention metadata, slot mappings, last and auxiliary hidden states, as `propose`.
        """
        batch, metadata, slots, hidden, aux_hidden = given
        speculator, size = self._speculator, batch.num_reqs
        own = torch.cat(aux_hidden, dim=-1) if aux_hidden else hidden
        merged = self._kept.first_pass(
            catch_up,
            lengths,
            batch.query_start_loc_np[: size + 1],
            batch.input_ids,
            own if self._takes_hidden else None,
        )
        total, positions = len(merged.tokens), merged.positions(batch.positions)
        starts = to_device(merged.starts, positions.device)
        batch = dataclasses.replace(
            batch,
            num_scheduled_tokens=merged.lengths.astype(batch.num_scheduled_tokens.dtype),
            num_tokens=total,
            num_tokens_after_padding=total,
            query_start_loc=starts,
            query_start_loc_np=merged.starts,
            input_ids=merged.tokens,
            positions=positions,
            is_padding=torch.zeros(total, dtype=torch.bool, device=positions.device),
            decode_graph_eligible=False,
        )
        if not self._takes_hidden:
            return batch, metadata, slots, hidden, aux_hidden
        states = merged.hidden
        if aux_hidden:
            states = speculator.model.combine_hidden_states(states)
        if self._builds_metadata:
            return batch, metadata, slots, states, None
        metadata, slots = self._metadata(batch)
        return batch, metadata, slots, states, None

    def _metadata(self, batch) -> tuple:
        """Attention metadata and slot mappings, by layer, of a first pass over this input batch."""
        speculator, size, total, starts = self._speculator, batch.num_reqs, batch.num_tokens, batch.query_start_loc
        # The speculator sets it only after this, for its own metadata.
        longest = int(batch.seq_lens_cpu_upper_bound[:size].max())
        speculator.draft_max_seq_len = min(longest, speculator.max_model_len)
        buffers = speculator.input_buffers
        buffers.query_start_loc[: size + 1].copy_(starts)
        buffers.query_start_loc[size + 1 :].fill_(total)
        buffers.seq_lens[:size].copy_(batch.seq_lens[:size])
        buffers.seq_lens[size:].zero_()
        buffers.positions[:total].copy_(batch.positions)
        slots = speculator.block_tables.compute_slot_mappings(batch.idx_mapping, starts, batch.positions, total)
        metadata = speculator._build_attn_metadata(
            num_reqs=size,
            batch_desc=BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=total, num_reqs=size),
            query_start_loc_np=batch.query_start_loc_np,
            seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound,
            step=0,
            slot_mappings=slots,
        )
        return metadata, build_slot_mappings_by_layer(slots, speculator.kv_cache_config)


class _NoGraphs:
    """Stands in for a CUDA graph manager."""

    def dispatch(self, num_reqs: int, num_tokens: int, *others, **named) -> BatchExecutionDescriptor:
        return BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=num_tokens, num_reqs=num_reqs)
