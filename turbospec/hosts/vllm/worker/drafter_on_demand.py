# pyright: basic, reportMissingImports=false
"""Runs vLLM's drafter in the steps that draft and in no others, and gives it then what it has missed.

vLLM runs the drafter's first pass in every step, at a draft length of 0 too, so that its KV cache lacks nothing. Here
such a pass is left out and its input kept: the step's tokens, with the target's hidden states for the drafters that
take them. A request that drafts again gets the pass over its kept tokens and its new ones at once.

The scheduler decides (`turbospec.hosts.vllm.scheduler.drafter_lag`) and says so in `SchedulerOutput`; this runs in
the worker, which may import nothing that brings numba along. What the drafter lacks or gets never changes an output,
only how many of its tokens are accepted.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag, orders_of

log = logging.getLogger("turbospec")

DERIVED = ("positions", "_num_computed_tokens_cache", "_num_computed_tokens_cpu", "_token_to_req_indices_cache")
"""What attention metadata hold of positions and queries for speed, under the names of all versions."""


@dataclasses.dataclass(slots=True)
class _Kept:
    """The tokens of one step, on the device."""

    step: int
    tokens: torch.Tensor
    """(t,)"""
    hidden: torch.Tensor | None
    """(t, hidden size) the target's; None for drafters that do not take it."""
    lengths: dict[str, int]
    """Tokens of each request, in the order in which they lie there."""

    def rows(self) -> dict[str, range]:
        """Each request's places."""
        ends = itertools.accumulate(self.lengths.values())
        return {name: range(end - self.lengths[name], end) for name, end in zip(self.lengths, ends, strict=True)}


def install(model_runner) -> None:
    """Have a worker's model runner, with a drafter that has a `propose`, heed the orders in the scheduler's output."""
    on_demand = DrafterOnDemand(model_runner.drafter, alone=model_runner.parallel_config.tensor_parallel_size == 1)
    sample = model_runner.sample_tokens

    def sample_tokens(*given, **named):
        state = model_runner.execute_model_state
        if state is not None:
            on_demand.take(state.scheduler_output, model_runner.input_batch.req_ids)
            # Now, and not when the drafter is called: vLLM does not call it near the end of the model's length.
            on_demand.keep(model_runner.input_ids.gpu, state.aux_hidden_states or [state.hidden_states])
        return sample(*given, **named)

    model_runner.sample_tokens = sample_tokens
    model_runner.drafter.propose = on_demand.propose
    # Layers with a recurrent state must know of rows that could have had drafts, and async scheduling has the number of
    # sampled tokens made ready on the way to the drafter.
    recurrent = model_runner.model_config.is_hybrid or model_runner.model_config.is_attention_free
    if not (model_runner.use_async_scheduling or recurrent):
        _speculate_only_where_it_shows(model_runner)
    log.info("TurboSpec's scheduler may leave the drafter out of a step")


def _speculate_only_where_it_shows(model_runner) -> None:
    """Have a model runner do without its speculative part where no drafts are verified or made.

    vLLM takes every step of a runner with that setting for one that verifies drafts and makes some: it builds what says
    where they are, samples by rejection, and makes ready what the drafter would need. That takes longer and gives the
    same.
    """
    prepare, execute, sample = model_runner._prepare_inputs, model_runner.execute_model, model_runner.sample_tokens

    @contextmanager
    def not_speculating():
        setting, model_runner.speculative_config = model_runner.speculative_config, None
        try:
            yield
        finally:
            model_runner.speculative_config = setting

    def prepare_inputs(scheduler_output, *others):
        if scheduler_output.scheduled_spec_decode_tokens or orders_of(scheduler_output) is None:
            return prepare(scheduler_output, *others)
        with not_speculating():
            return prepare(scheduler_output, *others)

    def execute_model(scheduler_output, *others, **named):
        if not _leaves_drafter_out(scheduler_output):
            return execute(scheduler_output, *others, **named)
        with not_speculating():
            return execute(scheduler_output, *others, **named)

    def sample_tokens(*given, **named):
        state = model_runner.execute_model_state
        if state is None or not _leaves_drafter_out(state.scheduler_output):
            return sample(*given, **named)
        with not_speculating():
            return sample(*given, **named)

    model_runner._prepare_inputs = prepare_inputs
    model_runner.execute_model, model_runner.sample_tokens = execute_model, sample_tokens


def _leaves_drafter_out(scheduler_output) -> bool:
    orders = orders_of(scheduler_output)
    return orders is not None and orders.skip


