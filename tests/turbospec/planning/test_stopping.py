"""The expected gain of starting a gated draft, against a simulation of the gate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    """Mean accepted tokens of a batch under the real gate, with confidences drawn from the histogram."""
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
def test_the_expected_gain_is_that_of_the_simulated_gate(requests: int, pass_price: float) -> None:
    mean = float(HISTOGRAM @ BIN_CENTRES)
    expected = start([mean] * requests, pass_price)
    assert expected.draft_lengths.all()
    assert expected.gain == pytest.approx(simulated_gain(requests, pass_price), rel=0.15)


def test_nothing_starts_where_a_pass_does_not_pay() -> None:
    assert not start([0.5], pass_price=2.0).draft_lengths.any()
    assert start([0.5] * 8, pass_price=2.0).draft_lengths.all()


def test_a_request_of_low_acceptance_joins_a_pass_but_does_not_pay_for_one() -> None:
    low = 0.2
    assert not start([low] * 2, pass_price=0.5).draft_lengths.any()
    assert start([low, 0.9], pass_price=0.5).draft_lengths.all()


def test_a_request_with_a_high_catch_up_price_does_not_start() -> None:
    assert start([0.3], pass_price=0.1).draft_lengths.all()
    assert not start([0.3], pass_price=0.1, catch_up_price=0.5).draft_lengths.any()


def test_draft_limits_are_kept() -> None:
    assert not start([0.9], pass_price=0.1, limit=0).draft_lengths.any()
    assert start([0.9], pass_price=0.1, limit=1).gain <= 0.9


def test_values_are_cached_until_enough_new_observations() -> None:
    calibration = ConfidenceCalibration(1)
    values = PassValueCache(calibration)
    first = values.at(ROW, VERIFY)
    calibration.observations += REFRESH_OBSERVATIONS[0] - 1
    assert values.at(ROW, VERIFY) is first
    assert values.at(4 * ROW, VERIFY) is not first
    calibration.observations += 1
    assert values.at(ROW, VERIFY) is not first


def test_nearby_prices_share_values() -> None:
    values = PassValueCache(ConfidenceCalibration(1))
    first = values.at(ROW, VERIFY)
    assert values.at(1.05 * ROW, 0.95 * VERIFY) is first
    assert values.at(ROW, 1.3 * VERIFY) is not first
    assert values.at(ROW, VERIFY) is first, "several prices are kept"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 0.99), st.integers(0, 15), st.floats(0.0, 0.5)), min_size=1, max_size=6),
    st.floats(0.0, 2.0),
    st.floats(0.0, 0.5),
)
def test_a_start_pays_for_itself(
    requests: list[tuple[float, int, float]], pass_price: float, start_price: float
) -> None:
    acceptance, limits, request_prices = (np.array(column) for column in zip(*requests, strict=True))
    values = pass_values(BIN_CENTRES, HISTOGRAM, ROW, VERIFY)

    def choose(pass_price: float) -> Start:
        return choose_start(values, acceptance[:, None], request_prices, limits, StartPrices(pass_price, start_price))

    chosen = choose(pass_price)
    started = chosen.draft_lengths > 0
    assert chosen.requests == started.sum()
    assert (chosen.draft_lengths[started] == limits[started]).all()
    assert 0.0 <= chosen.surplus <= chosen.gain
    assert (chosen.surplus > 0.0) == started.any()
    assert chosen.gain <= limits[started].sum()
    if started.any():
        cost = pass_price + start_price + request_prices[started].sum()
        assert chosen.gain >= cost, "at least one pass runs"
    assert choose(pass_price + 0.1).surplus <= chosen.surplus + 1e-12
