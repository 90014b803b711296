"""The project's development targets in vLLM. They are for `adaptive` without a look-up beside the drafter."""

from __future__ import annotations

from collections.abc import Sequence

from turbospec_bench.comparisons import NEVER_MATCHING, Rows, best_rival_line, never_matching, ratios_to
from turbospec_bench.configuration import Row, by_configuration
from turbospec_bench.policy_names import ADAPTIVE, OFF
from turbospec_bench.targets import Verdict, above_each, at_least, at_least_best_rival, at_most, controller_share
from turbospec_bench.variant import LOOKUP_SUFFIX

OUR_OWN = (ADAPTIVE, ADAPTIVE + LOOKUP_SUFFIX)
OFF_NEVER_MATCHING = 0.97
FIRST_TOKEN_LIMIT = 1.10
LATE = "static-15"
"""Where even this meets the limit, first tokens are at no risk."""


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Every target, in order."""
    configurations = by_configuration(rows)
    return [
        at_least_best_rival(
            "tokens/s of adaptive over the best of all others: no configuration under", configurations, is_other
        ),
        _every_other_overall(configurations),
        _never_matching(configurations),
        _first_token(configurations),
        controller_share(configurations),
    ]


def is_other(policy: str) -> bool:
    return policy not in OUR_OWN


def best_other_lines(rows: Sequence[Row]) -> str | None:
    """How `adaptive` compares with the best other, without and with a look-up; None where nothing can be compared."""
    lines = (best_rival_line(rows, "the best other", is_other, policy) for policy in OUR_OWN)
    return "\n".join(line for line in lines if line is not None) or None


def _every_other_overall(configurations: Rows) -> Verdict:
    target = "tokens/s of adaptive over each of the others, geometric mean over all configurations: above 1"
    others = dict.fromkeys(row["policy"] for rows in configurations.values() for row in rows if is_other(row["policy"]))
    return above_each(target, configurations, others)


def _never_matching(configurations: Rows) -> Verdict:
    target = (
        f"tokens/s of adaptive over off with drafters that never match: no configuration under {OFF_NEVER_MATCHING:g}"
    )
    ratios = ratios_to(never_matching(configurations), OFF, "output_throughput")
    if not ratios:
        return Verdict(target, None, f"needs {' or '.join(NEVER_MATCHING)}")
    return at_least(target, OFF_NEVER_MATCHING, ratios)


def _first_token(configurations: Rows) -> Verdict:
    target = (
        f"P99 TTFT of adaptive over off, where that of {LATE} is above {FIRST_TOKEN_LIMIT:g}: no configuration above it"
    )
    of_late = ratios_to(configurations, OFF, "p99_ttft_ms", LATE)
    late = {configuration for configuration, ratio in of_late.items() if ratio.value > FIRST_TOKEN_LIMIT}
    ratios = {
        configuration: ratio
        for configuration, ratio in ratios_to(configurations, OFF, "p99_ttft_ms").items()
        if configuration in late
    }
    if not ratios:
        return Verdict(target, None, f"needs adaptive, and a configuration in which {LATE} is late")
    return at_most(target, FIRST_TOKEN_LIMIT, ratios)
