import numpy as np

from tests.turbospec.factories import make_outcome, make_view
from turbospec.policy.acceptance_gate import AcceptanceGateConfig


def build(window=2, threshold=1.0):
    config = AcceptanceGateConfig(
        version=1, policy="acceptance_gate", draft_length=3, window=window, threshold=threshold
    )
    return config.build(None, 0)


def serve(policy, request_id, accepted):
    """A request of its own batch, with one step for each number of accepted drafts."""
    view = make_view(1, request_ids=np.array([request_id]))
    lengths = []
    for count in accepted:
        lengths.append(int(policy.plan(view).draft_lengths[0]))
        policy.observe(make_outcome(view, lengths[-1], min(count, lengths[-1])))
    return lengths


def test_closes_when_the_window_of_finished_requests_averages_under_the_threshold():
    policy = build()
    assert serve(policy, 0, [3, 0]) == [3, 3]  # 1.5 on average
    assert serve(policy, 1, [0, 0, 1]) == [3, 3, 3]  # 0.333; the window holds request 0 alone until this one ends
    assert not policy.closed
    assert serve(policy, 2, [3]) == [0]  # (1.5 + 0.333) / 2 = 0.917 < 1
    assert policy.closed


def test_an_average_at_the_threshold_keeps_it_open():
    policy = build()
    serve(policy, 0, [2])
    serve(policy, 1, [0])
    assert serve(policy, 2, [3]) == [3]  # (2 + 0) / 2 = 1


def test_it_averages_requests_not_steps():
    policy = build()
    serve(policy, 0, [0] * 50)
    serve(policy, 1, [3])
    assert serve(policy, 2, [3]) == [3]  # (0 + 3) / 2 = 1.5, though 50 of 51 steps accepted nothing


def test_the_window_slides():
    policy = build()
    for request_id, accepted in enumerate([3, 3, 0]):
        serve(policy, request_id, [accepted])
    assert serve(policy, 3, [0]) == [3]  # (3 + 0) / 2 = 1.5
    assert serve(policy, 4, [3]) == [0]  # (0 + 0) / 2


def test_never_comes_back():
    policy = build()
    for request_id in range(3):
        serve(policy, request_id, [0])
    for request_id in range(3, 200):
        view = make_view(1, request_ids=np.array([request_id]))
        assert policy.plan(view).draft_lengths.tolist() == [0]
        policy.observe(make_outcome(view, 3, 3))  # perfect acceptance, were it to look


def test_requests_still_in_the_batch_do_not_count():
    policy, view = build(window=1), make_view(4)
    for _ in range(100):
        policy.observe(make_outcome(view, policy.plan(view).draft_lengths, 0))
    assert not policy.closed


def test_steps_that_show_no_acceptance_do_not_count():
    policy, view = build(window=1), make_view(2)
    policy.plan(view)
    policy.observe(make_outcome(view, [0, 3], [0, 0], truncated=np.array([False, True])))
    policy.plan(make_view(0))
    assert not policy.closed
