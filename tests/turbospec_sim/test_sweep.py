from __future__ import annotations

from typing import Any

import pytest

from tests.turbospec_sim.scenarios import closed, scenario
from turbospec_sim.fixed_plans import FixedPlans, chosen, chosen_in_words, fixed_plans
from turbospec_sim.run import Run, simulate
from turbospec_sim.sweep import Sweep, run_all, with_regret


def row(policy: str, goodput: float, **fields: Any) -> dict[str, Any]:
    figures = {"token_goodput": goodput, "mean_e2el_ms": 1.0, "wall_seconds": 1.0, **chosen(None)}
    return {"scenario": "s", "request_rate": 1.0, "seed": 0, "policy": policy, **figures, **fields}


def test_every_combination_is_run_in_a_fixed_order() -> None:
    runs = Sweep([("a", scenario(rates=[1.0, 2.0])), ("b", closed(2))], ("off", "best_static"), seeds=2).runs()
    named = [(run.name, run.rate, run.seed, run.policy, run.fixed) for run in runs]
    assert named[:2] == [("a", 1.0, 0, "off", None), ("a", 1.0, 0, "best_static", FixedPlans(0))]
    assert [fixed for *_, fixed in named[1:7]] == [FixedPlans(length) for length in range(6)]
    assert len(named) == len(set(named)) == (2 + 1) * 2 * (1 + 6)


def test_a_sweep_without_a_choice_is_the_scenarios_own_run() -> None:
    (run,) = Sweep([("a", scenario(seed=4))]).runs()
    assert (run.policy, run.rate, run.seed) == ("static-3", 20.0, 4)


def test_best_static_is_chosen_by_goodput_and_then_by_speed() -> None:
    rows = with_regret(
        [
            row("off", 90.0),
            row("best_static", 80.0, draft_length=0),
            row("best_static", 100.0, draft_length=1, mean_e2el_ms=3.0),
            row("best_static", 100.0, draft_length=2, mean_e2el_ms=2.0),
            row("oracle", 120.0),
        ]
    )
    assert [one["policy"] for one in rows] == ["off", "best_static", "oracle"]
    assert rows[1]["draft_length"] == 2
    assert rows[0]["regret_vs_best_static"] == pytest.approx(0.1)
    assert rows[0]["regret_vs_oracle"] == pytest.approx(0.25)
    assert rows[1]["wall_seconds"] == 3.0


def test_regret_is_none_without_its_yardstick() -> None:
    (alone,) = with_regret([row("off", 90.0)])
    assert (alone["regret_vs_oracle"], alone["regret_vs_best_static"]) == (None, None)


def test_processes_change_no_row() -> None:
    runs = Sweep([("a", scenario(workload__requests=10))], ("off", "static-1", "oracle"), seeds=2).runs()
    rows = [list(run_all(runs, jobs)) for jobs in (1, 2)]
    for one in (*rows[0], *rows[1]):
        del one["wall_seconds"]
    assert repr(rows[0]) == repr(rows[1])


@pytest.mark.parametrize("order", ["before_draft", "after_draft"])
def test_the_oracle_is_at_least_as_good_as_any_other(order: str) -> None:
    made = closed(
        8,
        server__emit=order,
        workload__requests=120,
        chat__output_tokens={"distribution": "constant", "tokens": 120},
        chat__acceptance={"process": "markov", "good": [0.95], "bad": [0.1], "good_tokens": 40, "bad_tokens": 40},
        drafter={"max_draft": 5, "batch": False},
        latency__verify_token_seconds=6e-4,
    )
    best = simulate(Run("s", made, "oracle", None, 0))["output_throughput"]
    named = ("off", "adaptive", "goodput")
    others = {name: simulate(Run("s", made, name, None, 0))["output_throughput"] for name in named}
    for length in range(1, 6):
        others[f"static {length}"] = simulate(Run("s", made, "x", None, 0, FixedPlans(length)))["output_throughput"]
    assert all(best > other for other in others.values()), (best, others)


REPEATS = {
    "repeat_tokens": {"distribution": "geometric", "mean": 20},
    "gap_tokens": {"distribution": "geometric", "mean": 20},
    "min_match": 2,
    "false_match": 0.3,
    "false_acceptance": 0.1,
}


def test_the_oracle_is_at_least_as_good_as_any_fixed_plans_of_two_sources() -> None:
    made = closed(
        6,
        workload__requests=60,
        chat__output_tokens={"distribution": "constant", "tokens": 120},
        chat__lookup=REPEATS,
        drafter={"max_draft": 3, "max_lookup": 6},
        latency__verify_token_seconds=6e-4,
    )
    best = simulate(Run("s", made, "oracle", None, 0))["output_throughput"]
    tried = {fixed: simulate(Run("s", made, "x", None, 0, fixed))["output_throughput"] for fixed in fixed_plans(made)}
    assert best > max(tried.values())
    # The text is of both kinds: neither source alone is as good as both.
    alone = [rate for fixed, rate in tried.items() if not (fixed.draft_length and fixed.lookup_length)]
    assert max(tried.values()) > max(alone)


def test_the_oracle_drafts_for_slow_text_although_other_text_is_quick() -> None:
    # Requests that repeat emit ten times as many tokens per step: the mean rate is no price for a step of new text.
    made = closed(
        4,
        workload__requests=24,
        chat__output_tokens={"distribution": "constant", "tokens": 600},
        chat__acceptance={"process": "iid", "rate": 0.7},
        chat__lookup={
            "repeat_tokens": {"distribution": "geometric", "mean": 150},
            "gap_tokens": {"distribution": "geometric", "mean": 60},
        },
        drafter={"max_draft": 4, "max_lookup": 15},
        latency__draft_pass_seconds=5e-3,
    )
    best = simulate(Run("s", made, "oracle", None, 0))["output_throughput"]
    tried = [simulate(Run("s", made, "x", None, 0, FixedPlans(k, 15)))["output_throughput"] for k in range(5)]
    assert best > 0.98 * max(tried)
    assert max(tried) > 1.1 * tried[0]


def test_best_static_tries_each_source_alone_and_the_lookup_first() -> None:
    made = scenario(chat__lookup=REPEATS, drafter={"max_draft": 2, "max_lookup": 4})
    tried = fixed_plans(made)
    assert tried[:3] == [FixedPlans(0), FixedPlans(1), FixedPlans(2)]
    assert tried[3:7] == [FixedPlans(0, 1), FixedPlans(0, 2), FixedPlans(0, 3), FixedPlans(0, 4)]
    assert set(tried[7:]) == {FixedPlans(length, 4, score) for length in (1, 2) for score in (0, 4, 8)}
    words = [chosen_in_words(chosen(fixed)) for fixed in (FixedPlans(2), FixedPlans(0, 3), FixedPlans(2, 4, 8))]
    assert words == ["K=2", "look-up K=3", "look-up K=4 from score 8, else K=2"]
    row = simulate(Run("s", made, "best_static", made.rates[0], 0, FixedPlans(2, 4, 8)))
    assert (row["draft_length"], row["lookup_length"], row["lookup_score"]) == (2, 4, 8)
