# pyright: basic, reportMissingImports=false
"""Sends a step's drafts with its tokens, where the engine core would otherwise ask for them in a message of its own.

The message and its answer cost 2 of a step's 35 ms on two CPU cores. Drafts that a device is still making are fetched
as in vLLM, or the step's tokens would wait for them.
"""

from __future__ import annotations

import torch

from turbospec.hosts.vllm.shared.drafter_orders import DRAFTS_ATTRIBUTE, DRAFTS_EXPECTED_ATTRIBUTE


def install(model_runner) -> None:
    """Make a worker's model runner, of an engine without async scheduling, put its drafts into its output."""
    sample = model_runner.sample_tokens

    def sample_tokens(*arguments, **named):
        state = model_runner.execute_model_state
        output = sample(*arguments, **named)
        if state is None or not hasattr(state.scheduler_output, DRAFTS_EXPECTED_ATTRIBUTE):
            return output
        # vLLM shares one output object among all steps without requests.
        if output is not None and output.req_ids and _are_ready(model_runner._draft_token_ids):
            setattr(output, DRAFTS_ATTRIBUTE, model_runner.take_draft_token_ids())
        return output

    model_runner.sample_tokens = sample_tokens


def _are_ready(drafts: torch.Tensor | list[list[int]] | None) -> bool:
    if isinstance(drafts, torch.Tensor):
        return drafts.device.type == "cpu" and drafts.shape[1] > 0
    return bool(drafts)
