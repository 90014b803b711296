"""Drafts that are shortened when prompts join the step that verifies them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.factories import make_view
from tests.turbospec.models.acceptance_model import views
from tests.turbospec.policy.adaptive.exact_state import DEEPEST, exact_state, exact_weights
from tests.turbospec.synthetic_engine import SyntheticEngine, drafter
from turbospec.interface import FloatArray, IntArray, LookupView, Source, StepPlan, StepView
from turbospec.models.step_cost import UNGRAPHED
from turbospec.planning.gain_histogram import BINS
from turbospec.policy.adaptive import AdaptiveConfig, AdaptivePolicy
from turbospec.policy.adaptive.draft_trim import PricedTrim, Scratch
from turbospec.policy.adaptive.state import OF_DRAFTER, OF_LOOKUP

VERIFY_TOKEN, LAUNCHES, LARGEST_GRAPH = 2e-4, 5e-3, 100
"""Seconds per token of the target's pass, further seconds of a pass without graphs, and most tokens of one with."""


def survival_of(acceptance: list[float]) -> FloatArray:
    """(n, DEEPEST) the survival of each draft token, where all tokens of a request are accepted alike."""
    return np.array(acceptance)[:, None] ** np.arange(1, DEEPEST + 1)


def a_trim(
    acceptance: list[float],
    price: float,
    lengths: IntArray,
    sources: IntArray | None = None,
    largest_graph: int = LARGEST_GRAPH,
) -> PricedTrim:
    """Of requests whose acceptance is known exactly, on a target whose tokens all take the same time."""
    n = len(acceptance)
    weights = exact_weights(VERIFY_TOKEN, draft_pass=1.0, draft_row=1.0)  # what is drafted costs nothing any more
    weights[UNGRAPHED] = LAUNCHES
    state = exact_state(0.5, 0.0, weights, n)
    log_odds = np.log(np.array(acceptance) / (1.0 - np.array(acceptance)))
    state.shared["lookup"] = state.shared["drafter"]
    for columns in (slice(OF_DRAFTER, OF_LOOKUP), slice(OF_LOOKUP, OF_LOOKUP + OF_LOOKUP - OF_DRAFTER)):
        terms = views(state.shared["drafter"], state.requests[:, columns])
        terms.requests[:n, 0], terms.requests[:, 1] = log_odds * 1e12, 1e12
    sources = np.zeros(n, np.int64) if sources is None else sources
    scores = np.ones(n) if sources.any() else np.zeros(0)
    scratch = Scratch(np.zeros((4, 2 * n, DEEPEST + 1)), np.zeros((DEEPEST + 1, BINS), np.int64), np.zeros((9, BINS)))
    columns = (np.arange(n), make_view(n).phase, *[np.zeros(n, np.int64)] * 7)
    return PricedTrim(state, scratch, columns, scores, lengths, sources, largest_graph, price)


def value(gains: FloatArray, kept: IntArray, base: int, price: float) -> float:
    """Expected accepted tokens, less the price of the target's pass."""
    tokens = base + int(kept.sum())
    seconds = VERIFY_TOKEN * tokens + (LAUNCHES if tokens > LARGEST_GRAPH else 0.0)
    return sum(gains[i, : kept[i]].sum() for i in range(len(kept))) - price * seconds


def best_value(gains: FloatArray, drafts: IntArray, base: int, price: float) -> float:
    """The best number of tokens, of the largest gains: gains fall along a draft, so that these are the first ones."""
    offered = sorted((gains[i, j] for i in range(len(drafts)) for j in range(drafts[i])), reverse=True)
    sums = np.concatenate([[0.0], np.cumsum(offered)])
    tokens = base + np.arange(len(sums))
    return float((sums - price * (VERIFY_TOKEN * tokens + LAUNCHES * (tokens > LARGEST_GRAPH))).max())


@settings(deadline=None)
@given(
    requests=st.lists(st.tuples(st.floats(0.2, 0.95), st.integers(0, DEEPEST)), min_size=1, max_size=12),
    base=st.integers(1, 2 * LARGEST_GRAPH),
    price=st.floats(10.0, 3000.0),
    looked_up=st.integers(0, 2**12 - 1),
)
def test_no_other_lengths_are_worth_more(
    requests: list[tuple[float, int]], base: int, price: float, looked_up: int
) -> None:
    acceptance, drafts = [each for each, _ in requests], np.array([length for _, length in requests])
    sources = (looked_up >> np.arange(len(drafts))) & 1
    kept = a_trim(acceptance, price, drafts, sources).trim(drafts, base + int(drafts.sum()))
    assert ((kept >= 0) & (kept <= drafts)).all()
    gains = survival_of(acceptance)
    # Gains of one bin are taken for equal, and tokens that gain less than one are left out.
    assert value(gains, kept, base, price) >= best_value(gains, drafts, base, price) - min(drafts.sum() / BINS, 0.25)


