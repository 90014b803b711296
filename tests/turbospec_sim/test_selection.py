"""Plans that select what is verified after drafting, and the simulated confidence that they decide by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import Steps, closed, scenario, serve, state_of
from turbospec.interface import FloatArray, IntArray, Phase, StepOutcome, StepPlan, StepView
from turbospec.policy.adaptive_verification.policy import VllmAdaptiveVerificationConfig
from turbospec.policy.static import StaticPolicy
from turbospec_sim.run import Run, simulate
from turbospec_sim.scenario_file import find_scenario, read_scenario
from turbospec_sim.startup_profile import startup_profile
from turbospec_sim.workload.offered import CLASSES

ORDERS = ("before_draft", "after_draft")


class Halves:
    """Drafts the maximum and verifies the first half of each draft; keeps the confidence that it is shown."""

    def __init__(self) -> None:
        self.confidence: list[FloatArray] = []

    def plan(self, view: StepView) -> StepPlan:
        return StepPlan(view.draft_limits.copy(), selection=self)

    def select(self, proposed: IntArray, confidence: FloatArray) -> IntArray:
        self.confidence.append(confidence)
        return proposed // 2

    def observe(self, outcome: StepOutcome) -> None:
        pass


@pytest.mark.parametrize("order", ORDERS)
def test_whole_drafts_are_made_and_the_selected_part_is_verified(order: str) -> None:
    steps = Steps()
    serve(state_of(closed(4, server__emit=order)), Halves(), steps)
    drafting = [(view, plan, outcome) for view, plan, outcome in steps.seen if outcome.drafted.any()]
    assert drafting
    for view, plan, outcome in drafting:
        np.testing.assert_array_equal(outcome.drafted, plan.draft_lengths // 2)
        np.testing.assert_array_equal(outcome.proposed, plan.draft_lengths)
        assert len(outcome.draft_rows) == plan.draft_lengths.max()
        if order == "before_draft":
            decoding = int((view.phase != Phase.PREFILL).sum())
            assert outcome.tokens_batched == decoding + view.prefill_tokens + outcome.drafted.sum()


def test_drafting_costs_as_much_as_without_a_selection() -> None:
    def draft_seconds(policy: Any) -> dict[int, float]:
        steps = Steps()
        serve(state_of(closed(1, workload__requests=4)), policy, steps)
        return {
            int(outcome.draft_context_tokens): outcome.draft_seconds
            for _, plan, outcome in steps.seen
            if plan.draft_lengths.max(initial=0) == 5 and not outcome.catch_up_tokens
        }

    selected, whole = draft_seconds(Halves()), draft_seconds(StaticPolicy(5))
    common = selected.keys() & whole.keys()
    assert common
    assert {key: selected[key] for key in common} == pytest.approx({key: whole[key] for key in common})


@pytest.mark.parametrize("order", ORDERS)
def test_a_drafter_without_confidence_has_whole_drafts_verified(order: str) -> None:
    policy, steps = Halves(), Steps()
    serve(replace(state_of(closed(4, server__emit=order)), confidence_correlation=None), policy, steps)
    assert not policy.confidence
    assert all(
        (outcome.drafted == plan.draft_lengths).all() for _, plan, outcome in steps.seen if outcome.emitted.all()
    )


def test_selecting_takes_its_time_in_steps_that_select() -> None:
    def seconds(policy: Any, **changes: Any) -> tuple[float, int]:
        steps = Steps()
        serve(state_of(closed(1, workload__requests=3, **changes)), policy, steps)
        drafting = sum(bool(plan.draft_lengths.any()) for _, plan, _ in steps.seen)
        return sum(outcome.verify_seconds for _, _, outcome in steps.seen), drafting

    slow, count = seconds(Halves(), latency__selection_seconds=0.5)
    fast, same = seconds(Halves())
    assert count == same > 0
    assert slow == pytest.approx(fast + 0.5 * count)
    assert seconds(StaticPolicy(3), latency__selection_seconds=0.5) == seconds(StaticPolicy(3))


def judged_confidence(correlation: float) -> tuple[FloatArray, FloatArray]:
    """Predicted acceptance, by vLLM's first coefficients, and the verdict on first draft tokens of acceptance 0.7."""
    policy, steps = Halves(), Steps()
    made = closed(8, drafter__confidence_correlation=correlation, workload__requests=300)
    serve(state_of(made), policy, steps)
    plans = [(plan, outcome) for _, plan, outcome in steps.seen if plan.draft_lengths.any()]
    assert len(plans) == len(policy.confidence)
    odds, verdicts = list[FloatArray](), list[FloatArray]()
    for (_, outcome), confidence in zip(plans, policy.confidence, strict=True):
        shown = (outcome.drafted > 0) & ((outcome.accepted > 0) | ~outcome.truncated)
        certain = np.clip(confidence[shown, 0], 1e-12, 1 - 1e-12)
        odds.append(np.log(certain) - np.log1p(-certain))
        verdicts.append(outcome.accepted[shown] > 0)
    return 1.0 / (1.0 + np.exp(-(0.5 * np.concatenate(odds) - 0.2))), np.concatenate(verdicts)


