from __future__ import annotations

import numpy as np
import pytest

from turbospec.hosts.vllm.step_split import StepSplit


def true_parts(tokens: int, passes: int, requests: int) -> tuple[float, float]:
    return 8e-3 + 1e-4 * tokens, passes * (1.2e-3 + 3e-5 * requests)


def test_whole_steps_tell_drafting_from_verifying() -> None:
    """Draft lengths that change from step to step are enough: what is verified was drafted a step before."""
    rng, split = np.random.default_rng(0), StepSplit()
    errors: list[float] = []
    length = 0
    for step in range(400):
        requests = int(rng.integers(4, 12))
        tokens, length = requests * (1 + length), int(rng.integers(0, 6))
        passes = max(length - 1, 0)
        verify, draft = true_parts(tokens, passes, requests)
        seconds = (verify + draft) * float(rng.normal(1.0, 0.05))
        told = split.draft_seconds(seconds, tokens, 100 * requests, passes, passes * requests)
        if step > 200 and passes:
            errors.append(told / (seconds * draft / (verify + draft)) - 1.0)
    assert abs(float(np.median(errors))) < 0.1
    assert float(np.median(np.abs(errors))) < 0.15


def test_a_step_that_drafts_nothing_is_all_verify() -> None:
    split = StepSplit()
    assert split.draft_seconds(0.01, 8, 800, 0, 0) == 0.0


def test_parts_never_exceed_the_whole() -> None:
    split = StepSplit()
    for seconds in (1e-6, 0.01, 3.0):
        assert 0.0 <= split.draft_seconds(seconds, 8, 800, 3, 24) <= seconds


@pytest.mark.parametrize("passes", [0, 4])
def test_a_stall_is_survived(passes: int) -> None:
    split = StepSplit()
    for _ in range(50):
        split.draft_seconds(0.01, 8, 800, passes, 8 * passes)
    split.draft_seconds(60.0, 8, 800, passes, 8 * passes)
    assert 0.0 <= split.draft_seconds(0.01, 8, 800, passes, 8 * passes) < 0.01
