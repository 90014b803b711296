"""Worked examples of vLLM 0.32's `AdaptiveVerificationManager`, and its rule against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.factories import make_outcome, make_view
from turbospec import UserError
from turbospec.interface import Phase
from turbospec.models.profile import LatencySample, Profile
from turbospec.policy.adaptive_verification.cost_curves import CostCurves
from turbospec.policy.adaptive_verification.policy import (
    VllmAdaptiveVerificationConfig,
    VllmAdaptiveVerificationPolicy,
    admitted,
)


def build(costs=None, **settings):
    config = VllmAdaptiveVerificationConfig(version=1, policy="vllm_adaptive_verification", **settings)
    return VllmAdaptiveVerificationPolicy(config, costs)


def linear(floor, token, draft=0.0):
    """Costs without graphs: a pass of t tokens takes floor + t * token, drafting a constant."""
    return CostCurves(np.array([[1.0], [draft]]), np.array([[0.0, 1.0], [floor, floor + token]]))


def believe(policy, view, acceptance):
    """Let the policy predict this for the last drafts of a view's requests."""
    policy.plan(view)
    policy._acceptance[policy._slots.lookup(view.request_ids)[0]] = acceptance


def confidence_of(acceptance):
    """Confidence from which the estimator predicts this acceptance at its start: logit q = (logit p + 0.2) / 0.5."""
    odds = (np.log(acceptance) - np.log1p(-np.asarray(acceptance)) + 0.2) / 0.5
    return 1 / (1 + np.exp(-odds))


def test_the_budget_by_hand():
    # get_num_tokens: 2 requests, K = 2, acceptance (0.9, 0.5) and (0.6, 0.5): survival 0.9, 0.45 and 0.6, 0.3, sorted
    # 0.9, 0.6, 0.45, 0.3. Drafting 1 s, a pass 2 s + 1 s a token, 2 tokens that are not drafts.
    #   B    expected tokens    seconds        ratio
    #   0    2                  1 + 4 = 5      0.400
    #   1    2.9                6              0.483
    #   2    3.5                7              0.500
    #   3    3.95               8              0.494
    #   4    4.25               9              0.472
    policy, view = build(linear(2.0, 1.0, draft=1.0)), make_view(2, max_draft=2)
    believe(policy, view, [[0.9, 0.5], [0.6, 0.5]])
    plan = policy.plan(view)
    assert plan.draft_lengths.tolist() == [2, 2]
    assert plan.reason == "vllm_adaptive_verification: 2 of 4 draft tokens verified"
    assert plan.predicted_tokens == pytest.approx(3.5)


def test_the_staircase_of_the_graphs_makes_tokens_up_to_the_next_size_free():
    # The same requests with graphs of 2, 4 and 8 tokens: B = 1 and 2 run the graph of 4, B = 3 and 4 that of 8.
    #   B = 0: 2 / (1 + 4) = 0.400    B = 2: 3.5 / (1 + 5) = 0.583    B = 4: 4.25 / (1 + 6) = 0.607
    verify = np.array([[2.0, 4.0, 8.0], [4.0, 5.0, 6.0]])
    policy, view = build(CostCurves(np.array([[1.0], [1.0]]), verify, graph_limit=8)), make_view(2, max_draft=2)
    believe(policy, view, [[0.9, 0.5], [0.6, 0.5]])
    assert "4 of 4" in policy.plan(view).reason


def test_the_verified_tokens_by_hand():
    # _assign_draft_token_budget: survival (0.9, 0.45, 0.405), (0.6, 0.54, 0.486), (0.3, 0.27, 0.243). The best four are
    # 0.9, 0.6, 0.54 and 0.486: one of the first request, three of the second, none of the third.
    acceptance = np.array([[0.9, 0.5, 0.9], [0.6, 0.9, 0.9], [0.3, 0.9, 0.9]])
    assert admitted(acceptance, np.array([3, 3, 3]), 4).tolist() == [1, 3, 0]
    # With two draft tokens of the second request, the next best is 0.45.
    assert admitted(acceptance, np.array([3, 2, 3]), 4).tolist() == [2, 2, 0]


def test_equal_survival_is_taken_in_order():
    # Acceptance 1 makes all tokens of a request equal; the first ones of each draft are verified all the same.
    assert admitted(np.ones((2, 3)), np.array([3, 3]), 4).tolist() == [3, 1]


