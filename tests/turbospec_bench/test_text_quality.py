from __future__ import annotations

import math

import numpy as np
import pytest

from turbospec_bench.text_quality import distinct, ends_in_loop, text_figures


def test_distinct_counts_different_ngrams() -> None:
    assert distinct([1, 2, 1, 2, 1], 2) == pytest.approx(2 / 4)
    assert distinct([1, 1, 1, 1], 1) == 0.25
    assert distinct([1], 2) == 1.0


@pytest.mark.parametrize("period", [1, 2, 16])
def test_a_repeating_tail_is_a_loop(period: int) -> None:
    assert ends_in_loop([99, 98, *range(period)] * 1 + list(range(period)) * 48)


def test_text_and_long_periods_are_no_loop() -> None:
    rng = np.random.default_rng(0)
    assert not ends_in_loop(rng.integers(3000, size=96).tolist())
    assert not ends_in_loop(list(range(17)) * 6)
    assert not ends_in_loop([*([1, 2, 3] * 15), 9, 8, 7])


@pytest.mark.parametrize("length", [0, 1, 47])
def test_a_text_shorter_than_the_window_is_no_loop(length: int) -> None:
    assert not ends_in_loop([5] * length)


def test_figures_are_means_over_requests() -> None:
    figures = text_figures([[1] * 64, list(range(64))])

    assert figures["loop_share"] == 0.5
    assert figures["distinct_2"] == pytest.approx((1 / 63 + 1) / 2)


def test_texts_too_short_to_show_a_loop_do_not_lower_the_share_of_loops() -> None:
    assert text_figures([[1] * 64, list(range(64)), [1] * 40, [1] * 20])["loop_share"] == 0.5
    assert math.isnan(text_figures([[1] * 40])["loop_share"])
