from __future__ import annotations

import math
from typing import Any

import pytest

from tests.turbospec_sim.scenarios import closed, scenario
from turbospec import UserError
from turbospec_sim import capacity as searched
from turbospec_sim.capacity import HIGHEST, Capacity, capacities, capacity
from turbospec_sim.run import Run, simulate

SLO = {"p99_ttft_ms": 200, "p99_tpot_ms": 100}
RUN = Run("s", scenario(slo=SLO), "off", None, 0)


def bounded_at(limit: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Simulations that are within the objectives up to a rate; the rates that were tried."""
    tried: list[float] = []

    def simulated(run: Run) -> dict[str, Any]:
        assert run.rate is not None
        tried.append(run.rate)
        return {"slo_met": run.rate <= limit * (1 + run.seed)}

    monkeypatch.setattr(searched, "simulate", simulated)
    return tried


@pytest.mark.parametrize("limit", [0.0011, 0.0123, 0.77, 1.0, 31.4, 999.0, 70_000.0, 99_500.0])
def test_bisection_ends_just_below_the_first_miss(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = bounded_at(limit, monkeypatch)
    found = capacity(RUN, tolerance=0.01)
    assert limit / 1.01 <= found <= limit
    assert len(tried) < 25


def test_there_may_be_no_rate_or_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded_at(0.0, monkeypatch)
    assert capacity(RUN) == 0.0
    bounded_at(1e9, monkeypatch)
    assert capacity(RUN) == HIGHEST


def test_seeds_count_up_from_the_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded_at(3.0, monkeypatch)
    (found,) = capacities([RUN], seeds=3)
    assert found.rates == pytest.approx((3.0, 6.0, 9.0), rel=0.01)
    assert found.mean == pytest.approx(6.0, rel=0.01)
    assert found.standard_error == pytest.approx(3.0 / 3**0.5, rel=0.02)
    assert Capacity((2.0,)).mean == 2.0


def test_a_simulated_capacity_is_where_the_objectives_begin_to_be_missed() -> None:
    found = capacity(RUN, tolerance=0.02)
    assert simulate(Run("s", RUN.scenario, "off", found, 0))["slo_met"]
    assert not simulate(Run("s", RUN.scenario, "off", found * 1.05, 0))["slo_met"]


def test_without_objectives_rates_or_a_tolerance_there_is_none() -> None:
    with pytest.raises(UserError, match="no `slo`"):
        capacity(Run("s", scenario(), "off", 1.0, 0))
    with pytest.raises(UserError, match="tolerance 0 is too fine"):
        capacity(RUN, tolerance=0.0)
    with pytest.raises(UserError, match="tolerance nan is too fine"):
        capacity(RUN, tolerance=math.nan)
    small = scenario(slo=SLO, server__kv_cache_tokens=64)
    assert capacity(run := Run("s", small, "off", 1.0, 0)) == 0.0
    assert "do not fit the KV cache" in (searched.refused(run) or "")
    assert searched.refused(RUN) is None
    with pytest.raises(UserError, match="has no request rate"):
        capacity(Run("s", closed(2, slo=SLO), "off", None, 0))


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "day", "curve": [0.1, 2.0], "period_seconds": 60},
        {"process": "bursts", "on_seconds": 1, "off_seconds": 3},
    ],
)
def test_arrivals_that_vary_have_none(arrivals: dict[str, Any]) -> None:
    """At a high rate all requests arrive before the curve's peak."""
    made = scenario(slo=SLO, workload__arrivals=arrivals)
    with pytest.raises(UserError, match=f"`{arrivals['process']}` arrivals: .* use poisson"):
        capacity(Run("s", made, "off", None, 0))
