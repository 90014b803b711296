# pyright: basic, reportMissingImports=false
"""Runs the drafter of vLLM's model runner V1 only in steps that draft, and catches up its KV lag there.

vLLM runs the drafter's first pass in every step, also at K = 0, so that its KV cache has no lag. Here such a pass is
skipped and its input kept: the step's tokens, and the target's hidden states for drafters that take them. When a
request drafts again, one pass computes its kept tokens and its new ones.

The scheduler decides (`turbospec.hosts.vllm.scheduler.drafter_lag`) and puts its orders into `SchedulerOutput`. This
module runs in the worker and must not import numba. The drafter's KV cache never changes an output, only how many draft
tokens are accepted.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag, orders_of
from turbospec.hosts.vllm.worker.host_to_device import to_device
from turbospec.hosts.vllm.worker.kept_inputs import KeptInputs
from turbospec.hosts.vllm.worker.replaced import replaced

log = logging.getLogger("turbospec")

DERIVED = ("positions", "_num_computed_tokens_cache", "_num_computed_tokens_cpu", "_token_to_req_indices_cache")
"""Cached fields of attention metadata that depend on positions and queries, under the names of all versions."""


def install(model_runner) -> None:
    """Make a worker's model runner follow the orders in the scheduler's output; its drafter has a `propose`."""
    on_demand = DrafterOnDemand(model_runner.drafter, alone=model_runner.parallel_config.tensor_parallel_size == 1)
    sample = model_runner.sample_tokens

    def sample_tokens(*given, **named):
        state = model_runner.execute_model_state
        if state is not None:
            on_demand.take(state.scheduler_output, model_runner.input_batch.req_ids)
            # Before the drafter is called: near the maximum model length vLLM does not call it.
            on_demand.keep(model_runner.input_ids.gpu, state.aux_hidden_states or [_for_drafter(model_runner, state)])
        return sample(*given, **named)

    model_runner.sample_tokens = sample_tokens
    model_runner.drafter.propose = on_demand.propose
    # Layers with a recurrent state need to know of rows that could have drafts, and under async scheduling the
    # speculative path computes the number of sampled tokens.
    recurrent = model_runner.model_config.is_hybrid or model_runner.model_config.is_attention_free
    if not (model_runner.use_async_scheduling or recurrent):
        _skip_speculative_path(model_runner)
    log.info("TurboSpec runs the drafter only in steps that draft")


def _for_drafter(model_runner, state) -> torch.Tensor:
    """The target's last hidden states, as `propose` is given them: some models have others for an MTP drafter."""
    others = getattr(model_runner.get_model(), "get_mtp_target_hidden_states", lambda: None)()
    return state.hidden_states if others is None else others


def _skip_speculative_path(model_runner) -> None:
    """Make a model runner take its non-speculative path in steps that neither verify nor make drafts, and prepare no
    input for a drafter that runs no pass.

    With a speculative configuration vLLM treats every step as one with drafts: it builds their metadata, samples by
    rejection and prepares the drafter's input. That takes longer and gives the same tokens.
    """
    prepare, execute, sample = model_runner._prepare_inputs, model_runner.execute_model, model_runner.sample_tokens
    propose = model_runner.propose_draft_token_ids

    def not_speculating():
        return replaced(model_runner, speculative_config=None)

    def prepare_inputs(scheduler_output, *others):
        if scheduler_output.scheduled_spec_decode_tokens or orders_of(scheduler_output) is None:
            return prepare(scheduler_output, *others)
        with not_speculating():
            return prepare(scheduler_output, *others)

    def execute_model(scheduler_output, *others, **named):
        if not _has_no_drafts(scheduler_output):
            return execute(scheduler_output, *others, **named)
        with not_speculating():
            return execute(scheduler_output, *others, **named)

    def sample_tokens(*given, **named):
        state = model_runner.execute_model_state
        if state is None or not _has_no_drafts(state.scheduler_output):
            return sample(*given, **named)
        with not_speculating():
            return sample(*given, **named)

    def propose_draft_token_ids(scheduler_output, *given):
        if _skips_drafter(scheduler_output):
            return [[] for _ in scheduler_output.num_scheduled_tokens]
        return propose(scheduler_output, *given)

    model_runner._prepare_inputs, model_runner.propose_draft_token_ids = prepare_inputs, propose_draft_token_ids
    model_runner.execute_model, model_runner.sample_tokens = execute_model, sample_tokens


def _skips_drafter(scheduler_output) -> bool:
    orders = orders_of(scheduler_output)
    return orders is not None and orders.skip


