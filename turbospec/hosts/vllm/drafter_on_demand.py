# pyright: basic, reportMissingImports=false
"""Runs vLLM's drafter in the steps that draft and in no others, and gives it then what it has missed.

vLLM runs the drafter's first pass in every step, at a draft length of 0 too, so that its KV cache lacks nothing. Here
such a pass is left out and its input kept: one token of each request, with the target's hidden state for the drafters
that take it. A request that drafts again gets the pass over its kept tokens and its new ones at once.

The scheduler decides (`turbospec.hosts.vllm.drafter_cache`) and says so in `SchedulerOutput`; this runs in the worker,
which may import nothing that brings numba along. What the drafter lacks or gets never changes an output, only how many
of its tokens are accepted.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from turbospec.hosts.vllm.drafter_orders import ORDERS_ATTRIBUTE, DrafterOrders

log = logging.getLogger("turbospec")

DERIVED = ("positions", "_num_computed_tokens_cache", "_num_computed_tokens_cpu", "_token_to_req_indices_cache")
"""What attention metadata hold of positions and queries for speed, under the names of all versions."""


@dataclasses.dataclass(slots=True)
class _Kept:
    """A token of each request of one step, on the device."""

    tokens: torch.Tensor
    """(n,)"""
    hidden: torch.Tensor | None
    """(n, hidden size) the target's; None for drafters that do not take it."""
    rows: dict[str, int]


def install(model_runner, max_missed: int) -> None:
    """Have a worker's model runner heed the orders in the scheduler's output.

    Args:
        model_runner: vLLM's, with a drafter that has a `propose`.
        max_missed: most tokens that a request is ever caught up by.
    """
    on_demand = DrafterOnDemand(model_runner.drafter, max_missed)
    propose_drafts = model_runner.propose_draft_token_ids

    def propose_draft_token_ids(scheduler_output, *args, **kwargs):
        orders = getattr(scheduler_output, ORDERS_ATTRIBUTE, None)
        # The list changes when the next step is prepared, which under async scheduling may be soon.
        on_demand.take(orders, list(model_runner.input_batch.req_ids))
        return propose_drafts(scheduler_output, *args, **kwargs)

    model_runner.propose_draft_token_ids = propose_draft_token_ids
    model_runner.drafter.propose = on_demand.propose
    log.info("TurboSpec runs the drafter on demand")


class DrafterOnDemand:
    """Stands before a drafter's `propose`.

    Args:
        drafter: one of vLLM's that runs a model.
        max_missed: as for `install`.
    """

    def __init__(self, drafter, max_missed: int) -> None:
        self._drafter = drafter
        self._propose = drafter.propose
        self._kept: deque[_Kept] = deque(maxlen=max_missed)
        self._orders: DrafterOrders | None = None
        self._names: Sequence[str] = ()

    def take(self, orders: DrafterOrders | None, names: Sequence[str]) -> None:
        """What the scheduler wants of the next call, and the requests of its rows; None for what vLLM would do."""
        self._orders, self._names = orders, names

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
        drafter, orders, metadata = self._drafter, self._orders, common_attn_metadata
        self._orders = None
        hidden = target_hidden_states if drafter.pass_hidden_states_to_model else None
        inputs = (target_token_ids, target_positions, target_hidden_states, token_indices_to_sample, metadata)
        if orders is not None:
            if orders.catch_up:
                inputs = self._caught_up(orders.catch_up, *inputs)
            if orders.keep:
                self._keep(target_token_ids, hidden, metadata)
            if orders.skip:
                drafter.num_speculative_tokens, drafter._last_draft_probs = 0, None
                return torch.empty(metadata.batch_size(), 0, device=target_token_ids.device, dtype=torch.int64)
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

    def _keep(self, tokens: torch.Tensor, hidden: torch.Tensor | None, metadata) -> None:
        """Keep the first token of each row: those who miss the pass have no other."""
        starts = metadata.query_start_loc[: len(self._names)].long()
        kept_hidden = None if hidden is None else hidden[starts]
        rows = {name: row for row, name in enumerate(self._names)}
        self._kept.append(_Kept(tokens[starts], kept_hidden, rows))

    def _caught_up(self, catch_up: Mapping[str, int], tokens, positions, hidden, to_sample, metadata):
        """The inputs of a first pass with kept tokens before those of their requests' rows.

        Args:
            catch_up: tokens that each request has missed.
            tokens: (t,), and positions (t,), hidden (t, hidden size), to_sample (n,) or None, metadata: as `propose`.
        """
        starts = metadata.query_start_loc_cpu.numpy()
        total = int(starts[-1])
        sources, found = self._find(catch_up, total)
        lengths = np.diff(starts)
        added = np.array([len(found.get(name, ())) for name in self._names])
        pieces: list[np.ndarray] = []
        for row, name in enumerate(self._names):
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
        forgotten = (
            "positions",
            "_num_computed_tokens_cache",
            "_num_computed_tokens_cpu",
            "_token_to_req_indices_cache",
        )
        changed |= {name: None for name in forgotten if hasattr(metadata, name)}
        states = hidden
        if self._drafter.pass_hidden_states_to_model:
            states = torch.cat([hidden[:total], *(kept.hidden for kept in sources if kept.hidden is not None)])[source]
        if to_sample is not None:
            to_sample = to_sample + torch.from_numpy(np.cumsum(added)).to(device, to_sample.dtype)
        all_tokens = torch.cat([tokens[:total], *(kept.tokens for kept in sources)])[source]
        return all_tokens, all_positions, states, to_sample, dataclasses.replace(metadata, **changed)

    def _find(self, catch_up: Mapping[str, int], total: int) -> tuple[list[_Kept], dict[str, list[int]]]:
        """The steps that kept what is asked for, and each request's places in their tokens, laid end to end after the
        step's own `total` tokens; oldest first."""
        sources: list[_Kept] = []
        found: dict[str, list[int]] = {name: [] for name in catch_up}
        open_names = set(catch_up)
        offset = total
        for kept in reversed(self._kept):
            if not open_names:
                break
            sources.append(kept)
            for name in list(open_names):
                row = kept.rows.get(name)
                if row is not None:
                    found[name].append(offset + row)
                    if len(found[name]) == catch_up[name]:
                        open_names.remove(name)
            offset += len(kept.tokens)
        for places in found.values():
            places.reverse()
        return sources, found
