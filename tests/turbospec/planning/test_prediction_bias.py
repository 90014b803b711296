"""Predicted against measured tokens and step times, and how far little evidence counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.interface import StepPlan
from turbospec.planning.exact import StepCosts
from turbospec.planning.prediction_bias import PredictionBias
from turbospec.planning.problem import Batch, StepProblem

PREDICTED = 0.020


def step(
    bias: PredictionBias,
    *,
    requests: int = 32,
    drafting: bool = True,
    missing: int = 0,
    ratio: float = 1.0,
    prefill: int = 0,
) -> None:
    """A step of `PREDICTED` seconds and 2 accepted tokens per request as predicted; `missing` of these are rejected."""
    view = make_view(requests, prefill_tokens=prefill)
    lengths = np.full(requests, 3 * drafting)
    accepted = np.full(requests, 2 * drafting)
    accepted[:missing] -= 1
    plan = StepPlan(lengths, predicted_tokens=requests + 2.0 * requests * drafting, predicted_seconds=PREDICTED)
    bias.learn(
        plan, requests, requests, prefill > 0, make_outcome(view, lengths, accepted, step_seconds=ratio * PREDICTED)
    )


def alternate(bias: PredictionBias, rounds: int, *, drafting: float, no_draft: float, requests: int = 32) -> None:
    """Rounds of eight steps with drafts and one without; measured over predicted duration of each kind."""
    for _ in range(rounds):
        for _ in range(8):
            step(bias, ratio=drafting, requests=requests)
        step(bias, drafting=False, ratio=no_draft, requests=requests)


def test_exact_predictions_have_no_bias() -> None:
    bias = PredictionBias()
    alternate(bias, 20, drafting=1.0, no_draft=1.0)
    assert bias.token_shortfall(32, False) == 0.0
    assert bias.slow_down(32, False) == 0.0


def test_a_token_shortfall_is_learnt() -> None:
    bias = PredictionBias()
    for _ in range(200):
        step(bias, missing=4)
    assert bias.token_shortfall(32, False) == pytest.approx(4.0, rel=0.1)
    assert bias.token_shortfall(40, False) == pytest.approx(5.0, rel=0.1), "the same load bucket, more requests"


def test_the_slow_down_is_measured_against_neighbouring_steps() -> None:
    bias = PredictionBias()
    alternate(bias, 100, drafting=1.1, no_draft=1.0)
    assert bias.slow_down(32, False) == pytest.approx(0.1, rel=0.2)


def test_a_change_of_hardware_speed_is_no_slow_down_of_drafting() -> None:
    bias = PredictionBias()
    for ratio in (1.0, 1.3, 1.0):
        alternate(bias, 20, drafting=ratio, no_draft=ratio)
    assert bias.slow_down(32, False) == pytest.approx(0.0, abs=0.01)
    for _ in range(100):
        step(bias, ratio=1.3)
    assert bias.slow_down(32, False) == pytest.approx(0.0, abs=0.01), "no neighbouring step without drafts"


def test_little_evidence_counts_little() -> None:
    few, alone = PredictionBias(), PredictionBias()
    step(few, missing=4)
    assert few.token_shortfall(32, False) < 1.0
    for _ in range(20):
        step(alone, requests=1, missing=1)
    assert alone.token_shortfall(1, False) < 0.2
    alternate(few, 1, drafting=1.3, no_draft=1.0)
    assert few.slow_down(32, False) < 0.1


def test_loads_and_steps_with_prompts_are_kept_apart() -> None:
    bias = PredictionBias()
    for _ in range(100):
        step(bias, missing=4)
    assert bias.token_shortfall(8, False) == 0.0
    assert bias.token_shortfall(32, True) == 0.0


def test_the_bias_decays_while_nothing_is_drafted() -> None:
    bias = PredictionBias(memory=100.0)
    for _ in range(30):
        alternate(bias, 1, drafting=1.2, no_draft=1.0)
        step(bias, missing=4)
    shortfall, slow_down = bias.token_shortfall(32, False), bias.slow_down(32, False)
    for _ in range(300):
        step(bias, drafting=False)
    assert bias.token_shortfall(32, False) < 0.1 * shortfall
    assert bias.slow_down(32, False) < 0.1 * slow_down


def test_steps_that_reused_a_plan_are_neighbours_too() -> None:
    lengths, view = np.full(32, 3), make_view(32)
    slow_down: list[float] = []
    for reused in (1.0, 0.8):
        bias = PredictionBias()
        for _ in range(50):
            step(bias, drafting=False)
            drafting = make_outcome(view, lengths, lengths - 1, step_seconds=PREDICTED)
            stretch = replace(
                drafting, reused_plan_steps=4, reused_plan_tokens=4 * 32, reused_plan_seconds=4 * reused * PREDICTED
            )
            bias.learn(StepPlan(lengths, 96.0, PREDICTED), 32, 32, False, stretch)
        slow_down.append(bias.slow_down(32, False))
    assert slow_down[0] == pytest.approx(0.0, abs=1e-9)
    assert slow_down[1] > 0.01


def test_a_stall_is_not_learnt_from() -> None:
    bias = PredictionBias()
    alternate(bias, 20, drafting=1.0, no_draft=1.0)
    step(bias, ratio=50.0, missing=32)
    assert bias.token_shortfall(32, False) == 0.0
    assert bias.slow_down(32, False) == 0.0


def test_drafts_of_requests_that_have_ended_are_no_shortfall() -> None:
    bias, view = PredictionBias(), make_view(32)
    lengths, accepted = np.full(32, 3), np.array([2] * 24 + [0] * 8)
    outcome = make_outcome(view, lengths, accepted, step_seconds=PREDICTED)
    for _ in range(100):
        bias.learn(StepPlan(lengths, 32 + 64.0, PREDICTED), 32, 24, False, outcome)
    assert bias.token_shortfall(32, False) == 0.0


def problem(request_seconds: float = 0.0) -> StepProblem:
    """32 requests at a price of 1000 tokens/s; a step without drafts takes 10 ms."""
    view = make_view(32, max_draft=1)
    return StepProblem(
        batch=Batch.of(view, view.draft_limits),
        rows=np.arange(32),
        limits=view.draft_limits,
        conditional=np.full((32, 1), 0.5),
        costs=StepCosts(np.full(33, 0.010)),
        price=1000.0,
        decode_price=1000.0,
        catch_up_seconds=np.full(32, 4 * request_seconds),
        amortised_seconds=np.full(32, request_seconds),
    )


def pays(bias: PredictionBias, *, gain: float, seconds: float, request_seconds: float = 0.0) -> bool:
    """Whether a plan pays that gains so many tokens in a step of so many seconds."""
    plan = StepPlan(np.ones(32, np.int64), predicted_tokens=32 + gain, predicted_seconds=seconds)
    return bias.pays(plan, problem(request_seconds), prefilling=False)


def test_without_a_bias_a_plan_pays_if_its_gain_exceeds_the_price_of_its_time() -> None:
    assert pays(PredictionBias(), gain=2.01, seconds=0.012)
    assert not pays(PredictionBias(), gain=1.99, seconds=0.012)


def test_deferred_catch_up_is_not_charged_to_the_step() -> None:
    # Of 32 · 4 · 0.1 ms of catching up, 3.2 ms are charged: the rest, 9.6 ms, is deferred.
    assert pays(PredictionBias(), gain=5.21, seconds=0.012 + 0.0128, request_seconds=1e-4)
    assert not pays(PredictionBias(), gain=5.19, seconds=0.012 + 0.0128, request_seconds=1e-4)


def test_each_bias_raises_the_gain_that_a_plan_needs() -> None:
    short, slow = PredictionBias(), PredictionBias()
    for _ in range(200):
        step(short, missing=4)
    alternate(slow, 100, drafting=1.1, no_draft=1.0)
    for bias, needed in (
        (short, 2.0 + short.token_shortfall(32, False)),
        (slow, 2.0 + 12.0 * slow.slow_down(32, False)),
    ):
        assert needed > 2.5
        assert pays(bias, gain=needed + 0.01, seconds=0.012)
        assert not pays(bias, gain=needed - 0.01, seconds=0.012)
