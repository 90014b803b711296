"""The closed loop on made-up engines whose best draft length can be found by trying all."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from turbospec.interface import LookupView, Phase, Policy, StepOutcome, StepPlan, StepView
from turbospec.models.logistic import PRIOR_VARIANCE
from turbospec.models.profile import Profile
from turbospec.models.step_cost import PIECEWISE, UNGRAPHED
from turbospec.policy.adaptive import AdaptiveConfig, AdaptivePolicy
from turbospec.policy.adaptive.state import OF_DRAFTER, OF_LOOKUP

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


def price_of(plan: StepPlan) -> float:
    """λ, tokens/s, to one token/s."""
    written = re.search(r" at (\d+) tok/s$", plan.reason)
    assert written is not None
    return float(written[1])


def state_of(policy: AdaptivePolicy) -> list[bytes]:
    """All that is learnt."""
    return [policy.state.shared.tobytes(), policy.state.requests.tobytes()]


@functools.cache
def measured_profile() -> Profile:
    served = SyntheticEngine(concurrency=8).serve(RandomLengths(), GOOD, 16)
    return Profile.from_outcomes(step.outcome for step in served.steps)


def requests_for(concurrency: int) -> int:
    return max(16, 3 * concurrency)


def serve(policy: Policy, law: AcceptanceLaw, concurrency: int, seed: int = 1, **engine: Any) -> Served:
    """The second of two runs: the policy has learnt in the first, as on a server that has been up for a while."""
    server, requests = SyntheticEngine(concurrency, **engine), requests_for(concurrency)
    server.serve(policy, law, requests, seed=seed)
    return server.serve(policy, law, requests, seed=seed + 1)


SEEDS = (1, 11, 21)
"""One run's throughput varies by a few percent."""


def mean_rate(policy: Callable[[], Policy], law: AcceptanceLaw, concurrency: int) -> float:
    """Tokens/s over runs of different seeds."""
    return float(np.mean([serve(policy(), law, concurrency, seed).tokens_per_second for seed in SEEDS]))


@functools.cache
def best_fixed(law: AcceptanceLaw, concurrency: int) -> float:
    """Tokens/s of the best fixed length in the same second runs; it has nothing to learn in the first."""

    def rate(length: int, seed: int) -> float:
        server, requests = SyntheticEngine(concurrency), requests_for(concurrency)
        server.requests = requests
        return server.serve(Fixed(length), law, requests, seed=seed + 1).tokens_per_second

    return max(float(np.mean([rate(length, seed) for seed in SEEDS])) for length in FIXED)


@pytest.mark.parametrize("concurrency", [1, 8, 32])
@pytest.mark.parametrize(
    "law",
    [GOOD, POOR, never_accepted, alternating(GOOD, POOR, never_accepted)],
    ids=["good", "poor", "never_accepted", "mixed"],
)
def test_no_fixed_length_is_better(law: AcceptanceLaw, concurrency: int) -> None:
    own = mean_rate(lambda: adaptive(first_token_weight=0.0), law, concurrency)
    assert own >= 0.97 * best_fixed(law, concurrency)


def test_a_hopeless_drafter_costs_no_more_than_its_probes() -> None:
    served = serve(adaptive(probe_share=0.01), never_accepted, 8)
    assert served.draft_seconds <= 0.015 * served.seconds
    assert all(step.plan.probe for step in served.steps if step.outcome.drafted.any())


def lagging_step(policy: AdaptivePolicy, step: int, *, seconds: float = 0.01) -> tuple[StepPlan, StepOutcome]:
    """A plan for two requests with a long drafter KV lag, and its outcome: no draft is ever accepted.

    Args:
        policy: makes the plan; the outcome is not reported to it.
        step: number.
        seconds: duration without drafts.
    """
    view = make_view(2, step=step, max_draft=4, drafter_lag_tokens=np.full(2, 400), calls_gate=False)
    plan = policy.plan(view)
    drafting = int(np.count_nonzero(plan.draft_lengths))
    draft_seconds = 0.002 * int(plan.draft_lengths.max()) + 4e-5 * 400 * drafting
    times = {"draft_seconds": draft_seconds, "verify_seconds": seconds, "step_seconds": seconds + draft_seconds}
    return plan, make_outcome(view, plan.draft_lengths, 0, catch_up_tokens=400 * drafting, **times)


