"""Acceptance estimates: censoring, shrinkage, changes, decay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.models import acceptance
from turbospec.models.acceptance import MAX_ACCEPTANCE, AcceptanceModel

ZERO = np.zeros(1, np.int64)
NOT_DROPPED = np.full(1, np.nan)


def rows_of(model: AcceptanceModel, request: int) -> np.ndarray:
    return model.assign_rows(np.array([request]))[0]


def class_mean(model: AcceptanceModel, class_id: int = 0) -> np.ndarray:
    """a[j] of a new request of this class."""
    new = rows_of(model, 1_000_000 + class_id)
    return model.conditional(new, np.array([class_id]), np.array([model.max_draft]))[0]


def feed(model: AcceptanceModel, request: int, drafted: int, accepted: int, *, truncated: bool = False) -> None:
    rows = rows_of(model, request)
    model.observe(rows, ZERO, np.array([drafted]), np.array([accepted]), np.array([truncated]), NOT_DROPPED)


def survival(model: AcceptanceModel, request: int, depth: int) -> np.ndarray:
    conditional = model.conditional(rows_of(model, request), ZERO, np.array([depth]))
    return acceptance.survival(conditional)[0]


def test_positions_after_the_first_rejection_are_not_observed() -> None:
    model = AcceptanceModel(5)
    before = model.model.terms.offsets.copy()
    feed(model, 1, drafted=5, accepted=2)
    after = model.model.terms.offsets
    assert (after[0, :2] > 0.0).all()
    assert after[0, 2] < 0.0
    assert after[:, 3:].tolist() == before[:, 3:].tolist()


def test_a_truncated_acceptance_contains_no_rejection() -> None:
    cut, failed = AcceptanceModel(5), AcceptanceModel(5)
    feed(cut, 1, drafted=5, accepted=2, truncated=True)
    feed(failed, 1, drafted=5, accepted=2)
    assert cut.model.terms.offsets[0, 2] == 0.0, "position 3 was not observed"
    assert class_mean(cut)[2] > class_mean(failed)[2]


def test_a_dropped_token_counts_as_its_predicted_acceptance() -> None:
    rng = np.random.default_rng(2)
    model = AcceptanceModel(1, server_memory=4000.0)
    for step in range(5000):
        confidence = rng.choice([0.1, 0.9])
        kept = confidence > 0.5
        hit = rng.random() < confidence
        rows = rows_of(model, step)
        dropped = np.array([np.nan if kept else confidence])
        model.observe(rows, ZERO, np.array([int(kept)]), np.array([int(kept and hit)]), np.zeros(1, np.bool_), dropped)
    assert class_mean(model)[0] == pytest.approx(0.5, abs=0.05), "0.9 if dropped tokens were ignored"


def test_learns_the_acceptance_of_each_position() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([0.9, 0.5, 0.8, 0.3])
    model = AcceptanceModel(4, server_memory=4000.0)
    for step in range(6000):
        hits = rng.random(4) < truth
        feed(model, step, drafted=4, accepted=int(np.cumprod(hits).sum()))
    assert class_mean(model) == pytest.approx(truth, abs=0.12)


def test_a_new_request_starts_from_the_server_and_a_long_one_follows_its_own_text() -> None:
    model = AcceptanceModel(4)
    for step in range(200):
        feed(model, step, drafted=4, accepted=3)
    start = survival(model, 10_000, 4)
    assert start[0] > 0.9
    for _ in range(30):
        feed(model, 10_000, drafted=4, accepted=0)
    assert survival(model, 10_000, 4)[0] < 0.25
    assert survival(model, 10_001, 4)[0] > 0.7, "other requests must not be affected"


def test_requests_that_end_in_loops_do_not_make_new_ones_look_easy() -> None:
    rng = np.random.default_rng(5)
    model = AcceptanceModel(8)
    new: list[float] = []
    for request in range(60):
        new.append(class_mean(model)[0])
        emitted = 0
        while emitted < 100:
            accepted = min(int(rng.geometric(0.02 if emitted > 40 else 0.4)) - 1, 8)
            feed(model, request, drafted=8, accepted=accepted)
            emitted += accepted + 1
    # The true acceptance is 0.6 at the start of a request, and 0.98 over three quarters of the observations.
    assert np.mean(new[20:]) < 0.78


def test_survival_never_increases_and_is_0_past_the_limit() -> None:
    model = AcceptanceModel(6)
    for step in range(50):
        feed(model, step % 3, drafted=6, accepted=step % 7)
    row = survival(model, 1, 4)
    assert (np.diff(row) <= 0).all()
    assert row[4:].tolist() == [0.0, 0.0]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[np.ndarray, ...]]:
    """Steps of up to 4 requests: ids, classes, drafted, accepted, truncated, dropped acceptance, limits."""
    made: list[tuple[np.ndarray, ...]] = []
    for _ in range(draw(st.integers(1, 12))):
        ids = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
        n = len(ids)
        column = st.lists(st.integers(0, 5), min_size=n, max_size=n)
        drafted, limits = np.array(draw(column)), np.array(draw(column))
        accepted = np.minimum(np.array(draw(column)), drafted)
        truncated = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        chance = st.one_of(st.just(np.nan), st.floats(0.0, 1.0))
        dropped = np.array(draw(st.lists(chance, min_size=n, max_size=n)))
        classes = np.array(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n)))
        made.append((np.array(ids), classes, drafted, accepted, truncated, dropped, limits))
    return made


@settings(max_examples=150, deadline=None)
@given(steps(), st.integers(0, 400))
def test_predictions_are_probabilities_and_0_exactly_past_the_limits(
    made: list[tuple[np.ndarray, ...]], idle_steps: int
) -> None:
    model = AcceptanceModel(4)  # drafts of 5 are deeper than the model
    for ids, classes, drafted, accepted, truncated, dropped, limits in made:
        rows, _ = model.assign_rows(ids)
        conditional = model.conditional(rows, classes, limits)
        within = np.arange(4) < limits[:, None]
        assert ((conditional > 0.0) == within).all()
        assert (conditional <= MAX_ACCEPTANCE).all()
        products = np.cumprod(conditional, axis=1)
        assert acceptance.survival(conditional) == pytest.approx(products)
        before = model.evidence(rows)
        model.observe(rows, classes, drafted, accepted, truncated, dropped, idle_steps)
        after = model.evidence(rows)
        assert np.isfinite(after).all()
        nothing_seen = (drafted == 0) & np.isnan(dropped)
        assert (after[nothing_seen] <= before[nothing_seen]).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(1, 30))
def test_more_accepted_tokens_never_lower_the_prediction(drafted: int, accepted: int, rounds: int) -> None:
    accepted = min(accepted, drafted - 1)
    fewer, more = AcceptanceModel(4), AcceptanceModel(4)
    for _ in range(rounds):
        feed(fewer, 1, drafted, accepted)
        feed(more, 1, drafted, accepted + 1)
    assert survival(more, 1, 4)[accepted] > survival(fewer, 1, 4)[accepted]


def test_a_request_with_low_acceptance_returns_to_the_mean_while_it_does_not_draft() -> None:
    model = AcceptanceModel(2, idle_memory=100.0)
    for _ in range(20):
        feed(model, 7, drafted=2, accepted=0)
    lowest = survival(model, 7, 1)[0]
    for _ in range(500):
        feed(model, 7, drafted=0, accepted=0)
    assert survival(model, 7, 1)[0] > lowest
    assert survival(model, 7, 1)[0] == pytest.approx(class_mean(model)[0], abs=0.05)


def test_the_server_level_is_learnt_faster_after_idle_steps() -> None:
    at_once, later = AcceptanceModel(2), AcceptanceModel(2)
    for model, idle_steps in ((at_once, 0), (later, 200)):
        for request in range(100):
            feed(model, request, drafted=2, accepted=0)
        for request in range(100, 103):
            rows = rows_of(model, request)
            model.observe(rows, ZERO, ZERO + 2, ZERO + 2, ZERO > 0, NOT_DROPPED, idle_steps=idle_steps)
    assert class_mean(at_once)[0] < 0.3
    assert class_mean(later)[0] > 1.5 * class_mean(at_once)[0]


def test_evidence_decays_over_idle_steps_even_for_the_request_that_drafts_next() -> None:
    model = AcceptanceModel(2, idle_memory=100.0)
    for _ in range(60):
        feed(model, 7, drafted=2, accepted=0)
    rows = rows_of(model, 7)
    before = model.evidence(rows)[0]
    model.observe(rows, ZERO, ZERO + 1, ZERO, ZERO > 0, NOT_DROPPED, idle_steps=500)
    assert model.evidence(rows)[0] < 0.5 * before


def test_classes_are_kept_apart() -> None:
    model = AcceptanceModel(2)
    for request in range(200):
        rows, odd = rows_of(model, request), request % 2
        model.observe(rows, np.array([odd]), np.array([2]), np.array([2 * odd]), np.array([False]), NOT_DROPPED)
    assert class_mean(model, 1)[0] > 0.85
    assert class_mean(model)[0] < 0.2
