"""What a run shows, in words, on rows with known truth."""

from __future__ import annotations

from pathlib import Path

from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.results import RATIOS, Results
from turbospec_bench.summary import findings
from turbospec_bench.variant import Variant

TENS = dict.fromkeys(RATIOS, 10.0)
LONE, BUSY = Configuration("code", "good", 1), Configuration("code", "good", 32)
MISMATCHED = Configuration("code", "mismatched", 8)
OFF, FIXED, NEVER = "against off", "against the best fixed K", "against off, where the drafter never matches"


def said(*configurations: tuple[Configuration, dict[str, list[float]]], disturbed: int = 0) -> dict[str, str]:
    """Findings by topic, of tokens/s by policy and round."""
    results = Results(Path(), {})
    for configuration, policies in configurations:
        rounds = [
            [Run(TENS | {"output_throughput": value}, {}, disturbed=number < disturbed) for value in values]
            for number, values in enumerate(zip(*policies.values(), strict=True))
        ]
        results.put(configuration, [Variant(name) for name in policies], rounds)
    return {
        finding.topic.removesuffix(" of each configuration, known only afterwards"): finding.text
        for finding in findings(results.rows)
    }


def test_one_configuration_is_named_with_its_ratio() -> None:
    found = said((LONE, {"off": [10.0] * 6, "static-3": [11.0] * 6, "adaptive": [12.0] * 6}))

    assert found[OFF] == "20 % more tokens/s (1.20× [1.20, 1.20] in code/good/c1)."
    assert found[FIXED] == "9 % more tokens/s (1.09× [1.09, 1.09] in code/good/c1)."
    assert NEVER not in found


def test_several_configurations_are_counted_and_the_extremes_named() -> None:
    found = said(
        (LONE, {"off": [10.0] * 6, "adaptive": [20.0] * 6}),
        (BUSY, {"off": [10.0] * 6, "adaptive": [8.0, 12.5] * 3}),
        (MISMATCHED, {"off": [10.0] * 6, "static-3": [4.0] * 6, "static-15": [2.0] * 6, "adaptive": [9.0] * 6}),
    )

    assert "geometric mean over 3 configurations" in found[OFF]
    assert "Faster in 1, slower in 1, within noise in 1." in found[OFF]
    assert "Lowest 0.90× [0.90, 0.90] in code/mismatched/c8, highest 2.00× [2.00, 2.00] in code/good/c1." in found[OFF]
    assert found[NEVER].startswith("10 % fewer tokens/s (0.90× [0.90, 0.90] in code/mismatched/c8).")
    assert "static-15 has 0.20× the tokens/s of off in code/mismatched/c8" in found[NEVER]


def test_a_difference_that_the_interval_leaves_open_is_noise() -> None:
    found = said((LONE, {"off": [10.0] * 6, "adaptive": [9.0, 12.0, 9.5, 12.0, 9.0, 12.0]}))

    assert "within noise (" in found[OFF]


def test_few_rounds_are_said_to_be_few() -> None:
    one = said((LONE, {"off": [10.0], "static-1": [9.0], "adaptive": [12.0]}))
    three = said((LONE, {"off": [10.0] * 3, "static-1": [9.0] * 3, "adaptive": [12.0] * 3}))
    six = said((LONE, {"off": [10.0] * 6, "static-1": [9.0] * 6, "adaptive": [12.0] * 6}))

    assert one[OFF] == "20 % more tokens/s (1.20× in code/good/c1)."
    assert "2 rounds" in one[FIXED]
    assert "One round" in one["noise"]
    assert "3 rounds are too narrow" in three["noise"]
    assert "too narrow" not in six["noise"]


def test_disturbed_rounds_are_counted() -> None:
    found = said((LONE, {"off": [10.0] * 6, "adaptive": [12.0] * 6}), disturbed=2)

    assert "Other processes disturbed 2 of 6 rounds." in found["noise"]


def test_a_run_without_adaptive_shows_nothing_of_it() -> None:
    assert said((LONE, {"off": [10.0] * 2, "static-3": [11.0] * 2})) == {}