@pytest.mark.parametrize("first_seconds", [0.01, 20.0])
def test_a_slow_first_step_allows_no_more_experiments(first_seconds: float) -> None:
    """Such as one that compiles kernels: the budget is three steps of their present duration."""
    policy, lost = adaptive(), 0.0
    for step in range(600):
        plan, outcome = lagging_step(policy, step, seconds=first_seconds if step == 0 else 0.01)
        policy.observe(outcome)
        lost += outcome.draft_seconds if plan.probe else 0.0
    assert 0.0 < lost < 0.15  # three steps at the start and 1 % of 600 steps are 0.09 s


def test_experiments_whose_outcomes_are_out_share_one_budget() -> None:
    """Engines plan one or two steps ahead of the outcome."""
    policy = adaptive()
    _, outcome = lagging_step(policy, 0)
    policy.observe(outcome)
    policy.state.shared["server"]["refused_at"] = -100
    ahead = [lagging_step(policy, step) for step in range(1, 12)]
    expected = [plan.predicted_seconds - 0.01 for plan, _ in ahead if plan.probe]
    assert expected
    assert sum(expected) < 4 * 0.01
    for _, outcome in ahead:
        policy.observe(outcome)
    assert policy.state.shared["server"]["budget"][0] > -3 * 0.01


def test_a_plan_that_is_replaced_gives_back_what_it_reserved() -> None:
    """Engines that plan ahead plan a step again where a request has joined it."""
    policy = adaptive()
    _, outcome = lagging_step(policy, 0)
    policy.observe(outcome)
    budget = policy.state.shared["server"]["budget"][0]
    first, _ = lagging_step(policy, 1)
    assert first.probe
    reserved = budget - policy.state.shared["server"]["budget"][0]
    assert reserved > 0
    again, _ = lagging_step(policy, 1)
    assert again.draft_lengths.tolist() == first.draft_lengths.tolist()
    assert policy.state.shared["server"]["budget"][0] == pytest.approx(budget - reserved)


def test_without_a_probe_share_drafting_ends_for_good() -> None:
    served = serve(adaptive(probe_share=0.0), never_accepted, 8)
    assert served.draft_seconds == 0.0


def test_drafting_comes_back_when_the_drafter_does() -> None:
    server, policy = SyntheticEngine(concurrency=8), adaptive()
    before, during, after = (server.serve(policy, law, 48, seed=3) for law in (GOOD, never_accepted, GOOD))
    assert during.mean_draft_length < 0.3
    assert after.mean_draft_length > 0.5 * before.mean_draft_length
    assert after.tokens_per_second > 0.85 * before.tokens_per_second


def steps_with_a_prompt(policy: AdaptivePolicy, requests: int, accepts: bool, start: int, steps: int) -> list[StepPlan]:
    """Plans of steps in each of which one of the requests is in prefill; drafts are accepted whole, or not at all."""
    plans, phase, emitted = [], np.full(requests, Phase.DECODE, np.int64), np.full(requests, 9, np.int64)
    phase[0], emitted[0] = Phase.PREFILL, 0
    for step in range(start, start + steps):
        view = make_view(requests, step=step, phase=phase, prefill_tokens=50, emitted_tokens=emitted)
        plan = policy.plan(view)
        drafted = plan.draft_lengths
        seconds = 1e-3 * int(drafted.max())
        outcome = make_outcome(
            view, drafted, drafted if accepts else 0, draft_seconds=seconds, step_seconds=0.010 + seconds
        )
        policy.observe(outcome)
        plans.append(plan)
    return plans


def test_drafting_comes_back_where_every_step_has_a_prompt() -> None:
    policy = adaptive()
    assert not steps_with_a_prompt(policy, 96, False, 0, 200)[-1].draft_lengths.any()
    assert steps_with_a_prompt(policy, 96, True, 200, 150)[-1].draft_lengths.any()


def test_no_experiment_delays_a_first_token_unless_many_requests_decode() -> None:
    """Of the default weight, that of eight requests."""
    policy = adaptive()
    assert not any(plan.probe for plan in steps_with_a_prompt(policy, 80, False, 0, 200))
    assert any(plan.probe for plan in steps_with_a_prompt(policy, 96, False, 200, 200))


