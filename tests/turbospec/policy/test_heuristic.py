import numpy as np

from tests.turbospec.factories import make_outcome, make_view
from turbospec.policy import heuristic
from turbospec.policy.heuristic import HeuristicConfig


def build(start=20):
    return HeuristicConfig(version=1, policy="heuristic", start=start).build(None, 0)


def drive(policy, view, accepted):
    """One step; `accepted` drafts a row, or all where it is None. Returns what was drafted."""
    drafted = policy.plan(view).draft_lengths
    policy.observe(make_outcome(view, drafted, drafted if accepted is None else accepted))
    return drafted.tolist()


def test_starts_at_20_two_up_after_a_full_draft_one_down_after_any_other():
    policy, view = build(), make_view(1, max_draft=30)
    drafted = [drive(policy, view, accepted)[0] for accepted in (None, None, 23, 0, None, None)]
    assert drafted == [20, 22, 24, 23, 22, 24]


def test_never_under_one():
    policy, view = build(start=2), make_view(1)
    assert [drive(policy, view, 0)[0] for _ in range(4)] == [2, 1, 1, 1]


def test_the_engines_maximum_bounds_the_state():
    policy, view = build(), make_view(1, max_draft=4)
    # 20 is drafted as 4; the first rejection then gives 3, not 19.
    assert [drive(policy, view, accepted)[0] for accepted in (None, 0, 0, None, None)] == [4, 4, 3, 2, 4]


def test_each_request_has_its_own_length():
    policy = build(start=5)
    drive(policy, make_view(2), [5, 1])
    assert policy.plan(make_view(3)).draft_lengths.tolist() == [7, 4, 5]
    assert policy.plan(make_view(2, request_ids=np.array([1, 0]))).draft_lengths.tolist() == [4, 7]


def test_no_draft_and_a_cut_short_draft_change_nothing():
    policy, view = build(start=5), make_view(2)
    policy.observe(make_outcome(view, [0, 5], [0, 2], truncated=np.array([False, True])))
    assert policy.plan(view).draft_lengths.tolist() == [5, 5]


def test_forgets_the_oldest_requests(monkeypatch):
    monkeypatch.setattr(heuristic, "MAX_REQUESTS", 2)
    policy = build(start=5)
    for request in range(3):
        drive(policy, make_view(1, request_ids=np.array([request])), None)
    assert policy.plan(make_view(3)).draft_lengths.tolist() == [5, 7, 7]
