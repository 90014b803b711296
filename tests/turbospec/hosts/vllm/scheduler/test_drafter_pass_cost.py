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


def test_steps_without_passes_and_stalls_leave_the_predictions_in_range() -> None:
    cost = DrafterPassCost()
    for seconds in (0.0, 1e-9, 60.0):
        cost.learn(NO_PASSES, seconds)
        cost.learn(DrafterPasses(4, 32), seconds)
        assert 0.0 <= cost.catch_up_seconds(8) < 60.0
        assert cost.catch_up_tokens(0.0) == 0
