import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.interface import Phase
from turbospec.policy.bandit import BanditConfig


def build(**settings):
    return BanditConfig(version=1, policy="bandit", **settings).build(None, 0)


def drive(policy, speed, steps, batch_size=1, first_step=0, **view):
    """Steps in which a draft of k tokens gives `speed[k]` tokens/s; returns the lengths drafted."""
    lengths = []
    for step in range(first_step, first_step + steps):
        view_now = make_view(batch_size, step=step, **view)
        length = int(policy.plan(view_now).draft_lengths[0])
        outcome = make_outcome(view_now, length, 0, step_seconds=batch_size / speed[length])
        policy.observe(outcome)
        lengths.append(length)
    return lengths


def test_tries_every_arm_once_then_keeps_to_the_best():
    policy = build()
    speed = {0: 100, 1: 150, 2: 200, 3: 300, 5: 250, 8: 100, 15: 50}
    lengths = drive(policy, speed, 400)
    assert lengths[:7] == [0, 1, 2, 3, 5, 8, 15]
    assert lengths[200:].count(3) > 150


def test_upper_bound_by_hand():
    # No forgetting, 100 and 200 tokens/s: bounds are mean + 0.9 * 200 * sqrt(ln(n) / n_arm) after n steps.
    #   n = 2: 249.9 and 349.9      n = 3: 288.7 and 333.4      n = 4: 311.9 and 322.4
    #   n = 5: 328.3 and 314.2, so the first arm again          n = 6: 270.4 and 320.5
    policy = build(draft_lengths=(0, 1), discount=1.0, exploration=0.9)
    assert drive(policy, {0: 100, 1: 200}, 7) == [0, 1, 1, 1, 1, 0, 1]


def test_a_step_in_which_nothing_can_draft_is_no_reward_of_an_arm():
    policy, prompt = build(draft_lengths=(0, 3)), {"phase": np.array([Phase.PREFILL]), "draft_limits": np.array([0])}
    for step in range(9):
        view = make_view(1, step=step, prefill_tokens=100, **prompt)
        plan = policy.plan(view)
        assert plan.draft_lengths.tolist() == [0]
        policy.observe(make_outcome(view, 0, 0, emitted=np.array([0])))
    # Zeros as rewards of both arms would keep the policy at the first one for some hundred steps.
    assert drive(policy, {0: 100, 3: 200}, 50, first_step=9).count(3) > 40


def test_follows_change():
    policy = build(draft_lengths=(0, 3))
    before = drive(policy, {0: 100, 3: 200}, 300)
    after = drive(policy, {0: 100, 3: 50}, 300, first_step=300)
    assert before[-100:].count(3) > 80
    assert after[-100:].count(0) > 80


def test_powers_of_two_of_the_batch_size_learn_apart():
    policy = build(draft_lengths=(0, 3))
    drive(policy, {0: 100, 3: 200}, 50, batch_size=2)
    assert drive(policy, {0: 100, 3: 200}, 1, batch_size=3, first_step=50) == [3]
    assert drive(policy, {0: 100, 3: 200}, 2, batch_size=4, first_step=51) == [0, 3]


def test_leaves_out_arms_above_the_engines_maximum():
    speed = dict.fromkeys(range(16), 100)
    assert drive(build(), speed, 4, max_draft=2) == [0, 1, 2, 0]
    assert drive(build(draft_lengths=(8,)), speed, 1, max_draft=2) == [2]


def test_another_maximum_of_the_engine_has_arms_of_its_own():
    policy = build(draft_lengths=(0, 2, 8))
    speed = dict.fromkeys(range(16), 100)
    assert drive(policy, speed, 2, max_draft=2) == [0, 2]
    assert drive(policy, speed, 3, first_step=2, max_draft=8) == [0, 2, 8]


def test_ignores_steps_it_did_not_plan():
    policy = build(draft_lengths=(0, 3))
    policy.observe(make_outcome(make_view(1, step=7), 3, 3))
    assert policy.plan(make_view(1)).draft_lengths.tolist() == [0]


@pytest.mark.parametrize("lengths", [(3, 1), (1, 1), (-1, 2)])
def test_refuses_arms_that_do_not_rise(lengths):
    with pytest.raises(ValueError, match=r"greater than or equal to 0|draft lengths must be 0 or more and rise"):
        build(draft_lengths=lengths)


def test_draft_limits_hold():
    policy = build(draft_lengths=(5,))
    assert policy.plan(make_view(2, draft_limits=np.array([0, 2]))).draft_lengths.tolist() == [0, 2]
