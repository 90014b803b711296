from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from turbospec.interface import FloatArray, Source
from turbospec.planning.exact import StepCosts
from turbospec_sim.source_planning import plan_sources

DRAFTER, LOOKUP = Source.DRAFTER.value, Source.LOOKUP.value
Problem = tuple[FloatArray, FloatArray, StepCosts, float, FloatArray]


def problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    n, depth, longest = (int(rng.integers(1, most + 1)) for most in (3, 3, 4))
    drafter, lookup = (np.cumprod(rng.uniform(0.2, 1, (n, columns)), axis=1) for columns in (depth, longest))
    drafter *= np.arange(depth) < rng.integers(0, depth + 1, (n, 1))
    lookup *= (np.arange(longest) < rng.integers(0, longest + 1, (n, 1))) & (rng.random((n, 1)) < 0.7)
    tokens = np.arange(n * max(depth, longest) + 1)
    verify = 0.008 + (rng.uniform(0, 1e-3) * tokens if seed % 2 else 2e-3 * np.ceil(tokens / 4))
    costs = StepCosts(verify, rng.uniform(0, 1e-3), rng.uniform(0, 1e-3), rng.choice([0.0, 2e-4]))
    lag = rng.exponential(5e-4, n) * (rng.random(n) < 0.5)
    return drafter, lookup, costs, float(rng.uniform(50, 800)), lag


def value(made: Problem, lengths: FloatArray, sources: FloatArray) -> float:
    drafter, lookup, costs, price, lag = made
    own, looked = lengths * (sources == DRAFTER), lengths * (sources == LOOKUP)
    seconds = costs.verify[int(lengths.sum())]
    if own.any():
        seconds += costs.draft_start + costs.draft_pass * own.max() + costs.draft_token * own.sum() + lag[own > 0].sum()
    gain = sum(drafter[i, : own[i]].sum() + lookup[i, : looked[i]].sum() for i in range(len(lengths)))
    return float(gain - price * seconds)


def best_value(made: Problem) -> float:
    drafter, lookup, *_ = made
    options = [
        [(0, DRAFTER)]
        + [(k + 1, DRAFTER) for k in range(drafter.shape[1]) if drafter[i, k]]
        + [(k + 1, LOOKUP) for k in range(lookup.shape[1]) if lookup[i, k]]
        for i in range(len(drafter))
    ]
    return max(value(made, *np.array(plan).T) for plan in itertools.product(*options))


def test_is_near_brute_force() -> None:
    losses = []
    for seed in range(300):
        made = problem(seed)
        drafter, lookup, costs, price, _ = made
        plan, sources = plan_sources(*made)
        assert sources is not None
        limits = np.where(sources == LOOKUP, (lookup > 0).sum(axis=1), (drafter > 0).sum(axis=1))
        assert (plan.draft_lengths <= limits).all()
        mine = value(made, plan.draft_lengths, sources)
        assert plan.value(price) == pytest.approx(mine, abs=1e-9)
        best, nothing = best_value(made), -price * costs.verify[0]
        losses.append((best - mine) / max(best - nothing, 1e-9))
    print(np.mean(losses), np.max(losses), np.mean(np.array(losses) > 1e-6))
    assert np.mean(losses) < 0.01


def test_a_lookup_alone_pays_for_no_pass() -> None:
    lookup = np.full((2, 4), 0.9)
    costs = StepCosts(0.01 + 1e-5 * np.arange(9), 1.0, 1.0)
    plan, sources = plan_sources(np.full((2, 3), 0.99), lookup, costs, 100.0, np.zeros(2))
    assert sources is not None
    assert sources.tolist() == [LOOKUP] * 2
    assert plan.draft_lengths.tolist() == [4, 4]
    assert plan.seconds == pytest.approx(costs.verify[8])


def test_padding_to_a_graph_counts_the_drafts_of_both() -> None:
    drafter, lookup = np.array([[0.9, 0.8], [0.9, 0.8]]), np.array([[0.95, 0.9], [0.0, 0.0]])
    costs = StepCosts(0.01 + 1e-5 * np.arange(5), 1e-3, 1e-3).with_graphs((0, 2), 1.0)
    plan, sources = plan_sources(drafter, lookup, costs, 100.0, np.zeros(2))
    assert (plan.padded_length, plan.draft_lengths.tolist()) == (2, [2, 2])
    assert sources is not None
    assert sources.tolist() == [LOOKUP, DRAFTER]
    assert replace(costs, piecewise=0.0).verify[0] < plan.seconds < 0.1
