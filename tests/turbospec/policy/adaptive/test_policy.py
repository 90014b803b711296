"""The closed loop on made-up engines whose best draft length can be found by trying all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from tests.turbospec.synthetic_engine import (
    AcceptanceLaw,
    Served,
    SyntheticEngine,
    Times,
    alternating,
    drafter,
    never_accepted,
)
from turbospec.interface import Phase, Policy, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.planning.problem import Batch
from turbospec.planning.step_costs import step_costs
from turbospec.policy.adaptive import AdaptiveConfig, AdaptivePolicy

FIXED = (0, 1, 2, 3, 5)
GOOD, POOR = drafter(1.0), drafter(0.5)


class Fixed:
    def __init__(self, draft_length: int) -> None:
        self.draft_length = draft_length

    def plan(self, view: StepView) -> StepPlan:
        return StepPlan(np.minimum(view.draft_limits, self.draft_length))

    def observe(self, outcome: StepOutcome) -> None:
        pass


class RandomLengths:
    """Draft lengths of 0 to 8, what a profiling run does."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def plan(self, view: StepView) -> StepPlan:
        return StepPlan(np.minimum(view.draft_limits, self.rng.integers(0, 9)))

    def observe(self, outcome: StepOutcome) -> None:
        pass


def adaptive(profile: Profile | None = None, **settings: Any) -> AdaptivePolicy:
    policy = AdaptiveConfig(version=1, policy="adaptive", **settings).build(profile, seed=0)
    assert isinstance(policy, AdaptivePolicy)
    return policy


@functools.cache
def measured_profile() -> Profile:
    served = SyntheticEngine(concurrency=8).serve(RandomLengths(), GOOD, 16)
    return Profile.from_outcomes(step.outcome for step in served.steps)


def serve(policy: Policy, law: AcceptanceLaw, concurrency: int, seed: int = 1, **engine: Any) -> Served:
    """The second of two runs: the policy has found its feet in the first, as on a server that has been up a while."""
    server = SyntheticEngine(concurrency, **engine)
    requests = max(24, 4 * concurrency)
    server.serve(policy, law, requests, seed=seed)
    return server.serve(policy, law, requests, seed=seed + 1)


def mean_rate(policy: Callable[[], Policy], law: AcceptanceLaw, concurrency: int, **engine: Any) -> float:
    """Tokens a second over runs of different seeds: one run's luck is a few percent."""
    runs = [serve(policy(), law, concurrency, seed, **engine) for seed in (1, 11, 21)]
    return float(np.mean([run.tokens_per_second for run in runs]))


@functools.cache
def best_fixed(law: AcceptanceLaw, concurrency: int) -> float:
    return max(mean_rate(functools.partial(Fixed, length), law, concurrency) for length in FIXED)


@pytest.mark.parametrize("concurrency", [1, 8, 32])
@pytest.mark.parametrize("confidence", [True, False], ids=["gated", "not gated"])
@pytest.mark.parametrize(
    "law",
    [GOOD, POOR, never_accepted, alternating(GOOD, POOR, never_accepted)],
    ids=["good", "poor", "never_accepted", "mixed"],
)
def test_no_fixed_length_is_better(law: AcceptanceLaw, confidence: bool, concurrency: int) -> None:
    own = mean_rate(lambda: adaptive(first_token_weight=0.0), law, concurrency, confidence=confidence)
    assert own >= 0.97 * best_fixed(law, concurrency)


def test_a_hopeless_drafter_costs_no_more_than_its_probes() -> None:
    served = serve(adaptive(probe_share=0.01), never_accepted, 8)
    assert served.draft_seconds <= 0.015 * served.seconds
    assert all(step.plan.probe for step in served.steps if step.outcome.drafted.any())


def test_without_a_probe_share_drafting_ends_for_good() -> None:
    served = serve(adaptive(probe_share=0.0), never_accepted, 8)
    assert served.draft_seconds == 0.0


def test_drafting_comes_back_when_the_drafter_does() -> None:
    server, policy = SyntheticEngine(concurrency=8), adaptive()
    before, during, after = (server.serve(policy, law, 48, seed=3) for law in (GOOD, never_accepted, GOOD))
    assert during.mean_draft_length < 0.3
    assert after.mean_draft_length > 0.55 * before.mean_draft_length
    assert after.tokens_per_second > 0.85 * before.tokens_per_second


