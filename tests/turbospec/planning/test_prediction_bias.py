"""What plans fall short of, and how much of it is believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.interface import StepPlan
from turbospec.planning.prediction_bias import PredictionBias

PROMISED = 0.020


def step(
    bias: PredictionBias,
    *,
    requests: int = 32,
    drafting: bool = True,
    missing: int = 0,
    ratio: float = 1.0,
    prefill: int = 0,
) -> None:
    """A step of which 2 accepted draft tokens a request and `PROMISED` seconds were promised."""
    view = make_view(requests, prefill_tokens=prefill)
    lengths = np.full(requests, 3 * drafting)
    accepted = np.full(requests, 2 * drafting)
    accepted[:missing] -= 1
    plan = StepPlan(lengths, predicted_tokens=requests + 2.0 * requests * drafting, predicted_seconds=PROMISED)
    bias.learn(
        plan, requests, requests, prefill > 0, make_outcome(view, lengths, accepted, step_seconds=ratio * PROMISED)
    )


def by_turns(bias: PredictionBias, rounds: int, *, drafting: float, plain: float, requests: int = 32) -> None:
    for _ in range(rounds):
        for _ in range(8):
            step(bias, ratio=drafting, requests=requests)
        step(bias, drafting=False, ratio=plain, requests=requests)


def test_promises_that_are_kept_cost_nothing() -> None:
    bias = PredictionBias()
    by_turns(bias, 20, drafting=1.0, plain=1.0)
    assert bias.token_shortfall(32, False) == 0.0
    assert bias.slow_down(32, False) == 0.0


def test_missing_tokens_are_expected_to_go_on_missing() -> None:
    bias = PredictionBias()
    for _ in range(200):
        step(bias, missing=4)
    assert bias.token_shortfall(32, False) == pytest.approx(4.0, rel=0.1)
    assert bias.token_shortfall(40, False) == pytest.approx(5.0, rel=0.1), "the same load, more requests"


def test_drafting_is_charged_for_what_it_takes_longer_than_its_neighbours() -> None:
    bias = PredictionBias()
    by_turns(bias, 100, drafting=1.1, plain=1.0)
    assert bias.slow_down(32, False) == pytest.approx(0.1, rel=0.2)


def test_a_machine_that_slows_down_or_recovers_does_so_for_both() -> None:
    bias = PredictionBias()
    for pace in (1.0, 1.3, 1.0):
        by_turns(bias, 20, drafting=pace, plain=pace)
    assert bias.slow_down(32, False) == pytest.approx(0.0, abs=0.01)
    for _ in range(100):
        step(bias, ratio=1.3)
    assert bias.slow_down(32, False) == pytest.approx(0.0, abs=0.01), "no neighbours to compare with"


def test_little_evidence_is_hardly_believed() -> None:
    few, alone = PredictionBias(), PredictionBias()
    step(few, missing=4)
    assert few.token_shortfall(32, False) < 1.0
    for _ in range(20):
        step(alone, requests=1, missing=1)
    assert alone.token_shortfall(1, False) < 0.2
    by_turns(few, 1, drafting=1.3, plain=1.0)
    assert few.slow_down(32, False) < 0.1


def test_loads_and_steps_with_prompts_are_kept_apart() -> None:
    bias = PredictionBias()
    for _ in range(100):
        step(bias, missing=4)
    assert bias.token_shortfall(8, False) == 0.0
    assert bias.token_shortfall(32, True) == 0.0


def test_what_is_held_against_drafting_is_forgiven_while_nothing_is_drafted() -> None:
    bias = PredictionBias(memory=100.0)
    for _ in range(30):
        by_turns(bias, 1, drafting=1.2, plain=1.0)
        step(bias, missing=4)
    missing, slowness = bias.token_shortfall(32, False), bias.slow_down(32, False)
    for _ in range(300):
        step(bias, drafting=False)
    assert bias.token_shortfall(32, False) < 0.1 * missing
    assert bias.slow_down(32, False) < 0.1 * slowness


def test_drafting_is_compared_with_steps_on_an_old_plan_too() -> None:
    lengths, view = np.full(32, 3), make_view(32)
    slowness: list[float] = []
    for idle in (1.0, 0.8):
        bias = PredictionBias()
        for _ in range(50):
            step(bias, drafting=False)
            drafting = make_outcome(view, lengths, lengths - 1, step_seconds=PROMISED)
            stretch = replace(
                drafting, reused_plan_steps=4, reused_plan_tokens=4 * 32, reused_plan_seconds=4 * idle * PROMISED
            )
            bias.learn(StepPlan(lengths, 96.0, PROMISED), 32, 32, False, stretch)
        slowness.append(bias.slow_down(32, False))
    assert slowness[0] == pytest.approx(0.0, abs=1e-9)
    assert slowness[1] > 0.01


def test_a_stall_is_no_lesson() -> None:
    bias = PredictionBias()
    by_turns(bias, 20, drafting=1.0, plain=1.0)
    step(bias, ratio=50.0, missing=32)
    assert bias.token_shortfall(32, False) == 0.0
    assert bias.slow_down(32, False) == 0.0


def test_drafts_of_requests_that_have_ended_are_not_missed() -> None:
    bias, view = PredictionBias(), make_view(32)
    lengths, accepted = np.full(32, 3), np.array([2] * 24 + [0] * 8)
    outcome = make_outcome(view, lengths, accepted, step_seconds=PROMISED)
    for _ in range(100):
        bias.learn(StepPlan(lengths, 32 + 64.0, PROMISED), 32, 24, False, outcome)
    assert bias.token_shortfall(32, False) == 0.0


def test_newcomers_prompts_are_a_cost_of_drafting_on_average_and_are_forgiven_while_nothing_is_drafted() -> None:
    bias = PredictionBias(memory=100.0)
    bias.learn_drafter_prefill(32, False, 3e-3)
    assert bias.drafter_prefill_seconds(32, False) < 0.5e-3, "they come in bursts"
    for step_number in range(600):
        bias.learn_drafter_prefill(32, False, 3e-3 if step_number % 3 == 0 else 0.0)
    assert bias.drafter_prefill_seconds(32, False) == pytest.approx(0.91e-3, rel=0.05)
    assert bias.drafter_prefill_seconds(8, False) == 0.0
    for _ in range(300):
        step(bias, drafting=False)
    assert bias.drafter_prefill_seconds(32, False) < 0.1e-3
