from dataclasses import replace

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec import UserError
from turbospec.interface import Phase
from turbospec.models.profile import LatencySample, Profile
from turbospec.policy.goodput import GoodputConfig, PassTimes

DRAFT = np.array([1e-7, 1e-5, 1e-3])  # seconds per context token, per row and per pass
TARGET = np.array([2e-7, 1e-4, 1e-2])


def measured(view, length):
    """A step's outcome on a machine that is exactly linear."""
    lengths = np.minimum(length, view.draft_limits)
    outcome = make_outcome(view, lengths, 0)
    draft = DRAFT @ [outcome.draft_context_tokens, outcome.draft_rows.sum(), len(outcome.draft_rows)]
    target = TARGET @ [outcome.context_tokens, outcome.tokens_batched, 1]
    return make_outcome(view, lengths, 0, draft_seconds=draft, verify_seconds=target, step_seconds=draft + target)


def profile():
    views = [make_view(n, context_tokens=np.full(n, context)) for n in (1, 4, 32) for context in (100, 2000)]
    return Profile([LatencySample.from_outcome(measured(view, length)) for view in views for length in (0, 1, 5)])


def build(profile=None, **settings):
    return GoodputConfig(version=1, policy="goodput", **settings).build(profile, 0)


def test_expected_tokens_of_the_worked_example():
    # Acceptance 0.8 and 7 drafts: (1 - 0.8^8) / 0.2 = 4.16 tokens.
    policy = build(profile(), initial_acceptance=0.8)
    policy.times = PassTimes(draft=np.zeros(3), target=np.array([0.0, 0.0, 1.0]))  # drafting is free: the longest wins
    plan = policy.plan(make_view(1, max_draft=7))
    assert plan.draft_lengths.tolist() == [7]
    assert plan.predicted_tokens == pytest.approx(4.1611, abs=1e-4)


def test_acceptance_is_not_accepted_over_drafted():
    # Of 1000 drafts of 7 at acceptance 0.8, each shows its accepted tokens and at most one rejection.
    accepted = np.minimum(np.random.default_rng(0).geometric(0.2, 1000) - 1, 7)
    policy = build(profile(), acceptance_weight=1.0)
    policy.observe(make_outcome(make_view(1000), 7, accepted))
    assert policy.acceptance == pytest.approx(0.8, abs=0.02)
    assert accepted.mean() / 7 == pytest.approx(0.452, abs=0.02)


def test_moving_average_by_hand():
    policy = build(profile())
    policy.observe(make_outcome(make_view(2), 3, [3, 1]))  # 4 accepted, 1 rejection seen: 0.7 + 0.15 * (0.8 - 0.7)
    assert policy.acceptance == pytest.approx(0.715)
    policy.observe(make_outcome(make_view(2), 0, 0))  # nothing drafted, nothing learnt
    assert policy.acceptance == pytest.approx(0.715)
    policy.observe(make_outcome(make_view(1), 3, 1, truncated=np.array([True])))  # 1 accepted, no rejection seen
    assert policy.acceptance == pytest.approx(0.715 + 0.15 * 0.285)
    policy.observe(make_outcome(make_view(2), 3, 0))  # 2 rejections seen
    assert policy.acceptance == pytest.approx(0.85 * (0.715 + 0.15 * 0.285))


def test_the_fit_recovers_a_linear_machine():
    times = PassTimes.fit(profile().samples)
    np.testing.assert_allclose(times.draft, DRAFT, rtol=1e-6)
    np.testing.assert_allclose(times.target, TARGET, rtol=1e-6)


@pytest.mark.parametrize("parallel", [False, True])
def test_predicts_the_time_of_a_ragged_batch(parallel):
    view = make_view(
        3,
        max_draft=4,
        draft_limits=np.array([0, 1, 4]),
        context_tokens=np.array([500, 100, 900]),
        parallel_drafter=parallel,
    )
    seconds = PassTimes(DRAFT, TARGET).predict(view, np.arange(5))
    assert seconds == pytest.approx([measured(view, length).step_seconds for length in range(5)])


def test_a_batch_drafter_runs_every_row_to_the_longest_draft():
    view = make_view(3, max_draft=4, draft_limits=np.array([0, 1, 4]), batch_drafter=True)
    few, many = PassTimes(np.array([0.0, 1.0, 0.0]), np.zeros(3)).predict(view, np.array([1, 4]))
    assert (few, many) == (3.0, 12.0)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("parallel", "passes"), [(False, [0, 0, 1, 2, 3]), (True, [0, 0, 0, 0, 0])])
def test_a_first_pass_that_runs_in_every_step_is_no_cost_of_drafting(parallel, passes, batch):
    view = make_view(2, max_draft=4, parallel_drafter=parallel, batch_drafter=batch, first_pass_every_step=True)
    seconds = PassTimes(np.array([0.0, 1e-3, 1.0]), np.zeros(3)).predict(view, np.arange(5))
    assert seconds == pytest.approx([number + 2e-3 * number for number in passes])


def test_chooses_the_best_ratio_of_tokens_to_seconds():
    policy = build(profile(), initial_acceptance=0.8)
    view = make_view(1, max_draft=7)
    # A draft token costs a pass, 1.02 ms, and 0.1 ms in the target's pass of 10.12 ms.
    goodput = [(1 - 0.8 ** (k + 1)) / 0.2 / (0.01012 + k * 0.00112) for k in range(8)]
    plan = policy.plan(view)
    assert plan.draft_lengths.tolist() == [int(np.argmax(goodput))]
    assert plan.predicted_tokens / plan.predicted_seconds == pytest.approx(max(goodput), rel=1e-6)