@pytest.mark.parametrize("served_before", [0, 24], ids=["at the start", "later"])
@pytest.mark.parametrize("seed", [1, 11, 21])
def test_drafting_comes_back_when_the_machine_does(served_before: int, seed: int) -> None:
    server, policy = SyntheticEngine(concurrency=1), adaptive()
    server.serve(policy, GOOD, served_before, seed=seed)
    server.times = Times(verify=20e-3, draft_start=5e-3, draft_pass=12e-3, catch_up_token=2e-4)
    server.serve(policy, GOOD, 1, seed=seed + 1)
    server.times = Times()
    assert server.serve(policy, GOOD, 24, seed=seed + 2).tokens_per_second > 0.9 * best_fixed(GOOD, 1)


def test_requests_whose_drafts_never_match_are_left_alone() -> None:
    times = Times(draft_pass=6e-4)
    runs = [serve(adaptive(), alternating(GOOD, never_accepted), 16, seed, times=times) for seed in range(1, 6)]
    drafted = np.zeros(2)
    steps = np.zeros(2)
    for step in (step for served in runs for step in served.steps):
        kinds = step.view.request_ids % 2
        decoding = step.view.phase != Phase.PREFILL
        drafted += np.bincount(kinds, step.outcome.drafted, 2)
        steps += np.bincount(kinds, decoding, 2)
    good, bad = drafted / steps
    assert good > 1.0
    assert bad < 0.2 * good


def test_a_price_is_learnt_where_every_step_has_prompts() -> None:
    policy = adaptive(measured_profile())
    for step in range(100):
        view = make_view(8, step=step, prefill_tokens=64)
        policy.plan(view)
        policy.observe(make_outcome(view, 0, 0, draft_seconds=0.0, verify_seconds=0.030, step_seconds=0.030))
    policy.plan(make_view(8, step=100))
    rate = policy.models.price.rate(8)
    assert rate is not None
    assert 1.2 * 8 / 0.030 < rate < 8 / policy.models.latency.verify_curve(8, 0, 800.0, 8)[0]


def test_a_queue_that_will_fill_the_batch_shortens_drafts_for_this_step_alone() -> None:
    dear = Times(verify_token=6e-4)
    policy = adaptive(use_confidence=False, probe_share=0.0)
    for concurrency in (4, 32):
        SyntheticEngine(concurrency, times=dear).serve(policy, GOOD, 4 * concurrency)
    filling = policy.plan(make_view(4, step=10**6, waiting_requests=28))
    alone = policy.plan(make_view(4, step=10**6 + 1))
    assert alone.draft_lengths.sum() > filling.draft_lengths.sum()


def test_requests_that_have_ended_do_not_lower_the_price() -> None:
    rates: list[float] = []
    for gone in (0, 4):
        policy = adaptive(measured_profile())
        emitted = np.array([1] * (8 - gone) + [0] * gone)
        for step in range(100):
            view = make_view(8, step=step)
            policy.plan(view)
            policy.observe(make_outcome(view, 0, 0, emitted=emitted, draft_seconds=0.0, step_seconds=0.030))
        policy.plan(make_view(8, step=100))
        rates.append(policy.models.price.rate(8 - gone) or 0.0)
    assert rates[0] / 8 == pytest.approx(rates[1] / 4)
    assert rates[0] > 0.0


def test_steps_of_which_nobody_is_left_teach_no_price() -> None:
    policy = adaptive(measured_profile())
    for step in range(20):
        view = make_view(2, step=step, phase=np.array([Phase.DECODE, Phase.PREFILL]), draft_limits=np.array([15, 0]))
        policy.plan(view)
        policy.observe(make_outcome(view, 0, 0, emitted=np.zeros(2, np.int64)))
    assert policy.plan(make_view(1, step=20)).draft_lengths.shape == (1,)
    assert policy.models.price.rate(1) is None


