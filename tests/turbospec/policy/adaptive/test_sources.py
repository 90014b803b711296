"""`adaptive` with a look-up beside the drafter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from tests.turbospec.policy.adaptive.test_decision import WAY_NAMES, WAYS, a_policy, random_view
from turbospec.controller import Controller
from turbospec.interface import IntArray, LookupView, Phase, Source, StepPlan, StepView
from turbospec.policy.adaptive import AdaptivePolicy


@dataclass
class TwoSources:
    """A machine with costs like a GPU's; acceptance per token of the drafter and of long and short matches."""

    policy: AdaptivePolicy
    of_drafter: float = 0.6
    of_long: float = 0.97
    of_short: float = 0.2
    of_appended: float | None = None
    """Of tokens appended to an accepted draft, which are found after every other draft; None: it cannot append."""
    pass_seconds: float = 3e-4
    token_seconds: float = 2e-5
    seconds: float = 0.0
    tokens: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def run(self, steps: int, n: int, matches: Any, first: int = 0) -> list[StepPlan]:
        """Steps of n requests; `matches` is how many tokens match for each: 0 for nothing, 3, or 20."""
        controller, plans = Controller(self.policy), list[StepPlan]()
        scores = np.resize(np.array(matches, float), n)
        found = np.where(scores > 0, 8, 0)
        for step in range(first, first + steps):
            lookup = LookupView(found, scores, appends=self.of_appended is not None)
            view = make_view(n, step=step, max_draft=8, draft_limits=np.full(n, 5), lookup=lookup)
            plan = controller.plan(view)
            self._serve(controller, view, plan)
            plans.append(plan)
        assert controller.stats.guard_trips == 0
        assert controller.stats.host_faults == 0
        return plans

    def _serve(self, controller: Controller, view: StepView, plan: StepPlan) -> None:
        assert view.lookup is not None
        sources = np.zeros(view.size, np.int64) if plan.sources is None else plan.sources
        looked_up = sources == Source.LOOKUP
        right = np.where(looked_up, np.where(view.lookup.scores > 8, self.of_long, self.of_short), self.of_drafter)
        accepted = np.minimum(self.rng.geometric(1.0 - right) - 1, plan.draft_lengths)
        own = np.where(looked_up, 0, plan.draft_lengths)
        appended = np.zeros(view.size, np.int64)
        if self.of_appended is not None and plan.append_limits is not None:
            appended = np.where((own > 0) & (self.rng.random(view.size) < 0.5), plan.append_limits, 0)
            more = np.minimum(self.rng.geometric(1.0 - self.of_appended, view.size) - 1, appended)
            accepted += np.where(accepted == plan.draft_lengths, more, 0)
        drafted = plan.draft_lengths + appended
        rows = np.array([int((own > depth).sum()) for depth in range(int(own.max()))], np.int64)
        tokens = view.size + int(drafted.sum())
        drafting = self.pass_seconds * len(rows)
        seconds = 8e-3 + self.token_seconds * tokens + drafting
        self.seconds += seconds
        self.tokens += int((accepted + 1).sum())
        controller.observe(
            make_outcome(
                view,
                drafted,
                accepted,
                sources=plan.sources,
                appended=None if self.of_appended is None or plan.append_limits is None else appended,
                draft_rows=rows,
                tokens_batched=tokens,
                draft_seconds=drafting,
                step_seconds=seconds,
            )
        )


def used(plans: list[StepPlan]) -> IntArray:
    """(steps, n) source of each draft; -1 for no draft."""
    return np.array([np.where(plan.draft_lengths > 0, plan.sources, -1) for plan in plans])


def test_each_request_drafts_from_the_source_that_is_right_more_often() -> None:
    engine = TwoSources(a_policy())
    plans = used(engine.run(400, 6, [20, 3, 0])[200:])
    long, short, nothing = plans[:, ::3], plans[:, 1::3], plans[:, 2::3]
    assert (long == Source.LOOKUP).mean() > 0.95
    assert (short == Source.DRAFTER).mean() > 0.9
    assert (nothing == Source.LOOKUP).sum() == 0
    assert (nothing == Source.DRAFTER).mean() > 0.9


