"""Drafts that are shortened when prompts join the step that verifies them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import Steps, closed, serve, state_of
from turbospec.interface import IntArray, StepOutcome, StepPlan, StepView
from turbospec.policy.adaptive.config import AdaptiveConfig
from turbospec.policy.adaptive.policy import AdaptivePolicy
from turbospec_sim.fixed_plans import FixedPlans
from turbospec_sim.oracle import OraclePolicy

LARGEST_GRAPH = 64
GRAPHS: dict[str, Any] = {
    "server__emit": "after_draft",
    "latency__graph_sizes": [LARGEST_GRAPH],
    "latency__ungraphed_seconds": 0.03,
    "chat__prompt_tokens": {"distribution": "uniform", "low": 20, "high": 50},
    "workload__requests": 400,
}


@dataclass
class OneToken:
    """Drafts up to the limits, and keeps one token of each draft beside prompts that join."""

    calls: dict[int, tuple[IntArray, int]] = field(default_factory=dict)

    def plan(self, view: StepView) -> StepPlan:
        policy, step = self, view.step

        class Trim:
            def trim(self, drafts: IntArray, tokens_batched: int) -> IntArray:
                policy.calls[step] = drafts, tokens_batched
                return np.minimum(drafts, 1)

        return StepPlan(view.draft_limits.copy(), trim=Trim())

    def observe(self, outcome: StepOutcome) -> None:
        pass


@pytest.mark.parametrize("cache_tokens", [100_000, 700])
def test_drafts_are_shortened_in_steps_with_more_prompt_tokens_than_the_view_said(cache_tokens: int) -> None:
    steps, policy = Steps(), OneToken()
    serve(state_of(closed(8, **GRAPHS, server__kv_cache_tokens=cache_tokens)), policy, steps)
    assert all(view.calls_trim for view, _, _ in steps.seen)
    trimmed = 0
    for view, _, outcome in steps.seen:
        if view.step not in policy.calls:
            assert outcome.prefill_tokens <= view.prefill_tokens or not outcome.drafted.any()
            continue
        drafts, tokens_batched = policy.calls[view.step]
        assert outcome.prefill_tokens > view.prefill_tokens
        assert outcome.tokens_batched == tokens_batched - np.maximum(drafts - 1, 0).sum()
        np.testing.assert_array_equal(outcome.drafted, np.minimum(drafts, 1))
        assert (outcome.accepted <= outcome.drafted).all()
        trimmed += int((drafts > 1).any())
    assert trimmed > 20


def test_an_engine_that_drafts_first_knows_its_prompts_and_calls_no_trim() -> None:
    steps, policy = Steps(), OneToken()
    serve(state_of(closed(8, server__emit="before_draft")), policy, steps)
    assert policy.calls == {}
    assert not any(view.calls_trim for view, _, _ in steps.seen)


def test_adaptive_gains_where_passes_would_become_too_large_for_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def served() -> tuple[float, float]:
        """Tokens/s, and the share of passes without a graph."""
        steps = Steps()
        policy = AdaptiveConfig(version=1, policy="adaptive").build(None, seed=0)
        engine = serve(state_of(closed(16, **GRAPHS)), policy, steps)
        large = [outcome.tokens_batched > LARGEST_GRAPH for _, _, outcome in steps.seen]
        emitted = sum(int(outcome.emitted.sum()) for _, _, outcome in steps.seen)
        return emitted / engine.now, float(np.mean(large))

    rate, large = served()
    monkeypatch.setattr(AdaptivePolicy, "constants", AdaptivePolicy.constants._replace(trims=False))
    whole_rate, whole_large = served()
    assert large < 0.7 * whole_large
    assert rate > 1.02 * whole_rate


def test_the_oracle_counts_the_prompts_that_join_the_step_that_verifies() -> None:
    def rate(policy: FixedPlans | None) -> float:
        """Tokens/s; None: of the oracle."""
        steps, state = Steps(), state_of(closed(16, **GRAPHS))
        engine = serve(state, policy or OraclePolicy(state), steps)
        return sum(int(outcome.emitted.sum()) for _, _, outcome in steps.seen) / engine.now

    assert rate(None) > 1.1 * max(rate(FixedPlans(length)) for length in range(6))
