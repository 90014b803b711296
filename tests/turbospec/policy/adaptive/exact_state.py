"""A state of `adaptive` in which nothing is uncertain."""

from __future__ import annotations

import numpy as np

from tests.turbospec.models.acceptance_model import views
from turbospec.interface import FloatArray
from turbospec.models.acceptance import confidence_covariate
from turbospec.models.latency import VERIFY_KNOTS
from turbospec.models.logistic import initial_terms
from turbospec.models.step_cost import DRAFT_CONTEXT, PASSES, ROWS, SIZE, TOKENS
from turbospec.policy.adaptive.constants import Constants
from turbospec.policy.adaptive.state import OF_DRAFTER, OF_LOOKUP, AdaptiveState

DEEPEST = 8


def exact_state(acceptance: float, slope: float, weights: FloatArray, requests: int) -> AdaptiveState:
    """Nothing is uncertain; the mean confidence is 0.5."""
    state = AdaptiveState(Constants(), None)
    state.start(DEEPEST)
    state.rows(np.arange(requests))
    state.shared["cost"]["weights"] = weights
    state.shared["drafter"] = initial_terms(np.full(DEEPEST, acceptance))
    terms = views(state.shared["drafter"], state.requests[:, OF_DRAFTER:OF_LOOKUP])
    terms.level[:], terms.offsets[:], terms.slope[:] = 0.0, 0.0, (slope, 0.0)
    terms.classes[:, 1], terms.requests[:, 1] = 1e12, 1e12
    terms.covariate[0] = confidence_covariate(0.5)
    return state


def exact_weights(verify_token: float, draft_pass: float, draft_row: float, context_token: float = 0.0) -> FloatArray:
    """Step costs in seconds."""
    weights = np.zeros(SIZE)
    weights[TOKENS : TOKENS + len(VERIFY_KNOTS) - 1] = verify_token
    weights[PASSES], weights[ROWS], weights[DRAFT_CONTEXT] = draft_pass, draft_row, context_token
    return weights
