"""Worked examples of vLLM 0.32's `OnlineAcceptanceEstimator`."""

import numpy as np
import pytest

from turbospec.policy.adaptive_verification.acceptance_estimator import REFIT_INTERVAL, AcceptanceEstimator


def observe(estimator, confidence, verified, accepted, truncated=False):
    features, predicted = estimator.predict(np.atleast_2d(confidence))
    rows = len(features)
    estimator.observe(
        features, predicted, np.full(rows, verified), np.full(rows, accepted), np.full(rows, truncated, np.bool_)
    )


def test_the_first_predictions_by_hand():
    # _predict_kernel: feature log(q / (1 - q)), clipped to 40; p = 1 / (1 + exp(-(0.5 * feature - 0.2))).
    features, predicted = AcceptanceEstimator(3).predict(np.array([[0.9, 0.5, 1.0]]))
    # log(9) = 2.1972; 0.5 * 2.1972 - 0.2 = 0.8986; σ = 0.7107. log(1) = 0; σ(-0.2) = 0.4502. σ(19.8) = 1 - 2.5e-9.
    np.testing.assert_allclose(features, [[2.1972, 0.0, 40.0]], atol=1e-4)
    np.testing.assert_allclose(predicted, [[0.7107, 0.4502, 1.0]], atol=1e-4)


def test_a_refit_by_hand():
    # _refit_kernel with one position, 100 observations at feature 0 (q = 0.5), of which 80 are accepted.
    # p = σ(-0.2) = 0.450166; weights 0.247517: c = 24.7517 + 0.001, a = 0.001, b = 0, g0 = 0,
    # g1 = 80 * (1 - 0.450166) - 20 * 0.450166 = 34.9834; Δβ = 34.9834 / 24.7527 * 100 / 150 = 0.942206.
    estimator = AcceptanceEstimator(1)
    observe(estimator, np.full((80, 1), 0.5), 1, 1)
    observe(estimator, np.full((20, 1), 0.5), 1, 0)
    for _ in range(REFIT_INTERVAL - 1):
        estimator.end_step()
    assert estimator.intercepts[0] == -0.2
    estimator.end_step()
    assert estimator.slope == 0.5
    assert estimator.intercepts[0] == pytest.approx(0.742206, abs=1e-5)


def test_a_refit_of_the_slope_by_hand():
    # One position. 50 accepted at feature 1, 50 rejected at feature -1: p = σ(0.3) = 0.574443 and σ(-0.7) = 0.331812;
    # weights 0.244458 and 0.221713. a = 50 * (0.244458 + 0.221713) + 0.001 = 23.3096,
    # b = 50 * (0.244458 - 0.221713) = 1.13727, c = 23.3086 + 0.001 = 23.3096,
    # g0 = 50 * (0.425557 + 0.331812) = 37.8685, g1 = 50 * (0.425557 - 0.331812) = 4.68727.
    # Δω = (37.8685 - 1.13727 * 4.68727 / 23.3096) / (23.3096 - 1.13727² / 23.3096) * 100 / 150 = 1.07909
    # Δβ = (4.68727 - 1.13727 * 1.07909) / 23.3096 * 100 / 150 = 0.0989575
    estimator = AcceptanceEstimator(1)
    likely, unlikely = 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(1.0))
    observe(estimator, np.full((50, 1), likely), 1, 1)
    observe(estimator, np.full((50, 1), unlikely), 1, 0)
    for _ in range(REFIT_INTERVAL):
        estimator.end_step()
    assert estimator.slope == pytest.approx(1.57909, abs=1e-4)
    assert estimator.intercepts[0] == pytest.approx(-0.10104, abs=1e-4)


def test_positions_after_the_first_rejection_and_beyond_the_verified_ones_are_not_observed():
    one, other = AcceptanceEstimator(4), AcceptanceEstimator(4)
    observe(one, [0.9, 0.8, 0.7, 0.6], verified=3, accepted=1)
    observe(other, [0.9, 0.8, 0.1, 0.1], verified=2, accepted=1)
    for estimator in (one, other):
        for _ in range(REFIT_INTERVAL):
            estimator.end_step()
    np.testing.assert_array_equal(one.intercepts, other.intercepts)
    assert one.intercepts[0] > -0.2 > one.intercepts[1]
    assert one.intercepts[2:].tolist() == [-0.2, -0.2]


def test_the_end_of_an_output_is_not_a_rejection():
    estimator = AcceptanceEstimator(2)
    observe(estimator, [0.9, 0.8], verified=2, accepted=1, truncated=True)
    for _ in range(REFIT_INTERVAL):
        estimator.end_step()
    assert estimator.intercepts[1] == -0.2


def test_learns_a_drafters_calibration():
    rng, estimator = np.random.default_rng(0), AcceptanceEstimator(2)
    for _ in range(10 * REFIT_INTERVAL):
        confidence = rng.uniform(0.05, 0.95, (16, 2))
        features, predicted = estimator.predict(confidence)
        chances = 1 / (1 + np.exp(-(1.2 * features + [0.5, -1.0])))
        accepted = np.cumprod(rng.random((16, 2)) < chances, axis=1).sum(axis=1)
        estimator.observe(features, predicted, np.full(16, 2), accepted, np.zeros(16, np.bool_))
        estimator.end_step()
    assert estimator.slope == pytest.approx(1.2, abs=0.15)
    np.testing.assert_allclose(estimator.intercepts, [0.5, -1.0], atol=0.2)


def test_the_slope_never_turns_negative():
    estimator = AcceptanceEstimator(1)
    for _ in range(3 * REFIT_INTERVAL):
        observe(estimator, [[0.9], [0.9]], verified=1, accepted=0)
        observe(estimator, [[0.1], [0.1]], verified=1, accepted=1)
        estimator.end_step()
    assert estimator.slope >= 0.0


def test_a_confidence_rounded_above_1_counts_as_1():
    estimator = AcceptanceEstimator(2)
    above, one = (estimator.predict(np.array([[confidence, 0.5]]))[1] for confidence in (1.0000002, 1.0))
    assert above.tolist() == one.tolist()
