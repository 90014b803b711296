from __future__ import annotations

from pathlib import Path

import pytest

from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.results import RATIOS, Results
from turbospec_bench.targets import Verdict
from turbospec_bench.variant import Variant
from turbospec_bench.vllm.targets import best_other_lines, judge

TENS = dict.fromkeys(RATIOS, 10.0)
ALONE, BUSY = Configuration("text", "good", 1), Configuration("text", "good", 32)
NAMES = ("best other", "overall", "never matching", "first token", "share")

Policies = dict[str, dict[str, float]]


def rows(*configurations: tuple[Configuration, Policies], rounds: int = 4) -> Results:
    """Rows in which the named figures are given and all others are 10, the same in every round."""
    results = Results(Path(), {})
    for configuration, policies in configurations:
        runs = [Run(TENS | figures, {}) for figures in policies.values()]
        results.put(configuration, [Variant(name, None) for name in policies], [runs] * rounds)
    return results


def verdicts(*configurations: tuple[Configuration, Policies], rounds: int = 4) -> dict[str, Verdict]:
    return dict(zip(NAMES, judge(rows(*configurations, rounds=rounds).rows), strict=True))


def tokens(**speeds: float) -> Policies:
    named = {"off": 10.0, "static_15": 5.0, "vllm_table": 12.0} | speeds
    return {name.replace("_", "-"): {"output_throughput": speed} for name, speed in named.items()}


def late(policies: Policies, **times: float) -> Policies:
    named = {name.replace("_", "-"): {"p99_ttft_ms": time} for name, time in times.items()}
    return {name: figures | named.get(name, {}) for name, figures in policies.items()}


def shared(policies: Policies, share: float) -> Policies:
    return policies | {"adaptive": policies["adaptive"] | {"controller_time_share": share}}


def test_all_met() -> None:
    judged = verdicts(
        (ALONE, shared(tokens(adaptive=13), 0.005)),
        (BUSY, shared(late(tokens(adaptive=11.7), static_15=20.0, adaptive=10.9), 0.005)),
        (Configuration("text", "mismatched", 8), shared(tokens(adaptive=9.8, vllm_table=9), 0.009)),
    )

    assert {name: verdict.met for name, verdict in judged.items()} == dict.fromkeys(NAMES, True)


def test_off_alone_is_not_all_the_others() -> None:
    alone = {"off": {"output_throughput": 10.0}, "adaptive": {"output_throughput": 12.0}}
    judged = verdicts((ALONE, alone))

    assert judged["best other"].met is judged["overall"].met is None
    assert judged["overall"].figures.endswith("needs other policies")
    slow = alone | {"adaptive": {"output_throughput": 8.0}}
    assert verdicts((ALONE, slow))["best other"].met is verdicts((ALONE, slow))["overall"].met is False


def test_the_best_of_the_others_may_be_any_of_them() -> None:
    judged = verdicts((ALONE, tokens(adaptive=20)), (BUSY, tokens(adaptive=11)))

    assert judged["best other"].met is False
    assert "text/good/c32" in judged["best other"].figures
    assert judged["overall"].met is True
    line = best_other_lines(rows((BUSY, tokens(adaptive=11))).rows)
    assert line == "adaptive: 0.917× the tokens/s of the best other, vllm-table [0.917, 0.917]"


def test_one_other_ahead_over_all_configurations_misses() -> None:
    judged = verdicts((ALONE, tokens(adaptive=12, vllm_table=12.5)), (BUSY, tokens(adaptive=12, vllm_table=12)))

    assert judged["overall"].met is False


@pytest.mark.parametrize("drafter", ["mismatched", "eagle3-untrained"])
def test_a_drafter_that_never_matches_may_cost_little(drafter: str) -> None:
    judged = verdicts((Configuration("text", drafter, 8), tokens(adaptive=9.6)))

    assert judged["never matching"].met is False


def test_first_tokens_count_only_where_a_long_draft_makes_them_late() -> None:
    slow = tokens(adaptive=12)
    assert verdicts((BUSY, late(slow, adaptive=15.0)))["first token"].met is None
    assert verdicts((BUSY, late(slow, adaptive=15.0, static_15=20.0)))["first token"].met is False


def test_the_controller_takes_a_hundredth_at_most() -> None:
    assert verdicts((BUSY, shared(tokens(adaptive=12), 0.011)))["share"].met is False


def test_what_was_not_measured_is_not_judged() -> None:
    assert all(verdict.met is None for verdict in verdicts((ALONE, tokens())).values())
    assert verdicts((ALONE, tokens(adaptive=12)), rounds=1)["best other"].met is None
    assert best_other_lines(rows((ALONE, tokens())).rows) is None


def test_with_a_lookup_and_without_it_is_no_rival_of_itself() -> None:
    both = tokens(adaptive=11) | {"adaptive+ngram": {"output_throughput": 15.0}}

    lines = best_other_lines(rows((BUSY, both)).rows)

    assert lines is not None
    assert [line.split(" [")[0] for line in lines.split("\n")] == [
        "adaptive: 0.917× the tokens/s of the best other, vllm-table",
        "adaptive+ngram: 1.250× the tokens/s of the best other, vllm-table",
    ]
