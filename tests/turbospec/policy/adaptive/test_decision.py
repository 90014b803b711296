"""What every decision has to satisfy, whatever the step and the way of drafting."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from tests.turbospec.models.acceptance_model import views
from turbospec.interface import IntArray, Phase, StepPlan, StepView
from turbospec.models.acceptance import ONE_BUCKET, fill_survival
from turbospec.models.step_cost import SIZE, TOKENS
from turbospec.planning.gain_histogram import BINS, graph_bits, passes_run
from turbospec.planning.objective import expected_gain, plan_features, sum_up
from turbospec.policy.adaptive import AdaptiveConfig, AdaptivePolicy
from turbospec.policy.adaptive.state import OF_DRAFTER, OF_LOOKUP

WAYS: list[dict[str, Any]] = [
    {},
    {"batch_drafter": True},
    {"batch_drafter": True, "first_pass_every_step": True},
    {"parallel_drafter": True},
    {"batch_drafter": True, "parallel_drafter": True, "first_pass_every_step": True},
    {"batch_drafter": True, "drafter_graph_lengths": (0, 1, 3, 6)},
]
WAY_NAMES = ["sequential", "batch", "vLLM", "parallel", "parallel in vLLM", "graphs of passes"]


def a_policy(**settings: Any) -> AdaptivePolicy:
    policy = AdaptiveConfig(version=1, policy="adaptive", **settings).build(None, seed=0)
    assert isinstance(policy, AdaptivePolicy)
    return policy


def random_view(rng: np.random.Generator, step: int, n: int, **way: Any) -> StepView:
    """Requests of any phase and limit; a fifth of the requests is new in every step."""
    phase = np.where(rng.random(n) < 0.1, rng.integers(0, 2, n), Phase.DECODE)
    prompts = int((phase == Phase.PREFILL).sum()) * 50
    lag = rng.integers(0, 30, n) * (not way.get("first_pass_every_step"))
    if prompts:
        way = way | {"graph_lengths": ()}
    return make_view(
        n,
        step=step,
        max_draft=6,
        now=step * 0.01,
        request_ids=np.arange(n) + n * (np.arange(n) % 5 == 0) * (1 + step),
        phase=phase,
        context_tokens=rng.integers(1, 2000, n),
        emitted_tokens=rng.integers(1, 20, n),
        tokens_left=rng.integers(1, 200, n),
        drafter_lag_tokens=lag,
        draft_limits=np.where(phase == Phase.PREFILL, 0, rng.integers(0, 7, n)),
        prefill_tokens=prompts,
        **way,
    )


def run(policy: AdaptivePolicy, view: StepView, rng: np.random.Generator, acceptance: float = 0.7) -> StepPlan:
    """One step of a machine on which padding saves 2 ms."""
    plan = policy.plan(view)
    drafted = plan.draft_lengths
    accepted = np.minimum(rng.geometric(1.0 - acceptance, view.size) - 1, drafted)
    tokens = view.size + int(drafted.sum())
    if plan.padded_length:
        tokens = view.size * (1 + plan.padded_length)
    piecewise = bool(view.graph_lengths) and plan.padded_length == 0 and bool(drafted.any())
    depth = plan.padded_length or int(drafted.max(initial=0))
    passes = min(depth, 1) if view.parallel_drafter else passes_run(depth, graph_bits(view.drafter_graph_lengths))
    if view.first_pass_every_step:
        passes = max(passes - 1, 0)
    draft_rows = np.full(passes, view.size)
    if not view.batch_drafter:
        rows = [int((drafted > position).sum()) for position in range(depth)]
        draft_rows = np.array([sum(rows)] if view.parallel_drafter and depth else rows[:passes], np.int64)
    seconds = 0.008 + 3e-5 * (tokens + view.prefill_tokens) + 2e-3 * piecewise
    drafting = 8e-4 * passes
    outcome = make_outcome(
        view,
        drafted,
        accepted,
        draft_rows=draft_rows,
        tokens_batched=tokens + view.prefill_tokens,
        draft_seconds=drafting,
        step_seconds=seconds + drafting,
        piecewise=piecewise,
    )
    policy.observe(outcome)
    return plan


def expected(policy: AdaptivePolicy, view: StepView, plan: StepPlan) -> tuple[float, float]:
    """Tokens and seconds of a plan by the policy's models."""
    shape = sum_up(
        view.phase,
        view.emitted_tokens,
        view.context_tokens,
        view.prefill_tokens,
        view.parallel_drafter,
        view.batch_drafter,
        view.first_pass_every_step,
        np.array(view.graph_lengths, np.int64),
        view.largest_graph,
        graph_bits(view.drafter_graph_lengths),
    )
    x, survival, first = np.zeros(SIZE), np.zeros((view.size, view.max_draft)), np.zeros(view.size)
    plan_features(x, shape, view.drafter_lag_tokens, plan.draft_lengths, plan.padded_length)
    rows, _ = policy.state.rows(view.request_ids)
    terms = views(policy.state.shared["drafter"], policy.state.requests[:, OF_DRAFTER:OF_LOOKUP])
    fill_survival(terms, rows, view.class_ids, ONE_BUCKET, view.draft_limits, 0.0, first, survival)
    return shape.decoding + expected_gain(survival, plan.draft_lengths), float(
        x @ policy.state.shared["cost"]["weights"][0]
    )