def test_a_drafter_that_is_never_right_is_left_out_where_matches_are_long() -> None:
    of_drafter: list[float] = []
    for seed in range(4):
        engine = TwoSources(a_policy(), of_drafter=0.02, rng=np.random.default_rng(seed))
        plans = used(engine.run(600, 4, [20, 20, 0, 3])[300:])
        assert (plans[:, :2] == Source.LOOKUP).mean() > 0.95
        of_drafter.append(float((plans == Source.DRAFTER).mean()))
    assert np.mean(of_drafter) < 0.03, "experiments alone"


def test_one_draft_of_eight_is_not_worth_the_passes_of_a_dear_drafter() -> None:
    engine = TwoSources(a_policy(), pass_seconds=3e-3)
    plans = used(engine.run(500, 8, [20, 20, 20, 20, 20, 20, 20, 0])[250:])
    assert (plans[:, :7] == Source.LOOKUP).mean() > 0.95
    assert (plans[:, 7] == Source.DRAFTER).mean() < 0.1


def test_it_is_better_than_either_source_alone() -> None:
    """A quarter of the requests repeat their prompt."""
    rates: dict[str, float] = {}
    for name in ("both", "drafter", "look-up"):
        engine = TwoSources(a_policy(), of_drafter=0.0 if name == "look-up" else 0.8)
        engine.run(500, 8, [0] if name == "drafter" else [20, 0, 0, 0])
        rates[name] = engine.tokens / engine.seconds
    assert rates["both"] > 1.1 * max(rates["drafter"], rates["look-up"])


def looked_up(plans: list[StepPlan]) -> float:
    """Mean length of the look-up's drafts over all rows."""
    return float(np.mean([np.where(plan.sources == Source.LOOKUP, plan.draft_lengths, 0).mean() for plan in plans]))


def test_matches_that_turn_out_wrong_are_given_up() -> None:
    engine = TwoSources(a_policy(), of_long=0.02, of_drafter=0.02)
    assert looked_up(engine.run(400, 4, [20])[200:]) < 1.5
    engine.of_long = 0.97
    assert looked_up(engine.run(600, 4, [20], first=400)[300:]) > 7.0, "and used again when they are right"


def random_lookup(rng: np.random.Generator, view: StepView) -> LookupView:
    found = rng.integers(0, 9, view.size) * (rng.random(view.size) < 0.6) * (view.phase != Phase.PREFILL)
    return LookupView(found.astype(np.int64), rng.exponential(6.0, view.size))


@pytest.mark.parametrize("graph_lengths", [(), (0, 2, 8)], ids=["no graphs", "graphs"])
@pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)
def test_every_plan_is_within_the_limits_of_its_sources(way: dict[str, Any], graph_lengths: tuple[int, ...]) -> None:
    rng, sources = np.random.default_rng(5), np.zeros(2, np.int64)
    controller = Controller(a_policy())
    for step in range(150):
        view = random_view(
            rng, step, int(rng.integers(1, 70 if step % 20 == 19 else 12)), graph_lengths=graph_lengths, **way
        )
        view = replace(view, max_draft=8, lookup=random_lookup(rng, view))
        plan = controller.plan(view)
        assert plan.sources is not None
        sources += np.bincount(plan.sources[plan.draft_lengths > 0], minlength=2)
        controller.observe(
            make_outcome(view, plan.draft_lengths, rng.integers(0, plan.draft_lengths + 1), sources=plan.sources)
        )
    assert controller.stats.guard_trips == 0, controller.stats.last_fault
    assert (sources > 50).all()


