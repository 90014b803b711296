"""The costs of a step's plans, from the latency model and the way the engine drafts."""

from __future__ import annotations

from turbospec.interface import StepView
from turbospec.models.latency import LatencyModel
from turbospec.planning.exact import StepCosts
from turbospec.planning.problem import Batch


def step_costs(latency: LatencyModel, view: StepView, batch: Batch) -> StepCosts:
    """Verify time by draft tokens, and drafting time by passes and rows, for one step."""
    return _full_graphs(latency, view, batch).with_graphs(view.graph_lengths, latency.piecewise_seconds)


def _full_graphs(latency: LatencyModel, view: StepView, batch: Batch) -> StepCosts:
    """The costs of steps that replay full CUDA graphs, or of an engine where the mix of lengths makes no difference."""
    most = max(batch.max_draft_tokens, view.size * max(view.graph_lengths, default=0))
    tokens = batch.decoding + view.prefill_tokens
    verify = latency.verify_curve(tokens, most, batch.context_tokens, view.size, view.prefill_tokens)
    start, each_pass, row = latency.draft_costs(batch.context_tokens / view.size)
    if view.parallel_drafter and view.first_pass_every_step:
        return StepCosts(verify)
    # In a pass over the whole batch a row costs the same whether or not the request drafts.
    rows = view.size if view.batch_drafter else batch.decoding
    if view.parallel_drafter:
        return StepCosts(verify, draft_start=start + each_pass + row * rows)
    if view.batch_drafter:
        whole_batch = each_pass + row * rows
        return StepCosts(verify, -whole_batch if view.first_pass_every_step else start, whole_batch)
    return StepCosts(verify, start, each_pass, row)