@pytest.mark.parametrize("graph_lengths", [(), (0, 2, 6), (2, 6)], ids=["no graphs", "graphs", "graphs of drafts"])
@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
def test_every_plan_is_within_limits_and_predicts_what_its_lengths_take(
    way: dict[str, Any], graph_lengths: tuple[int, ...]
) -> None:
    rng, policy = np.random.default_rng(3), a_policy()
    drafts = padded = 0
    for step in range(120):
        view = random_view(rng, step, int(rng.integers(1, 12)), graph_lengths=graph_lengths, **way)
        before = {field.name: np.copy(getattr(view, field.name)) for field in fields(view)}
        plan = replace(policy.plan(view))
        tokens, seconds = expected(policy, view, plan)
        assert plan.predicted_seconds == pytest.approx(seconds)
        assert plan.predicted_tokens == pytest.approx(tokens)
        assert (plan.draft_lengths >= 0).all()
        assert (plan.draft_lengths <= view.draft_limits).all()
        assert plan.padded_length in (0, *view.graph_lengths)
        assert plan.padded_length == 0 or plan.draft_lengths.max() <= plan.padded_length
        if view.drafter_graph_lengths:
            longest = plan.padded_length or int(plan.draft_lengths.max())
            assert plan.passes == {0: 0, 1: 1, 2: 3, 3: 3}.get(longest, 6)
        else:
            assert plan.passes == 0
        kept = plan.draft_lengths.copy()
        assert run(policy, view, rng).draft_lengths.shape == (view.size,)
        assert plan.draft_lengths.tolist() == kept.tolist(), "a later plan shares no memory with this one"
        for name, was in before.items():
            assert np.array_equal(getattr(view, name), was), name
        drafts += bool(plan.draft_lengths.any())
        padded += plan.padded_length > 0
    assert drafts > 30
    assert (padded > 10) is bool(graph_lengths)


