# pyright: basic, reportMissingImports=false
"""Drafts of a look-up beside the drafter, on vLLM's model runner V1.

Without async scheduling the drafts of both sources come with `SchedulerOutput`. Under async scheduling the runner takes
them from the tensor of the drafter's drafts: the look-up's are put into it before the step that verifies them. Where a
request samples, the look-up's tokens are point masses for the rejection sampler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from turbospec.hosts.vllm.shared.lookup_drafts import LookupDraft, lookup_drafts_of
from turbospec.hosts.vllm.worker.host_to_device import to_device
from turbospec.hosts.vllm.worker.placed_drafts import placed


def install(model_runner) -> None:
    """Make a worker's model runner verify the drafts of `lookup_drafts_of`; nothing changes in steps without them."""
    lookup = LookupOnV1(model_runner)
    model_runner.execute_model = lookup.execute_model
    if hasattr(model_runner, "_get_spec_decode_draft_probs"):  # not in 0.29
        model_runner._get_spec_decode_draft_probs = lookup.draft_probs


class LookupOnV1:
    """Wraps two methods of a model runner."""

    def __init__(self, model_runner) -> None:
        self._runner = model_runner
        self._execute = model_runner.execute_model
        self._draft_probs = getattr(model_runner, "_get_spec_decode_draft_probs", lambda _: None)
        self._drafts: Mapping[str, LookupDraft] = {}
        """Of the step that is executed."""

    def execute_model(self, scheduler_output, *given, **named):
        """Like the runner's own."""
        self._drafts = lookup_drafts_of(scheduler_output)
        if self._drafts and self._runner.use_async_scheduling:
            with torch.inference_mode():
                self._put(scheduler_output)
        return self._execute(scheduler_output, *given, **named)

    def _put(self, scheduler_output) -> None:
        """Put the look-up's tokens into the tensor of the last step's drafts, which becomes as wide as any draft."""
        runner = self._runner
        rows = runner.input_batch.prev_req_id_to_index or {}
        drafts = {rows[name]: draft for name, draft in self._drafts.items() if name in rows}
        made, width = runner._draft_token_ids, runner.num_spec_tokens
        size = len(runner.input_batch.req_ids)
        wide = torch.zeros(size, width, dtype=torch.int64, device=runner.device)
        if isinstance(made, torch.Tensor):
            wide[:, : made.shape[1]] = made
        places = to_device(np.array(list(drafts), np.int64), runner.device)
        counts = runner.valid_sampled_token_count_gpu
        emitted = torch.ones_like(places) if counts is None else counts[places].long()
        wide[places] = placed(list(drafts.values()), emitted, width)
        runner._draft_token_ids = wide
        runner.prev_num_spec_tokens = width
        if runner._draft_token_req_ids is not None:  # penalties read the drafts on the host
            runner._copy_draft_token_ids_to_cpu(scheduler_output)

    def draft_probs(self, metadata):
        """Like the runner's own: (draft tokens, vocabulary) or None, where all drafts are point masses."""
        names, lengths = self._runner.input_batch.req_ids, metadata.num_draft_tokens
        looked_up = np.array([name in self._drafts for name, _ in zip(names, lengths, strict=False)])
        if self._runner._draft_probs is None or not looked_up.any():
            return self._draft_probs(metadata)
        others = np.where(looked_up, 0, lengths)
        own = self._draft_probs(dataclasses.replace(metadata, num_draft_tokens=others.tolist()))
        if own is None:
            return None
        tokens = metadata.draft_token_ids.long()
        masses = own.new_zeros(len(tokens), own.shape[1]).scatter_(1, tokens[:, None], 1.0)
        kept = np.flatnonzero(np.repeat(~looked_up, lengths))
        return masses.index_copy_(0, to_device(kept, own.device), own)