@pytest.mark.parametrize("served_before", [0, 24], ids=["at the start", "later"])
@pytest.mark.parametrize("seed", [1, 11, 21])
def test_drafting_comes_back_when_the_machine_does(served_before: int, seed: int) -> None:
    server, policy = SyntheticEngine(concurrency=1), adaptive()
    server.serve(policy, GOOD, served_before, seed=seed)
    server.times = Times(verify=20e-3, draft_start=5e-3, draft_pass=12e-3, catch_up_token=2e-4)
    server.serve(policy, GOOD, 1, seed=seed + 1)
    server.times = Times()
    assert server.serve(policy, GOOD, 24, seed=seed + 2).tokens_per_second > 0.85 * best_fixed(GOOD, 1)


@pytest.mark.parametrize("seed", [4, 6])
def test_experiments_find_drafts_that_pay_only_if_long(seed: int) -> None:
    """One request in flight, three of four easy to draft. Drafting takes so long to start that one token never pays."""
    times = Times(verify=9.6e-3, verify_token=3e-4, draft_start=6.5e-3, draft_pass=2.4e-3, catch_up_token=2e-5)
    law = alternating(*(lambda rng, request, p=p: (p, p) for p in (0.85, 0.85, 0.85, 0.2)))

    def tokens_per_second(policy: Policy) -> float:
        server = SyntheticEngine(concurrency=1, times=times, confidence=False, prompt_tokens=40)
        return server.serve(policy, law, 60, seed=seed).tokens_per_second

    assert tokens_per_second(adaptive()) > 1.1 * tokens_per_second(Fixed(0))


@pytest.mark.parametrize("seed", [1, 11])
def test_drafting_comes_back_after_a_few_slow_drafts(seed: int) -> None:
    server, policy = SyntheticEngine(concurrency=8), adaptive()
    server.serve(policy, GOOD, 64, seed=seed)
    server.times = Times(draft_start=20e-3)
    slow = server.serve(policy, GOOD, 8, seed=seed + 1)
    server.times = Times()
    server.serve(policy, GOOD, 120, seed=seed + 2)
    assert any(step.outcome.drafted.any() for step in slow.steps[:20])
    assert not slow.steps[-1].outcome.drafted.any()
    assert server.serve(policy, GOOD, 24, seed=seed + 3).tokens_per_second > 0.85 * best_fixed(GOOD, 8)


def test_positions_that_no_draft_reaches_are_tried_again() -> None:
    policy, offsets = adaptive(), list[float]()
    policy.plan(make_view(4))
    terms = policy.state.shared["drafter"]["offsets"][0]
    terms[0], terms[1] = -3.0, 0.1
    for step in range(1000):
        view = make_view(4, step=step)
        policy.plan(view)
        policy.observe(make_outcome(view, 2, 2))
        offsets.append(float(terms[0, 2]))
    assert all(np.diff(offsets) > 0.0)
    assert offsets[-1] > -0.5
    assert terms[1, 2] > 0.9 * PRIOR_VARIANCE


@pytest.mark.parametrize("drafted", [0, 1])
def test_what_is_known_of_a_request_decays_in_steps_without_drafts(drafted: int) -> None:
    """Those that reused the plan of an earlier step too, whether or not the step after them drafts."""
    evidence: list[float] = []
    for reused in (0, 3):
        policy, view = adaptive(), make_view(2)
        policy.plan(view)
        row = policy.state.rows(view.request_ids)[0][0]
        policy.state.requests[row, OF_DRAFTER:OF_LOOKUP] = 2.0, 5.0, 0.0
        plan_reuse = {"reused_plan_steps": reused, "reused_plan_seconds": 0.01 * reused}
        policy.observe(make_outcome(view, drafted, drafted, **plan_reuse))
        evidence.append(policy.state.requests[row, OF_DRAFTER + 1])
    decay = math.exp(-1.0 / AdaptivePolicy.constants.idle_steps)
    if not drafted:
        assert evidence == pytest.approx([5.0 * decay, 5.0 * decay**4])
    assert evidence[0] - evidence[1] == pytest.approx(5.0 * (1.0 - decay**3), rel=0.1)


