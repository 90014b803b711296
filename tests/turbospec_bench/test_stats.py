"""Paired ratios on synthetic rounds with known truth."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec_bench.stats import best_rival, geometric_mean, median_ratio, paired_ratio


def test_pairing_removes_what_all_policies_of_a_round_share() -> None:
    drift = np.array([1.0, 3.0, 0.5, 2.0, 4.0, 1.5])

    ratio = paired_ratio(1.2 * drift, 1.0 * drift)

    assert ratio.value == pytest.approx(1.2)
    assert (ratio.low, ratio.high) == (pytest.approx(1.2), pytest.approx(1.2))


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    intervals = [median_ratio(rng.normal(1.0, 0.1, 12)) for _ in range(200)]

    covered = np.mean([interval.low <= 1.0 <= interval.high for interval in intervals])

    assert 0.88 <= covered <= 0.995


def test_best_fixed_is_not_flattered_by_the_noise_that_chose_it() -> None:
    rng = np.random.default_rng(2)
    honest, naive = [], []
    for _ in range(300):
        own = rng.normal(100, 5, 6)
        rivals = {f"static-{k}": rng.normal(100, 5, 6) for k in range(7)}
        honest.append(np.median(best_rival(own, rivals).ratios))
        naive.append(np.median(own / max(rivals.values(), key=np.median)))

    assert np.mean(honest) == pytest.approx(1.0, abs=0.01)
    assert np.mean(naive) < 0.98


def test_best_fixed_finds_the_better_rival_and_uses_every_round_once() -> None:
    compared = best_rival([10.0] * 5, {"static-1": [5.0] * 5, "static-3": [8.0] * 5})

    assert compared.rivals == ("static-3", "static-3")
    assert compared.ratios == pytest.approx(np.full(5, 1.25))


def test_geometric_mean_is_over_configurations() -> None:
    mean = geometric_mean([[2.0, 2.0], [0.5, 0.5, 0.5]])

    assert mean.value == pytest.approx(1.0)
    assert mean.low == pytest.approx(1.0)


def test_statistics_repeat_with_the_seed() -> None:
    sample = np.random.default_rng(3).normal(1, 0.2, 6)

    assert median_ratio(sample) == median_ratio(sample)
