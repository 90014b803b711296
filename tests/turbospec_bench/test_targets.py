from __future__ import annotations

import math
from pathlib import Path

import pytest

from turbospec_bench.comparisons import best_rival_line
from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.matrix import TRANSFORMERS_POLICIES
from turbospec_bench.results import RATIOS, Results
from turbospec_bench.stats import Ratio
from turbospec_bench.targets import Verdict, judge
from turbospec_bench.variant import Variant

TENS = dict.fromkeys(RATIOS, 10.0) | {"controller_time_share": 0.002}
ALONE, BUSY = Configuration("code", "good", 1), Configuration("code", "good", 32)
PEERS = ("ema-tiers", "goodput")
NAMES = ("best fixed", "overall", "mismatched", "first token", "varying", "transformers", "controller", "order")


def verdicts(*configurations: tuple[Configuration, dict[str, dict[str, float]]], rounds: int = 4) -> dict[str, Verdict]:
    """Judge rows in which the named figures are given and all others are 10, the same in every round."""
    results = Results(Path(), {})
    for configuration, policies in configurations:
        runs = [Run(TENS | figures, {}) for figures in policies.values()]
        results.put(configuration, [Variant.parse(name) for name in policies], [runs] * rounds)
    return dict(zip(NAMES, judge(results.rows), strict=True))


def tokens(value: float) -> dict[str, float]:
    return {"output_throughput": value}


def against(value: float, **rivals: float) -> dict[str, dict[str, float]]:
    """Rows of a configuration: adaptive at `value`, off, a fixed K and the peers at 10 unless given."""
    given = {"off": 10.0, "static-3": 10.0} | dict.fromkeys(PEERS, 10.0)
    given |= {name.replace("_", "-"): figure for name, figure in rivals.items()}
    return {name: tokens(figure) for name, figure in given.items()} | {"adaptive": tokens(value)}


def test_all_met() -> None:
    judged = verdicts(
        (ALONE, against(15, static_3=14, **dict.fromkeys(TRANSFORMERS_POLICIES, 9.0))),
        (BUSY, against(9.8)),
        (Configuration("code", "mismatched", 8), against(9.9, static_3=4)),
        (Configuration("shift", "good", 8), against(11)),
    )

    met = {name: verdict.met for name, verdict in judged.items()}
    assert met == dict.fromkeys(NAMES, True) | {"order": None}


def without(policies: dict[str, dict[str, float]], *names: str) -> dict[str, dict[str, float]]:
    return {name: figures for name, figures in policies.items() if name not in names}


def test_a_target_is_not_met_without_all_that_it_names() -> None:
    fast = against(15, **dict.fromkeys(TRANSFORMERS_POLICIES, 9.0))
    varying = Configuration("mixed", "good", 8)

    no_fixed = verdicts((ALONE, without(fast, "static-3", "transformers-off")), (varying, without(fast, "goodput")))

    unmet = {name: no_fixed[name] for name in ("best fixed", "overall", "varying", "transformers")}
    assert [verdict.met for verdict in unmet.values()] == [None] * 4
    assert unmet["best fixed"].figures.endswith("needs two rounds and a rival beside off in code/good/c1")
    assert unmet["overall"].figures.endswith("needs static-3 in every configuration, goodput in every configuration")
    assert unmet["varying"].figures.endswith("needs goodput in mixed/good/c8")
    assert unmet["transformers"].figures.endswith("needs transformers-off")
    assert not any(verdict.surely_missed for verdict in unmet.values())
    assert verdicts((ALONE, without(against(9), "goodput")), rounds=6)["overall"].surely_missed


def test_a_share_that_one_configuration_lacks_leaves_the_controller_unjudged() -> None:
    unknown = {"off": tokens(10), "adaptive": tokens(10) | {"controller_time_share": math.nan}}

    assert verdicts((ALONE, against(10)), (BUSY, unknown))["controller"].met is None
    assert "no row has" in verdicts((BUSY, unknown))["controller"].figures


def test_one_bad_configuration_misses_and_is_named() -> None:
    judged = verdicts((ALONE, against(20)), (BUSY, against(9.6) | {"adaptive": tokens(9.6) | {"p99_ttft_ms": 11.0}}))

    for name in ("best fixed", "first token"):
        assert judged[name].met is False
        assert "code/good/c32" in judged[name].figures
    assert judged["overall"].met is True


@pytest.mark.parametrize(
    ("rounds", "met", "within_noise"),
    [
        ((0.99, 1.01, 1.0, 1.02, 1.0, 1.01), True, False),
        ((0.95, 0.98, 0.94, 1.02, 0.95, 1.0), False, True),
        ((0.95, 0.98, 0.99, 1.02, 0.96, 1.0), True, True),
        ((0.95, 0.96, 0.94, 0.95, 0.96, 0.95), False, False),
    ],
)
def test_an_interval_across_the_target_is_said_and_changes_no_verdict(
    rounds: tuple[float, ...], met: bool, within_noise: bool
) -> None:
    configuration, variants = Configuration("code", "mismatched", 8), (Variant("off"), Variant("adaptive"))
    runs = [[Run(TENS | tokens(10 * share), {}) for share in (1, own)] for own in rounds]
    results = Results(Path(), {})
    results.put(configuration, variants, runs)

    verdict = dict(zip(NAMES, judge(results.rows), strict=True))["mismatched"]

    assert (verdict.met, verdict.within_noise) == (met, within_noise)
    assert verdict.surely_missed is (not met and not within_noise)


