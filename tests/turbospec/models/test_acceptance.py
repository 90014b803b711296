"""Acceptance estimates: censoring, shrinkage, change, recovery."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec.models import acceptance
from turbospec.models.acceptance import AcceptanceModel, ChangeDetector

ZERO = np.zeros(1, np.int64)
NOT_DROPPED = np.full(1, np.nan)


def rows_of(model: AcceptanceModel, request: int) -> np.ndarray:
    return model.assign_rows(np.array([request]))[0]


def class_mean(model: AcceptanceModel, class_id: int = 0) -> np.ndarray:
    """Conditional acceptance by position of a request of this class of which nothing is known."""
    stranger = rows_of(model, 1_000_000 + class_id)
    return model.conditional(stranger, np.array([class_id]), np.array([model.max_draft]))[0]


def feed(model: AcceptanceModel, request: int, drafted: int, accepted: int, *, truncated: bool = False) -> None:
    rows = rows_of(model, request)
    model.observe(rows, ZERO, np.array([drafted]), np.array([accepted]), np.array([truncated]), NOT_DROPPED)


def survival(model: AcceptanceModel, request: int, depth: int) -> np.ndarray:
    conditional = model.conditional(rows_of(model, request), ZERO, np.array([depth]))
    return acceptance.survival(conditional)[0]


def test_positions_after_the_first_rejection_show_nothing() -> None:
    model = AcceptanceModel(5)
    before = model.model.terms.offsets.copy()
    feed(model, 1, drafted=5, accepted=2)
    after = model.model.terms.offsets
    assert (after[0, :2] > 0.0).all()
    assert after[0, 2] < 0.0
    assert after[:, 3:].tolist() == before[:, 3:].tolist()


def test_a_truncated_acceptance_shows_no_failure() -> None:
    cut, failed = AcceptanceModel(5), AcceptanceModel(5)
    feed(cut, 1, drafted=5, accepted=2, truncated=True)
    feed(failed, 1, drafted=5, accepted=2)
    assert cut.model.terms.offsets[0, 2] == 0.0, "position 3 was not observed"
    assert class_mean(cut)[2] > class_mean(failed)[2]


def test_a_dropped_token_counts_for_what_its_confidence_promised() -> None:
    rng = np.random.default_rng(2)
    model = AcceptanceModel(1, server_memory=4000.0)
    for step in range(5000):
        confidence = rng.choice([0.1, 0.9])
        kept = confidence > 0.5
        hit = rng.random() < confidence
        rows = rows_of(model, step)
        dropped = np.array([np.nan if kept else confidence])
        model.observe(rows, ZERO, np.array([int(kept)]), np.array([int(kept and hit)]), np.zeros(1, np.bool_), dropped)
    assert class_mean(model)[0] == pytest.approx(0.5, abs=0.05), "0.9 if dropped tokens were left out"


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
    assert survival(model, 10_001, 4)[0] > 0.7, "another request must not inherit it"


def test_requests_that_end_in_loops_do_not_make_new_ones_look_easy() -> None:
    rng = np.random.default_rng(5)
    model = AcceptanceModel(8)
    fresh: list[float] = []
    for request in range(60):
        fresh.append(class_mean(model)[0])
        emitted = 0
        while emitted < 100:
            accepted = min(int(rng.geometric(0.02 if emitted > 40 else 0.4)) - 1, 8)
            feed(model, request, drafted=8, accepted=accepted)
            emitted += accepted + 1
    # 0.6 at their beginnings, and 0.98 over three quarters of what was observed.
    assert np.mean(fresh[20:]) < 0.78


def test_survival_never_increases_and_ends_at_the_limit() -> None:
    model = AcceptanceModel(6)
    for step in range(50):
        feed(model, step % 3, drafted=6, accepted=step % 7)
    row = survival(model, 1, 4)
    assert (np.diff(row) <= 0).all()
    assert row[4:].tolist() == [0.0, 0.0]


def test_a_hopeless_request_is_forgiven_in_time() -> None:
    model = AcceptanceModel(2, idle_memory=100.0)
    for _ in range(20):
        feed(model, 7, drafted=2, accepted=0)
    condemned = survival(model, 7, 1)[0]
    for _ in range(500):
        feed(model, 7, drafted=0, accepted=0)
    assert survival(model, 7, 1)[0] > condemned
    assert survival(model, 7, 1)[0] == pytest.approx(class_mean(model)[0], abs=0.05)


def test_a_hopeless_server_is_forgiven_in_time() -> None:
    at_once, later = AcceptanceModel(2), AcceptanceModel(2)
    for model, idle_steps in ((at_once, 0), (later, 200)):
        for request in range(100):
            feed(model, request, drafted=2, accepted=0)
        for request in range(100, 103):
            rows = rows_of(model, request)
            model.observe(rows, ZERO, ZERO + 2, ZERO + 2, ZERO > 0, NOT_DROPPED, idle_steps=idle_steps)
    assert class_mean(at_once)[0] < 0.3
    assert class_mean(later)[0] > 1.5 * class_mean(at_once)[0]


def test_what_is_known_of_a_request_fades_even_if_it_is_the_one_that_drafts_again() -> None:
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


def test_an_abrupt_change_is_noticed_and_followed() -> None:
    rng = np.random.default_rng(3)
    model = AcceptanceModel(3, server_memory=5000.0)
    for step in range(1500):
        feed(model, step, drafted=3, accepted=int(np.cumprod(rng.random(3) < 0.85).sum()))
    assert model.change.alarms <= 1, "no alarm without a change, but for chance"
    alarms = model.change.alarms
    for step in range(1500, 1580):
        feed(model, step, drafted=3, accepted=0)
    assert model.change.alarms > alarms
    assert class_mean(model)[0] < 0.3


def test_change_detector_is_quiet_on_noise() -> None:
    rng = np.random.default_rng(1)
    detector = ChangeDetector()
    alarms = sum(detector.add(float(rng.normal()), 1.0) for _ in range(20_000))
    assert alarms <= 4