def in_order(view: StepView, order: IntArray) -> StepView:
    """The same step with its requests in another order."""
    columns = {
        field.name: getattr(view, field.name)[order]
        for field in fields(view)
        if isinstance(getattr(view, field.name), np.ndarray)
    }
    return replace(view, **columns)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_requests_makes_no_difference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = a_policy(), a_policy()
    for step in range(40):
        n = int(rng.integers(2, 12))
        view = random_view(rng, step, n)
        order = rng.permutation(n)
        plan, same = one.plan(view), other.plan(view)
        assert same.draft_lengths.tolist() == plan.draft_lengths.tolist(), "the same state, the same plan"
        for policy in (one, other):
            # A plan may end within a bin of gains, and an experiment may be for some of the requests.
            policy.state.shared["server"]["budget"] = 0.0
        plan, turned = one.plan(view), other.plan(in_order(view, order))
        assert turned.draft_lengths.sum() == plan.draft_lengths.sum()
        assert turned.padded_length == plan.padded_length
        assert turned.predicted_seconds == pytest.approx(plan.predicted_seconds)
        ties = plan.draft_lengths.sum() / BINS
        assert turned.predicted_tokens == pytest.approx(plan.predicted_tokens, abs=ties)
        moved = np.abs(turned.draft_lengths - plan.draft_lengths[order])
        assert moved.sum() <= 2 * BINS
        for policy in (one, other):
            policy.state.shared["server"]["budget"] = 1.0
            run(policy, view, np.random.default_rng(step))


def test_the_number_of_requests_may_grow_at_any_step() -> None:
    few_first, many_first = a_policy(), a_policy()
    for policy in (few_first, many_first):
        rng = np.random.default_rng(0)
        for step in range(40):
            run(policy, make_view(4, step=step, max_draft=6), rng, 0.9)
    assert few_first.plan(make_view(4, step=40, max_draft=6)).draft_lengths.any()
    for step, n in enumerate((65, 1024, 3, 1024)):
        view = random_view(np.random.default_rng(step), 41 + step, n)
        for policy in (few_first, many_first):
            policy.state.shared["server"]["refused_at"] = view.step  # no experiment, for which their pasts differ
        grown = few_first.plan(view)
        if n == 1024:
            assert grown.draft_lengths.tolist() == many_first.plan(view).draft_lengths.tolist()
        assert grown.draft_lengths.shape == (n,)
        tokens, seconds = expected(few_first, view, grown)
        assert grown.predicted_tokens == pytest.approx(tokens)
        assert grown.predicted_seconds == pytest.approx(seconds)


def test_the_longest_draft_may_grow_and_shrink_at_any_step() -> None:
    rng, policy = np.random.default_rng(0), a_policy()
    longest: list[int] = []
    for step in range(150):
        max_draft = (2, 9, 4)[step // 50]
        plan = run(policy, make_view(8, step=step, max_draft=max_draft), rng, 0.95)
        assert plan.draft_lengths.max() <= max_draft
        longest.append(int(plan.draft_lengths.max()))
    assert max(longest[:50]) == 2
    assert max(longest[50:100]) > 4
    assert longest[-1] == 4


def test_experiments_cost_no_more_than_their_budget() -> None:
    """A drafter whose tokens are never accepted; what experiments lost is what drafting took."""
    for share in (0.0, 0.02):
        policy, rng, lost, spent = a_policy(probe_share=share), np.random.default_rng(0), 0.0, 0.0
        for step in range(1500):
            view = make_view(8, step=step, max_draft=6)
            plan = run(policy, view, rng, 0.01)
            passes = int(plan.draft_lengths.max())
            lost += 8e-4 * passes + 3e-5 * int(plan.draft_lengths.sum())
            spent += 0.008 + 3e-5 * 8
        # Before the first outcomes the drafter is taken for a usual one.
        assert lost <= share * spent + 12 * spent / 1500


def test_an_experiment_that_takes_no_longer_is_one_too() -> None:
    policy = a_policy()
    policy.plan(make_view(1, max_draft=15))
    policy.state.shared["server"]["budget"] = 1.0
    policy.state.shared["cost"]["weights"][0, TOKENS:] = 0.0
    plan = policy.plan(make_view(1, step=1, max_draft=15))
    assert plan.predicted_seconds == policy.plan(make_view(1, step=2, max_draft=15)).predicted_seconds
    assert plan.probe
