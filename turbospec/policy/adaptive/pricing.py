"""A step's planning problem with its price of time λ, raised while requests wait for their first token."""

from __future__ import annotations

import numpy as np

from turbospec.interface import FloatArray, IntArray, StepView
from turbospec.models.acceptance import survival
from turbospec.planning.best_rate import best_rate
from turbospec.planning.problem import Batch, StepProblem, amortise_catch_up
from turbospec.planning.step_costs import step_costs
from turbospec.policy.adaptive.server_models import ServerModels


def priced_problem(
    models: ServerModels, first_token_weight: float, view: StepView, batch: Batch, rows: IntArray, limits: IntArray
) -> StepProblem:
    """The step's planning problem: acceptance, costs and λ.

    Args:
        models: the models, whose drafter models exist.
        first_token_weight: how much more a second is worth to a request without its first token.
        view: of the step.
        batch: the view's summary.
        rows: (n,) state rows of the view's requests.
        limits: (n,) draft limits.
    """
    assert models.drafter is not None
    latency, price = models.latency, models.price
    conditional = models.drafter.acceptance.conditional(rows, view.class_ids, limits)
    costs = step_costs(latency, view, batch)
    catch_up: FloatArray | None = None
    amortised: FloatArray | None = None
    if batch.drafter_lag_tokens:
        catch_up = view.drafter_lag_tokens.astype(np.float64) * latency.catch_up_token_seconds
        amortised = amortise_catch_up(catch_up, view.tokens_left, conditional[:, 0])
    rate = price.rate(batch.decoding)
    if rate is None:
        rate = best_rate(survival(conditional), costs, float(batch.decoding))
    soon = price.rate(batch.decoding, batch.prefilling + view.waiting_requests) or rate
    urgent = soon * _urgency(first_token_weight, view, batch)
    # Without drafts a later step does the drafter's prefill of this step, at a price of `rate` per second instead of
    # `urgent`. Only the difference is charged to drafting.
    prefill = view.drafter_prefill_tokens * latency.catch_up_token_seconds
    costs.draft_start += prefill * max(1.0 - rate / urgent, 0.0)
    return StepProblem(batch, rows, limits, conditional, costs, urgent, rate, catch_up, amortised, prefill)


def delays_first_tokens(view: StepView, batch: Batch) -> bool:
    """Whether first tokens wait for the step's drafting.

    They do where prefill is pending and, in engines that draft before they emit, where a first token is ready.
    """
    return view.prefill_pending or (view.draft_before_emit and batch.first_decode > 0)


def _urgency(first_token_weight: float, view: StepView, batch: Batch) -> float:
    """Factor on the decode rate: a second is worth more while first tokens wait for it."""
    # The other queued requests benefit from throughput; the decode rate counts them.
    delayed = batch.prefilling + view.admitted_requests + (batch.first_decode if view.draft_before_emit else 0)
    return 1.0 + first_token_weight * delayed / batch.decoding
