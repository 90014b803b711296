from __future__ import annotations

import numpy as np
import pytest

from turbospec.hosts.vllm.scheduler.drafter_pass_cost import NO_PASSES, DrafterPassCost, DrafterPasses


def test_what_catching_up_takes_is_learnt_from_passes_that_draft() -> None:
    rng, cost = np.random.default_rng(0), DrafterPassCost()
    for _ in range(400):
        number, requests, lag = int(rng.integers(1, 6)), int(rng.integers(1, 32)), int(rng.integers(0, 300))
        passes = DrafterPasses(number, number * requests, lag, lag)
        seconds = 4e-3 * number + 8e-5 * passes.rows + 5e-6 * lag
        cost.learn(passes, seconds * float(rng.normal(1.0, 0.02)))
    assert cost.catch_up_seconds(1000) == pytest.approx(9e-3, rel=0.05)
    assert cost.catch_up_tokens(9e-3) == pytest.approx(1000, rel=0.15)
    assert cost.catch_up_tokens(1e-3) == 0, "less than the pass itself takes"


def test_a_stall_is_forgotten() -> None:
    cost, passes = DrafterPassCost(), DrafterPasses(4, 32)
    for seconds in [0.016] * 200 + [60.0] + [0.016] * 200:
        cost.learn(passes, seconds)
        cost.learn(NO_PASSES, 0.0)
    assert cost.catch_up_seconds(0) < 0.016
