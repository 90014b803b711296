"""The gate that ends drafts on the drafter's confidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.planning.gate import GatePrices, SurvivalGate

TABLE = np.linspace(0.02, 0.98, 13)


def gate(
    *,
    acceptance: float = 0.8,
    pass_price: float = 0.3,
    verify_price: float = 0.01,
    odds_ratio: float = 1.0,
    rows: int = 1,
) -> SurvivalGate:
    expected, limits = np.full((rows, 8), acceptance), np.full(rows, 4)
    prices = GatePrices(pass_price, 0.02, verify_price)
    return SurvivalGate(TABLE, np.full(rows, odds_ratio), expected, limits, prices)


def test_continues_while_confident_and_stops_at_the_limit() -> None:
    subject = gate()
    more = [bool(subject.advance(np.array([0]), np.array([0.999]))[1][0]) for _ in range(4)]
    assert more == [True, True, True, False]


def test_stops_where_survival_no_longer_pays() -> None:
    keep, more = gate().advance(np.array([0]), np.array([0.25]))
    assert keep.tolist() == [True]
    assert more.tolist() == [False]


def test_survival_accumulates_over_the_draft() -> None:
    subject = gate(pass_price=0.45)
    # Acceptance 0.9, 0.9 and 0.5: 0.9·0.8 and 0.81·0.8 exceed the prices of 0.45 and 0.02, 0.405·0.8 does not.
    confidences = (0.985, 0.985, 0.65)
    more = [bool(subject.advance(np.array([0]), np.array([confidence]))[1][0]) for confidence in confidences]
    assert more == [True, True, False]


def test_a_token_that_does_not_pay_for_its_verification_is_dropped() -> None:
    keep, more = gate(verify_price=0.1).advance(np.array([0]), np.array([0.05]))
    assert not keep[0]
    assert not more[0]


def test_the_odds_ratio_of_a_request_counts() -> None:
    assert not gate(verify_price=0.1).advance(np.array([0]), np.array([0.05]))[0][0]
    assert gate(verify_price=0.1, odds_ratio=10.0).advance(np.array([0]), np.array([0.05]))[0][0]


def test_requests_share_the_price_of_a_pass() -> None:
    alone = gate(acceptance=0.5, pass_price=0.6)
    assert not alone.advance(np.array([0]), np.array([0.97]))[1].any()
    together = gate(acceptance=0.5, pass_price=0.6, rows=4)
    assert together.advance(np.arange(4), np.full(4, 0.97))[1].all()


def test_a_gate_for_the_next_step_starts_anew() -> None:
    subject = gate()
    for _ in range(4):
        subject.advance(np.array([0]), np.array([0.999]))
    again = subject.for_next_step(np.array([2]))
    more = [bool(again.advance(np.array([0]), np.array([0.999]))[1][0]) for _ in range(2)]
    assert more == [True, False]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0), st.floats(0.0, 0.3), st.floats(0.0, 0.3))
def test_drafts_follow_the_rule(seed: int, pass_price: float, row_price: float, verify_price: float) -> None:
    """Against the rule written down plainly, pass by pass, for a batch of random requests."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    limits, acceptance, ratios = rng.integers(1, 5, n), rng.uniform(0, 1, (n, 5)), rng.uniform(0.2, 5, n)
    prices = GatePrices(pass_price, row_price + verify_price, verify_price)
    subject = SurvivalGate(TABLE, ratios, acceptance, limits, prices)
    rows, survival, drafted = np.arange(n), np.ones(n), 0
    edges = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995]
    while len(rows):
        confidence = rng.uniform(0, 1, len(rows))
        odds = TABLE[np.searchsorted(edges, confidence, side="right")]
        odds = odds / (1.0 - odds) * ratios[rows]
        survival[rows] *= odds / (1.0 + odds)
        drafted += 1
        gain = np.where(drafted < limits[rows], survival[rows] * acceptance[rows, min(drafted, 4)] - prices.row, 0.0)
        expected_keep = survival[rows] > verify_price
        wanted = expected_keep & (gain > 0.0)
        expected_more = wanted & (gain[wanted].sum() > pass_price)
        keep, more = subject.advance(rows, confidence)
        assert keep.tolist() == expected_keep.tolist()
        assert more.tolist() == expected_more.tolist()
        rows = rows[more]
    assert drafted <= limits.max()


def test_survival_is_the_product_of_calibrated_acceptances() -> None:
    subject = gate(rows=2)
    subject.advance(np.arange(2), np.array([0.999, 0.5]))
    subject.advance(np.array([1]), np.array([0.999]))
    assert subject._state[0] == pytest.approx([0.98, TABLE[5] * 0.98])
    assert subject._state[1].tolist() == [1.0, 2.0]