def test_drafting_begins_although_every_request_has_a_long_prompt_to_catch_up() -> None:
    """Which costs an experiment more than the usual limit of the budget: the budget is saved for it."""
    engine = {"times": Times(catch_up_token=1e-6, verify_token=5e-6), "prompt_tokens": 6000}
    rates: list[float] = []
    for policy in (adaptive(), Fixed(0), Fixed(3)):
        server = SyntheticEngine(4, **engine)
        server.serve(policy, GOOD, 60)
        rates.append(server.serve(policy, GOOD, 60, seed=1).tokens_per_second)
    own, off, fixed = rates
    assert own > 0.95 * fixed > 1.2 * off


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
    assert bad < 0.25 * good


def test_what_a_pass_too_large_for_graphs_takes_is_learnt_and_avoided() -> None:
    policy, lengths = adaptive(probe_share=0.0), dict[int, int]()
    for largest in (0, 40):
        for step in range(200):
            view = make_view(8, step=1000 * largest + step, max_draft=15, largest_graph=largest)
            plan = policy.plan(view)
            tokens = 8 + int(plan.draft_lengths.sum()) + 40 * (step % 8 == 0)
            seconds = 5e-3 + 1e-6 * tokens + (20e-3 if 0 < largest < tokens else 0.0)
            passes = np.full(int(plan.draft_lengths.max()), 8)
            drafting = 1e-4 * len(passes)
            outcome = make_outcome(
                view, plan.draft_lengths, plan.draft_lengths, tokens_batched=tokens, draft_rows=passes,
                draft_seconds=drafting, step_seconds=seconds + drafting, verify_seconds=seconds,
            )  # fmt: skip
            policy.observe(outcome)
        lengths[largest] = 8 + int(plan.draft_lengths.sum())
    assert policy.state.shared["cost"]["weights"][0][UNGRAPHED] == pytest.approx(20e-3, rel=0.2)
    assert lengths[0] > 60
    assert lengths[40] <= 40


def test_what_a_pass_too_large_for_graphs_takes_is_learnt_from_steps_that_reuse_a_plan_too() -> None:
    policy = adaptive(probe_share=0.0)
    for step in range(200):
        n, seconds = (60, 25e-3) if step % 4 == 0 else (30, 5e-3)
        view = make_view(n, step=step, draft_limits=np.zeros(n, np.int64), largest_graph=40)
        policy.plan(view)
        outcome = make_outcome(
            view, 0, 0, tokens_batched=n, step_seconds=seconds, verify_seconds=seconds,
            reused_plan_steps=7, reused_plan_tokens=7 * n, reused_plan_seconds=7 * seconds,
        )  # fmt: skip
        policy.observe(outcome)
    assert policy.state.shared["cost"]["weights"][0][UNGRAPHED] > 10e-3


@pytest.mark.parametrize(("graphs", "learnt"), [((), False), ((0, 2), False), ((2,), True), ((1, 2), True)])
def test_what_steps_that_reuse_a_plan_take_without_a_full_graph_is_learnt_where_0_drafts_have_none(
    graphs: tuple[int, ...], learnt: bool
) -> None:
    policy = adaptive(probe_share=0.0)
    policy.plan(make_view(4))
    before = float(policy.state.shared["cost"]["weights"][0][PIECEWISE])
    for step in range(20):
        view = make_view(4, step=step, draft_limits=np.zeros(4, np.int64), graph_lengths=graphs)
        policy.plan(view)
        reused = {"reused_plan_steps": 7, "reused_plan_tokens": 28, "reused_plan_seconds": 0.21}
        policy.observe(make_outcome(view, 0, 0, **reused))
    assert (float(policy.state.shared["cost"]["weights"][0][PIECEWISE]) != before) is learnt


def test_steps_with_prompts_that_reuse_a_plan_earn_budget_and_teach_no_step_time() -> None:
    reused = {"reused_plan_steps": 9, "reused_plan_tokens": 36, "reused_plan_seconds": 0.9}
    weights: list[list[float]] = []
    budgets: list[float] = []
    for fields in ({}, reused | {"reused_plan_prefill_tokens": 4000}, reused):
        policy, view = adaptive(), make_view(4, prefill_limited=True)
        server = policy.state.shared["server"]
        server["limited_share"], server["budget_limit"] = 1.0, 1.0
        policy.plan(view)
        policy.observe(make_outcome(view, 0, 0, tokens_batched=4, **fields))
        assert server["limited_share"] == 1.0
        weights.append(policy.state.shared["cost"]["weights"][0].tolist())
        budgets.append(float(server["budget"][0]))
    assert weights[0] == weights[1] != weights[2]
    assert budgets[1] - budgets[0] == pytest.approx(0.9 * policy.config.probe_share)
    assert budgets[1] == budgets[2]