@pytest.mark.parametrize(("prompt", "learnt"), [(0, True), (500, False)])
def test_a_drafter_that_was_busy_with_prompts_is_not_held_against_drafting(prompt: int, learnt: bool) -> None:
    policy = adaptive(measured_profile())
    policy.models.bias = Mock(wraps=policy.models.bias)
    view = make_view(8)
    plan = policy.plan(view)
    assert plan.draft_lengths.any()
    policy.observe(make_outcome(view, plan.draft_lengths, 1, catch_up_tokens=prompt, step_seconds=0.030))
    policy.plan(make_view(4, step=1))  # not the same again, which needs no learning
    assert bool(policy.models.bias.learn.call_count) is learnt


def test_a_full_machine_drafts_less() -> None:
    dear = Times(verify_token=6e-4)
    alone, busy = (serve(adaptive(), GOOD, concurrency, times=dear) for concurrency in (1, 32))
    assert busy.mean_draft_length < 0.5 * alone.mean_draft_length


def test_a_first_token_is_worth_more_than_the_next_ones() -> None:
    view = make_view(8, step=100_000)
    prompt = make_view(8, step=100_001, phase=np.r_[[Phase.PREFILL], np.full(7, Phase.DECODE)], prefill_tokens=120)
    prompt.draft_limits[0] = 0
    policy = adaptive(first_token_weight=0.0, use_confidence=False, probe_share=0.0)
    serve(policy, GOOD, 8)
    lengths: list[list[int]] = []
    for weight in (0.0, 50.0):
        policy.config = AdaptiveConfig(
            version=1, policy="adaptive", first_token_weight=weight, use_confidence=False, probe_share=0.0
        )
        lengths.append([int(policy.plan(each).draft_lengths.sum()) for each in (view, prompt)])
    (decoding, with_prompt), (decoding_dear, with_prompt_dear) = lengths
    assert decoding == decoding_dear > 0
    assert with_prompt > with_prompt_dear == 0


@pytest.mark.parametrize(("law", "goes_on"), [(GOOD, False), (never_accepted, True)], ids=["good", "never_accepted"])
def test_a_plan_without_drafts_outlives_first_tokens_unless_it_is_for_them(law: AcceptanceLaw, goes_on: bool) -> None:
    policy = adaptive(first_token_weight=1000.0, probe_share=0.0)
    SyntheticEngine(concurrency=8).serve(policy, law, 48, seed=3)
    phase = np.r_[[Phase.PREFILL], np.full(7, Phase.DECODE)]
    plan = policy.plan(make_view(8, step=100_000, phase=phase, prefill_tokens=120))
    assert not plan.draft_lengths.any()
    assert (plan.valid_steps > 1) is goes_on


def test_tokens_that_wait_for_the_next_draft_are_first_tokens_too() -> None:
    starting = make_view(8, step=100_000, phase=np.full(8, Phase.FIRST_DECODE, np.int64), draft_before_emit=True)
    policy = adaptive(first_token_weight=50.0, use_confidence=False)
    serve(policy, GOOD, 8)
    assert policy.plan(starting).draft_lengths.sum() == 0, "neither drafts nor a probe"
    assert policy.plan(make_view(8, step=100_001)).draft_lengths.sum() > 0, "not held beyond the step it was meant for"


def test_those_who_will_start_in_the_next_step_wait_for_this_one_and_others_in_the_queue_do_not() -> None:
    queued = make_view(8, step=100_000, waiting_requests=6)
    policy = adaptive(first_token_weight=50.0, use_confidence=False, probe_share=0.0)
    serve(policy, GOOD, 8)
    assert policy.plan(queued).draft_lengths.sum() > 0
    assert policy.plan(replace(queued, step=100_001, admitted_requests=6)).draft_lengths.sum() == 0


def test_a_drafter_reads_prompts_later_if_somebody_waits_meanwhile() -> None:
    policy = adaptive(first_token_weight=1.0, use_confidence=False, probe_share=0.0)
    serve(policy, GOOD, 8)
    tokens = round(0.1 / policy.models.latency.catch_up_token_seconds)
    drafted = [
        int(policy.plan(view).draft_lengths.sum())
        for step, (waiting, prompts) in enumerate([(0, 0), (0, tokens), (4, 0), (4, tokens)])
        for view in [make_view(8, step=100_000 + step, admitted_requests=waiting, drafter_prefill_tokens=prompts)]
    ]
    assert drafted[0] == drafted[1] >= drafted[2] > drafted[3] == 0


