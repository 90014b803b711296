"""Confidence: calibration, and the gate that ends drafts by it."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.models.confidence import ConfidenceCalibration
from turbospec.planning.gate import GatePrices, SurvivalGate


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


def test_a_request_that_never_matches_is_told_apart_by_its_ratio() -> None:
    calibration = ConfidenceCalibration(capacity=2)
    for _ in range(40):
        calibration.observe(
            np.arange(2),
            np.array([3, 3]),
            np.array([0, 3]),
            np.array([False, False]),
            np.array([3, 3]),
            np.full((2, 3), 0.9),
        )
    never, always = calibration.model.terms.requests[:, 0]
    assert never < -3.0 < 0.0 < always


def gate(*, acceptance: float = 0.8, pass_price: float = 0.3, verify_price: float = 0.01, rows: int = 1) -> SurvivalGate:
    table = np.linspace(0.02, 0.98, 13)
    expected, limits = np.full((rows, 8), acceptance), np.full(rows, 4)
    return SurvivalGate(table, np.ones(rows), expected, limits, GatePrices(pass_price, 0.02, verify_price))


def test_goes_on_while_confident_and_stops_at_the_limit() -> None:
    subject = gate()
    more = [bool(subject.advance(np.array([0]), np.array([0.999]))[1][0]) for _ in range(4)]
    assert more == [True, True, True, False]


def test_stops_where_survival_no_longer_pays() -> None:
    keep, more = gate().advance(np.array([0]), np.array([0.25]))
    assert keep.tolist() == [True]
    assert more.tolist() == [False]


def test_a_hopeless_token_is_not_verified() -> None:
    subject = gate(verify_price=0.1)
    keep, more = subject.advance(np.array([0]), np.array([0.05]))
    assert not keep[0]
    assert not more[0]


def test_requests_share_the_price_of_a_pass() -> None:
    alone = gate(acceptance=0.5, pass_price=0.6)
    assert not alone.advance(np.array([0]), np.array([0.97]))[1].any()
    together = gate(acceptance=0.5, pass_price=0.6, rows=4)
    assert together.advance(np.arange(4), np.full(4, 0.97))[1].all()
