# pyright: basic, reportMissingImports=false
"""Drafts of a look-up beside the drafter, on vLLM's model runner V2.

The runner keeps each request's drafts on the device, and takes a step's drafts from there whatever the scheduler names:
the look-up's are put there before the step that verifies them. Where drafts are sampled, the drafter's logits are kept
in the same way: for the look-up's tokens they become those of a point mass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from turbospec.hosts.vllm.shared.lookup_drafts import LookupDraft, lookup_drafts_of
from turbospec.hosts.vllm.worker.host_to_device import to_device
from turbospec.hosts.vllm.worker.placed_drafts import placed


def install(model_runner) -> None:
    """Make a worker's model runner verify the drafts of `lookup_drafts_of`; nothing changes in steps without them."""
    execute = model_runner.execute_model

    def execute_model(scheduler_output, *given, **named):
        if drafts := lookup_drafts_of(scheduler_output):
            with torch.inference_mode():
                put(drafts, model_runner.req_states, model_runner.speculator)
        return execute(scheduler_output, *given, **named)

    model_runner.execute_model = execute_model


def put(drafts: Mapping[str, LookupDraft], states, speculator) -> None:
    """Put the look-up's tokens into the runner's state.

    Args:
        drafts: by request.
        states: the runner's `RequestState`.
        speculator: the runner's. Its `draft_logits` are (requests, longest draft, vocabulary), or None where all drafts
            are point masses.
    """
    kept = states.draft_tokens
    rows = to_device(np.array([states.req_id_to_index[name] for name in drafts], np.int64), kept.device)
    known = to_device(np.array([draft.known for draft in drafts.values()], np.int64), kept.device)
    longest = min(max(len(draft.tokens) for draft in drafts.values()), kept.shape[1])
    tokens = placed(list(drafts.values()), states.total_len.gpu[rows].long() - known, longest)
    kept[rows, :longest] = tokens.to(kept.dtype)
    if (draft_logits := speculator.draft_logits) is not None:
        draft_logits[rows, :longest] = float("-inf")  # a position has a vocabulary of them
        draft_logits[rows[:, None], torch.arange(longest, device=kept.device), tokens] = 0.0
        if (sampler := getattr(speculator, "candidate_sampler", None)) is not None:
            # DFlash2 writes the logits of its candidates alone, and first clears those of the candidates before.
            sampler.cached_candidate_ids[rows, :longest] = tokens[:, :, None]
