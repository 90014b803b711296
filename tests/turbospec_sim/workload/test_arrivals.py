from __future__ import annotations

import numpy as np
import pytest

from turbospec_sim.workload.arrivals import BurstArrivals, DayArrivals, GammaArrivals, PoissonArrivals

SIZE, RATE = 20_000, 4.0


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_gaps_have_the_burstiness_asked_for(burstiness: float) -> None:
    times = GammaArrivals(process="gamma", burstiness=burstiness).times(rng(), RATE, SIZE)
    gaps = np.diff(times)
    assert times[-1] == pytest.approx(SIZE / RATE)  # as `vllm bench serve` scales them
    assert gaps.min() >= 0.0
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_shape_whose_draws_are_all_0_sends_all_requests_at_once() -> None:
    assert (GammaArrivals(process="gamma", burstiness=1e-300).times(rng(), RATE, 9) == 0.0).all()


def test_poisson_is_gamma_with_a_burstiness_of_1() -> None:
    poisson = PoissonArrivals(process="poisson").times(rng(), RATE, SIZE)
    assert (poisson == GammaArrivals(process="gamma", burstiness=1.0).times(rng(), RATE, SIZE)).all()


def test_bursts_keep_the_mean_rate_and_the_quiet_share() -> None:
    times = BurstArrivals(process="bursts", on_seconds=10, off_seconds=30, off_share=0.1).times(rng(), RATE, SIZE)
    assert (np.diff(times) >= 0).all()
    assert SIZE / times[-1] == pytest.approx(RATE, rel=0.05)
    assert (times % 40 < 10).mean() == pytest.approx(10 / (10 + 30 * 0.1), abs=0.02)


def test_a_day_follows_its_curve() -> None:
    curve = (0.0, 1.0, 3.0, 2.0)
    times = DayArrivals(process="day", curve=curve, period_seconds=100).times(rng(), RATE, SIZE)
    counts, _ = np.histogram(times % 100, 4, (0, 100))
    assert counts / SIZE == pytest.approx(np.array(curve) / sum(curve), abs=0.02)


def test_rates_scale_the_same_draws() -> None:
    day = DayArrivals(process="day", curve=(1.0,), period_seconds=100)
    assert day.times(rng(), 8.0, 100) == pytest.approx(day.times(rng(), 4.0, 100) / 2.0)
