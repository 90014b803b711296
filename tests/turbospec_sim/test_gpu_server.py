"""`adaptive` on a server with a GPU's costs: steps of 15 ms and more, CUDA graphs, up to 1,024 requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import closed, state_of
from turbospec.controller import GuardConfig
from turbospec.interface import Policy, StepOutcome, StepPlan, StepView
from turbospec.policy import load_policy
from turbospec.policy.static import StaticPolicy
from turbospec_sim.run import serve
from turbospec_sim.scenario import Scenario

LATENCY: dict[str, Any] = {
    "source": "coefficients",
    "verify_floor_seconds": 0.012,
    "verify_token_seconds": 3e-5,
    "verify_combined": "max",
    "host_seconds": 2e-3,
    "host_request_seconds": 2e-6,
    "kv_token_seconds": 5e-9,
    "attention_pair_seconds": 1e-9,
    "draft_start_seconds": 3e-4,
    "draft_pass_seconds": 8e-4,
    "draft_row_seconds": 2e-6,
    "catch_up_token_seconds": 2e-6,
    "noise": 0.02,
    "graph_sizes": [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)],
    "graph_lengths": [0, 1, 2, 3, 5, 8, 15],
    "piecewise_seconds": 2e-3,
}
GOOD = [0.85, 0.8, 0.78, 0.75, 0.7] + [0.6] * 10
MIDDLING = [0.75, 0.65, 0.55, 0.5, 0.45] + [0.35] * 10


def server(requests_at_once: int, acceptance: dict[str, Any], requests: int, **changes: Any) -> Scenario:
    lengths = {"distribution": "lognormal", "mean": 250, "sigma": 0.5, "low": 20, "high": 1500}
    return closed(
        requests_at_once,
        server={
            "kv_cache_tokens": 4_000_000,
            "max_num_seqs": requests_at_once,
            "max_num_batched_tokens": 16384,
            "emit": "after_draft",
        },
        drafter={"max_draft": 15, "batch": True},
        latency=LATENCY,
        workload__requests=requests,
        chat__acceptance=acceptance,
        **({"chat__prompt_tokens": lengths, "chat__output_tokens": lengths} | changes),
    )


def tokens_per_second(made: Scenario, policy: Policy) -> float:
    figures, faults = serve(state_of(made, seed=1), policy, GuardConfig())
    assert faults == 0
    return figures["output_throughput"]


@pytest.mark.parametrize("requests_at_once", [64, 256, 1024])
@pytest.mark.parametrize("rates", [GOOD, MIDDLING, [0.2] * 15], ids=["good", "middling", "bad"])
def test_adaptive_is_as_good_as_the_best_fixed_length(requests_at_once: int, rates: list[float]) -> None:
    made = server(requests_at_once, {"process": "by_position", "rates": rates}, 6 * requests_at_once)
    best = max(tokens_per_second(made, StaticPolicy(length)) for length in (0, 1, 2, 3, 5, 8))
    assert tokens_per_second(made, load_policy("adaptive")) >= 0.98 * best


class TokensAndSeconds:
    """Of every step: when it began, its duration, and the tokens that it emitted."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, int]] = []

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.steps.append((view.now, outcome.step_seconds, int(outcome.emitted.sum())))

    def rate(self, first: int, last: int) -> float:
        _, seconds, tokens = np.array(self.steps[first:last]).T
        return tokens.sum() / seconds.sum()


@pytest.mark.parametrize("requests_at_once", [8, 64])
def test_drafting_comes_back_within_200_steps_after_10_000_without(requests_at_once: int) -> None:
    bad_seconds = 170.0
    drift = {"process": "drift", "before": [0.0] * 15, "after": GOOD}
    drift |= {"begin_seconds": bad_seconds, "end_seconds": bad_seconds}
    runs: list[TokensAndSeconds] = []
    for acceptance, requests in ((drift, 320), ({"process": "by_position", "rates": GOOD}, 60)):
        made = server(
            requests_at_once,
            acceptance,
            requests * requests_at_once,
            chat__prompt_tokens={"distribution": "constant", "tokens": 50},
            chat__output_tokens={"distribution": "uniform", "low": 40, "high": 80},
        )
        runs.append(TokensAndSeconds())
        serve(state_of(made), load_policy("adaptive"), GuardConfig(), [runs[-1]])
    spell, fresh = runs
    back = sum(began < bad_seconds for began, _, _ in spell.steps)
    assert back > 10_000
    assert len(spell.steps) > back + 700
    assert spell.rate(200 + back, 700 + back) >= 0.97 * fresh.rate(200, 700)
