"""The online regression behind the latency model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.models.online_regression import OnlineRegression


def test_predictions_are_never_negative() -> None:
    regression = OnlineRegression(np.array([-1.0, 1.0]), np.ones(2))
    assert regression.predict(np.array([1.0, 0.5])) == 0.5
    for _ in range(50):
        regression.learn(np.array([1.0, 1.0]), 0.1)
        regression.learn(np.array([1.0, 2.0]), 1.0)
    assert (regression.weights >= 0.0).all()
    assert regression.weights[0] < 0.05


def test_no_weight_compensates_for_one_that_would_be_negative() -> None:
    """Two correlated features, of which the second has a negative coefficient in truth."""
    rng = np.random.default_rng(8)
    model = OnlineRegression(np.array([1.0, 1.0, 1.0]), np.ones(3))
    for _ in range(2000):
        passes = float(rng.integers(1, 5))
        features = np.array([1.0, passes, passes * passes])
        model.learn(features, 2.0 + 2.0 * passes - 0.2 * passes * passes)
    assert (model.weights >= 0.0).all()
    straight = np.array([[1.0, passes, passes * passes] for passes in (1.0, 2.0, 3.0, 4.0)])
    truth = np.array([3.8, 5.2, 6.2, 6.8])
    assert model.predict(straight) == pytest.approx(truth, rel=0.1)


def test_converges_to_the_true_weights() -> None:
    rng = np.random.default_rng(1)
    truth = np.array([2.0, 0.5])
    model = OnlineRegression(np.array([1.0, 1.0]), np.ones(2))
    for _ in range(500):
        features = np.array([1.0, rng.uniform(0.0, 20.0)])
        model.learn(features, float(features @ truth) * rng.lognormal(0.0, 0.02))
    assert model.weights == pytest.approx(truth, rel=0.05)
    assert model.state.noise[0] == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize("target", [0.0, -1.0])
def test_targets_at_or_below_zero_are_ignored(target: float) -> None:
    model = OnlineRegression(np.ones(2), np.ones(2))
    before = [array.copy() for array in model.state[:3]]
    model.learn(np.ones(2), target)
    assert all((array == old).all() for array, old in zip(model.state[:3], before, strict=True))


def test_a_repeated_step_keeps_the_variance_of_other_directions() -> None:
    model = OnlineRegression(np.ones(2), np.ones(2))
    for _ in range(2000):
        model.learn(np.array([1.0, 0.0]), 1.0)
    assert model.covariance[0, 0] < 0.1, "known"
    assert model.covariance[1, 1] == 1.0, "neither learnt nor forgotten"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_weights_stay_non_negative_and_the_covariance_stays_positive(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = OnlineRegression(rng.uniform(-1, 1, 4), np.full(4, 0.5))
    for _ in range(60):
        features = np.array([1.0, *rng.integers(0, 50, 3)])
        model.learn(features, float(rng.lognormal(0.0, 2.0)))
        assert (model.weights >= 0.0).all()
    assert np.linalg.eigvalsh(model.covariance).min() >= -1e-9
    assert 0.01 <= model.state.noise[0] <= 0.5
