"""Probing: within budget, rarer while it fails, on the request that teaches most."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.probing import ProbeBudget

ALL = np.ones(2, np.bool_)


def run(budget: ProbeBudget, steps: int, *, accepted: int, evidence: float = 5.0, expected: float = 0.5) -> int:
    probes = 0
    for _ in range(steps):
        if budget.choose(ALL, np.full(2, 2e-3), np.full(2, evidence)) is not None:
            probes += 1
            budget.spend(2e-3)
            budget.learn(np.array([1, 0]), np.array([accepted, 0]), expected)
        budget.earn(0.01)
    return probes


@pytest.mark.parametrize("accepted", [0, 1])
def test_stays_within_its_share(accepted: int) -> None:
    budget = ProbeBudget(0.01)
    assert run(budget, 5000, accepted=accepted) > 0
    assert budget.spent_share <= 0.01


def test_failing_probes_grow_rare_and_success_brings_them_back() -> None:
    failing, succeeding = ProbeBudget(0.01), ProbeBudget(0.01)
    assert run(failing, 5000, accepted=0) * 4 < run(succeeding, 5000, accepted=1)


def test_an_unexpected_success_is_followed_up_at_once() -> None:
    budget = ProbeBudget(0.01)
    assert run(budget, 60, accepted=1, expected=0.03) > 30
    assert run(ProbeBudget(0.01), 60, accepted=1, expected=0.5) < 10


def test_no_share_no_probes() -> None:
    assert run(ProbeBudget(0.0), 1000, accepted=1) == 0


def test_prefers_the_request_of_which_least_is_known() -> None:
    budget = ProbeBudget(0.01)
    budget.earn(10.0)
    assert budget.choose(ALL, np.full(2, 1e-3), np.array([30.0, 0.0])) == 1


def test_prefers_the_cheaper_of_equals() -> None:
    budget = ProbeBudget(0.01)
    budget.earn(10.0)
    assert budget.choose(ALL, np.array([1e-3, 5e-3]), np.zeros(2)) == 0


def test_only_eligible_rows_are_probed() -> None:
    budget = ProbeBudget(0.01)
    budget.earn(10.0)
    assert budget.choose(np.array([False, True]), np.full(2, 1e-3), np.zeros(2)) == 1
    assert budget.choose(np.zeros(2, np.bool_), np.full(2, 1e-3), np.zeros(2)) is None
