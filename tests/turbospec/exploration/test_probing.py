"""Probes: within their budget, rarer after the first ones, on the request with the most information."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.exploration.probing import ProbeBudget, probe_loss_seconds

ALL = np.ones(2, np.bool_)


NOTHING = np.zeros(2)
PRICE = 250.0


def run(budget: ProbeBudget, steps: int) -> int:
    """Number of probes among steps of 10 ms; each takes 5 ms and gains nothing."""
    probes = 0
    for _ in range(steps):
        rows = budget.choose(ALL, 2e-3, np.full(2, 3e-3), NOTHING, PRICE, np.full(2, 5.0))
        if rows is not None:
            assert len(rows) == 1
            probes += 1
            budget.spend(5e-3)
            budget.back_off()
        budget.earn(0.01)
    return probes


def test_stays_within_its_share() -> None:
    budget = ProbeBudget(0.01)
    assert 0 < run(budget, 5000) * 5e-3 <= 0.01 * 5000 * 0.01


def test_probes_become_rare() -> None:
    rare, often = ProbeBudget(0.01), ProbeBudget(0.01, max_backoff=1.0)
    assert run(rare, 5000) * 4 < run(often, 5000)


def test_a_request_that_never_drafted_is_probed_sooner_unless_its_predicted_acceptance_is_high() -> None:
    budget = ProbeBudget(0.01)
    for _ in range(3):
        budget.back_off()
    new = np.zeros(2)
    budget.earn(0.6)  # enough for one probe without back-off
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), np.full(2, 0.1), PRICE, new) is None
    budget.earn(1.0)  # enough for one with the root of the back-off, which is 8
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), NOTHING, PRICE, np.ones(2)) is None
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), np.full(2, 0.6), PRICE, new) is None
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), np.full(2, 0.1), PRICE, new) is not None


def test_with_outdated_costs_a_probe_is_due_once_earlier_ones_are_paid_for() -> None:
    budget = ProbeBudget(0.01)

    def is_due(*, costs_outdated: bool) -> bool:
        expensive = np.full(2, 0.3)
        return budget.choose(ALL, 0.1, expensive, NOTHING, PRICE, np.ones(2), costs_outdated=costs_outdated) is not None

    assert is_due(costs_outdated=True)
    assert not is_due(costs_outdated=False)
    budget.spend(5e-3)
    assert not is_due(costs_outdated=True)
    budget.earn(0.51)
    assert is_due(costs_outdated=True)


def test_without_a_share_there_are_no_probes() -> None:
    assert run(ProbeBudget(0.0), 1000) == 0


def rich() -> ProbeBudget:
    budget = ProbeBudget(0.01)
    budget.earn(10.0)
    return budget


def choice(
    seconds: list[float], evidence: list[float], eligible: object = ALL, shared: float = 0.0
) -> list[int] | None:
    rows = rich().choose(np.asarray(eligible), shared, np.array(seconds), NOTHING, PRICE, np.array(evidence))
    return None if rows is None else rows.tolist()


def test_prefers_the_request_with_the_least_evidence() -> None:
    assert choice([1e-3, 2e-3], [30.0, 0.0]) == [1]


def test_prefers_the_cheaper_of_two_equal_requests() -> None:
    assert choice([1e-3, 5e-3], [0.0, 0.0]) == [0]


def test_probes_all_requests_that_share_the_cost() -> None:
    assert choice([1e-4, 1e-4], [0.0, 0.0], shared=2e-3) == [0, 1]


def test_more_rows_join_while_they_add_little_loss() -> None:
    everyone, seconds = np.ones(4, np.bool_), np.array([1e-4, 1e-4, 1e-4, 1e-3])
    rows = rich().choose(everyone, 2e-3, seconds, np.zeros(4), PRICE, np.zeros(4))
    assert rows is not None
    assert rows.tolist() == [0, 1, 2]


def test_only_eligible_rows_are_probed() -> None:
    assert choice([1e-3, 1e-3], [0.0, 0.0], [False, True]) == [1]
    assert choice([1e-3, 1e-3], [0.0, 0.0], [False, False]) is None


def test_where_drafting_nearly_pays_probes_are_cheap() -> None:
    budget = ProbeBudget(0.01)
    budget.earn(0.025)
    alone, seconds = np.ones(1, np.bool_), np.full(1, 2e-3)
    assert budget.choose(alone, 0.0, seconds, np.zeros(1), PRICE, np.ones(1)) is None
    assert budget.choose(alone, 0.0, seconds, np.full(1, 0.45), PRICE, np.ones(1)) is not None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.2))
def test_the_predicted_loss_never_exceeds_the_share(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    budget = ProbeBudget(share)
    lost = earned = 0.0
    for _ in range(400):
        n = int(rng.integers(1, 5))
        eligible, acceptance = rng.random(n) < 0.7, rng.uniform(0.0, 0.9, n)
        shared, row_seconds, price = rng.uniform(1e-3, 1e-2), rng.uniform(0.0, 1e-2, n), rng.uniform(50.0, 2000.0)
        evidence = rng.exponential(3.0, n) * (rng.random(n) < 0.7)
        rows = budget.choose(eligible, shared, row_seconds, acceptance, price, evidence)
        if rows is not None:
            assert eligible[rows].all()
            assert (np.diff(rows) > 0).all()
            seconds = shared + row_seconds[rows].sum()
            loss = probe_loss_seconds(seconds, acceptance[rows].sum() / price)
            assert loss <= 1.3 * max(
                probe_loss_seconds(shared + row_seconds[row], acceptance[row] / price) for row in rows
            )
            budget.spend(loss)
            lost += loss
            budget.back_off()
        budget.earn(0.01)
        earned += share * 0.01
    # A probe of several rows may lose 1.3 times what the best row alone, which the credit covers, would.
    assert lost <= 1.3 * earned + 1e-12


@pytest.mark.parametrize(("seconds", "gain_seconds", "loss"), [(0.01, 0.004, 0.006), (0.01, 0.02, 0.001)])
def test_a_probe_loses_at_least_a_tenth_of_its_time(seconds: float, gain_seconds: float, loss: float) -> None:
    assert probe_loss_seconds(seconds, gain_seconds) == pytest.approx(loss)
