from __future__ import annotations

import numpy as np
import pytest

from turbospec.hosts.vllm.scheduler.step_split import NO_PASSES, DrafterPasses, StepSplit, TargetPass


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
        late, told = split.draft_seconds(
            seconds, TargetPass(tokens, 100 * requests), NO_PASSES, DrafterPasses(passes, passes * requests)
        )
        assert late == 0.0
        if step > 200 and passes:
            errors.append(told / (seconds * draft / (verify + draft)) - 1.0)
    assert abs(float(np.median(errors))) < 0.1
    assert float(np.median(np.abs(errors))) < 0.15


def test_a_step_that_drafts_nothing_is_all_verify() -> None:
    split = StepSplit()
    assert split.draft_seconds(0.01, TargetPass(8, 800), NO_PASSES, NO_PASSES) == (0.0, 0.0)


def test_parts_never_exceed_the_whole() -> None:
    split = StepSplit()
    for seconds in (1e-6, 0.01, 3.0):
        late, own = split.draft_seconds(seconds, TargetPass(8, 800), DrafterPasses(2, 16), DrafterPasses(3, 24))
        assert 0.0 <= late + own <= seconds


def test_passes_of_the_step_before_are_told_from_a_steps_own() -> None:
    rng, split = np.random.default_rng(0), StepSplit()
    errors: list[float] = []
    for step in range(400):
        tokens = 8 * int(rng.integers(1, 6))
        passes = [DrafterPasses(number, 8 * number) for number in rng.integers(0, 6, 2).tolist()]
        verify, _ = true_parts(tokens, 0, 8)
        parts = [true_parts(tokens, each.number, 8)[1] for each in passes]
        told = split.draft_seconds(
            (verify + sum(parts)) * float(rng.normal(1.0, 0.05)), TargetPass(tokens, 800), *passes
        )
        if step > 200:
            errors += [got - part for got, part in zip(told, parts, strict=True)]
    assert float(np.median(np.abs(errors))) < 0.15 * true_parts(8, 3, 8)[1]


def test_prompts_in_a_drafters_pass_are_not_taken_to_cost_what_drafts_do() -> None:
    rng, split = np.random.default_rng(0), StepSplit()
    told: list[float] = []
    for step in range(600):
        tokens, passes = 8 * int(rng.integers(1, 6)), int(rng.integers(1, 6))
        prompt = 300 * (step % 5 == 0)
        draft = passes * 8 * 1e-4 + prompt * 5e-6
        seconds = (true_parts(tokens, 0, 8)[0] + draft) * float(rng.normal(1.0, 0.02))
        own = DrafterPasses(passes, 8 * passes, tokens - 8 + prompt, prompt)
        drafting = split.draft_seconds(seconds, TargetPass(tokens, 800), NO_PASSES, own)[1]
        if step > 300 and prompt:
            told.append(drafting / draft)
    assert float(np.median(told)) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("passes", [0, 4])
def test_a_stall_is_survived(passes: int) -> None:
    split, own = StepSplit(), DrafterPasses(passes, 8 * passes)
    for _ in range(50):
        split.draft_seconds(0.01, TargetPass(8, 800), NO_PASSES, own)
    split.draft_seconds(60.0, TargetPass(8, 800), NO_PASSES, own)
    assert 0.0 <= split.draft_seconds(0.01, TargetPass(8, 800), NO_PASSES, own)[1] < 0.01
