from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from turbospec_sim.workload.lengths import ConstantLength, LogNormalLength, UniformLength


def draw(lengths: ConstantLength | UniformLength | LogNormalLength) -> np.ndarray:
    return lengths.draw(np.random.default_rng(2), 50_000)


def test_constant_and_uniform() -> None:
    assert (draw(ConstantLength(distribution="constant", tokens=7)) == 7).all()
    drawn = draw(UniformLength(distribution="uniform", low=3, high=5))
    assert set(drawn.tolist()) == {3, 4, 5}
    assert drawn.mean() == pytest.approx(4.0, abs=0.02)


def test_lognormal_has_the_mean_or_the_percentiles_asked_for() -> None:
    drawn = draw(LogNormalLength(distribution="lognormal", mean=800, sigma=0.7))
    assert drawn.mean() == pytest.approx(800, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.7, rel=0.02)
    drawn = draw(LogNormalLength(distribution="lognormal", p50=100, p99=900))
    assert np.percentile(drawn, [50, 99]) == pytest.approx([100, 900], rel=0.04)


def test_lognormal_is_clipped() -> None:
    drawn = draw(LogNormalLength(distribution="lognormal", p50=100, p99=900, low=50, high=300))
    assert (drawn.min(), drawn.max()) == (50, 300)


@pytest.mark.parametrize("fields", [{}, {"mean": 5.0}, {"mean": 5.0, "p99": 9.0}, {"p50": 9.0, "p99": 5.0}])
def test_lognormal_needs_one_whole_form(fields: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        LogNormalLength.model_validate({"distribution": "lognormal", **fields})


@pytest.mark.parametrize(
    "fields",
    [{"mean": 400, "sigma": 3.0, "high": 72}, {"p50": 5, "p99": 40, "low": 2, "high": 30}, {"mean": 9, "sigma": 0}],
)
def test_lognormal_knows_its_mean_after_clipping(fields: dict[str, float]) -> None:
    lengths = LogNormalLength.model_validate({"distribution": "lognormal", **fields})
    assert lengths.mean_tokens == pytest.approx(draw(lengths).mean(), rel=0.02)