def test_the_budget_comes_from_the_last_drafts_and_the_tokens_from_these():
    policy, view = build(linear(2.0, 1.0, draft=1.0)), make_view(2, max_draft=2)
    believe(policy, view, [[0.9, 0.5], [0.6, 0.5]])
    plan = policy.plan(view)  # a budget of 2, as above
    kept = plan.selection.select(np.array([2, 2]), confidence_of([[0.2, 0.5], [0.8, 0.7]]))
    assert kept.tolist() == [0, 2]  # 0.2, 0.1 and 0.8, 0.56
    # The next budget comes from these predictions: survival 0.8, 0.56, 0.2, 0.1.
    #   B = 0: 2/5 = 0.4    B = 1: 2.8/6 = 0.467    B = 2: 3.36/7 = 0.48    B = 3: 3.56/8 = 0.445
    again = policy.plan(make_view(2, max_draft=2, step=1))
    assert again.predicted_tokens == pytest.approx(3.36)


@pytest.mark.parametrize(("parallel", "batch", "rows"), [(False, False, 2), (True, False, 6), (True, True, 3)])
def test_drafting_is_looked_up_by_the_rows_that_samples_have(parallel, batch, rows):
    asked = []
    policy = build(linear(0.0, 0.1))
    policy.costs.draft_seconds = lambda number: asked.append(number) or 1.0
    policy.plan(
        make_view(3, max_draft=4, draft_limits=np.array([0, 4, 2]), parallel_drafter=parallel, batch_drafter=batch)
    )
    assert asked == [rows]


def test_a_parallel_drafters_budget_covers_what_drafting_costs():
    # Each draft token costs 0.1 s of drafting and 0.2 s of the target's pass; a pass takes 8 s. 32 requests, K = 8.
    samples = []
    for size, length in itertools.product((1, 8, 32), (0, 2, 8)):
        view = make_view(size, max_draft=8, parallel_drafter=True)
        draft, verify = 0.1 * size * length, 8.0 + 0.2 * size * (1 + length)
        outcome = make_outcome(view, length, 0, draft_seconds=draft, verify_seconds=verify, step_seconds=draft + verify)
        samples.append(LatencySample.from_outcome(outcome))
    policy = VllmAdaptiveVerificationConfig(version=1, policy="vllm_adaptive_verification").build(Profile(samples), 0)
    view = make_view(32, max_draft=8, parallel_drafter=True)
    believe(policy, view, 0.85)
    tokens = 32 * np.cumsum(0.85 ** np.arange(9))
    best = int(np.argmax(tokens / (0.1 * 256 + 8.0 + 0.2 * 32 * np.arange(1, 10))))
    assert policy.plan(view).reason.startswith(f"vllm_adaptive_verification: {32 * best} of 256")


def test_a_new_requests_first_draft_counts_as_accepted():
    # 1 + B tokens in 3 + B seconds rise with B: the whole block.
    policy = build(linear(1.0, 1.0, draft=1.0))
    assert "7 of 7" in policy.plan(make_view(1, max_draft=7)).reason


def test_prefill_costs_tokens_and_emits_none():
    # One request decodes with acceptance 0.5, one computes 10 prompt tokens. 1.5 / (13 + 12) > 1 / (13 + 11).
    policy = build(linear(13.0, 1.0))
    view = make_view(
        2, max_draft=1, prefill_tokens=10, phase=np.array([Phase.DECODE, Phase.PREFILL]), draft_limits=np.array([1, 0])
    )
    believe(policy, view, [[0.5], [0.5]])
    plan = policy.plan(view)
    assert plan.draft_lengths.tolist() == [1, 0]
    assert plan.predicted_tokens == 1.5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 4),
    max_draft=st.integers(1, 3),
    max_logits=st.sampled_from([None, 1, 5]),
    graph_limit=st.sampled_from([0, 8]),
)
def test_no_choice_of_tokens_has_a_better_ratio(seed, size, max_draft, max_logits, graph_limit):
    rng = np.random.default_rng(seed)
    verify = np.array([[1.0, 4.0, 8.0, 20.0], np.cumsum(rng.random(4) ** 3)])
    costs = CostCurves(np.array([[1.0, 3.0], np.sort(rng.random(2))]), verify, graph_limit)
    policy = build(costs, max_logits=max_logits)
    view = make_view(size, max_draft=max_draft, draft_limits=rng.integers(0, max_draft + 1, size))
    acceptance = rng.random((size, max_draft))
    believe(policy, view, acceptance)
    plan = policy.plan(view)
    np.testing.assert_array_equal(plan.draft_lengths, view.draft_limits)
    if plan.selection is None:
        assert not view.draft_limits.any()
        return
    kept = plan.selection.select(view.draft_limits, np.clip(confidence_of(acceptance), 1e-12, 1 - 1e-12))
    assert ((kept >= 0) & (kept <= view.draft_limits)).all()
    survival = np.cumprod(acceptance, axis=1)
    most = view.draft_limits.sum() if max_logits is None else max(0, max_logits - size)
    assert kept.sum() <= most

    def ratio(lengths):
        expected = size + sum(survival[row, :length].sum() for row, length in enumerate(lengths))
        drafting = costs.draft_seconds(np.count_nonzero(view.draft_limits))
        return expected / (drafting + costs.verify_seconds(np.array([size + sum(lengths)]))[0])

    choices = itertools.product(*(range(limit + 1) for limit in view.draft_limits))
    assert ratio(kept) == pytest.approx(max(ratio(choice) for choice in choices if sum(choice) <= most))


