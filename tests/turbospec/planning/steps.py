"""Random small steps for the planner's property tests, and the answer by brute force."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from turbospec.interface import FloatArray, IntArray
from turbospec.planning.exact import StepCosts


def all_lengths(gains: FloatArray, costs: StepCosts) -> list[IntArray]:
    """All (K + 1)^n plans that the verify table allows."""
    n, depth = gains.shape
    plans = (np.array(lengths) for lengths in itertools.product(range(depth + 1), repeat=n))
    return [lengths for lengths in plans if lengths.sum() < len(costs.verify)]


def gain_of(lengths: IntArray, gains: FloatArray) -> float:
    """Σ of the gains of a plan's tokens."""
    return float((gains * (np.arange(gains.shape[1]) < lengths[:, None])).sum())


def value(
    lengths: IntArray, gains: FloatArray, costs: StepCosts, price: float, request_seconds: FloatArray, padded: int = 0
) -> float:
    """The objective of a plan."""
    seconds = costs.seconds(lengths, padded) + request_seconds[lengths > 0].sum()
    return gain_of(lengths, gains) - price * seconds


def brute_force(
    gains: FloatArray, costs: StepCosts, price: float, request_seconds: FloatArray, max_seconds: float = np.inf
) -> float:
    """Value of the best plan. A token of gain 0 is beyond its request's limit."""
    best = -price * costs.verify[0]
    for lengths in all_lengths(gains, costs):
        if (lengths > np.count_nonzero(gains, axis=1)).any():
            continue
        for padded in (0, *(each for each in costs.graph_lengths if each >= lengths.max())):
            if costs.seconds(lengths, padded) + request_seconds[lengths > 0].sum() <= max_seconds:
                best = max(best, value(lengths, gains, costs, price, request_seconds, padded))
    return best


@st.composite
def problems(draw: st.DrawFn) -> tuple[FloatArray, StepCosts, float, np.random.Generator]:
    """Gains, costs and λ of steps with any survival, and verify tables of floors, slopes and padding steps."""
    n, depth = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Rounded, so that ties are common.
    gains = np.cumprod(rng.uniform(0, 1, (n, depth)).round(draw(st.sampled_from([1, 2, 6]))), axis=1)
    gains *= np.arange(depth) < rng.integers(0, depth + 1, (n, 1))
    kind = draw(st.sampled_from(["flat", "affine", "padded", "arbitrary"]))
    tokens = np.arange(n * depth + 1)
    verify = {
        "flat": np.full(len(tokens), 0.008),
        "affine": 0.008 + rng.uniform(0, 1e-3) * tokens,
        "padded": 0.008 + 2e-3 * np.ceil(tokens / 3),
        "arbitrary": 0.008 + np.cumsum(rng.exponential(5e-4, len(tokens)) * (rng.random(len(tokens)) < 0.5)),
    }[kind]
    costs = StepCosts(verify, rng.uniform(0, 1e-3), rng.uniform(0, 2e-3), rng.uniform(0, 3e-4))
    return gains, costs, draw(st.floats(0.0, 2000.0)), rng
