"""The value of starting a gated draft, against simulating the gate."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.models.confidence import BIN_CENTRES, ConfidenceCalibration
from turbospec.planning.gate import GatePrices, SurvivalGate
from turbospec.planning.stopping import (
    QUALITY_LEVELS,
    REFRESH_OBSERVATIONS,
    PassValueCache,
    Start,
    StartPrices,
    choose_start,
    pass_values,
)

HISTOGRAM = np.array([1, 1, 3, 1, 3, 1, 4, 1, 1, 6, 2, 6, 2]) / 32.0
ROW, VERIFY = 0.04, 0.08
MIDDLE = QUALITY_LEVELS // 2


def simulated_gain(requests: int, pass_price: float, limit: int = 15, rounds: int = 400) -> float:
    """Mean accepted tokens of a batch under the real gate, its confidences drawn from the histogram."""
    rng = np.random.default_rng(0)
    prices = GatePrices(pass_price, ROW + VERIFY, VERIFY)
    mean = np.full((requests, limit), HISTOGRAM @ BIN_CENTRES)
    accepted = 0.0
    for _ in range(rounds):
        gate = SurvivalGate(BIN_CENTRES, np.ones(requests), mean, np.full(requests, limit), prices)
        rows, survival = np.arange(requests), np.ones(requests)
        while len(rows):
            confidence = BIN_CENTRES[rng.choice(len(BIN_CENTRES), len(rows), p=HISTOGRAM)]
            survival[rows] *= confidence
            keep, more = gate.advance(rows, confidence)
            accepted += survival[rows][keep].sum()
            rows = rows[more]
    return accepted / rounds


def start(
    acceptance: list[float],
    pass_price: float,
    *,
    catch_up_price: float = 0.0,
    limit: int = 15,
    start_price: float = 0.1,
) -> Start:
    size = len(acceptance)
    return choose_start(
        pass_values(BIN_CENTRES, HISTOGRAM, ROW, VERIFY),
        np.array(acceptance)[:, None],
        np.full(size, catch_up_price),
        np.full(size, limit),
        StartPrices(pass_price, start_price),
    )


def test_acceptance_rises_and_value_falls_with_depth() -> None:
    _, mean, gain, net = pass_values(BIN_CENTRES, HISTOGRAM, ROW, VERIFY)
    assert mean[MIDDLE] == pytest.approx(HISTOGRAM @ BIN_CENTRES)
    assert (np.diff(mean) > 0.0).all()
    assert (net[:, 1:] <= net[:, :-1] + 1e-9).all()
    assert (gain >= net).all()


@pytest.mark.parametrize(("requests", "pass_price"), [(1, 0.15), (8, 1.5), (32, 4.0)])
def test_gain_is_what_the_gate_brings(requests: int, pass_price: float) -> None:
    mean = float(HISTOGRAM @ BIN_CENTRES)
    expected = start([mean] * requests, pass_price)
    assert expected.draft_lengths.all()
    assert expected.gain == pytest.approx(simulated_gain(requests, pass_price), rel=0.15)


def test_nothing_starts_where_a_pass_costs_more_than_it_brings() -> None:
    assert not start([0.5], pass_price=2.0).draft_lengths.any()
    assert start([0.5] * 8, pass_price=2.0).draft_lengths.all()


def test_a_poor_request_rides_along_but_does_not_carry_a_pass() -> None:
    poor = 0.2
    assert not start([poor] * 2, pass_price=0.5).draft_lengths.any()
    assert start([poor, 0.9], pass_price=0.5).draft_lengths.all()


def test_a_request_that_must_catch_up_waits_until_it_pays() -> None:
    assert start([0.3], pass_price=0.1).draft_lengths.all()
    assert not start([0.3], pass_price=0.1, catch_up_price=0.5).draft_lengths.any()


def test_limits_hold() -> None:
    assert not start([0.9], pass_price=0.1, limit=0).draft_lengths.any()
    assert start([0.9], pass_price=0.1, limit=1).gain <= 0.9


def test_values_are_kept_for_a_while() -> None:
    calibration = ConfidenceCalibration(1)
    values = PassValueCache(calibration)
    first = values.at(ROW, VERIFY)
    calibration.observations += REFRESH_OBSERVATIONS[0] - 1
    assert values.at(ROW, VERIFY) is first
    assert values.at(4 * ROW, VERIFY) is not first
    calibration.observations += 1
    assert values.at(ROW, VERIFY) is not first