def test_whether_a_token_is_verified_does_not_depend_on_later_positions():
    rng = np.random.default_rng(0)
    for _ in range(200):
        acceptance, drafts = rng.random((3, 4)), np.array([4, 4, 4])
        budget = int(rng.integers(1, 12))
        kept = admitted(acceptance, drafts, budget)
        place = int(rng.integers(0, 4))
        changed = acceptance.copy()
        changed[1, place] = rng.random()
        # Tokens of request 1 before `place` are verified as before.
        assert min(admitted(changed, drafts, budget)[1], place) == min(kept[1], place)


def test_learns_from_what_was_verified():
    policy, view = build(linear(1.0, 0.01)), make_view(4, max_draft=2)
    for step in range(100):
        view = make_view(4, max_draft=2, step=step)
        plan = policy.plan(view)
        kept = plan.selection.select(plan.draft_lengths, np.full((4, 2), 0.5))
        policy.observe(make_outcome(view, kept, 0, proposed=plan.draft_lengths))
    assert policy.estimator.intercepts[0] < -1.0
    assert policy.estimator.intercepts[1] == -0.2  # never observed after a rejection


def test_an_engine_without_confidence_verifies_whole_drafts_and_teaches_nothing():
    policy = build(linear(1.0, 1.0))
    for step in range(100):
        view = make_view(2, max_draft=3, step=step)
        policy.observe(make_outcome(view, policy.plan(view).draft_lengths, 0))
    assert policy.plan(make_view(2, max_draft=3, step=100)).draft_lengths.tolist() == [3, 3]
    assert policy.estimator.intercepts.tolist() == [-0.2, -0.2, -0.2]


def test_without_a_profile_the_first_steps_cycle_through_budgets_and_their_times_are_fitted():
    policy, budgets = build(warmup_steps=10), []
    for step in range(10):
        view = make_view(2, max_draft=4, step=step)
        plan = policy.plan(view)
        kept = plan.selection.select(plan.draft_lengths, np.full((2, 4), 0.9))
        budgets.append(int(kept.sum()))
        tokens = 2 + int(kept.sum())
        policy.observe(
            make_outcome(
                view,
                kept,
                0,
                proposed=plan.draft_lengths,
                draft_rows=np.array([2, 2, 2, 2]),
                draft_seconds=3.0,
                verify_seconds=5.0 + tokens,
            )
        )
    assert budgets == [0, 2, 4, 6, 8] * 2
    assert policy.costs is not None
    assert policy.costs.draft_seconds(2) == 3.0
    assert policy.costs.verify_seconds(np.array([2, 5, 10])).tolist() == [7.0, 10.0, 15.0]


def test_a_profile_gives_the_costs_and_the_sizes_of_graphs():
    samples = [LatencySample((2,), 0, 0, tokens, 0, 0, 1.0, float(tokens), tokens + 1.0) for tokens in (2, 4, 8)]
    config = VllmAdaptiveVerificationConfig(version=1, policy="vllm_adaptive_verification")
    with_graphs = config.build(Profile(samples, {"graph_sizes": [2, 4]}), 0).costs
    assert with_graphs is not None
    assert with_graphs.verify_seconds(np.array([3, 6])).tolist() == [4.0, 8.0]
    without = config.build(Profile(samples), 0).costs
    assert without is not None
    assert without.verify_seconds(np.array([3, 6])).tolist() == [3.0, 6.0]


def test_a_profile_that_never_drafted_is_refused():
    config = VllmAdaptiveVerificationConfig(version=1, policy="vllm_adaptive_verification")
    with pytest.raises(UserError, match="drafting takes no time in the profile"):
        config.build(Profile([LatencySample((), 0, 0, 2, 0, 0, 0.0, 1.0, 1.0)]), 0)
