# pyright: basic, reportMissingImports=false
"""Drafts after a step's tokens were sent, in the steps that the scheduler selects.

vLLM drafts before it sends a step's tokens, so that a first token waits for all drafter passes. The engine core asks
for the drafts in a message of its own, after it has sent the tokens on: here the worker drafts only then.
"""

from __future__ import annotations

import torch

from turbospec.hosts.vllm.shared.drafter_orders import orders_of


def install(model_runner) -> None:
    """Make a worker's model runner, of an engine without async scheduling, follow `DrafterOrders.late`."""
    late = LateDrafts(model_runner)
    model_runner.propose_draft_token_ids = late.propose_draft_token_ids
    model_runner.take_draft_token_ids = late.take_draft_token_ids


class LateDrafts:
    """Wraps two methods of a model runner."""

    def __init__(self, model_runner) -> None:
        self._runner = model_runner
        self._propose, self._take = model_runner.propose_draft_token_ids, model_runner.take_draft_token_ids
        self._due: tuple | None = None
        """Arguments of the pending call. vLLM prepares no other step before it has asked for the drafts."""

    def propose_draft_token_ids(self, scheduler_output, *given):
        """Like the runner's own; None where the drafts are made later."""
        orders = orders_of(scheduler_output)
        if orders is not None and orders.late:
            self._due = scheduler_output, *given
            return None
        self._due = None
        return self._propose(scheduler_output, *given)

    @torch.inference_mode()
    def take_draft_token_ids(self):
        """Like the runner's own."""
        if self._due is not None:
            due, self._due = self._due, None
            self._runner._draft_token_ids = self._propose(*due)
            self._runner._copy_draft_token_ids_to_cpu(due[0])
        return self._take()
