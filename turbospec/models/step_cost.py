"""The time of a whole step, learnt from every step: one linear model of what the step did.

    T = w · x,   x = 1, KV tokens, requests, tokens of the target's pass by segment, prefill or not, prompt tokens,
                     piecewise or not, without CUDA graphs or not,
                     and for drafting: 1, passes, rows, KV tokens of the rows, catch-up tokens

The weights are not negative, and are updated as `turbospec.models.online_regression` describes. Their covariance P is
used in planning (`turbospec.exploration.knowledge_gradient`).

Before each step P grows by q²·(w·wᵀ + d·dᵀ), where d has the weights of drafting and is 0 elsewhere: the machine's
speed drifts, which changes all weights in proportion, and the speed of drafting drifts by itself. A machine that
becomes slower therefore raises the predicted cost of drafting before anything is drafted. Where large errors have one
sign the speed has changed at once, and up to the size of the error is added to q. Without this the change would be
attributed to the weights that are most uncertain, and the cost of draft tokens would be overestimated on a machine that
became quicker.

Steps without drafts do not measure drafting. Where its cost has jumped lately it may jump back, and its relative
standard deviation grows in each of them by a thousandth of the jump, up to 1: otherwise a drafter that was slow for ten
steps would be out of use for tens of thousands.

Where a host measures drafting by itself, the two parts of the step are two measurements of the same weights.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from turbospec.interface import FloatArray
from turbospec.models.latency import VERIFY_KNOTS, LatencyModel
from turbospec.models.online_regression import OUTLIER_SIGMAS, Regression, learn_online, relative_error
from turbospec.runtime.kernels import compiled, inlined

SEGMENTS = len(VERIFY_KNOTS) - 1
CONTEXT, REQUESTS, TOKENS = 1, 2, 3
PREFILL = TOKENS + SEGMENTS
PREFILL_TOKENS, PIECEWISE, UNGRAPHED, DRAFT = PREFILL + 1, PREFILL + 2, PREFILL + 3, PREFILL + 4
PASSES, ROWS, DRAFT_CONTEXT, CATCH_UP = DRAFT + 1, DRAFT + 2, DRAFT + 3, DRAFT + 4
SIZE = CATCH_UP + 1
"""Places of the features; 0 is the constant, `TOKENS` the first segment, `DRAFT` the constant of drafting."""

PROFILE_ERROR = 0.3
"""Relative standard deviation by which a profile may be wrong: in all, in drafting alone, and in each weight."""


class StepCost(Protocol):
    """The model's state, one record of `STEP_COST`."""

    weights: FloatArray
    """(SIZE,) w, seconds per unit of each feature."""
    covariance: FloatArray
    """(SIZE, SIZE) P."""
    noise: FloatArray
    """(1,) standard deviation of the relative error."""
    surprise: float
    """Running mean of relative errors, each divided by the standard deviation that was expected of it and limited to
    `OUTLIER_SIGMAS`."""
    jump: float
    """How far measurements of drafting were from their predictions lately, beyond noise, as relative errors; 1 before
    the first."""


STEP_COST = np.dtype(
    [
        ("weights", np.float64, (SIZE,)),
        ("covariance", np.float64, (SIZE, SIZE)),
        ("noise", np.float64, (1,)),
        ("surprise", np.float64),
        ("jump", np.float64),
    ]
)


def initial_cost(latency: LatencyModel | None) -> Any:
    """(1,) `STEP_COST`, an array of one `StepCost`, before the first step.

    Args:
        latency: fitted to a profile; None to start from a guess.
    """
    start = LatencyModel() if latency is None else latency
    weights, covariance = np.zeros(SIZE), np.zeros((SIZE, SIZE))
    target = [0, CONTEXT, *range(TOKENS, DRAFT)]
    weights[target] = start.verify.weights
    covariance[np.ix_(target, target)] = start.verify.covariance
    weights[0] += start.host.weights[0]
    weights[REQUESTS] = start.host.weights[1]
    covariance[np.ix_([0, REQUESTS], [0, REQUESTS])] += start.host.covariance
    weights[DRAFT:], covariance[DRAFT:, DRAFT:] = start.draft.weights, start.draft.covariance
    cost = np.zeros(1, STEP_COST)
    cost["noise"], cost["jump"] = 0.15, 1.0
    if latency is not None:
        drafting = np.where(np.arange(SIZE) >= DRAFT, weights, 0.0)
        wrong = np.outer(weights, weights) + np.outer(drafting, drafting) + np.diag(weights**2)
        covariance += PROFILE_ERROR**2 * wrong
    cost["weights"][0], cost["covariance"][0] = weights, covariance
    return cost


