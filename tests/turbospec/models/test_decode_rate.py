"""The price of time."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.models.decode_rate import DecodeRate
from turbospec.planning.exact import StepCosts, plan_draft_lengths
from turbospec.planning.objective import best_rate


def test_rate_is_tokens_over_time_of_each_load() -> None:
    price = DecodeRate()
    for _ in range(50):
        price.add(8, 16, 0.010)
        price.add(1, 2, 0.008)
    assert price.rate(8) == pytest.approx(1600.0)
    assert price.rate(10) == pytest.approx(2000.0), "the same bucket, scaled by the requests"
    assert price.rate(1) == pytest.approx(250.0)


def test_unseen_load_has_no_rate() -> None:
    price = DecodeRate()
    price.add(8, 16, 0.010)
    assert price.rate(8) is None
    assert price.rate(1) is None


def test_best_rate_is_the_best_ratio_of_tokens_to_time() -> None:
    gains = np.cumprod(np.full((1, 10), 0.7))[None]
    costs = StepCosts(0.008 + 5e-5 * np.arange(11), 3e-4, 1.2e-3, 2e-5)
    ratios = [(1.0 + gains[0, :k].sum()) / costs.seconds(np.array([k])) for k in range(11)]
    rate = best_rate(gains, costs, 1.0)
    assert rate == pytest.approx(max(ratios), rel=1e-6)
    assert plan_draft_lengths(gains, costs, rate).draft_lengths[0] == int(np.argmax(ratios))


def test_steps_that_come_in_one_report_count_as_many() -> None:
    one_by_one, together = DecodeRate(memory=20.0), DecodeRate(memory=20.0)
    for price in (one_by_one, together):
        for _ in range(40):
            price.add(1, 5, 0.01)
    for _ in range(16):
        one_by_one.add(1, 1, 0.01)
    together.add(1, 16, 0.16, steps=16)
    before, after = 500.0, one_by_one.rate(1)
    assert after is not None
    assert after < 0.8 * before
    assert together.rate(1) == pytest.approx(after, rel=0.25)


def test_time_is_worth_what_those_will_make_of_it_who_wait_for_it() -> None:
    price = DecodeRate()
    for _ in range(50):
        price.add(32, 48, 0.012)
        price.add(8, 16, 0.010)
    assert price.rate(8) == pytest.approx(1600.0)
    assert price.rate(8, joining=24) == price.rate(32) == pytest.approx(4000.0)
    assert price.rate(8, joining=1000) == pytest.approx(4000.0), "no more than have lately decoded at once"
    for _ in range(1000):
        price.add(8, 16, 0.010)
    assert price.rate(8, joining=24) == pytest.approx(1600.0)
