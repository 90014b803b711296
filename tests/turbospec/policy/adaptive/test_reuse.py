"""How long plans may be reused."""

from __future__ import annotations

import math

import pytest

from turbospec.policy.adaptive.reuse import steps_of_a_plan, steps_without_drafts


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.030, 1), (0.015, 2), (0.010, 3), (0.001, 4), (0.0, 1), (math.nan, 1)]
)
def test_plans_of_short_steps_are_reused(seconds: float, steps: int) -> None:
    assert steps_of_a_plan(seconds) == steps


@pytest.mark.parametrize(
    ("seconds", "in_a_row", "steps"), [(0.005, 0, 10), (0.005, 2, 40), (0.020, 1, 5), (0.020, 99, 40)]
)
def test_an_engine_runs_more_steps_by_itself_the_longer_nothing_was_drafted(
    seconds: float, in_a_row: int, steps: int
) -> None:
    assert steps_without_drafts(seconds, in_a_row) == steps


@pytest.mark.parametrize(("seconds", "steps"), [(1e-6, 64), (0.0, 1), (math.nan, 1)])
def test_an_engine_asks_again_after_a_bounded_number_of_steps(seconds: float, steps: int) -> None:
    assert steps_without_drafts(seconds) == steps