@compiled
def target_features(
    x: FloatArray, tokens: float, context_tokens: float, requests: float, prefill_tokens: float
) -> None:
    """Fill the features of a target pass into (SIZE,) `x`; those of drafting and of CUDA graphs become 0."""
    x[:] = 0.0
    x[0], x[CONTEXT], x[REQUESTS] = 1.0, context_tokens, requests
    x[PREFILL], x[PREFILL_TOKENS] = min(prefill_tokens, 1.0), prefill_tokens
    for segment in range(SEGMENTS):
        low, high = VERIFY_KNOTS[segment], VERIFY_KNOTS[segment + 1]
        if tokens <= low:
            break
        x[TOKENS + segment] = min(tokens, high) - low


@inlined
def graph_features(x: FloatArray, piecewise: bool, tokens: float, largest_graph: int) -> None:
    """Fill the features of CUDA graphs into (SIZE,) `x`, for a target pass of so many tokens.

    Args:
        x: `target_features` of the pass.
        piecewise: whether its draft lengths kept it from replaying a full graph.
        tokens: of the pass.
        largest_graph: as in a view.
    """
    x[PIECEWISE], x[UNGRAPHED] = 1.0 if piecewise else 0.0, 1.0 if 0 < largest_graph < tokens else 0.0


@compiled
def forget_drafting(cost: StepCost, share: float) -> None:
    """Make the costs of drafting less certain, all of them together, after steps in which nothing was drafted.

    Args:
        cost: the state, updated in place.
        share: of the jump, by which the standard deviation of their relative error rises, up to 1.
    """
    weights, covariance, squares, spread = cost.weights, cost.covariance, 0.0, 0.0
    for i in range(DRAFT, SIZE):
        squares += weights[i] * weights[i]
        for j in range(DRAFT, SIZE):
            spread += weights[i] * covariance[i, j] * weights[j]
    before = np.sqrt(max(spread, 0.0)) / max(squares, 1e-300)
    added = min(before + share * cost.jump, 1.0) ** 2 - before**2
    if added > 0.0:
        for i in range(DRAFT, SIZE):
            for j in range(DRAFT, SIZE):
                covariance[i, j] += added * weights[i] * weights[j]


@compiled
def learn_step(
    cost: StepCost, x: FloatArray, step_seconds: float, draft_seconds: float, drift: float, surprise_weight: float
) -> None:
    """Take in one measured step.

    Args:
        cost: the state, updated in place.
        x: (SIZE,) what the step did; overwritten.
        step_seconds: its duration, above 0.
        draft_seconds: the part of it that was drafting; 0 if not measured.
        drift: q, where large errors have no common sign.
        surprise_weight: of the newest error in `StepCost.surprise` and `StepCost.jump`.
    """
    weights, covariance, noise = cost.weights, cost.covariance, cost.noise
    regression = Regression(weights, covariance, noise)
    error, expected = relative_error(regression, x, step_seconds)
    drafted = x[DRAFT] + x[PASSES] > 0.0
    measured = drafted and draft_seconds > 0.0
    drafting = np.zeros(SIZE)
    if measured:
        drafting[DRAFT:] = x[DRAFT:]
    if drafted:
        jump = abs(relative_error(regression, drafting, draft_seconds)[0] if measured else error)
        jump = max(jump - OUTLIER_SIGMAS * noise[0], 0.0)
        cost.jump = max(jump, (1.0 - surprise_weight) * cost.jump)
    error = min(max(error, -OUTLIER_SIGMAS * expected), OUTLIER_SIGMAS * expected)
    # Large errors of one sign in a row: the whole machine has become slower or quicker.
    cost.surprise += surprise_weight * (error / expected - cost.surprise)
    usual = OUTLIER_SIGMAS * np.sqrt(surprise_weight / (2.0 - surprise_weight))
    changed = min(max(abs(cost.surprise) - usual, 0.0), 1.0)
    growth = (drift + changed * abs(error)) ** 2
    for i in range(SIZE):
        for j in range(SIZE):
            both = 2.0 if i >= DRAFT and j >= DRAFT else 1.0
            covariance[i, j] += both * growth * weights[i] * weights[j]
    if measured:
        learn_online(regression, drafting, draft_seconds)
        x[DRAFT:] = 0.0
        learn_online(regression, x, max(step_seconds - draft_seconds, 1e-9))
    else:
        learn_online(regression, x, step_seconds)
