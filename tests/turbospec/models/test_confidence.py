"""Acceptance by drafter confidence: calibration and odds ratios."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.models.confidence import BIN_CENTRES, BIN_EDGES, ConfidenceCalibration, bin_of


def observe(
    calibration: ConfidenceCalibration,
    confidence: np.ndarray,
    accepted: list[int],
    *,
    drafted: int | None = None,
    truncated: bool = False,
) -> np.ndarray:
    """A step of n requests, rows 0 … n-1, whose drafter proposed a token for every column of `confidence`."""
    n, proposed = confidence.shape
    return calibration.observe(
        np.arange(n),
        np.full(n, proposed if drafted is None else drafted),
        np.array(accepted),
        np.full(n, truncated),
        np.full(n, proposed),
        confidence,
    )


def test_learns_an_overconfident_drafter() -> None:
    rng = np.random.default_rng(0)
    calibration = ConfidenceCalibration(capacity=100)
    for step in range(4000):
        confidence = rng.uniform(0, 1, (1, 4))
        accepted = int(np.cumprod(rng.random(4) < 0.5 * confidence[0]).sum())
        calibration.observe(
            np.array([step // 40]), np.array([4]), np.array([accepted]), np.array([False]), np.array([4]), confidence
        )
    table = calibration.table()
    assert table[3] == pytest.approx(0.175, abs=0.1)
    assert table[8] == pytest.approx(0.425, abs=0.12)


def test_requests_differ_by_an_odds_ratio() -> None:
    calibration = ConfidenceCalibration(capacity=2)
    for _ in range(40):
        observe(calibration, np.full((2, 3), 0.9), accepted=[0, 3])
    never, always = calibration.odds_ratios(np.arange(2))
    assert never < 0.1
    assert always > 1.5
    calibration.reset(np.array([0]), 2)
    assert calibration.odds_ratios(np.arange(2)).tolist() == [1.0, always]


def test_bins_meet_at_the_edges() -> None:
    assert [bin_of(confidence) for confidence in (0.0, 0.0999, 0.1, 0.9949, 0.995, 1.0)] == [0, 0, 1, 11, 12, 12]
    assert [bin_of(centre) for centre in BIN_CENTRES] == list(range(len(BIN_EDGES) + 1))


def test_before_any_observation_acceptance_is_the_confidence() -> None:
    assert ConfidenceCalibration(1).table() == pytest.approx(BIN_CENTRES, abs=0.01)


def test_counts_the_positions_that_were_observed() -> None:
    calibration = ConfidenceCalibration(capacity=1)
    observe(calibration, np.full((1, 4), 0.5), [2])
    assert calibration.observations == 3, "two accepted and one rejected"
    observe(calibration, np.full((1, 4), 0.5), [2], truncated=True)
    assert calibration.observations == 5, "two accepted, the third not observed"
    observe(calibration, np.full((1, 4), 0.5), [4])
    assert calibration.observations == 9


def test_predicts_the_acceptance_of_a_dropped_token() -> None:
    calibration = ConfidenceCalibration(capacity=2)
    dropped = observe(calibration, np.array([[0.95, 0.15], [0.95, 0.15]]), [1, 1], drafted=1)
    assert dropped == pytest.approx([0.15, 0.15], abs=0.01), "the centre of its bin, before anything is learnt"
    assert np.isnan(observe(calibration, np.array([[0.95, 0.15]]), [1])).all(), "nothing was dropped"


def test_the_histogram_counts_first_positions_only() -> None:
    calibration = ConfidenceCalibration(capacity=1)
    for _ in range(200):
        observe(calibration, np.array([[0.25, 0.97, 0.97]]), [0])
    histogram = calibration.histogram()
    assert histogram.sum() == pytest.approx(1.0)
    assert histogram[bin_of(0.25)] > 0.9
    assert histogram[bin_of(0.97)] < 0.05
