"""The arrays of `adaptive`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.turbospec.models.acceptance_model import views
from turbospec.interface import FloatArray
from turbospec.models.logistic import Terms
from turbospec.policy.adaptive.constants import Constants
from turbospec.policy.adaptive.state import (
    COLUMNS,
    OF_APPENDED,
    OF_DRAFTER,
    OF_LOOKUP,
    AdaptiveState,
    Shared,
    appended_terms,
    drafter_terms,
    lookup_terms,
)
from turbospec.runtime.kernels import compiled


@compiled
def first_prior_and_evidence(terms: Terms, row: int) -> tuple[float, float]:
    return terms.prior[0], terms.requests[row, 1]


@compiled
def seen_by_kernels(
    state: Sequence[Shared], requests: FloatArray, row: int
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float], int, float]:
    shared = state[0]
    return (
        first_prior_and_evidence(drafter_terms(shared, requests), row),
        first_prior_and_evidence(lookup_terms(shared, requests), row),
        first_prior_and_evidence(appended_terms(shared, requests), row),
        shared.constants.pause_steps,
        shared.constants.drift,
    )


def test_kernels_see_the_state_of_each_model() -> None:
    state = AdaptiveState(Constants(pause_steps=5, drift=0.25), None)
    state.start(4)
    row = int(state.rows(np.array([7]))[0][0])
    for number, (name, column) in enumerate(
        (("drafter", OF_DRAFTER), ("lookup", OF_LOOKUP), ("appended", OF_APPENDED))
    ):
        terms = views(state.shared[name], state.requests[:, column : column + 3])
        terms.prior[0], terms.requests[row, 1] = number, 10.0 + number
    seen = seen_by_kernels(state.shared, state.requests, row)
    assert seen == ((0.0, 10.0), (1.0, 11.0), (2.0, 12.0), 5, 0.25)


def test_new_requests_start_from_nothing_and_growing_keeps_the_others() -> None:
    state = AdaptiveState(Constants(), None)
    few = state.slots.capacity // 2
    old, new = state.rows(np.arange(few))
    assert new.tolist() == old.tolist()
    state.requests[:] = 1.0
    rows, new = state.rows(np.arange(3 * few))
    assert len(state.requests) == state.slots.capacity > 2 * few
    assert rows[:few].tolist() == old.tolist()
    assert (state.requests[old] == 1.0).all()
    assert sorted(new) == sorted(rows[few:])
    assert not state.requests[new].any()
    assert state.requests.shape[1] == COLUMNS


def test_starting_anew_keeps_costs_and_budget_and_forgets_acceptance() -> None:
    state, fresh = AdaptiveState(Constants(), None), AdaptiveState(Constants(), None)
    fresh.start(9)
    state.shared["server"]["budget"], before = 2.0, state.shared["cost"].copy()
    state.rows(np.arange(5))
    state.requests[:] = 1.0
    for name in ("drafter", "lookup", "appended"):
        state.shared[name]["level"] = state.shared[name]["offsets"] = 3.0
    state.start(9)
    assert state.shared["server"]["budget"] == 2.0
    assert state.shared["cost"] == before
    for name in ("drafter", "lookup", "appended"):
        assert state.shared[name] == fresh.shared[name]
    assert state.shared["drafter"]["features"] == state.max_draft == 9
    assert not state.requests.any()
