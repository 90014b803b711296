from __future__ import annotations

import pytest

from turbospec.hosts.vllm.scheduler.drafter_pass_cost import DrafterPassCost
from turbospec.hosts.vllm.scheduler.drafter_use import CATCH_UP_SHARE, KEEP_UP_STEPS, DrafterUse

KEPT = 100


def new_use(longest_pass: int = 10**6, *, asynchronous: bool = False) -> DrafterUse:
    return DrafterUse(KEPT, longest_pass, DrafterPassCost(), asynchronous=asynchronous)


@pytest.mark.parametrize(("experiment", "in_use"), [(False, True), (True, False)])
def test_the_drafter_is_out_of_use_once_it_made_only_experiments_for_long(experiment: bool, in_use: bool) -> None:
    use = new_use()
    use.undrafted(KEPT)
    assert use.allowance.in_use
    use.drafted(experiment=experiment)
    use.undrafted(1)
    assert use.allowance.in_use is in_use
    use.undrafted(KEPT)
    assert not use.allowance.in_use


def test_where_a_step_is_scheduled_before_the_last_has_ended_the_drafter_goes_on_for_some_steps() -> None:
    use = new_use(asynchronous=True)
    assert use.allowance.verified_may_lag
    use.drafted(experiment=False)
    for _ in range(KEEP_UP_STEPS):
        assert not use.allowance.verified_may_lag
        use.undrafted(1)
    assert use.allowance.verified_may_lag
    use.drafted(experiment=True)
    assert not use.allowance.verified_may_lag, "the next step verifies what was drafted"
    use.undrafted(1)
    assert use.allowance.verified_may_lag


def test_an_experiment_does_not_shorten_the_steps_in_which_the_drafter_goes_on() -> None:
    use = new_use(asynchronous=True)
    use.drafted(experiment=False)
    use.drafted(experiment=True)
    use.undrafted(1)
    assert not use.allowance.verified_may_lag


def test_where_each_step_ends_before_the_next_is_scheduled_no_pass_is_needed_after_drafts() -> None:
    use = new_use()
    use.drafted(experiment=False)
    assert use.allowance.verified_may_lag


def test_passes_take_a_share_of_the_time() -> None:
    use, cost = new_use(), DrafterPassCost()
    assert use.allowance.tokens == 0
    pass_seconds = cost.catch_up_seconds(50)
    use.add_time(1.01 * pass_seconds / CATCH_UP_SHARE)
    assert 50 <= use.allowance.tokens < 60
    use.spent(0)
    assert use.allowance.tokens >= 50, "no pass"
    use.spent(50)
    assert use.allowance.tokens == 0


def test_time_is_saved_for_one_pass_at_most() -> None:
    use = new_use(longest_pass=50)
    use.add_time(1e6)
    assert 49 <= use.allowance.tokens <= 50