def test_a_pass_that_prompts_leave_room_in_is_not_made_too_large_for_graphs() -> None:
    drafts = np.array([5, 5, 5])
    trim = a_trim([0.9, 0.5, 0.9], 120.0, drafts)
    assert trim.trim(drafts, LARGEST_GRAPH).tolist() == [5, 5, 5]
    assert trim.trim(drafts, LARGEST_GRAPH + 4).tolist() == [5, 1, 5]


def test_a_pass_that_is_too_large_already_verifies_all_that_pays_for_its_tokens() -> None:
    drafts = np.array([5, 5, 5])
    assert a_trim([0.9, 0.5, 0.9], 300.0, drafts).trim(drafts, LARGEST_GRAPH + 100).tolist() == [5, 4, 5]


def test_without_a_largest_graph_only_dear_tokens_are_left_out() -> None:
    drafts = np.array([5, 5, 5])
    cheap, dear = (a_trim([0.9, 0.5, 0.9], price, drafts, largest_graph=0) for price in (100.0, 4000.0))
    assert cheap.trim(drafts, 1000).tolist() == [5, 5, 5]
    assert dear.trim(drafts, 1000).tolist() == [2, 0, 2]


def test_padding_is_left_out_first() -> None:
    lengths = np.array([5, 0, 2])
    kept = a_trim([0.9] * 3, 10.0, lengths).trim(np.array([5, 5, 0]), 40)
    assert kept.tolist() == [5, 0, 0]


def test_drafts_of_requests_that_are_not_in_the_step_stay_at_0() -> None:
    assert a_trim([0.9] * 2, 10.0, np.array([5, 5])).trim(np.array([0, 0]), 40).tolist() == [0, 0]


def learnt() -> AdaptivePolicy:
    policy = AdaptiveConfig(version=1, policy="adaptive", probe_share=0.0).build(None, seed=0)
    assert isinstance(policy, AdaptivePolicy)
    return policy


def plan(policy: AdaptivePolicy, **view: object) -> StepPlan:
    return policy.plan(make_view(4, step=10**6, **view))


def test_a_plan_that_drafts_has_a_trim_where_the_engine_calls_it() -> None:
    drafting = plan(learnt(), calls_trim=True)
    assert drafting.draft_lengths.any()
    assert isinstance(drafting.trim, PricedTrim)
    kept = drafting.trim.trim(drafting.draft_lengths.copy(), 4 + int(drafting.draft_lengths.sum()))
    assert kept.tolist() == drafting.draft_lengths.tolist(), "the step is as it was planned"
    assert plan(learnt()).trim is None
    assert plan(learnt(), calls_trim=True, draft_limits=np.zeros(4, np.int64)).trim is None


def test_drafts_of_a_look_up_are_shortened_too() -> None:
    lookup = LookupView(np.array([6, 0, 6, 0]), np.array([5.0, 0.0, 5.0, 0.0]))
    policy = learnt()
    policy.state.shared["cost"]["weights"][0, UNGRAPHED] = 1.0
    made = plan(policy, calls_trim=True, lookup=lookup, largest_graph=50)
    assert made.sources is not None
    assert Source.LOOKUP in made.sources.tolist()
    assert made.trim is not None
    drafts = made.draft_lengths.copy()
    kept = made.trim.trim(drafts, 53)
    assert kept.sum() == drafts.sum() - 3
    assert (kept <= drafts).all()


def test_a_plan_with_a_gate_has_no_trim() -> None:
    """Where confidence has ended a draft, its length depends on its tokens."""
    policy = learnt()
    SyntheticEngine(4, confidence=True).serve(policy, drafter(1.0), 60)
    made = plan(policy, calls_trim=True, calls_gate=True)
    assert made.gate is not None
    assert made.trim is None


def test_an_experiment_is_not_shortened() -> None:
    """It is to show what its drafts cost."""
    policy, plans = AdaptiveConfig(version=1, policy="adaptive").build(None, seed=0), list[StepPlan]()

    class Recorded:
        observe = staticmethod(policy.observe)

        @staticmethod
        def plan(view: StepView) -> StepPlan:
            plans.append(policy.plan(replace(view, calls_trim=True)))
            return plans[-1]

    SyntheticEngine(4, confidence=False).serve(Recorded(), drafter(0.5), 100)
    drafting = [each for each in plans if each.draft_lengths.any()]
    assert {each.probe for each in drafting} == {False, True}
    assert all((each.trim is None) == each.probe for each in drafting)


def test_a_trim_stays_usable_after_the_policy_has_planned_for_more_requests() -> None:
    policy = learnt()
    policy.state.shared["cost"]["weights"][0, UNGRAPHED] = 1.0
    made = plan(policy, calls_trim=True, largest_graph=50)
    drafts = made.draft_lengths.copy()
    assert made.trim is not None
    before = made.trim.trim(drafts, 53)
    policy.plan(make_view(500, step=10**6 + 1, calls_trim=True))
    assert made.trim.trim(drafts, 53).tolist() == before.tolist()
    assert 0 < before.sum() < drafts.sum()
