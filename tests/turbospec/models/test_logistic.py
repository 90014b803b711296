"""The hierarchical logistic model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turbospec.models.acceptance_model import views
from turbospec.models.logistic import (
    PRIOR_VARIANCE,
    REQUEST_COLUMNS,
    Terms,
    between_request_variance,
    covariate_variance,
    discount_offsets,
    discount_shared,
    initial_terms,
    learn,
    learn_between_request_variance,
    learn_covariate,
    logistic,
    posterior,
    usual_covariate,
)


def a_model(features: int = 3) -> Terms:
    return views(initial_terms(np.full(features, 0.5)), np.zeros((512, REQUEST_COLUMNS)))


def observe(
    terms: Terms,
    row: int,
    feature: int,
    success: float,
    memory: float = 2000.0,
    request_memory: float = 200.0,
    deviation: float = 0.0,
) -> None:
    between_variance = between_request_variance(terms)
    learn(terms, 0, row, feature, success, deviation, between_variance, memory, request_memory)


def probability(terms: Terms, row: int, feature: int) -> float:
    x = (
        terms.prior[feature]
        + terms.level[0]
        + terms.offsets[0, feature]
        + posterior(terms.requests, row, between_request_variance(terms))[0]
    )
    return float(1.0 / (1.0 + np.exp(-x)))


def serve(terms: Terms, truth: np.ndarray, rng: np.random.Generator, steps: int, memory: float = 2000.0) -> None:
    """Each step, the features of every row are tried in order until one fails, with chances `truth[row, feature]`."""
    for _ in range(steps):
        for row, chances in enumerate(truth):
            for feature, chance in enumerate(chances):
                hit = rng.random() < chance
                observe(terms, row, feature, float(hit), memory)
                if not hit:
                    break
            learn_between_request_variance(terms, row, between_request_variance(terms), memory)


def test_follows_the_frequency_of_each_feature() -> None:
    truth = np.array([[0.9, 0.5, 0.2]])
    terms = a_model()
    serve(terms, truth, np.random.default_rng(0), 3000)
    assert [probability(terms, 0, f) for f in range(3)] == pytest.approx(truth[0], abs=0.1)


def test_requests_that_were_alike_for_long_can_still_be_told_apart() -> None:
    terms, rng = a_model(1), np.random.default_rng(3)
    serve(terms, np.full((16, 1), 0.6), rng, 600)
    terms.requests[:] = 0.0  # other requests
    serve(terms, np.repeat([[0.95], [0.2]], 8, axis=0), rng, 60)
    assert probability(terms, 0, 0) > 0.7
    assert probability(terms, 8, 0) < 0.4


def test_easy_requests_do_not_make_deep_features_look_easy() -> None:
    # Half of the requests always succeed at 0.9, half at 0.1: feature 3 is seen almost only on the former.
    truth = np.repeat([[0.9] * 3, [0.1] * 3], 8, axis=0)
    terms = a_model()
    serve(terms, truth, np.random.default_rng(1), 60, memory=500.0)
    for feature in range(3):
        assert probability(terms, 0, feature) == pytest.approx(0.9, abs=0.1)
        assert probability(terms, 8, feature) == pytest.approx(0.1, abs=0.1)


def test_learns_how_much_requests_differ() -> None:
    rng = np.random.default_rng(2)
    alike, unlike = a_model(), a_model()
    serve(alike, np.full((16, 3), 0.7), rng, 60)
    serve(unlike, np.repeat([[0.95] * 3, [0.05] * 3], 8, axis=0), rng, 60)
    assert between_request_variance(alike) < 0.4
    assert between_request_variance(unlike) > 3.0


def test_a_known_request_does_not_change_the_others() -> None:
    terms = a_model()
    for _ in range(40):
        observe(terms, 1, 0, 0.0)
        observe(terms, 2, 0, 1.0)
    assert probability(terms, 1, 0) < 0.25
    assert probability(terms, 2, 0) > 0.75
    assert probability(terms, 3, 0) == pytest.approx(0.5, abs=0.15)


def test_probabilities_stay_proper_whatever_is_seen() -> None:
    terms = a_model()
    for success in [1.0] * 5000 + [0.0] * 5000:
        observe(terms, 0, 0, success)
        assert 0.0 < probability(terms, 0, 0) < 1.0
    assert (terms.offsets[1] > 0.0).all()
    assert terms.level[1] > 0.0
    assert terms.requests[0, 1] >= 0.0
    assert probability(terms, 0, 0) < 0.1


def test_one_observation_is_the_update_of_an_extended_kalman_filter() -> None:
    terms = a_model()
    p, w, total = 0.5, 0.25, 4.0 * PRIOR_VARIANCE
    assert probability(terms, 0, 1) == p
    observe(terms, 0, 1, 1.0, memory=1e12, request_memory=1e12)
    shrink = 1.0 / (1.0 + w * total)
    assert terms.level.tolist() == pytest.approx(
        [PRIOR_VARIANCE * p * shrink, PRIOR_VARIANCE - PRIOR_VARIANCE**2 * w * shrink]
    )
    assert terms.offsets[:, 1].tolist() == pytest.approx(
        [PRIOR_VARIANCE * p * shrink, PRIOR_VARIANCE - PRIOR_VARIANCE**2 * w * shrink]
    )
    assert terms.offsets[0, 0] == terms.offsets[0, 2] == 0.0
    assert posterior(terms.classes, 0, PRIOR_VARIANCE) == pytest.approx(
        (PRIOR_VARIANCE * p * shrink, PRIOR_VARIANCE - PRIOR_VARIANCE**2 * w * shrink)
    )
    assert posterior(terms.requests, 0, 1.0) == pytest.approx((p * shrink, 1.0 - w * shrink))


def test_a_covariate_is_one_more_term_of_the_same_update() -> None:
    terms, deviation = a_model(), -1.5
    p, w, total = 0.5, 0.25, (4.0 + deviation**2) * PRIOR_VARIANCE
    observe(terms, 0, 1, 1.0, memory=1e12, request_memory=1e12, deviation=deviation)
    shrink = 1.0 / (1.0 + w * total)
    mean = PRIOR_VARIANCE * deviation * p * shrink
    assert terms.slope.tolist() == pytest.approx([mean, PRIOR_VARIANCE - PRIOR_VARIANCE**2 * deviation**2 * w * shrink])
    assert terms.level[0] == pytest.approx(PRIOR_VARIANCE * p * shrink)


def test_the_slope_of_a_covariate_is_learnt() -> None:
    rng, terms = np.random.default_rng(0), a_model()
    for row in range(500):
        for z in rng.normal(2.0, 1.5, 4):
            deviation = learn_covariate(terms, row, 1, z, 400.0, 48.0)
            success = float(rng.random() < logistic(0.3 + 0.8 * (z - 2.0)))
            observe(terms, row, 1, success, deviation=deviation)
    assert terms.slope[0] == pytest.approx(0.8, abs=0.15)
    assert terms.covariate[0, 1] == pytest.approx(2.0, abs=0.3)
    assert covariate_variance(terms) == pytest.approx((0.8 * 1.5) ** 2, rel=0.4)


def test_what_tells_requests_apart_is_known_before_the_covariate_is() -> None:
    """Half of the requests have high covariates and succeed often. Their own terms must say so, not the slope alone."""
    rng, terms = np.random.default_rng(0), a_model()
    for _ in range(150):
        for row in range(20):
            usual = 1.0 + 2.0 * (row % 2)
            z = rng.normal(usual, 1.0)
            deviation = learn_covariate(terms, row, 1, z, 400.0, 48.0)
            success = float(rng.random() < logistic(0.7 * (z - 2.0)))
            observe(terms, row, 1, success, deviation=deviation)
    assert usual_covariate(terms, 1, 1) - usual_covariate(terms, 0, 1) == pytest.approx(2.0, abs=0.5)
    low, high = ([probability(terms, row, 1) for row in range(first, 20, 2)] for first in (0, 1))
    assert np.mean(low) == pytest.approx(0.35, abs=0.08)
    assert np.mean(high) == pytest.approx(0.65, abs=0.08)


@given(st.lists(st.floats(-50.0, 50.0), min_size=1, max_size=30))
def test_running_means_of_a_covariate_are_the_means(values: list[float]) -> None:
    terms = a_model()
    deviations = np.array([learn_covariate(terms, 0, 2, z, 1e9, 48.0) for z in values])
    assert terms.covariate[0, 2] == pytest.approx(np.mean(values), abs=1e-9)
    assert terms.covariate_spread[0] == pytest.approx(np.mean(deviations**2), abs=1e-6)
    slope, variance = terms.slope
    assert covariate_variance(terms) == pytest.approx((slope**2 + variance) * np.mean(deviations**2), abs=1e-6)


@pytest.mark.parametrize("factor", [1.0, 0.7, 0.0])
def test_a_discount_keeps_a_share_of_the_evidence_and_the_rest_is_the_prior_again(factor: float) -> None:
    """Evidence is what a term's precision, and precision times mean, have beyond the prior's, whose mean is 0."""

    def evidence(mean_and_variance: np.ndarray) -> np.ndarray:
        mean, variance = mean_and_variance
        return np.array([mean / variance, 1.0 / variance - 1.0 / PRIOR_VARIANCE])

    terms, rng = a_model(), np.random.default_rng(5)
    serve(terms, rng.uniform(0.2, 0.9, (4, 3)), rng, 50)
    level, offsets, classes = terms.level.copy(), terms.offsets.copy(), terms.classes.copy()
    discount_shared(terms, factor)
    assert evidence(terms.level) == pytest.approx(factor * evidence(level), abs=1e-12)
    assert evidence(terms.offsets) == pytest.approx(factor * evidence(offsets), abs=1e-12)
    assert terms.classes == pytest.approx(factor * classes)
    assert classes[0].all()
    before = terms.offsets.copy()
    discount_offsets(terms, 1, 0.5)
    assert terms.offsets[:, 0].tolist() == before[:, 0].tolist()
    assert evidence(terms.offsets)[:, 1:] == pytest.approx(0.5 * evidence(before)[:, 1:], abs=1e-12)
