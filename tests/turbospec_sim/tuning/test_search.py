from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import closed, scenario
from turbospec import UserError
from turbospec.interface import FloatArray
from turbospec.policy import PolicyConfig, find_policy, read_policy
from turbospec_sim.ratio import Ratio
from turbospec_sim.tuning.objective import Trials, check_objective
from turbospec_sim.tuning.search import Tuned, tune
from turbospec_sim.tuning.space import search_space


@dataclass(frozen=True, slots=True)
class MadeUp(Trials):
    """A figure with one best place, seed by seed."""

    best: float = 20.0
    noise: float = 0.0

    def figures(self, configs: Sequence[PolicyConfig], done: Callable[[], None] = lambda: None) -> FloatArray:
        made = []
        for config in configs:
            weight = config.model_dump()["first_token_weight"]
            seeds = self.skipped_seeds + np.arange(self.seeds)
            chance = np.sin(1e3 * weight * (1 + seeds)) * self.noise
            loss = 0.0 if self.noise else 0.2 * math.log(weight / self.best) ** 2
            made.append(100.0 * np.exp(chance - loss))
        return np.array(made)[..., None]


def searched(trials: int = 30, seed: int = 0, **changes: float) -> Tuned:
    config = read_policy(find_policy("adaptive"))
    space = search_space(config, ["first_token_weight=1:64:log"])
    made = [MadeUp([], [], "goodput", seeds, skipped, **changes) for seeds, skipped in ((3, 0), (6, 3))]
    return tune(config, space, *made, trials=trials, seed=seed)


def test_the_best_place_is_found_and_holds_on_other_seeds() -> None:
    found = searched()
    assert found.changed["first_token_weight"] == pytest.approx(20.0, rel=0.1)
    assert found.config.model_dump()["first_token_weight"] == found.changed["first_token_weight"]
    assert found.config.model_dump()["probe_share"] == 0.01
    assert found.held_out is not None
    assert found.held_out.mean == pytest.approx(math.exp(0.2 * math.log(20 / 8) ** 2), rel=0.01)
    assert found.beyond_noise
    assert found.trials <= 31


def test_a_search_is_a_function_of_its_seed() -> None:
    assert searched(seed=3) == searched(seed=3)
    assert searched(seed=3).changed != searched(seed=4).changed


def test_luck_on_the_seeds_of_the_search_is_told_from_a_gain() -> None:
    found = searched(noise=0.05)
    assert found.trained.mean > 1.0
    assert not found.beyond_noise


def test_the_default_is_kept_where_it_is_best() -> None:
    found = searched(best=8.0)
    assert found.changed == {}
    assert found.held_out is None
    assert not found.beyond_noise
    assert found.config == read_policy(find_policy("adaptive"))


def test_ratios_are_geometric_means_and_times_are_turned_round() -> None:
    figures, default = np.array([[[200.0, 50.0], [300.0, 100.0]]]), np.array([[100.0, 100.0], [100.0, 100.0]])
    high = Trials([], [], "throughput", 2).log_ratios(figures, default)
    assert np.exp(high) == pytest.approx(np.array([[1.0, math.sqrt(3.0)]]))
    low = Trials([], [], "p99_ttft_ms", 2).log_ratios(figures, default)
    assert low == pytest.approx(-high)


def test_figures_that_are_missing_or_nothing_have_an_order() -> None:
    trials = Trials([], [], "goodput", 1)
    assert trials.log_ratios(np.zeros((1, 1)), np.zeros((1, 1))) == 0.0
    assert trials.log_ratios(np.zeros((1, 1)), np.ones((1, 1)))[0] < -4.0
    assert trials.log_ratios(np.ones((1, 1)), np.zeros((1, 1)))[0] > 4.0
    times = Trials([], [], "p99_ttft_ms", 1)
    nothing = np.full((1, 1), math.nan)
    assert times.log_ratios(nothing, np.ones((1, 1)))[0] < -4.0
    assert times.log_ratios(np.ones((1, 1)), nothing)[0] > 4.0
    assert times.log_ratios(nothing, nothing)[0] == 0.0


def test_intervals_are_students() -> None:
    ratio = Ratio.of(np.array([0.1, 0.2, 0.3]))
    assert ratio.mean == pytest.approx(math.exp(0.2))
    assert math.log(ratio.high) == pytest.approx(0.2 + 4.302653 * 0.1 / math.sqrt(3))
    assert math.isnan(Ratio.of(np.array([0.1])).low)


def test_runs_share_requests_and_held_out_seeds_are_others() -> None:
    made = [("a", scenario(workload__requests=8, rates=[10.0, 20.0])), ("b", closed(2, workload__requests=8))]
    off, three = (read_policy(find_policy(name)) for name in ("off", "static-3"))
    first = Trials(made, [], "throughput", 2)
    figures = first.figures([off, off, three])
    assert figures.shape == (3, 2, 3)
    assert first.runs == 6
    assert (figures[0] == figures[1]).all()
    assert (figures[0] != figures[2]).all()
    others = Trials(made, [], "throughput", 2, skipped_seeds=2).figures([off])
    assert not np.isin(others, figures[0]).any()


def test_unknown_objectives_are_named() -> None:
    with pytest.raises(UserError, match="did you mean `goodput`"):
        check_objective("goodputs")