def test_prompts_are_no_part_of_the_price() -> None:
    """They have to be computed whatever is drafted, so that their time is no price of drafting."""
    policy = adaptive(probe_share=0.0)
    SyntheticEngine(concurrency=8).serve(policy, GOOD, 48)
    prices = [
        price_of(policy.plan(make_view(8, step=100_000 + step, prefill_tokens=prompts)))
        for step, prompts in enumerate((0, 50, 2000))
    ]
    assert prices == [pytest.approx(prices[0], rel=0.01)] * 3


def test_a_drafter_reads_prompts_later_if_somebody_waits_meanwhile() -> None:
    policy = adaptive(first_token_weight=1.0, probe_share=0.0)
    serve(policy, GOOD, 8)
    drafted = [
        int(policy.plan(view).draft_lengths.sum())
        for step, (waiting, prompts) in enumerate([(0, 0), (4, 0), (4, 20_000)])
        for view in [make_view(8, step=100_000 + step, admitted_requests=waiting, drafter_prefill_tokens=prompts)]
    ]
    assert drafted[0] >= drafted[1] > drafted[2] == 0


def test_the_price_is_the_best_rate_of_the_requests() -> None:
    policy = adaptive(measured_profile(), probe_share=0.0, first_token_weight=0.0)
    SyntheticEngine(concurrency=8).serve(policy, GOOD, 48)
    plan = policy.plan(make_view(8, step=100_000))
    # Without prompts and catching up the plan of the best rate is the best plan.
    assert price_of(plan) == pytest.approx(plan.predicted_tokens / plan.predicted_seconds, rel=0.05)


def test_a_full_machine_drafts_less() -> None:
    dear = Times(verify_token=6e-4)
    alone, busy = (serve(adaptive(), GOOD, concurrency, times=dear) for concurrency in (1, 32))
    assert busy.mean_draft_length < 0.5 * alone.mean_draft_length


def test_a_first_token_is_worth_more_than_the_next_ones() -> None:
    view = make_view(8, step=100_000)
    prompt = make_view(8, step=100_001, phase=np.r_[[Phase.PREFILL], np.full(7, Phase.DECODE)], prefill_tokens=120)
    prompt.draft_limits[0] = prompt.emitted_tokens[0] = 0
    policy = adaptive(first_token_weight=0.0, probe_share=0.0)
    serve(policy, GOOD, 8)
    lengths: list[list[int]] = []
    for weight in (0.0, 50.0):
        policy.config = AdaptiveConfig(version=1, policy="adaptive", first_token_weight=weight, probe_share=0.0)
        lengths.append([int(policy.plan(each).draft_lengths.sum()) for each in (view, prompt)])
    (decoding, with_prompt), (decoding_dear, with_prompt_dear) = lengths
    assert decoding == decoding_dear > 0
    assert with_prompt > with_prompt_dear == 0


def test_a_plan_without_drafts_is_kept_for_some_steps_only_where_no_draft_would_pay() -> None:
    longest: list[int] = []
    for law in (GOOD, never_accepted):
        served = serve(adaptive(), law, 32)
        kept = [step.plan for step in served.steps if step.plan.valid_steps > 1]
        assert not any(plan.draft_lengths.any() for plan in kept)
        longest.append(max((plan.valid_steps for plan in kept), default=1))
    assert longest[0] == 1
    assert longest[1] > 1


def test_a_plan_made_again_is_kept_until_the_next_experiment_is_considered() -> None:
    policy = adaptive(probe_share=0.0)
    served, pause = serve(policy, never_accepted, 32), AdaptivePolicy.constants.pause_steps
    view = [step.view for step in served.steps if step.plan.valid_steps == pause][-1]
    kept = [policy.plan(replace(view, step=100_000 + step)).valid_steps for step in range(pause + 1)]
    assert kept == [*range(pause, 0, -1), pause]


