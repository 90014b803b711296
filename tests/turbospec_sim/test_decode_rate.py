"""The price of time λ, by load."""

from __future__ import annotations

import pytest

from turbospec_sim.decode_rate import LOAD_BUCKETS, DecodeRate, load_bucket


def test_the_rate_of_each_load_is_tokens_over_time() -> None:
    price = DecodeRate()
    for _ in range(50):
        price.add(8, 16, 0.010)
        price.add(1, 2, 0.008)
    assert price.rate(8) == pytest.approx(1600.0)
    assert price.rate(10) == pytest.approx(2000.0), "the same bucket, scaled by the requests"
    assert price.rate(1) == pytest.approx(250.0)


def test_a_load_seen_in_few_steps_has_no_rate() -> None:
    price = DecodeRate()
    price.add(8, 16, 0.010)
    assert price.rate(8) is None
    assert price.rate(1) is None


def test_loads_are_powers_of_two() -> None:
    loads = (0, 1, 2, 3, 4, 7, 8, 1023, 1024, 10**9)
    assert [load_bucket(requests) for requests in loads] == [0, 0, 1, 1, 2, 2, 3, 9, 10, LOAD_BUCKETS - 1]


def test_the_rate_follows_a_change_within_its_memory() -> None:
    price = DecodeRate()
    for tokens in [8] * 100 + [4] * 1000:
        price.add(4, tokens, 0.010)
    assert price.rate(4) == pytest.approx(400.0, rel=0.02)


def test_a_load_that_emitted_nothing_or_took_no_time_has_no_rate() -> None:
    price = DecodeRate()
    for _ in range(50):
        price.add(1, 0, 0.010)
        price.add(8, 8, 0.0)
    assert price.rate(1) is None
    assert price.rate(8) is None
