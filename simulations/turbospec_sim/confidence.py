"""The simulated drafter's confidence in its tokens.

A draft token with acceptance a is accepted if its uniform number u is below a (`workload.acceptance`). The drafter
knows a signal s about each token: a standard normal number whose correlation with Φ⁻¹(u) is the scenario's
`drafter.confidence_correlation` ρ (a Gaussian copula). To the drafter the token's acceptance is therefore
Φ((Φ⁻¹(a) - ρ·s) / √(1 - ρ²)), whose mean over s is a. It reports the confidence from which vLLM's estimator would at
its start predict this acceptance; vLLM gives these coefficients as the median over five models.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from turbospec.interface import FloatArray, IntArray
from turbospec.policy.adaptive_verification.acceptance_estimator import INITIAL_INTERCEPT, INITIAL_SLOPE
from turbospec.runtime.kernels import compiled
from turbospec_sim.acceptance import AcceptanceTables, draft_acceptance
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.randomness import normal, uniform
from turbospec_sim.records import Records
from turbospec_sim.state import EngineState

SIGNALS = np.uint64(0x5163A1)
"""Added to the key of a request's random stream; gives the part of the drafter's signals that is not about u."""


def draft_confidence(state: EngineState, lengths: IntArray, correlation: float) -> FloatArray:
    """(n, longest draft) confidence of drafts of `lengths` tokens for the last view's requests, NaN past them."""
    acceptance, uniforms, noise = _tokens(state.view_slots, lengths, int(lengths.max()), *state.arrays)
    signal = correlation * ndtri(uniforms) + math.sqrt(1.0 - correlation**2) * noise
    known = ndtr((ndtri(acceptance) - correlation * signal) / math.sqrt(1.0 - correlation**2))
    return expit((logit(known) - INITIAL_INTERCEPT) / INITIAL_SLOPE)


@compiled
def _tokens(slots: IntArray, lengths: IntArray, depth: int, *loose: Records) -> tuple[FloatArray, ...]:
    """(n, depth) acceptance, uniform number and independent normal number of each draft token; NaN past the drafts."""
    arrays = EngineArrays(*loose)
    tables = AcceptanceTables(arrays.classes, arrays.rates, arrays.lines, arrays.values)
    acceptance, uniforms = np.full((len(slots), depth), np.nan), np.full((len(slots), depth), np.nan)
    noise = np.full((len(slots), depth), np.nan)
    for i in range(len(slots)):
        request = arrays.requests[slots[i]]
        draft_acceptance(arrays.engine, request, tables, lengths[i], acceptance[i])
        for j in range(lengths[i]):
            uniforms[i, j] = uniform(request.key, request.emitted + j)
            noise[i, j] = normal(request.key + SIGNALS, request.emitted + j)
    return acceptance, uniforms, noise