def test_step_numbers_that_go_back_end_a_pause() -> None:
    """As after a restart of an engine that keeps its controller: a pause ends eight steps later, not thousands."""
    policy = adaptive()
    for step in range(40):
        _, outcome = lagging_step(policy, step)
        policy.observe(outcome)
    policy.state.shared["server"]["refused_at"], policy.state.shared["server"]["settled"] = 10_000, True
    plan, _ = lagging_step(policy, 40)
    assert not plan.draft_lengths.any() or plan.probe
    assert plan.valid_steps <= policy.constants.pause_steps


def test_a_drafter_stays_off_where_its_memory_would_serve_more_requests() -> None:
    def drafted(kv_share: float) -> list[int]:
        """Draft tokens in steps that lack KV blocks from step 200 on."""
        policy, drafted = adaptive(probe_share=0.0), list[int]()
        serve(policy, POOR, 8)
        for step in range(800):
            view = make_view(8, step=100_000 + step, drafter_kv_share=kv_share if step >= 200 else 0.0)
            drafted.append(int(policy.plan(view).draft_lengths.sum()))
            policy.observe(make_outcome(view, 0, 0))
        return drafted

    usual, small, large = drafted(0.0), drafted(0.05), drafted(1.0)
    assert usual[0] == small[0] == large[0] > 0
    assert usual[200:] == [usual[0]] * 600
    assert min(small) > 0
    assert max(large[500:]) == 0


def test_time_is_dear_where_prefill_limits_every_step() -> None:
    def prices(limited_steps: int) -> tuple[list[float], list[int]]:
        """λ and drafts in 1,000 steps, of which the first are limited."""
        policy, price, drafted = adaptive(probe_share=0.0), list[float](), list[int]()
        serve(policy, GOOD, 8)
        for step in range(1000):
            view = make_view(8, step=100_000 + step, prefill_tokens=100, prefill_limited=step < limited_steps)
            plan = policy.plan(view)
            price.append(price_of(plan))
            drafted.append(int(plan.draft_lengths.sum()))
            policy.observe(make_outcome(view, 0, 0))
        return price, drafted

    (usual, drafted), (dear, drafted_dear) = prices(0), prices(400)
    assert drafted[0] == drafted_dear[0] > 0
    assert dear[399] > 10 * usual[399]
    assert not any(drafted_dear[300:400])
    assert dear[-1] == pytest.approx(usual[-1], rel=0.05)


def test_steps_that_reuse_a_plan_count_where_prefill_no_longer_limits() -> None:
    shares: list[float] = []
    for reused, plans in ((0, 64), (7, 8)):
        policy = adaptive()
        policy.plan(make_view(4))
        policy.state.shared["server"]["limited_share"] = 1.0
        for step in range(plans):
            view = make_view(4, step=step)
            policy.plan(view)
            policy.observe(make_outcome(view, 0, 0, reused_plan_steps=reused, reused_plan_seconds=0.01 * reused))
        shares.append(float(policy.state.shared["server"]["limited_share"][0]))
    assert shares[0] < 0.8
    assert shares[1] == pytest.approx(shares[0])


def test_a_preempted_request_waits_for_no_first_token() -> None:
    phase, lengths = np.array([Phase.PREFILL] + [Phase.DECODE] * 7), []
    policy = adaptive(first_token_weight=50.0, probe_share=0.0)
    serve(policy, GOOD, 8)
    for emitted in (0, 40):
        view = make_view(8, step=100_000 + emitted, phase=phase, emitted_tokens=np.array([emitted] + [40] * 7))
        lengths.append(policy.plan(replace(view, prefill_tokens=100)).draft_lengths.sum())
    assert lengths[0] == 0
    assert lengths[1] > 0


def test_tokens_that_wait_for_the_next_draft_are_first_tokens_too() -> None:
    starting = make_view(8, step=100_000, phase=np.full(8, Phase.FIRST_DECODE, np.int64), draft_before_emit=True)
    policy = adaptive(first_token_weight=50.0)
    serve(policy, GOOD, 8)
    assert policy.plan(starting).draft_lengths.sum() == 0, "neither drafts nor a probe"
    assert policy.plan(make_view(8, step=100_001)).draft_lengths.sum() > 0, "not held beyond the step it was meant for"


