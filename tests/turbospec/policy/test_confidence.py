import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.policy.confidence import ConfidenceConfig, ConfidenceGate, best_threshold


def build(**settings):
    return ConfidenceConfig(version=1, policy="confidence", **settings).build(None, 0)


def test_drafts_to_the_limits_under_a_gate_at_the_threshold():
    plan = build().plan(make_view(3, draft_limits=np.array([0, 2, 15])))
    assert plan.draft_lengths.tolist() == [0, 2, 15]
    keep, more = plan.gate.advance(np.array([1, 2]), np.array([0.39, 0.4]))
    assert keep.tolist() == [True, True]
    assert more.tolist() == [False, True]


def test_gate_keeps_the_first_token_below_the_threshold_and_stops_after_it():
    keep, more = ConfidenceGate(0.5).advance(np.array([0]), np.array([0.1]))
    assert keep.tolist() == [True]
    assert more.tolist() == [False]


def test_threshold_of_least_cost_by_hand():
    # Threshold: false positive rate + 3 * false negative rate
    #   0.9: 0 + 3 * 2/3 = 2     0.8: 1/2 + 2 = 2.5     0.6: 1/2 + 3 * 1/3 = 1.5     0.3: 1/2 + 0 = 0.5     0.2: 1
    confidence = np.array([0.9, 0.8, 0.6, 0.3, 0.2])
    accepted = np.array([True, False, True, True, False])
    assert best_threshold(confidence, accepted) == 0.3


def test_threshold_takes_equal_confidences_together():
    # At 0.7: 1/2 + 3 * 1/2 = 2; at 0.5: 1 + 0 = 1.
    assert best_threshold(np.array([0.7, 0.7, 0.5, 0.5]), np.array([True, False, True, False])) == 0.5


def test_of_equal_costs_the_highest_threshold_wins():
    # At 0.9: 3 * 1/4 = 3/4; at 0.5: 3/4 + 3/4; at 0.4: 3/4 + 0; at 0.1: 1.
    confidence = np.array([0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.4, 0.1])
    accepted = np.array([True, True, True, False, False, False, True, False])
    assert best_threshold(confidence, accepted) == 0.9


def test_refits_after_six_observed_tokens_of_both_kinds():
    policy, view = build(), make_view(1, max_draft=3)
    sure = np.array([[0.9, 0.8, 0.7]])
    policy.observe(make_outcome(view, 3, 3, confidence=sure))
    policy.observe(make_outcome(view, 3, 2, confidence=np.array([[0.9, 0.85, 0.6]])))
    # Five accepted at 0.7 or more, one rejected at 0.6: 0.7 parts them without error.
    assert policy.threshold == 0.7
    assert policy.plan(view).gate.advance(np.array([0]), np.array([0.69]))[1].tolist() == [False]


@pytest.mark.parametrize("accepted", [0, 3])
def test_one_kind_alone_teaches_nothing(accepted):
    policy, view = build(), make_view(8, max_draft=3)
    policy.observe(make_outcome(view, 3, accepted, confidence=np.full((8, 3), 0.9)))
    assert policy.threshold == 0.4


def test_tokens_after_the_first_rejection_and_truncated_drafts_are_not_observed():
    policy, view = build(), make_view(2, max_draft=4)
    confidence = np.array([[0.9, 0.5, 0.95, 0.95], [0.8, 0.1, 0.1, 0.1]])
    truncated = np.array([False, True])
    for _ in range(3):
        policy.observe(make_outcome(view, 4, 1, confidence=confidence, truncated=truncated))
    # Observed: 0.9 accepted, 0.5 rejected, 0.8 accepted. Neither 0.95 nor 0.1 may count as a failure.
    assert policy.threshold == 0.8


def test_learns_where_only_some_requests_draft():
    policy, view = build(), make_view(2, max_draft=3)
    confidence = np.array([[0.9, 0.8, 0.6], [np.nan, np.nan, np.nan]])
    for _ in range(2):
        policy.observe(make_outcome(view, [3, 0], [2, 0], confidence=confidence))
    assert policy.threshold == 0.8


def test_forgets_past_its_window():
    policy, view = build(window=6), make_view(1, max_draft=3)
    policy.observe(make_outcome(view, 3, 3, confidence=np.full((1, 3), 0.2)))
    for _ in range(2):
        policy.observe(make_outcome(view, 3, 2, confidence=np.array([[0.9, 0.8, 0.3]])))
    # With the first three, 0.2 would cost 1 and 0.8 would cost 3 * 3/7.
    assert policy.threshold == 0.8


def test_no_confidence_is_the_maximum_always():
    policy, view = build(), make_view(2, max_draft=7)
    policy.observe(make_outcome(view, 7, 0))
    assert policy.plan(view).draft_lengths.tolist() == [7, 7]
    assert policy.threshold == pytest.approx(0.4)
