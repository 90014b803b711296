"""The regression behind the latency model."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.models.online_regression import OnlineRegression


def test_predictions_are_never_negative() -> None:
    regression = OnlineRegression(np.array([-1.0, 1.0]), np.ones(2))
    assert regression.predict(np.array([1.0, 0.5])) == 0.5
    for _ in range(50):
        regression.learn(np.array([1.0, 1.0]), 0.1)
        regression.learn(np.array([1.0, 2.0]), 1.0)
    assert (regression.weights >= 0.0).all()
    assert regression.weights[0] < 0.05


def test_no_weight_makes_up_for_one_that_would_be_negative() -> None:
    """Two features that always come together, the second with a negative effect in truth."""
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