def test_those_who_will_start_in_the_next_step_wait_for_this_one_and_others_in_the_queue_do_not() -> None:
    queued = make_view(8, step=100_000, waiting_requests=6)
    policy = adaptive(first_token_weight=50.0, probe_share=0.0)
    serve(policy, GOOD, 8)
    assert policy.plan(queued).draft_lengths.sum() > 0
    assert policy.plan(replace(queued, step=100_001, admitted_requests=6)).draft_lengths.sum() == 0


def test_the_tpot_objective_counts_the_catch_up_time() -> None:
    policy = adaptive(measured_profile(), tpot_slo_ms=14.0)
    fresh, stale = (
        make_view(8, step=step, now=0.0, emitted_tokens=np.ones(8, np.int64), drafter_lag_tokens=np.full(8, tokens))
        for step, tokens in ((0, 0), (1, 400))
    )
    assert policy.plan(fresh).draft_lengths.any()
    plan = policy.plan(stale)
    assert not plan.draft_lengths.any() or plan.predicted_seconds <= 0.014


def test_a_parallel_drafter_drafts_longer() -> None:
    sequential, parallel = (serve(adaptive(), drafter(1.3), 4, parallel=parallel) for parallel in (False, True))
    assert parallel.mean_draft_length > 1.2 * sequential.mean_draft_length
    assert parallel.tokens_per_second > sequential.tokens_per_second


def test_a_parallel_drafter_comes_back_although_one_token_never_pays() -> None:
    """Its pass takes longer than the target's, so that only longer drafts can pay."""
    server, policy = SyntheticEngine(concurrency=1, parallel=True), adaptive()
    server.times = Times(verify=8e-3, draft_start=9e-3)
    during, after = (server.serve(policy, law, 24, seed=3) for law in (never_accepted, drafter(2.0)))
    assert during.mean_draft_length < 0.5
    assert after.mean_draft_length > 2.0


def test_a_first_pass_that_runs_anyway_is_used() -> None:
    """As in vLLM: drafting one token costs its verification alone, and no outcome reports a pass of its own."""
    policy, probes = adaptive(), 0
    for step in range(40):
        view = make_view(4, step=step, max_draft=1, batch_drafter=True, first_pass_every_step=True)
        plan = policy.plan(view)
        probes += plan.probe
        accepted = np.minimum(plan.draft_lengths, step % 2)
        outcome = make_outcome(view, plan.draft_lengths, accepted, draft_rows=np.zeros(0, np.int64), draft_seconds=0.0)
        policy.observe(outcome)
    assert plan.draft_lengths.tolist() == [1, 1, 1, 1]
    assert not plan.probe
    assert probes < 10


def test_no_plan_with_drafts_breaks_the_tpot_objective() -> None:
    # A draft of one takes a step from 8 to about 10 ms: it pays here, and is more than 9 ms a token allow.
    dear = Times(draft_pass=1.5e-3, verify_token=5e-6, noise=0.0)
    free = serve(adaptive(), POOR, 8, seed=3, times=dear)
    bound = serve(adaptive(tpot_slo_ms=8.0), POOR, 8, seed=3, times=dear)
    assert free.mean_draft_length > 0.3
    assert np.percentile(bound.per_token, 95) <= max(8.2e-3, float(np.percentile(free.per_token, 95)))
    assert bound.mean_draft_length < free.mean_draft_length


@pytest.mark.parametrize(
    ("acceptance", "gain"), [(drafter(1.3), 1.25), (alternating(drafter(1.3), never_accepted), 0.98)]
)
def test_the_tpot_objective_is_kept_where_it_is_kept_without_drafts(acceptance: AcceptanceLaw, gain: float) -> None:
    """With 400 tokens of prompt that join every few steps; without drafts one request in a hundred is close to it."""

    def serve_all(policy: Policy) -> Served:
        return SyntheticEngine(concurrency=8, confidence=False, prompt_tokens=400).serve(policy, acceptance, 80, seed=3)

    without = serve_all(Fixed(0))
    target = 1.1 * float(np.percentile(without.per_token, 99))
    bound = serve_all(adaptive(tpot_slo_ms=1e3 * target))
    assert np.mean(np.array(bound.per_token) > target) <= 0.01
    assert bound.tokens_per_second > gain * without.tokens_per_second


def test_a_loose_promise_changes_nothing() -> None:
    loose = mean_rate(lambda: adaptive(tpot_slo_ms=1000.0), GOOD, 4)
    assert loose == pytest.approx(mean_rate(adaptive, GOOD, 4), rel=0.03)