def test_a_look_up_that_finds_nothing_changes_no_plan() -> None:
    """The same decisions, bit for bit, as without a look-up."""
    one, other = a_policy(), a_policy()
    rng = np.random.default_rng(2)
    for step in range(80):
        view = random_view(rng, step, 8)
        empty = LookupView(np.zeros(8, np.int64), np.zeros(8))
        plan, same = one.plan(view), other.plan(replace(view, lookup=empty))
        assert same.draft_lengths.tolist() == plan.draft_lengths.tolist()
        assert same.predicted_tokens == plan.predicted_tokens
        accepted = plan.draft_lengths // 2
        one.observe(make_outcome(view, plan.draft_lengths, accepted))
        other.observe(make_outcome(view, plan.draft_lengths, accepted, sources=same.sources))


def test_a_cap_on_drafts_holds_for_the_look_up_too() -> None:
    engine = TwoSources(a_policy(max_draft=3))
    assert max(int(plan.draft_lengths.max()) for plan in engine.run(100, 4, [20, 0])) == 3


def allowed(plans: list[StepPlan]) -> float:
    """Mean tokens that may be appended, over rows for which the drafter drafts."""
    limits = [plan.append_limits for plan in plans]
    drafting = [(plan.draft_lengths > 0) & (plan.sources == Source.DRAFTER) for plan in plans]
    total = sum(int(each[rows].sum()) for each, rows in zip(limits, drafting, strict=True) if each is not None)
    return total / max(sum(int(rows.sum()) for rows in drafting), 1)


def test_tokens_are_appended_as_far_as_they_are_accepted() -> None:
    right = allowed(TwoSources(a_policy(), of_appended=0.97).run(400, 6, [0])[200:])
    half = allowed(TwoSources(a_policy(), of_appended=0.5).run(400, 6, [0])[200:])
    wrong = allowed(TwoSources(a_policy(), of_appended=0.02).run(400, 6, [0])[200:])
    assert right > 3.0, "the drafter leaves room for four"
    assert 0.5 < half < right
    assert wrong < 0.5


def test_fewer_tokens_are_appended_where_they_take_longer_to_verify() -> None:
    cheap = allowed(TwoSources(a_policy(), of_appended=0.7).run(400, 6, [0])[200:])
    dear = allowed(TwoSources(a_policy(), of_appended=0.7, token_seconds=2e-4).run(400, 6, [0])[200:])
    assert dear < 0.5 * cheap


def test_appending_raises_the_token_rate() -> None:
    rates: list[float] = []
    for of_appended in (None, 0.9):
        engine = TwoSources(a_policy(), of_appended=of_appended)
        engine.run(500, 4, [0])
        rates.append(engine.tokens / engine.seconds)
    assert rates[1] > 1.03 * rates[0]


def test_what_is_appended_does_not_teach_the_drafters_acceptance() -> None:
    lengths: list[float] = []
    for of_appended in (None, 0.02, 0.97):
        engines = [
            TwoSources(a_policy(), of_appended=of_appended, rng=np.random.default_rng(seed)) for seed in range(4)
        ]
        plans = [plan for engine in engines for plan in engine.run(600, 6, [0])[300:]]
        lengths.append(float(np.mean([plan.draft_lengths.mean() for plan in plans])))
    assert max(lengths) - min(lengths) < 0.3


def test_nothing_is_appended_within_an_slo_or_to_a_padded_draft() -> None:
    within = TwoSources(a_policy(tpot_slo_ms=9.0), of_appended=0.97).run(60, 4, [0])
    assert allowed(within) == 0.0
    policy = a_policy()
    TwoSources(policy, of_appended=0.97).run(60, 4, [0])
    policy.state.shared["server"]["budget"] = 0.0  # nor is anything appended in an experiment
    nothing = LookupView(np.zeros(4, np.int64), np.zeros(4), appends=True)
    view = make_view(4, step=60, max_draft=8, draft_limits=np.full(4, 5), lookup=nothing)
    assert policy.plan(view).append_limits is not None
    assert policy.plan(replace(view, graph_lengths=(0, 1, 2, 3))).append_limits is None
    assert policy.plan(replace(view, lookup=replace(nothing, appends=False))).append_limits is None