def _has_no_drafts(scheduler_output) -> bool:
    """Whether a step neither verifies nor makes drafts, and its drafter runs no pass."""
    return _skips_drafter(scheduler_output) and not scheduler_output.scheduled_spec_decode_tokens


class DrafterOnDemand:
    """Wraps a drafter's `propose`.

    Args:
        drafter: one of vLLM's that runs a model.
        alone: whether no other worker runs the same steps; see `KeptInputs`.
    """

    def __init__(self, drafter, *, alone: bool) -> None:
        self._drafter = drafter
        self._propose = drafter.propose
        self._kept = KeptInputs(with_hidden=drafter.pass_hidden_states_to_model, alone=alone)
        self._orders: DrafterOrders | None = None
        self._lengths: dict[str, int] = {}

    def take(self, scheduler_output, names: Sequence[str]) -> None:
        """Read the orders for a step, and the requests of its rows.

        Both are copied: the next step may be prepared before the drafter is called.
        """
        scheduled = scheduler_output.num_scheduled_tokens
        self._orders, self._lengths = orders_of(scheduler_output), {name: scheduled[name] for name in names}
        self._kept.update(self._orders)

    def keep(self, tokens: torch.Tensor, hidden: Sequence[torch.Tensor]) -> None:
        """Keep the input of requests that stay out of the step's pass; as `KeptInputs.keep`."""
        orders = self._orders
        if orders is None:
            return
        self._kept.keep(orders, self._lengths, tokens, hidden)
        if orders.skip:
            self._draft_nothing()

    def propose(
        self,
        num_speculative_tokens,
        target_token_ids,
        target_positions,
        target_hidden_states,
        next_token_ids,
        token_indices_to_sample,
        common_attn_metadata,
        **others,
    ):
        """Like the drafter's own: (n, num_speculative_tokens) token ids."""
        orders, metadata = self._orders, common_attn_metadata
        if orders is not None and orders.skip:
            return torch.empty(metadata.batch_size(), 0, device=target_token_ids.device, dtype=torch.int64)
        self._orders = None
        inputs = (target_token_ids, target_positions, target_hidden_states, token_indices_to_sample, metadata)
        if orders is not None and orders.catch_up:
            with self._kept.degrade_on_error():
                inputs = self._caught_up(orders.catch_up, *inputs)
        tokens, positions, states, to_sample, metadata = inputs
        return self._propose(
            num_speculative_tokens=num_speculative_tokens,
            target_token_ids=tokens,
            target_positions=positions,
            target_hidden_states=states,
            next_token_ids=next_token_ids,
            token_indices_to_sample=to_sample,
            common_attn_metadata=metadata,
            **others,
        )

    def _draft_nothing(self) -> None:
        """Set the drafter's state as after drafting no token."""
        self._drafter.num_speculative_tokens, self._drafter._last_draft_probs = 0, None

    def _caught_up(self, catch_up: Mapping[str, KvLag], tokens, positions, hidden, to_sample, metadata):
        """The inputs of a first pass with each request's kept tokens before its own.

        Args:
            catch_up: the lag of each request.
            tokens: (t,), and positions (t,), hidden (t, hidden size), to_sample (n,) or None, metadata: as `propose`.
        """
        given = hidden if self._drafter.pass_hidden_states_to_model else None
        starts = metadata.query_start_loc_cpu.numpy()
        merged = self._kept.first_pass(catch_up, self._lengths, starts, tokens, given)
        device = tokens.device
        all_positions = merged.positions(positions)
        starts_cpu = torch.from_numpy(merged.starts)
        rows = to_device(np.repeat(np.arange(len(merged.added)), merged.lengths), device)
        block_size = self._drafter.block_size
        blocks = metadata.block_table_tensor[rows, (all_positions // block_size).long()].long()
        changed = {
            "query_start_loc": to_device(starts_cpu, device),
            "query_start_loc_cpu": starts_cpu,
            "num_actual_tokens": len(all_positions),
            "max_query_len": int(merged.lengths.max()),
            "slot_mapping": blocks * block_size + (all_positions % block_size).long(),
        }
        changed |= {name: None for name in DERIVED if hasattr(metadata, name)}
        if to_sample is not None:
            to_sample = to_sample + to_device(np.cumsum(merged.added), device).to(to_sample.dtype)
        states = hidden if merged.hidden is None else merged.hidden
        return merged.tokens, all_positions, states, to_sample, dataclasses.replace(metadata, **changed)