def test_one_configuration_surely_beyond_the_target_is_no_noise_whatever_the_others_are() -> None:
    ratio = {"sure": Ratio(0.9, 0.8, 0.95, 6), "open": Ratio(1.01, 0.9, 1.1, 6), "fine": Ratio(1.2, 1.1, 1.3, 6)}

    def judged(*names: str) -> tuple[bool | None, bool]:
        verdict = Verdict.of("target", [(ratio[name], lambda value: value > 1) for name in names], "")
        return verdict.met, verdict.within_noise

    assert judged("fine") == (True, False)
    assert judged("fine", "open") == (True, True)
    assert judged("fine", "open", "sure") == (False, False)


def test_few_rounds_settle_no_target() -> None:
    """The median of four rounds has no interval of 95 %."""
    verdict = Verdict.of("target", [(Ratio(0.9, 0.8, 0.95, 4), lambda value: value > 1)], "")
    assert (verdict.met, verdict.too_few_rounds, verdict.surely_missed) == (False, True, False)


def test_off_is_among_the_fixed() -> None:
    judged = verdicts((BUSY, against(9, static_3=5)))

    assert judged["best fixed"].met is False


def test_a_policy_ahead_over_the_whole_table_misses() -> None:
    judged = verdicts((ALONE, against(10, goodput=11)), (BUSY, against(10)))

    assert judged["overall"].met is False
    assert "goodput 0.953" in judged["overall"].figures


@pytest.mark.parametrize("figures", [tokens(9.7), tokens(10) | {"mean_tpot_ms": 10.3}])
def test_a_drafter_that_never_matches_may_cost_next_to_nothing(figures: dict[str, float]) -> None:
    judged = verdicts((Configuration("code", "mismatched", 8), {"off": tokens(10), "adaptive": figures}))

    assert judged["mismatched"].met is False


def test_where_nothing_fixed_is_right_adaptive_must_lead_every_configuration() -> None:
    configurations = [Configuration("mixed", "good", concurrency) for concurrency in (1, 8)]
    judged = verdicts((configurations[0], against(11)), (configurations[1], against(11, ema_tiers=12)))

    assert judged["varying"].met is False
    assert "mixed/good/c8 (ema-tiers) 0.917" in judged["varying"].figures


def test_transformers_may_not_be_faster() -> None:
    assert verdicts((ALONE, against(10, transformers_constant=11)))["transformers"].met is False


def test_a_greedy_controller_misses() -> None:
    greedy = {"off": tokens(10), "adaptive": tokens(10) | {"controller_time_share": 0.03}}
    judged = verdicts((ALONE, greedy))["controller"]

    assert judged.met is False
    assert "highest 3.00%" in judged.figures


def test_of_few_rounds_a_greedy_controller_is_not_missed_beyond_noise() -> None:
    greedy = {"off": tokens(10), "adaptive": tokens(10) | {"controller_time_share": 0.03}}

    assert verdicts((ALONE, greedy), rounds=6)["controller"].surely_missed
    assert not verdicts((ALONE, greedy), rounds=5)["controller"].surely_missed


def test_a_users_file_is_no_fixed_length_by_its_name() -> None:
    rivals = against(10.5) | {"off-hours": tokens(30), "static-mine": tokens(30), "transformers-mine": tokens(30)}
    judged = verdicts((ALONE, rivals), (Configuration("mixed", "good", 8), rivals))

    assert [judged[name].met for name in ("best fixed", "overall", "varying", "transformers")] == [
        True,
        True,
        True,
        None,
    ]


def test_what_was_not_measured_is_not_judged() -> None:
    assert all(verdict.met is None for verdict in verdicts((ALONE, {"off": tokens(10)})).values())
    assert (
        verdicts((ALONE, {"off": tokens(10), "static-1": tokens(9), "adaptive": tokens(9)}), rounds=1)["best fixed"].met
        is None
    )


def test_emitting_after_the_draft_is_judged_by_itself() -> None:
    after = {"mean_ttft_ms": 20.0, "p99_ttft_ms": 30.0, "mean_tpot_ms": 6.0}
    judged = verdicts((ALONE, {"off": tokens(10), "static-15:after_draft": after, "adaptive:after_draft": tokens(1)}))

    assert judged["order"].met is True
    assert judged["overall"].met is None


def test_the_line_of_a_configuration_names_the_best_fixed() -> None:
    results = Results(Path(), {})
    names = ("off", "static-1", "static-5", "adaptive")
    runs = [Run(dict.fromkeys(RATIOS, 10.0) | tokens(value), {}) for value in (10, 12, 15, 18)]
    results.put(ALONE, [Variant(name) for name in names], [runs] * 2)

    line = best_rival_line(results.rows, "the best fixed K")

    assert line is not None
    assert line == "adaptive: 1.200× the tokens/s of the best fixed K, static-5 [1.200, 1.200]"