class DrafterOnDemand:
    """Stands before a drafter's `propose`.

    Args:
        drafter: one of vLLM's that runs a model.
        alone: whether no other worker runs the same steps. What one of them had failed to keep, the others would draft
            from, in passes that must be of one shape: an error is then the worker's end, as any other.
    """

    def __init__(self, drafter, *, alone: bool) -> None:
        self._drafter = drafter
        self._alone = alone
        self._propose = drafter.propose
        self._kept: deque[_Kept] = deque()
        self._orders: DrafterOrders | None = None
        self._lengths: dict[str, int] = {}

    def take(self, scheduler_output, names: Sequence[str]) -> None:
        """What the scheduler wants of a step, and the requests of its rows; without orders, what vLLM would do.

        They are copied: the next step may be prepared before the drafter is called.
        """
        scheduled = scheduler_output.num_scheduled_tokens
        self._orders, self._lengths = orders_of(scheduler_output), {name: scheduled[name] for name in names}
        while self._kept and (self._orders is None or self._kept[0].step < self._orders.oldest):
            self._kept.popleft()

    def keep(self, tokens: torch.Tensor, hidden: Sequence[torch.Tensor]) -> None:
        """Keep what the drafter is not to be given of the step: copies, because the runner writes the next step's into
        its tensors.

        Args:
            tokens: (t or more,) of the step.
            hidden: (t or more, ·) each; what the target hands to drafters that take its hidden states, side by side.
        """
        orders = self._orders
        if orders is None or not (orders.skip or orders.keep):
            return
        lengths = self._lengths
        places: slice | torch.Tensor = slice(sum(lengths.values()))
        if not orders.skip:
            missing = np.array([name in orders.keep for name in lengths])
            rows = np.flatnonzero(np.repeat(missing, list(lengths.values())))
            places = torch.from_numpy(rows).to(tokens.device)
            lengths = {name: number for name, number in lengths.items() if name in orders.keep}
        with self._degrade_on_error():
            states = None
            if self._drafter.pass_hidden_states_to_model:
                states = torch.cat([each[places] for each in hidden], dim=-1)
            self._kept.append(_Kept(orders.step, tokens[places].clone(), states, lengths))
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
        """As the drafter's own; (n, num_speculative_tokens) token ids."""
        orders, metadata = self._orders, common_attn_metadata
        if orders is not None and orders.skip:
            return torch.empty(metadata.batch_size(), 0, device=target_token_ids.device, dtype=torch.int64)
        self._orders = None
        inputs = (target_token_ids, target_positions, target_hidden_states, token_indices_to_sample, metadata)
        if orders is not None and orders.catch_up:
            with self._degrade_on_error():
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
        """Leave the drafter as it is after drafting no token."""
        self._drafter.num_speculative_tokens, self._drafter._last_draft_probs = 0, None

    @contextmanager
    def _degrade_on_error(self):
        """Keeps errors, for want of memory above all, from the worker: without what was kept there are worse drafts."""
        try:
            yield
        except Exception:
            if not self._alone:
                raise
            log.exception("TurboSpec could not keep what a drafter missed; some requests' drafts will be worse")
            self._kept.clear()

    def _caught_up(self, catch_up: Mapping[str, KvLag], tokens, positions, hidden, to_sample, metadata):
        """The inputs of a first pass with kept tokens before those of their requests' rows.

        Args:
            catch_up: what each request has missed.
            tokens: (t,), and positions (t,), hidden (t, hidden size), to_sample (n,) or None, metadata: as `propose`.
        """
        starts = metadata.query_start_loc_cpu.numpy()
        total = int(starts[-1])
        sources, found = self._find(catch_up, total)
        lengths = np.diff(starts)
        added = np.array([len(found.get(name, ())) for name in self._lengths])
        pieces: list[np.ndarray] = []
        for row, name in enumerate(self._lengths):
            pieces += [np.asarray(found.get(name, ()), np.int64), np.arange(starts[row], starts[row + 1])]
        device = tokens.device
        source = torch.from_numpy(np.concatenate(pieces)).to(device, non_blocking=True)
        # A missed token's position, seen from its row's first.
        own = np.concatenate([np.arange(-added[row], lengths[row]) for row in range(len(added))])
        anchors = np.repeat(starts[:-1], lengths + added) + np.maximum(own, 0)
        all_positions = positions[torch.from_numpy(anchors).to(device)] + torch.from_numpy(np.minimum(own, 0)).to(
            device, positions.dtype
        )
        new_starts = np.concatenate([[0], np.cumsum(lengths + added)]).astype(np.int32)
        new_starts_cpu = torch.from_numpy(new_starts)
        rows = torch.from_numpy(np.repeat(np.arange(len(added)), lengths + added)).to(device)
        block_size = self._drafter.block_size
        blocks = metadata.block_table_tensor[rows, (all_positions // block_size).long()].long()
        changed = {
            "query_start_loc": new_starts_cpu.to(device, non_blocking=True),
            "query_start_loc_cpu": new_starts_cpu,
            "num_actual_tokens": len(source),
            "max_query_len": int((lengths + added).max()),
            "slot_mapping": blocks * block_size + (all_positions % block_size).long(),
        }
        changed |= {name: None for name in DERIVED if hasattr(metadata, name)}
        states = hidden
        if self._drafter.pass_hidden_states_to_model:
            states = torch.cat([hidden[:total], *(kept.hidden for kept in sources if kept.hidden is not None)])[source]
        if to_sample is not None:
            to_sample = to_sample + torch.from_numpy(np.cumsum(added)).to(device, to_sample.dtype)
        all_tokens = torch.cat([tokens[:total], *(kept.tokens for kept in sources)])[source]
        return all_tokens, all_positions, states, to_sample, dataclasses.replace(metadata, **changed)

    def _find(self, catch_up: Mapping[str, KvLag], total: int) -> tuple[list[_Kept], dict[str, list[int]]]:
        """The kept steps with what is asked for, and each request's places in their tokens, laid end to end after the
        step's own `total` tokens; a request of which something is not there any more gets nothing."""
        first = min(missed.since for missed in catch_up.values())
        sources = [kept for kept in self._kept if kept.step >= first]
        found: dict[str, list[int]] = {name: [] for name in catch_up}
        offset = total
        for kept in sources:
            rows = kept.rows()
            for name, missed in catch_up.items():
                places = rows.get(name)
                if places is not None and kept.step >= missed.since:
                    found[name] += [offset + place for place in places]
            offset += len(kept.tokens)
        return sources, {name: places for name, places in found.items() if len(places) == catch_up[name].tokens}
