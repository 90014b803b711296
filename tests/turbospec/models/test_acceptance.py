"""Acceptance estimates: censoring, shrinkage, changes, decay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.models.acceptance_model import AcceptanceModel, views
from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.acceptance import (
    LEVELS,
    NO_CONFIDENCE,
    ONE_BUCKET,
    Memory,
    VerifiedDrafts,
    fill_survival,
    forget_gradually,
    initial_lookup_acceptance,
    observe,
    score_buckets,
)
from turbospec.models.logistic import REQUEST_COLUMNS

ZERO = np.zeros(1, np.int64)


def rows_of(model: AcceptanceModel, request: int) -> IntArray:
    return model.rows(np.array([request]))


def survivals(
    model: AcceptanceModel, rows: IntArray, classes: IntArray, limits: IntArray, deviations: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """(n, K) S[i,j] and (n,) a[i,1]."""
    survival, first = np.full((len(rows), model.max_draft), np.nan), np.full(len(rows), np.nan)
    fill_survival(model.terms, rows, classes, ONE_BUCKET, limits, deviations, first, survival)
    return survival, first


def survival(model: AcceptanceModel, request: int, depth: int, class_id: int = 0) -> FloatArray:
    """(K,) S[j] of a request."""
    return survivals(model, rows_of(model, request), np.array([class_id]), np.array([depth]))[0][0]


def class_mean(model: AcceptanceModel, class_id: int = 0) -> FloatArray:
    """a[j] of a new request of this class."""
    products = survival(model, 1_000_000 + class_id, model.max_draft, class_id)
    return products / np.r_[1.0, products[:-1]]


def learn(
    model: AcceptanceModel,
    rows: IntArray,
    classes: IntArray,
    drafted: IntArray,
    accepted: IntArray,
    truncated: BoolArray,
    confidence: FloatArray = NO_CONFIDENCE,
) -> None:
    observe(
        model.terms,
        VerifiedDrafts(rows, classes, ONE_BUCKET, drafted, accepted, truncated, confidence),
        model.memory,
    )


def feed(model: AcceptanceModel, request: int, drafted: int, accepted: int, *, truncated: bool = False) -> None:
    rows = rows_of(model, request)
    learn(model, rows, ZERO, np.array([drafted]), np.array([accepted]), np.array([truncated]))


def evidence(model: AcceptanceModel, rows: IntArray) -> FloatArray:
    """(n,) precision of what is known about each request."""
    return model.terms.requests[rows, 1].copy()


def test_positions_after_the_first_rejection_are_not_observed() -> None:
    model = AcceptanceModel(5)
    before = model.terms.offsets.copy()
    feed(model, 1, drafted=5, accepted=2)
    after = model.terms.offsets
    assert (after[0, :2] > 0.0).all()
    assert after[0, 2] < 0.0
    assert after[:, 3:].tolist() == before[:, 3:].tolist()


def test_a_truncated_acceptance_contains_no_rejection() -> None:
    cut, failed = AcceptanceModel(5), AcceptanceModel(5)
    feed(cut, 1, drafted=5, accepted=2, truncated=True)
    feed(failed, 1, drafted=5, accepted=2)
    assert cut.terms.offsets[0, 2] == 0.0, "position 3 was not observed"
    assert class_mean(cut)[2] > class_mean(failed)[2]


def test_learns_the_acceptance_of_each_position() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([0.9, 0.5, 0.8, 0.3])
    model = AcceptanceModel(4, memory=Memory(4000.0, 48.0, 1.0))
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
    """Steps of up to 4 requests: ids, classes, drafted, accepted, truncated, limits."""
    made: list[tuple[np.ndarray, ...]] = []
    for _ in range(draw(st.integers(1, 12))):
        ids = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
        n = len(ids)
        column = st.lists(st.integers(0, 5), min_size=n, max_size=n)
        drafted, limits = np.array(draw(column)), np.minimum(draw(column), 4)
        accepted = np.minimum(np.array(draw(column)), drafted)
        truncated = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        classes = np.array(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n)))
        made.append((np.array(ids), classes, drafted, accepted, truncated, limits))
    return made


@settings(max_examples=150, deadline=None)
@given(steps())
def test_predictions_are_probabilities_and_0_past_the_limits(made: list[tuple[np.ndarray, ...]]) -> None:
    model = AcceptanceModel(4)  # drafts of 5 are deeper than the model
    for ids, classes, drafted, accepted, truncated, limits in made:
        rows = model.rows(ids)
        predicted, first = survivals(model, rows, classes, limits)
        assert (first == predicted[:, 0]).all()
        before = np.column_stack([np.ones(len(rows)), predicted[:, :-1]])
        within = np.arange(4) < limits[:, None]
        assert ((predicted > 0.0) == (within & (before * LEVELS >= 1.0))).all()
        assert (predicted < before)[predicted > 0.0].all()
        raised, _ = survivals(model, rows, classes, limits, 1.0)
        assert (raised >= predicted).all()
        known = evidence(model, rows)
        learn(model, rows, classes, drafted, accepted, truncated)
        after = evidence(model, rows)
        assert np.isfinite(after).all()
        assert (after[drafted == 0] <= known[drafted == 0]).all()


def test_no_token_is_drafted_after_one_that_hardly_ever_survives() -> None:
    model = AcceptanceModel(8)
    for request in range(200):
        feed(model, request, drafted=1, accepted=request % 20 == 0)
    row = survival(model, 10_000, 8)
    last = np.count_nonzero(row) - 1
    assert 0 < last < 7
    assert row[last] < 1.0 / LEVELS <= row[last - 1]


def test_estimates_are_raised_the_less_the_more_is_known_and_the_more_requests_share_the_mistake() -> None:
    model = AcceptanceModel(1)

    def raised_by(requests: list[int]) -> float:
        rows = model.rows(np.array(requests))
        low, high = (
            survivals(model, rows, np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64), deviations)[0][0, 0]
            for deviations in (0.0, 1.0)
        )
        return float(np.log(high / (1 - high)) - np.log(low / (1 - low)))

    unknown = raised_by([1])
    for request in range(2000):
        feed(model, 10_000 + request, drafted=1, accepted=request % 2)
    new, many = raised_by([1]), raised_by(list(range(1, 17)))
    for step in range(60):
        feed(model, 1, drafted=1, accepted=step % 2)
    assert unknown > 1.2 * new
    assert new > 2.0 * many
    assert new > 1.5 * raised_by([1])


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
    model = AcceptanceModel(2)
    for _ in range(20):
        feed(model, 7, drafted=2, accepted=0)
    lowest = survival(model, 7, 1)[0]
    for _ in range(500):
        feed(model, 7, drafted=0, accepted=0)
    assert survival(model, 7, 1)[0] > lowest
    assert survival(model, 7, 1)[0] == pytest.approx(class_mean(model)[0], abs=0.05)


def test_steps_without_any_draft_count_as_steps_without_one_of_the_request() -> None:
    alone, beside = AcceptanceModel(2), AcceptanceModel(2)
    for model in (alone, beside):
        for _ in range(60):
            feed(model, 7, drafted=2, accepted=0)
    rows = rows_of(alone, 7)
    before = evidence(alone, rows)[0]
    forget_gradually(alone.terms, rows, alone.memory, 100)
    for _ in range(100):
        feed(beside, 7, drafted=0, accepted=0)
    assert evidence(alone, rows)[0] == pytest.approx(evidence(beside, rows)[0])
    assert evidence(alone, rows)[0] < 0.5 * before


def test_classes_are_kept_apart() -> None:
    model = AcceptanceModel(2)
    for request in range(200):
        rows, odd = rows_of(model, request), request % 2
        learn(model, rows, np.array([odd]), np.array([2]), np.array([2 * odd]), np.array([False]))
    assert class_mean(model, 1)[0] > 0.85
    assert class_mean(model)[0] < 0.2


def test_scores_are_told_apart_by_their_order_of_magnitude() -> None:
    scores = np.array([0.0, 1.9, 2.0, 3.9, 4.0, 8.0, 15.9, 16.0, 1e12])
    assert score_buckets(scores).tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4]


def test_a_look_up_is_learnt_by_score_and_position() -> None:
    """Matches of 2 tokens are right for one token in five; those of 20 stay right once they have been for a while."""
    rng, memory = np.random.default_rng(0), Memory(400.0, 48.0, 1.0)
    terms, requests = views(initial_lookup_acceptance(), np.zeros((64, REQUEST_COLUMNS))), np.arange(40)
    classes = np.zeros(40, np.int64)
    for _ in range(60):
        long = rng.random(40) < 0.5
        buckets = score_buckets(np.where(long, 20.0, 2.0))
        first = rng.random(40) < np.where(long, 0.7, 0.2)
        accepted = np.where(first, np.where(long, 8, 1), 0)
        observe(
            terms,
            VerifiedDrafts(requests, classes, buckets, np.full(40, 8), accepted, np.zeros(40, np.bool_), NO_CONFIDENCE),
            memory,
        )
    survival, first = np.full((2, 8), np.nan), np.full(2, np.nan)
    fill_survival(terms, np.array([50, 51]), classes[:2], np.array([1, 4]), np.full(2, 8), 0.0, first, survival)
    assert first == pytest.approx([0.2, 0.7], abs=0.12), "new requests"
    assert survival[0, 1] < 0.05
    assert survival[1, 7] > 0.55


def test_what_confidence_explains_is_no_property_of_the_request() -> None:
    """A request whose tokens were drafted with little confidence just now is not taken for a bad one."""
    means: list[float] = []
    for reported in (True, False):
        model, rng = AcceptanceModel(1), np.random.default_rng(0)
        for request in range(400):
            confidence = rng.uniform(0.1, 0.9, (1, 4))
            accepted = rng.random(4) < confidence[0]
            for token in range(4):
                learn(
                    model,
                    rows_of(model, request),
                    ZERO,
                    np.array([1]),
                    np.array([int(accepted[token])]),
                    np.zeros(1, np.bool_),
                    confidence[:, token : token + 1] if reported else NO_CONFIDENCE,
                )
        assert (model.terms.slope[0] > 0.7) == reported
        for confidence in (0.15, 0.15, 0.15):
            seen = np.full((1, 1), confidence) if reported else NO_CONFIDENCE
            learn(model, rows_of(model, 1000), ZERO, np.array([1]), ZERO, np.zeros(1, np.bool_), seen)
        means.append(float(survival(model, 1000, 1)[0]))
    assert means[0] > means[1]
