"""The bars that the adaptive policy is held to in vLLM."""

from __future__ import annotations

from collections.abc import Sequence

from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.matrix import ADAPTIVE
from turbospec_bench.policy_names import OFF
from turbospec_bench.stats import median_ratio
from turbospec_bench.targets import (
    Verdict,
    all_above_1,
    at_least,
    at_most,
    best_rival_in_each_configuration,
    best_rival_of,
    controller_share,
    overall,
    ratios_to,
)

BEST_OTHER = 0.97
OFF_HOPELESS = 0.97
HOPELESS = ("mismatched", "eagle3-untrained")
"""Drafters whose tokens are hardly ever accepted."""
FIRST_TOKEN_LIMIT = 1.10
LATE = "static-15"
"""Where even this keeps to the limit, first tokens are at no risk."""


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Every bar, in order."""
    configurations = by_configuration(rows)
    return [
        best_rival_in_each_configuration(
            f"tokens/s of adaptive over the best of all others: no configuration under {BEST_OTHER:g}",
            configurations,
            _is_other,
        ),
        _every_other_overall(configurations),
        _hopeless(configurations),
        _first_token(configurations),
        controller_share(configurations),
    ]


def best_other_line(rows: Sequence[Row]) -> str | None:
    """A configuration's best competitor and how adaptive compares with it; None where there is nothing to compare."""
    compared = best_rival_of(rows, _is_other)
    if compared is None:
        return None
    names = " and ".join(dict.fromkeys(compared.rivals))
    ratio = median_ratio(compared.ratios)
    return f"best of the others, chosen on the other half of the rounds: {names}; adaptive × {ratio}"


def _is_other(policy: str) -> bool:
    return policy != ADAPTIVE


def _every_other_overall(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = "tokens/s of adaptive over each of the others, geometric mean over all configurations: above 1"
    others = dict.fromkeys(
        row["policy"] for rows in configurations.values() for row in rows if _is_other(row["policy"])
    )
    found = overall(configurations, others)
    if not found:
        return Verdict(bar, None, "needs adaptive")
    return Verdict.of(bar, all_above_1(found.values()), ", ".join(f"{name} {ratio}" for name, ratio in found.items()))


def _hopeless(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = f"tokens/s of adaptive over off with drafters that never match: no configuration under {OFF_HOPELESS:g}"
    hopeless = {
        configuration: rows for configuration, rows in configurations.items() if configuration.drafter in HOPELESS
    }
    ratios = ratios_to(hopeless, OFF, "output_throughput")
    return at_least(bar, OFF_HOPELESS, ratios) if ratios else Verdict(bar, None, f"needs {' or '.join(HOPELESS)}")


def _first_token(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = (
        f"P99 TTFT of adaptive over off, where that of {LATE} is above {FIRST_TOKEN_LIMIT:g}: no configuration above it"
    )
    late = {
        configuration: rows
        for configuration, rows in configurations.items()
        if (ratio := ratios_to({configuration: rows}, OFF, "p99_ttft_ms", LATE).get(configuration))
        and ratio.value > FIRST_TOKEN_LIMIT
    }
    ratios = ratios_to(late, OFF, "p99_ttft_ms")
    if not ratios:
        return Verdict(bar, None, f"needs adaptive, and a configuration in which {LATE} is late")
    return at_most(bar, FIRST_TOKEN_LIMIT, ratios)
