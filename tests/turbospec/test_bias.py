"""What plans fall short of, and how much of it is believed."""

from __future__ import annotations

import pytest

from turbospec.bias import PlanBias


def drafting(bias: PlanBias, steps: int, *, requests: int = 32, missing: float = 0.0, seconds: float = 0.020) -> None:
    for _ in range(steps):
        bias.learn_drafting(requests, False, missing_tokens=missing, promised=0.020, seconds=seconds, price=1000.0)


def test_promises_that_are_kept_cost_nothing() -> None:
    bias = PlanBias()
    drafting(bias, 100)
    assert bias.shortfall(32, False) == 0.0


def test_missing_tokens_are_expected_to_go_on_missing() -> None:
    bias = PlanBias()
    drafting(bias, 200, missing=4.0)
    assert bias.shortfall(32, False) == pytest.approx(4.0, rel=0.1)
    assert bias.shortfall(40, False) == pytest.approx(5.0, rel=0.1), "the same load, more requests"


def test_more_time_counts_for_what_it_is_worth_and_for_the_tokens_that_it_brought() -> None:
    bias = PlanBias()
    drafting(bias, 200, seconds=0.023)
    assert bias.shortfall(32, False) == pytest.approx(3.0, rel=0.1)
    drafting(bias, 2000, seconds=0.023, missing=-3.0)
    assert bias.shortfall(32, False) == pytest.approx(0.0, abs=0.1)


def test_little_evidence_is_hardly_believed() -> None:
    few, alone = PlanBias(), PlanBias()
    drafting(few, 1, missing=4.0)
    assert few.shortfall(32, False) < 1.0
    drafting(alone, 20, requests=1, missing=1.0)
    assert alone.shortfall(1, False) < 0.2


def test_loads_and_steps_with_prompts_are_kept_apart() -> None:
    bias = PlanBias()
    drafting(bias, 100, missing=4.0)
    assert bias.shortfall(8, False) == 0.0
    assert bias.shortfall(32, True) == 0.0


def test_a_shortfall_is_forgotten_while_nothing_is_drafted() -> None:
    bias = PlanBias(memory=100.0)
    drafting(bias, 100, missing=4.0)
    before = bias.shortfall(32, False)
    for _ in range(500):
        bias.learn_plain(32, False, promised=0.010, seconds=0.010)
    assert bias.shortfall(32, False) < 0.3 * before


def test_plain_steps_that_take_longer_are_expected_to_go_on_so() -> None:
    bias = PlanBias()
    for _ in range(100):
        bias.learn_plain(32, False, promised=0.010, seconds=0.012)
    assert bias.plain_seconds(32, False, 0.010) == pytest.approx(0.012, rel=0.02)


def test_a_stall_is_no_lesson() -> None:
    bias = PlanBias()
    drafting(bias, 200)
    drafting(bias, 1, seconds=2.0)
    assert bias.shortfall(32, False) < 0.2
