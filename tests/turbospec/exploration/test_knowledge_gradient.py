"""The value of an experiment against simulations of what it would show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.exploration.knowledge_gradient import improvement, learnt_seconds
from turbospec.interface import FloatArray
from turbospec.models.step_cost import SIZE


@settings(max_examples=50, deadline=None)
@given(st.floats(-5.0, 5.0), st.floats(0.01, 5.0))
def test_improvement_is_what_a_better_choice_gains_on_average(difference: float, deviation: float) -> None:
    moved = difference + deviation * np.random.default_rng(0).standard_normal(100_000)
    gains = np.maximum(moved, 0.0) - max(difference, 0.0)
    found = improvement(difference, deviation)
    assert found == pytest.approx(gains.mean(), abs=5 * gains.std() / np.sqrt(len(gains)) + 1e-6)


@settings(max_examples=200, deadline=None)
@given(st.floats(-100.0, 100.0), st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_the_more_an_estimate_may_move_the_more_it_is_worth(difference: float, deviation: float, more: float) -> None:
    assert improvement(difference, deviation + more) >= improvement(difference, deviation) - 1e-12
    assert improvement(difference, deviation) >= -1e-12
    assert improvement(difference, deviation) == pytest.approx(improvement(-difference, deviation), abs=1e-9)
    assert improvement(difference, 0.0) == 0.0


def random_belief(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of the cost weights, of full rank."""
    root = rng.normal(0.0, 1e-4, (SIZE, SIZE))
    return rng.uniform(0.0, 1e-3, SIZE), root @ root.T


@pytest.mark.parametrize("seed", range(5))
def test_what_a_step_shows_is_how_a_conjugate_update_moves_the_difference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean, covariance = random_belief(rng)
    tried, target, best = rng.uniform(0.0, 8.0, (3, SIZE))
    noise = float(rng.uniform(1e-4, 5e-3))
    # The prior predicts the step's time; the posterior mean moves by P·φ / (φᵀ·P·φ + σ²) per second of error.
    truths = rng.multivariate_normal(mean, covariance, 20_000)
    seconds = truths @ tried + rng.normal(0.0, noise, len(truths))
    gain = covariance @ tried / (tried @ covariance @ tried + noise**2)
    posteriors = mean + (seconds - mean @ tried)[:, None] * gain
    differences = posteriors @ (target - best)
    assert differences.mean() == pytest.approx(mean @ (target - best), abs=5 * differences.std() / np.sqrt(20_000))
    assert learnt_seconds(covariance, noise, tried, target, best) == pytest.approx(differences.std(), rel=0.03)


def test_what_is_learnt_is_bounded_by_what_is_not_known() -> None:
    rng = np.random.default_rng(9)
    for _ in range(100):
        _, covariance = random_belief(rng)
        tried, target, best = rng.uniform(0.0, 8.0, (3, SIZE))
        unknown = np.sqrt((target - best) @ covariance @ (target - best))
        learnt = [learnt_seconds(covariance, noise, tried, target, best) for noise in (1e-9, 1e-4, 1e-2, 1.0)]
        assert learnt == sorted(learnt, reverse=True)
        assert learnt[0] <= unknown * (1 + 1e-9)
    same = learnt_seconds(covariance, 1e-12, target - best, target, best)
    assert same == pytest.approx(unknown), "a step that measures the difference itself shows all of it"
    assert learnt_seconds(covariance, 1e-3, tried, best, best) == 0.0
    assert learnt_seconds(np.zeros((SIZE, SIZE)), 1e-3, tried, target, best) == 0.0