def test_the_ttft_objective_limits_what_drafts_add_to_a_step() -> None:
    policy = adaptive(measured_profile(), ttft_slo_ms=30.0)
    assert policy.ttft_slo is not None
    added = []
    for step in range(20):
        policy.ttft_slo.added_seconds = 0.030 / (1 + step)
        view = make_view(8, step=step, first_pass_every_step=False)
        without = policy.plan(replace(view, draft_limits=np.zeros(8, np.int64))).predicted_seconds
        added.append(policy.plan(view).predicted_seconds - without)
        assert added[-1] <= policy.ttft_slo.added_seconds + 1e-9
    assert added[0] > added[-1]


def test_late_first_tokens_shorten_drafts() -> None:
    """All first tokens take longer than a millisecond."""
    policy = adaptive(ttft_slo_ms=1.0)
    free, bound = (serve(each, GOOD, 8) for each in (adaptive(), policy))
    assert bound.mean_draft_length < 0.1 * free.mean_draft_length
    assert policy.ttft_slo is not None
    assert policy.ttft_slo.added_seconds < 1e-3


def test_first_tokens_in_time_let_drafts_add_as_much_as_before() -> None:
    """One waits in the queue for a moment, which its time counts from; the others are scheduled at once."""
    policy = adaptive(ttft_slo_ms=100.0)
    assert policy.ttft_slo is not None
    added: list[float] = []
    for step, (now, waited) in enumerate([(1000.0, 0.0), (1000.01, 0.005), (1000.02, 0.0)]):
        phase = np.array([Phase.FIRST_DECODE])
        view = make_view(1, step=step, now=now, request_ids=np.array([step]), phase=phase, waiting_seconds=waited)
        plan = policy.plan(view)
        policy.observe(make_outcome(view, plan.draft_lengths, 0, draft_seconds=0.0))
        added.append(policy.ttft_slo.added_seconds)
    assert added == [0.1] * 3


def test_the_ttft_objective_holds_for_any_number_of_requests() -> None:
    policy = adaptive(ttft_slo_ms=100.0)
    assert policy.ttft_slo is not None
    assert policy.plan(make_view(2000)).draft_lengths.shape == (2000,)
    assert len(policy.ttft_slo.moments) == policy.state.slots.capacity >= 2000


def test_a_loose_ttft_objective_changes_nothing() -> None:
    targets: tuple[dict[str, float], ...] = ({}, {"ttft_slo_ms": 10_000.0})
    free, loose = (serve(adaptive(**target), GOOD, 4) for target in targets)
    assert [step.plan.draft_lengths.tolist() for step in loose.steps] == [
        step.plan.draft_lengths.tolist() for step in free.steps
    ]


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


def test_there_is_room_for_the_drafts_of_both_sources() -> None:
    policy, n = adaptive(), 48
    policy.plan(make_view(n, lookup=LookupView(np.full(n, 3), np.ones(n))))
    assert policy._scratch.work.shape[1] >= 2 * n


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
    policy = adaptive()
    for step in range(200):
        view = make_view(4, step=step, max_draft=2 if step < 100 else 9)
        plan = policy.plan(view)
        drafted = np.minimum(plan.draft_lengths, view.draft_limits)
        policy.observe(make_outcome(view, drafted, drafted))
    assert policy.state.max_draft == 9
    assert plan.draft_lengths.max() > 2


def test_an_outcome_from_before_the_maximum_grew_is_not_learnt_from() -> None:
    policy = adaptive(measured_profile())
    view = make_view(4, step=1, max_draft=2)
    policy.plan(view)
    policy.plan(make_view(4, step=2, max_draft=9))
    before = state_of(policy)
    policy.observe(make_outcome(view, 2, 2))
    assert state_of(policy) == before


def test_an_outcome_of_another_batch_is_not_learnt_from() -> None:
    policy = adaptive(measured_profile())
    policy.plan(make_view(4, step=1))
    before = state_of(policy)
    policy.observe(make_outcome(make_view(7, step=1), 3, 3))
    policy.observe(make_outcome(make_view(4, step=100), 3, 3))
    assert state_of(policy) == before
    policy.observe(make_outcome(make_view(4, step=1), 3, 3))
    assert state_of(policy) != before
