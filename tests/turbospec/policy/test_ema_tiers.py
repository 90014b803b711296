"""Worked by hand from SGLang's rules: weight 0.2, ten warm-up steps, a decision every five, margins of 0.5."""

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.policy.ema_tiers import EmaTiersConfig, TierSlot


def run(policy, batch_size, accepted, steps):
    """Drives steps whose requests each accept up to `accepted` drafts; returns the length drafted in each step."""
    lengths = []
    for _ in range(steps):
        view = make_view(batch_size)
        drafted = policy.plan(view).draft_lengths
        lengths.append(int(drafted[0]))
        policy.observe(make_outcome(view, drafted, np.minimum(accepted, drafted)))
    return lengths


def tiers(**settings):
    return EmaTiersConfig(version=1, policy="ema_tiers", **settings).build(None, 0)


def test_goes_up_one_decision_after_another():
    # Starts at 3 with average 2. All accepted: 3 - 0.8^15 = 2.965 > 2.5 at step 15, so up to 5, and not on to 7,
    # which takes more than 4.5. Then 5 - 2.035 * 0.8^5 = 4.333 at step 20 is too little, 4.782 at step 25 enough.
    lengths = run(tiers(), 1, accepted=15, steps=26)
    assert lengths == [3] * 15 + [5] * 10 + [7]


def test_the_first_step_after_the_warm_up_can_decide():
    eager = {"decision_interval": 1, "ema_weight": 1.0}
    assert run(tiers(warmup_steps=0, **eager), 1, accepted=15, steps=3) == [3, 5, 7]
    assert run(tiers(warmup_steps=2, **eager), 1, accepted=15, steps=5) == [3, 3, 3, 5, 7]


def test_goes_down_only_past_the_hysteresis():
    # From 3, down to 1 takes an average of 1 - 0.5 - 0.25 = 0.25. 2 * 0.8^15 = 0.070.
    assert run(tiers(), 1, accepted=0, steps=26) == [3] * 15 + [1] * 11  # and stays at the lowest
    # Half the requests accept one draft: 0.5 + 1.5 * 0.8^n stays above 0.25 for ever.
    policy = tiers()
    for _ in range(40):
        view = make_view(2)
        policy.observe(make_outcome(view, policy.plan(view).draft_lengths, [0, 1]))
    assert policy.plan(make_view(2)).draft_lengths.tolist() == [3, 3]


def test_a_slot_of_a_file_has_sglangs_own_margins_where_it_names_none():
    # The requests accept 0.4 on average, above 1 - 0.5 - 0.25; SGLang's built-in slots have other margins.
    policy = tiers(slots={1: TierSlot(candidates=(1, 3))}, warmup_steps=0, decision_interval=1, ema_weight=1.0)
    view = make_view(5)
    policy.observe(make_outcome(view, 3, [0, 0, 0, 1, 1]))
    assert policy.plan(view).draft_lengths[0] == 3
    slots = EmaTiersConfig(version=1, policy="ema_tiers").slots.values()
    built_in = [(slot.up_hysteresis, slot.down_hysteresis) for slot in slots]
    assert built_in == [(0.0, -0.25), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]


def test_an_average_at_the_bound_goes_down():
    slot = TierSlot(candidates=(1, 3), down_hysteresis=0.0)
    policy = tiers(slots={1: slot}, warmup_steps=0, decision_interval=1, ema_weight=1.0)
    view = make_view(2)
    policy.observe(make_outcome(view, 3, [0, 1]))  # 0.5 on average; 1 - 0.5 is the bound
    assert policy.plan(view).draft_lengths.tolist() == [1, 1]


def test_skips_several_tiers_in_one_decision():
    # At 8 requests 0 takes an average of 0.5 and 1 takes 0.5, so an average of 0.070 falls from 3 through 1 to 0.
    assert run(tiers(), 8, accepted=0, steps=16) == [3] * 15 + [0]


def test_from_zero_always_probes_the_next_tier_and_falls_back():
    # Five steps off (decision at step 20), then five steps at 1: 0.070 * 0.8^5 = 0.023 <= 0.5 at step 25, off again.
    assert run(tiers(), 8, accepted=0, steps=36) == [3] * 15 + [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5 + [0]


def test_a_probe_that_is_accepted_goes_on_up():
    policy = tiers()
    run(policy, 8, accepted=0, steps=20)
    # 1 - (1 - 0.070) * 0.8^5 = 0.695 > 1 - 0.5 at step 25: up to 3.
    assert run(policy, 8, accepted=3, steps=6) == [1] * 5 + [3]


def test_a_slot_that_starts_off_probes_from_a_neutral_average():
    # Start 0, average -1: at the first decision the probe of 3 starts at 2, not at -1.
    slot = TierSlot(candidates=(0, 3))
    policy = tiers(slots={1: slot}, start=0)
    assert run(policy, 1, accepted=3, steps=16) == [0] * 15 + [3]
    # 2 -> 3 - 0.8^5 = 2.672 after five accepted probes, above 0.5: it stays.
    assert run(policy, 1, accepted=3, steps=5) == [3] * 5


@pytest.mark.parametrize(("hysteresis", "length"), [(0.0, 5), (0.25, 5), (0.75, 3)])
def test_the_hysteresis_is_added_to_the_average_for_going_up(hysteresis, length):
    # From 3 up to 5 takes an average above 2.5 and the hysteresis; 3 - 0.8^15 = 2.965.
    slot = TierSlot(candidates=(1, 3, 5), up_hysteresis=hysteresis)
    assert run(tiers(slots={1: slot}), 1, accepted=3, steps=16)[-1] == length


@pytest.mark.parametrize(
    ("batch_size", "start"), [(1, 3), (7, 3), (8, 3), (31, 3), (32, 1), (63, 1), (64, 0), (1000, 0)]
)
def test_a_batch_takes_the_largest_listed_size_it_reaches(batch_size, start):
    # Slots without the starting length 3 start in the middle of their candidates: of (0, 1) at 1.
    assert tiers().plan(make_view(batch_size)).draft_lengths[0] == start


def test_the_only_candidate_zero_stays_off():
    assert run(tiers(), 64, accepted=0, steps=40) == [0] * 40


def test_slots_learn_apart():
    policy = tiers()
    run(policy, 1, accepted=0, steps=16)
    assert policy.plan(make_view(8)).draft_lengths[0] == 3


def test_steps_that_drafted_nothing_or_were_cut_short_do_not_count():
    policy = tiers()
    view = make_view(1)
    for _ in range(15):
        policy.observe(make_outcome(view, 0, 0))
        policy.observe(make_outcome(view, 3, 0, truncated=np.array([True])))
    assert policy.plan(view).draft_lengths.tolist() == [3]
    assert run(policy, 1, accepted=0, steps=16) == [3] * 15 + [1]
