from __future__ import annotations

import numpy as np
import pytest

from turbospec.models.profile import LatencySample
from turbospec_sim.profile_fit import fitted_coefficients, predicted_seconds
from turbospec_sim.step_time import pass_seconds


def measured(noise: float, prompts: bool = True) -> list[LatencySample]:
    """Steps of 10 ms, 20 µs a token and 100 µs more for each of a decoding request; a draft pass takes 2 ms."""
    rng = np.random.default_rng(1)
    samples: list[LatencySample] = []
    for _ in range(600):
        decoding, depth = int(rng.integers(1, 17)), int(rng.integers(0, 4))
        prefill = int(rng.integers(20, 400)) if prompts and rng.random() < 0.2 else 0
        sampled = decoding * (1 + depth)
        factor = np.exp(noise * rng.standard_normal(3))
        draft = 2e-3 * depth * factor[0]
        verify = (0.01 + 2e-5 * (sampled + prefill) + 1e-4 * sampled) * factor[1]
        host = 5e-4 * factor[2]
        samples.append(
            LatencySample(
                (decoding,) * depth, 0, 0, sampled + prefill, prefill, 0, draft, verify, draft + verify + host
            )
        )
    return samples


def test_choosing_a_token_is_told_from_computing_it() -> None:
    curve, coefficients = fitted_coefficients(measured(noise=0.0))
    assert coefficients["sampled_token"] == pytest.approx(1e-4, rel=0.02)
    assert pass_seconds(curve, 200) == pytest.approx(0.014, rel=0.01)
    assert coefficients["draft_pass"] == pytest.approx(2e-3, rel=0.01)


def test_without_prompts_the_curve_has_it_all() -> None:
    curve, coefficients = fitted_coefficients(measured(noise=0.0, prompts=False))
    assert coefficients["sampled_token"] == 0.0
    assert pass_seconds(curve, 40) == pytest.approx(0.01 + 40 * 1.2e-4, rel=0.01)


def test_times_that_vary_are_met_in_the_mean() -> None:
    samples = measured(noise=0.35)  # a fit of relative errors alone lies a fifth below
    predicted = predicted_seconds(samples, *fitted_coefficients(samples))
    seconds = np.array([sample.step_seconds for sample in samples])
    assert predicted.sum() == pytest.approx(seconds.sum(), rel=0.03)
    assert (seconds / predicted).mean() == pytest.approx(1.0, abs=0.03)