def test_a_probe_is_not_made_where_the_drafter_would_read_prompts_for_it() -> None:
    reading: list[bool] = []
    for prompts in (0, 20_000):
        policy = adaptive(measured_profile())
        probes = 0
        for step in range(600):
            view = make_view(8, step=step, max_draft=4, batch_drafter=True, drafter_prefill_tokens=prompts)
            plan = policy.plan(view)
            probes += plan.probe
            policy.observe(make_outcome(view, plan.draft_lengths, 0, step_seconds=8e-3))
        reading.append(probes > 0)
    assert reading == [True, False]


def test_the_tpot_objective_counts_the_catch_up_time() -> None:
    policy = adaptive(measured_profile(), tpot_slo_ms=14.0, use_confidence=False)
    fresh, stale = (
        make_view(8, step=step, now=0.0, emitted_tokens=np.ones(8, np.int64), drafter_lag_tokens=np.full(8, tokens))
        for step, tokens in ((0, 0), (1, 400))
    )
    assert policy.plan(fresh).draft_lengths.any()
    plan = policy.plan(stale)
    assert not plan.draft_lengths.any() or plan.predicted_seconds <= 0.014


def test_a_parallel_drafter_drafts_longer() -> None:
    sequential, parallel = (
        serve(adaptive(), drafter(1.3), 4, confidence=False, parallel=parallel) for parallel in (False, True)
    )
    assert parallel.mean_draft_length > 1.2 * sequential.mean_draft_length
    assert parallel.tokens_per_second > sequential.tokens_per_second


def test_a_batch_drafters_first_position_has_no_price_of_its_own() -> None:
    """As in vLLM: the first pass is part of every step, so that drafting one token costs its verification alone."""
    policy = adaptive(measured_profile())
    view = make_view(8, max_draft=4, batch_drafter=True, first_pass_every_step=True)
    costs = step_costs(policy.models.latency, view, Batch.of(view, view.draft_limits))
    one, two = np.array([1] + [0] * 7), np.array([2] + [0] * 7)
    assert costs.seconds(one) == pytest.approx(costs.verify[1])
    _, each_pass, row = policy.models.latency.draft_costs(100.0)
    assert costs.seconds(two) == pytest.approx(costs.verify[2] + each_pass + 8 * row)


def test_a_parallel_drafter_costs_one_pass_over_the_whole_batch_too() -> None:
    policy = adaptive(measured_profile())
    view = make_view(8, max_draft=4, batch_drafter=True, parallel_drafter=True)
    costs = step_costs(policy.models.latency, view, Batch.of(view, view.draft_limits))
    start, each_pass, row = policy.models.latency.draft_costs(100.0)
    one, four = np.array([1] + [0] * 7), np.array([4] + [0] * 7)
    assert costs.seconds(one) == pytest.approx(costs.verify[1] + start + each_pass + 8 * row)
    assert costs.seconds(four) == pytest.approx(costs.verify[4] + start + each_pass + 8 * row)


def test_a_batch_drafter_of_one_token_is_not_explored_for_ever() -> None:
    """It never makes a pass of its own, and still shows what drafts cost."""
    policy = adaptive()
    for step in range(40):
        view = make_view(4, step=step, max_draft=1, batch_drafter=True, first_pass_every_step=True)
        plan = policy.plan(view)
        accepted = np.minimum(plan.draft_lengths, step % 2)
        outcome = make_outcome(view, plan.draft_lengths, accepted, draft_rows=np.zeros(0, np.int64), draft_seconds=0.0)
        policy.observe(outcome)
    assert not plan.reason.startswith("exploring")


def test_no_plan_with_drafts_breaks_the_tpot_objective() -> None:
    # A draft of one takes a step from 8 to about 10 ms: it pays here, and is more than 9 ms a token allow.
    dear = Times(draft_pass=1.5e-3, verify_token=5e-6, noise=0.0)
    free = serve(adaptive(), POOR, 8, seed=3, times=dear)
    bound = serve(adaptive(tpot_slo_ms=8.0), POOR, 8, seed=3, times=dear)
    assert free.mean_draft_length > 0.3
    assert np.percentile(bound.per_token, 95) <= max(8.2e-3, float(np.percentile(free.per_token, 95)))
    assert bound.mean_draft_length < free.mean_draft_length


