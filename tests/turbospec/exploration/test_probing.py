"""Probing: within budget, rarer while it fails, on the request that teaches most."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.exploration.no_draft_steps import NoDraftSteps
from turbospec.exploration.probing import ProbeBudget

ALL = np.ones(2, np.bool_)


NOTHING = np.zeros(2)
PRICE = 250.0


def run(budget: ProbeBudget, steps: int, *, accepted: int, evidence: float = 5.0, expected: float = 0.5) -> int:
    """Probes among steps of 10 ms; each takes 5 ms and wins nothing back."""
    probes = 0
    for _ in range(steps):
        rows = budget.choose(ALL, 2e-3, np.full(2, 3e-3), NOTHING, PRICE, np.full(2, evidence))
        if rows is not None:
            assert len(rows) == 1
            probes += 1
            budget.spend(5e-3)
            budget.learn(accepted, np.array([expected]))
        budget.earn(0.01)
    return probes


@pytest.mark.parametrize("accepted", [0, 1])
def test_stays_within_its_share(accepted: int) -> None:
    budget = ProbeBudget(0.01)
    assert 0 < run(budget, 5000, accepted=accepted) * 5e-3 <= 0.01 * 5000 * 0.01


@pytest.mark.parametrize(("accepted", "expected"), [(0, 0.05), (1, 0.95)])
def test_probes_that_bring_nothing_new_grow_rare(accepted: int, expected: float) -> None:
    rare, often = ProbeBudget(0.01), ProbeBudget(0.01, max_backoff=1.0)
    assert run(rare, 5000, accepted=accepted, expected=expected) * 4 < run(
        often, 5000, accepted=accepted, expected=expected
    )


def test_a_request_never_drafted_for_is_asked_sooner_unless_it_is_known_what_it_would_say() -> None:
    budget = ProbeBudget(0.01)
    for _ in range(3):
        budget.learn(0, np.array([0.05]))
    strangers = np.zeros(2)
    budget.earn(0.6)  # enough for one probe without back-off
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), np.full(2, 0.1), PRICE, strangers) is None
    budget.earn(1.0)  # enough for one with the root of the back-off, which is 8
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), NOTHING, PRICE, np.ones(2)) is None
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), np.full(2, 0.6), PRICE, strangers) is None
    assert budget.choose(ALL, 2e-3, np.full(2, 3e-3), np.full(2, 0.1), PRICE, strangers) is not None


def test_a_probe_of_old_costs_waits_only_until_those_before_it_are_paid_for() -> None:
    budget = ProbeBudget(0.01)

    def is_due(*, costs_outdated: bool) -> bool:
        dear = np.full(2, 0.3)
        return budget.choose(ALL, 0.1, dear, NOTHING, PRICE, np.ones(2), costs_outdated=costs_outdated) is not None

    assert is_due(costs_outdated=True)
    assert not is_due(costs_outdated=False)
    budget.spend(5e-3)
    assert not is_due(costs_outdated=True)
    budget.earn(0.51)
    assert is_due(costs_outdated=True)


def test_an_unexpected_success_is_followed_up_at_once() -> None:
    assert run(rich(), 60, accepted=1, expected=0.03) == 60
    assert run(rich(), 60, accepted=1, expected=0.5) < 10


def test_a_batch_in_which_some_are_always_accepted_is_no_surprise() -> None:
    budget = ProbeBudget(0.01)
    budget.earn(1.0)
    eligible, nothing = np.ones(32, np.bool_), np.zeros(32)
    probes = 0
    for _ in range(100):
        rows = budget.choose(eligible, 2e-3, nothing, nothing, PRICE, np.ones(32))
        if rows is not None:
            probes += 1
            budget.spend(2e-3)
            budget.learn(3, np.full(len(rows), 0.1))
    assert probes == 1


def test_no_share_no_probes() -> None:
    assert run(ProbeBudget(0.0), 1000, accepted=1) == 0


def rich() -> ProbeBudget:
    budget = ProbeBudget(0.01)
    budget.earn(10.0)
    return budget


def choice(
    seconds: list[float], evidence: list[float], eligible: object = ALL, shared: float = 0.0
) -> list[int] | None:
    rows = rich().choose(np.asarray(eligible), shared, np.array(seconds), NOTHING, PRICE, np.array(evidence))
    return None if rows is None else rows.tolist()


def test_prefers_the_request_of_which_least_is_known() -> None:
    assert choice([1e-3, 2e-3], [30.0, 0.0]) == [1]


def test_prefers_the_cheaper_of_equals() -> None:
    assert choice([1e-3, 5e-3], [0.0, 0.0]) == [0]


def test_probes_all_where_they_share_the_cost() -> None:
    assert choice([1e-4, 1e-4], [0.0, 0.0], shared=2e-3) == [0, 1]


def test_takes_along_as_many_as_add_little() -> None:
    everyone, dear = np.ones(4, np.bool_), np.array([1e-4, 1e-4, 1e-4, 1e-3])
    rows = rich().choose(everyone, 2e-3, dear, np.zeros(4), PRICE, np.zeros(4))
    assert rows is not None
    assert rows.tolist() == [0, 1, 2]


def test_a_failure_among_surprises_does_not_end_the_follow_ups() -> None:
    budget = rich()
    for accepted, followed_up in ((1, True), (1, True), (0, True), (0, True), (0, False)):
        budget.spend(1.0)
        budget.learn(accepted, np.array([0.05]))
        assert (budget.choose(ALL, 2e-3, np.full(2, 3e-3), NOTHING, PRICE, np.ones(2)) is not None) == followed_up


def test_only_eligible_rows_are_probed() -> None:
    assert choice([1e-3, 1e-3], [0.0, 0.0], [False, True]) == [1]
    assert choice([1e-3, 1e-3], [0.0, 0.0], [False, False]) is None


def test_where_drafting_nearly_pays_probes_are_cheap() -> None:
    budget = ProbeBudget(0.01)
    budget.earn(0.025)
    alone, seconds = np.ones(1, np.bool_), np.full(1, 2e-3)
    assert budget.choose(alone, 0.0, seconds, np.zeros(1), PRICE, np.ones(1)) is None
    assert budget.choose(alone, 0.0, seconds, np.full(1, 0.45), PRICE, np.ones(1)) is not None


def plain_steps(worth: float, steps: int = 2000, share: float = 0.01, requests: int = 8) -> list[int]:
    """Numbers of the plain steps among steps of 10 ms whose drafts are worth so many seconds."""
    plain = NoDraftSteps(share)
    run: list[int] = []
    for step in range(steps):
        if plain.is_due(requests, step, worth):
            run.append(step)
            plain.learn(requests, step)
        plain.earn(0.01)
    return run


def test_plain_steps_grow_rare() -> None:
    run = plain_steps(worth=0.0)
    assert np.diff(run[:6]).tolist() == [8, 16, 32, 64, 128]
    assert set(np.diff(run[6:])) == {128}


def test_plain_steps_stay_within_their_share() -> None:
    worth = 0.005
    assert 0 < len(plain_steps(worth, share=0.001)) * worth <= 0.001 * 2000 * 0.01
    assert plain_steps(worth, share=0.0) == []


def test_each_load_has_plain_steps_of_its_own() -> None:
    plain = NoDraftSteps(0.01)
    plain.earn(1.0)
    plain.learn(8, step=0)
    assert not plain.is_due(8, 3, 0.0)
    assert not plain.is_due(32, 3, 0.0)
    assert plain.is_due(32, 3 + NoDraftSteps.FIRST_INTERVAL, 0.0)
    assert plain.is_due(9, NoDraftSteps.FIRST_INTERVAL, 0.0), "9 is the same load as 8"


def test_a_plain_step_whose_outcome_is_still_to_come_is_not_run_again() -> None:
    plain = NoDraftSteps(0.01)
    plain.earn(1.0)
    due = [plain.is_due(8, step, 0.0) for step in range(2 * NoDraftSteps.FIRST_INTERVAL)]
    assert due.index(True) == NoDraftSteps.FIRST_INTERVAL
    assert sum(due) == 1


def test_plain_steps_that_teach_nothing_grow_rare_too() -> None:
    """As on a busy server, where prompts join nearly every step after it was planned."""
    plain = NoDraftSteps(0.01)
    asked: list[int] = []
    for step in range(2000):
        plain.earn(0.01)
        if plain.is_due(200, step, 0.0):
            asked.append(step)
    assert np.diff(asked)[-5:].tolist() == [128] * 5