def test_confidence_is_calibrated_and_tells_tokens_apart() -> None:
    predicted, accepted = judged_confidence(0.8)
    assert accepted.mean() == pytest.approx(0.7, abs=0.03)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 0.95), (0.95, 1.0)):
        part = (predicted >= low) & (predicted <= high)
        assert part.sum() > 100
        assert accepted[part].mean() == pytest.approx(predicted[part].mean(), abs=0.06)


def test_without_correlation_confidence_tells_the_mean_acceptance_alone() -> None:
    predicted, _ = judged_confidence(0.0)
    np.testing.assert_allclose(predicted, 0.7)


def test_a_startup_profile_has_a_size_within_the_least_token_budget() -> None:
    profile = startup_profile(state_of(scenario(server__max_num_batched_tokens=1)), 1000, seed=0)
    assert [sample.tokens_batched for sample in profile.samples] == [1] * 5


def test_the_noise_of_a_startup_profile_is_not_the_numbers_of_the_requests() -> None:
    exact, noisy = (startup_profile(state_of(scenario(latency__noise=noise)), 1000, seed=0) for noise in (0.0, 0.1))
    drawn = noisy.samples[0].draft_seconds / exact.samples[0].draft_seconds
    of_classes = np.random.default_rng([0, CLASSES]).standard_normal()
    assert drawn != pytest.approx(np.exp(0.1 * of_classes - 0.005))


def test_the_startup_profile_by_hand() -> None:
    made = scenario(
        latency__graph_sizes=[1, 2, 4, 8],
        latency__kv_token_seconds=1e-6,
        latency__sampled_token_seconds=1e-3,
        latency__selection_seconds=0.5,
        server__max_num_seqs=4,
        server__max_num_batched_tokens=40,
    )
    state = state_of(made)
    before = state.requests.copy()
    profile = startup_profile(state, 1000, seed=0)
    np.testing.assert_array_equal(state.requests, before)
    # Every graph, 1.5 times the largest, and its doubles up to the token budget.
    sizes = [sample.tokens_batched for sample in profile.samples]
    assert sizes == [size for size in (1, 2, 4, 8, 12, 16, 32, 40) for _ in range(5)]
    assert profile.meta == {"graph_sizes": [1, 2, 4, 8]}
    eight = next(sample for sample in profile.samples if sample.tokens_batched == 8)
    # 4 requests of 1,000 tokens with 2 tokens each, not sampled: 0.02 + 8e-4 + 1e-6 * (4000 + 8) + 0.5.
    assert eight.verify_seconds == pytest.approx(0.02 + 8e-4 + 0.004008 + 0.5)
    # 5 passes over 4 requests: 5e-4 + 5 * (2e-3 + 4 * 1e-5).
    assert eight.draft_rows == (4,) * 5
    assert eight.draft_seconds == pytest.approx(0.0107)


@pytest.mark.parametrize(("kind", "batch", "rows"), [("parallel", True, (4,)), ("parallel", False, (20,))])
def test_a_first_pass_in_every_step_is_drafting_in_the_startup_profile(
    kind: str, batch: bool, rows: tuple[int, ...]
) -> None:
    made = scenario(
        drafter__kind=kind,
        drafter__batch=batch,
        drafter__first_pass_every_step=True,
        server__max_num_seqs=4,
        server__max_num_batched_tokens=4,
    )
    last = startup_profile(state_of(made), 1000, seed=0).samples[-1]
    # One pass that makes 5 tokens for each of 4 requests: 2e-3 + 20 * 1e-5.
    assert last.draft_rows == rows
    assert last.draft_seconds == pytest.approx(0.0022)


@pytest.mark.parametrize("order", ORDERS)
def test_the_policy_serves_every_request(order: str) -> None:
    made = closed(8, server__emit=order, latency__verify_token_seconds=2e-3)
    state = state_of(made)
    config = VllmAdaptiveVerificationConfig(version=1, policy="vllm_adaptive_verification", profile_context_tokens=100)
    steps = Steps()
    serve(state, config.build(startup_profile(state, 100, 0), 0), steps)
    assert state.engine["finished"][0] == made.workload.requests
    drafted = sum(int(outcome.drafted.sum()) for _, _, outcome in steps.seen)
    proposed = sum(int(outcome.proposed.sum()) for _, _, outcome in steps.seen)
    assert 0.1 * proposed < drafted < 0.9 * proposed
    assert all((plan.draft_lengths == view.draft_limits).all() for view, plan, _ in steps.seen)


@pytest.mark.parametrize(
    ("name", "requests", "gain"),
    [("adaptive-verification-64", 512, 0.19), ("adaptive-verification-4", 200, -0.195)],
)
def test_gain_over_the_fixed_length_that_users_report(name: str, requests: int, gain: float) -> None:
    made = read_scenario(find_scenario(name), [f"workload.requests={requests}"])
    throughput = {
        policy: np.array([simulate(Run(name, made, policy, None, seed))["output_throughput"] for seed in (0, 1)])
        for policy in ("static-8", "vllm-adaptive-verification")
    }
    gains = throughput["vllm-adaptive-verification"] / throughput["static-8"] - 1.0
    assert gains.mean() == pytest.approx(gain, abs=0.015)