def test_turns_off_where_drafts_are_not_worth_their_time_and_does_not_probe():
    policy = build(profile(), initial_acceptance=0.05)
    view = make_view(1)
    for _ in range(500):
        plan = policy.plan(view)
        assert plan.draft_lengths.tolist() == [0]
        policy.observe(make_outcome(view, 0, 0))
    # A compute-bound batch: with 1000 requests a draft token costs more than the little it brings.
    assert build(profile(), initial_acceptance=0.3).plan(make_view(1000)).draft_lengths.max() == 0


def test_prefilling_requests_neither_draft_nor_count_as_tokens():
    phase = np.array([Phase.DECODE, Phase.PREFILL])
    view = make_view(2, phase=phase, draft_limits=np.array([3, 0]), prefill_tokens=256)
    plan = build(profile()).plan(view)
    assert plan.draft_lengths[1] == 0
    assert plan.predicted_tokens == pytest.approx(sum(0.7**k for k in range(plan.draft_lengths[0] + 1)))
    alone = build(profile()).plan(make_view(1, draft_limits=np.array([3])))
    assert plan.predicted_seconds > alone.predicted_seconds + 0.02  # 256 prompt tokens at 0.1 ms


def test_without_a_profile_it_fits_its_own_first_steps():
    policy = build(warmup_steps=16)
    rng = np.random.default_rng(1)
    drafted = []
    for step in range(16):
        view = make_view(4, step=step, max_draft=7, context_tokens=rng.integers(50, 500, 4))
        plan = policy.plan(view)
        assert np.isnan(plan.predicted_seconds)
        drafted.append(int(plan.draft_lengths[0]))
        policy.observe(measured(view, drafted[-1]))
    assert drafted == [*range(8), *range(8)]
    np.testing.assert_allclose(policy.times.target, TARGET, rtol=1e-3)
    view = make_view(4, max_draft=7)
    plan = policy.plan(view)
    assert plan.predicted_seconds == pytest.approx(measured(view, plan.draft_lengths).step_seconds, rel=1e-3)


def test_steps_that_were_not_timed_teach_no_times():
    policy = build()
    for step in range(40):
        view = make_view(2, step=step)
        policy.plan(view)
        policy.observe(make_outcome(view, 2, 1, step_seconds=0.0, draft_seconds=0.0, verify_seconds=0.0))
    assert policy.times is None


def test_without_a_profile_it_fits_again_when_the_steps_have_doubled():
    policy = build(warmup_steps=16)
    rng = np.random.default_rng(1)
    fits = []
    for step in range(64):
        view = make_view(4, step=step, max_draft=7, context_tokens=rng.integers(50, 500, 4))
        outcome = measured(view, policy.plan(view).draft_lengths)
        slower = 1 + step // 16
        policy.observe(replace(outcome, step_seconds=outcome.step_seconds * slower))
        fits.append(policy.times)
    changes = [step + 1 for step in range(1, 64) if fits[step] is not fits[step - 1]]
    assert changes == [16, 32, 64]
    assert fits[31].predict(view, np.arange(1))[0] > 1.1 * fits[15].predict(view, np.arange(1))[0]


def test_a_slow_first_step_does_not_end_drafting():
    policy = build(warmup_steps=64)
    prompt = make_view(1, max_draft=7, phase=np.array([Phase.PREFILL]), draft_limits=np.array([0]), prefill_tokens=512)
    policy.plan(prompt)
    policy.observe(replace(measured(prompt, 0), step_seconds=3.0, verify_seconds=3.0))
    for step in range(1, 64):
        view = make_view(4, step=step, max_draft=7)
        policy.observe(measured(view, policy.plan(view).draft_lengths))
    # The slow step read 512 prompt tokens; tokens are not dear for that.
    policy.acceptance = 0.7
    assert policy.plan(make_view(4, max_draft=7)).draft_lengths.min() > 0


def test_an_engine_that_cannot_draft_is_fitted_too():
    policy, view = build(warmup_steps=2), make_view(3, max_draft=0)
    for _ in range(2):
        policy.observe(measured(view, policy.plan(view).draft_lengths))
    plan = policy.plan(view)
    assert plan.draft_lengths.tolist() == [0, 0, 0]
    assert plan.predicted_seconds == pytest.approx(measured(view, 0).step_seconds)


def test_catching_up_costs_rows_of_the_drafters_pass():
    samples = []
    for size, length in ((size, length) for size in (1, 4, 32) for length in (1, 2, 5)):
        lag = 50 * length * size
        outcome = measured(make_view(size, context_tokens=np.full(size, 900 // length)), length)
        extra = DRAFT[1] * lag
        samples.append(
            LatencySample.from_outcome(
                replace(
                    outcome,
                    catch_up_tokens=lag,
                    draft_seconds=outcome.draft_seconds + extra,
                    step_seconds=outcome.step_seconds + extra,
                )
            )
        )
    np.testing.assert_allclose(PassTimes.fit(samples).draft, DRAFT, rtol=1e-3)


def test_a_profile_that_never_drafted_is_refused():
    with pytest.raises(UserError, match="no step of the profile drafted"):
        build(Profile([LatencySample.from_outcome(measured(make_view(2), 0))]))


def test_an_empty_step():
    assert build(profile()).plan(make_view(0)).draft_lengths.tolist() == []
