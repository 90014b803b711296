"""Comparison steps: at growing intervals, by load, within their share of step time."""

from __future__ import annotations

import numpy as np

from turbospec.exploration.comparison_steps import ComparisonSteps


def comparison_steps(loss_seconds: float, steps: int = 2000, share: float = 0.01, requests: int = 8) -> list[int]:
    """Numbers of the comparison steps among steps of 10 ms, each of which would lose so many seconds."""
    schedule = ComparisonSteps(share)
    run: list[int] = []
    for step in range(steps):
        if schedule.is_due(requests, step, loss_seconds):
            run.append(step)
            schedule.learn(requests, step)
        schedule.earn(0.01)
    return run


def test_intervals_double_up_to_a_bound() -> None:
    run = comparison_steps(loss_seconds=0.0)
    assert np.diff(run[:6]).tolist() == [8, 16, 32, 64, 128]
    assert set(np.diff(run[6:])) == {128}


def test_comparison_steps_stay_within_their_share() -> None:
    loss_seconds = 0.005
    assert 0 < len(comparison_steps(loss_seconds, share=0.001)) * loss_seconds <= 0.001 * 2000 * 0.01
    assert comparison_steps(loss_seconds, share=0.0) == []


def test_each_load_has_its_own_schedule() -> None:
    schedule = ComparisonSteps(0.01)
    schedule.earn(1.0)
    schedule.learn(8, step=0)
    assert not schedule.is_due(8, 3, 0.0)
    assert not schedule.is_due(32, 3, 0.0)
    assert schedule.is_due(32, 3 + ComparisonSteps.FIRST_INTERVAL, 0.0)
    assert schedule.is_due(9, ComparisonSteps.FIRST_INTERVAL, 0.0), "9 requests are in the same load bucket as 8"


def test_a_comparison_step_in_flight_is_not_repeated() -> None:
    schedule = ComparisonSteps(0.01)
    schedule.earn(1.0)
    due = [schedule.is_due(8, step, 0.0) for step in range(2 * ComparisonSteps.FIRST_INTERVAL)]
    assert due.index(True) == ComparisonSteps.FIRST_INTERVAL
    assert sum(due) == 1


def test_steps_without_a_usable_outcome_become_rare_too() -> None:
    """As on a busy server, where requests are admitted to nearly every step after it was planned."""
    schedule = ComparisonSteps(0.01)
    asked: list[int] = []
    for step in range(2000):
        schedule.earn(0.01)
        if schedule.is_due(200, step, 0.0):
            asked.append(step)
    assert np.diff(asked)[-5:].tolist() == [128] * 5


def test_steps_whose_numbers_go_back_are_compared_again() -> None:
    steps = ComparisonSteps(0.5)
    steps.earn(1000.0)
    steps.is_due(4, 10**15, 0.0)
    assert any(steps.is_due(4, step, 0.0) for step in range(2 * ComparisonSteps.MAX_INTERVAL))