def test_a_loose_promise_changes_nothing() -> None:
    loose = mean_rate(lambda: adaptive(tpot_slo_ms=1000.0), GOOD, 4)
    assert loose == pytest.approx(mean_rate(adaptive, GOOD, 4), rel=0.03)


def test_predictions_hold() -> None:
    steps = [
        step
        for seed in range(5)
        for step in serve(adaptive(), GOOD, 8, seed).steps
        if step.view.prefill_tokens == 0 and step.plan.predicted_seconds > 0.0
    ]
    seconds = sum(step.plan.predicted_seconds for step in steps) / sum(step.outcome.step_seconds for step in steps)
    tokens = sum(step.plan.predicted_tokens for step in steps) / sum(int(step.outcome.emitted.sum()) for step in steps)
    assert seconds == pytest.approx(1.0, abs=0.12)
    assert tokens == pytest.approx(1.0, abs=0.08)


def test_with_a_profile_there_is_nothing_to_explore() -> None:
    server = SyntheticEngine(concurrency=4)
    served = server.serve(adaptive(measured_profile()), GOOD, 4)
    assert not any(step.plan.reason.startswith("exploring") for step in served.steps)
    blind = SyntheticEngine(concurrency=4).serve(adaptive(), GOOD, 4)
    assert any(step.plan.reason.startswith("exploring") for step in blind.steps)


def test_the_longest_draft_can_be_lowered() -> None:
    served = serve(adaptive(max_draft=2), drafter(1.3), 1)
    assert 1.0 < max(step.plan.draft_lengths.max() for step in served.steps) <= 2


def test_a_limit_of_zero_is_off() -> None:
    served = serve(adaptive(max_draft=0), GOOD, 4)
    assert served.mean_draft_length == 0.0


def test_plans_whose_outcome_never_comes_are_forgotten() -> None:
    policy = adaptive()
    for step in range(1_000):
        policy.plan(make_view(step=step))
    assert len(policy._records) < 100


def test_an_outcome_that_cannot_be_learnt_from_is_not_met_again(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = adaptive(measured_profile())
    SyntheticEngine(concurrency=2).serve(policy, GOOD, 2)
    view = make_view(2, step=10_000, request_ids=np.array([900, 901]))
    policy.plan(view)
    policy.observe(make_outcome(view, 1, 1))
    monkeypatch.setattr(policy.models.latency, "learn", Mock(side_effect=ValueError("corrupt")))
    with pytest.raises(ValueError, match="corrupt"):
        policy.plan(make_view(2, step=10_001))
    assert policy.plan(make_view(2, step=10_002)).draft_lengths.shape == (2,)


def test_an_empty_step_is_planned() -> None:
    assert adaptive().plan(make_view(0)).draft_lengths.shape == (0,)
    assert adaptive(measured_profile()).plan(make_view(0)).draft_lengths.shape == (0,)


def test_a_step_of_prompts_alone_drafts_nothing() -> None:
    phase = np.full(3, Phase.PREFILL, np.int64)
    view = make_view(3, phase=phase, draft_limits=np.zeros(3, np.int64), prefill_tokens=300)
    assert not adaptive(measured_profile()).plan(view).draft_lengths.any()


def test_the_same_steps_give_the_same_plans() -> None:
    runs = [serve(adaptive(), GOOD, 8) for _ in range(2)]
    plans = [[step.plan.draft_lengths.tolist() for step in run.steps] for run in runs]
    assert plans[0] == plans[1]


def test_an_engine_whose_maximum_grows_is_modelled_anew() -> None:
    """The models have a column for each draft position; a gate would read past the last one."""
    policy = adaptive()
    for step in range(200):
        view = make_view(4, step=step, max_draft=2 if step < 100 else 9)
        plan = policy.plan(view)
        drafted = np.minimum(plan.draft_lengths, view.draft_limits)
        policy.observe(make_outcome(view, drafted, drafted, confidence=np.full((4, 9), 0.9)))
    assert policy.models.drafter is not None
    assert policy.models.drafter.max_draft == 9
    assert plan.draft_lengths.max() > 2


def test_an_outcome_of_another_batch_is_not_learnt_from() -> None:
    policy = adaptive(measured_profile())
    policy.plan(make_view(4, step=1))
    policy.observe(make_outcome(make_view(7, step=1), 3, 3))
    assert policy._waiting == []
