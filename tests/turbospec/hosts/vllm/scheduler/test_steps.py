from __future__ import annotations

from turbospec.hosts.vllm.scheduler.steps import ReusedSteps, TargetPass


def test_the_sums_over_steps_on_a_reused_plan_start_again_when_they_are_taken() -> None:
    reused = ReusedSteps()
    reused.add(TargetPass(6, 100, sampling=3, prefill_tokens=2), 0.5)
    reused.add(TargetPass(4, 104, sampling=4), 0.25)
    assert reused.take() == ReusedSteps(2, 7, 2, 0.75)
    assert reused.take() == ReusedSteps()
