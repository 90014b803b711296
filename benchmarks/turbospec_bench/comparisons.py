"""Paired comparisons of policies, from the rows of a results file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from turbospec_bench.configuration import Configuration, Row
from turbospec_bench.policy_names import ADAPTIVE, fixed_length
from turbospec_bench.stats import BestRival, Ratio, best_rival, geometric_mean, median_ratio, paired_ratio

MIN_ROUNDS = 2
"""Choosing the best rival on half of the rounds needs two."""

NEVER_MATCHING = ("mismatched", "eagle3-untrained")
"""Drafters whose tokens are hardly ever accepted."""

Rows = Mapping[Configuration, Sequence[Row]]
"""The rows of every configuration."""


def is_fixed(policy: str) -> bool:
    """Whether a policy drafts the same number of tokens in every step: `off` or `static-K`."""
    return fixed_length(policy) is not None


def best_rival_of(
    rows: Sequence[Row], is_rival: Callable[[str], bool] = is_fixed, policy: str = ADAPTIVE
) -> BestRival | None:
    """A policy's tokens/s against the best rival in a configuration; None without rivals or without two rounds."""
    own = row_of(rows, policy)
    rivals = {row["policy"]: rounds_of(row) for row in rows if is_rival(row["policy"])}
    if own is None or not rivals or own["rounds"] < MIN_ROUNDS:
        return None
    return best_rival(rounds_of(own), rivals)


def best_rival_line(
    rows: Sequence[Row], what: str, is_rival: Callable[[str], bool] = is_fixed, policy: str = ADAPTIVE
) -> str | None:
    """A configuration's best rival and how a policy compares with it; None where there is nothing to compare."""
    compared = best_rival_of([row for row in rows if row["emit"] != "after_draft"], is_rival, policy)
    if compared is None:
        return None
    ratio = median_ratio(compared.ratios)
    names = " or ".join(dict.fromkeys(compared.rivals))
    return f"{policy}: {ratio.value:.3f}× the tokens/s of {what}, {names} [{ratio.low:.3f}, {ratio.high:.3f}]"


def never_matching(by_configuration: Rows) -> Rows:
    """The configurations whose drafter never matches."""
    return {
        configuration: rows
        for configuration, rows in by_configuration.items()
        if configuration.drafter in NEVER_MATCHING
    }


def ratios_to(by_configuration: Rows, baseline: str, figure: str, policy: str = ADAPTIVE) -> dict[Configuration, Ratio]:
    """A policy's paired ratio to a baseline in every configuration that has both."""
    return {
        configuration: paired_ratio(rounds_of(own, figure), rounds_of(other, figure))
        for configuration, rows in by_configuration.items()
        if (own := row_of(rows, policy)) and (other := row_of(rows, baseline))
    }


def overall(by_configuration: Rows, rivals: Iterable[str]) -> dict[str, Ratio]:
    """Adaptive's tokens/s over those of each rival, geometric mean over the configurations that have both.

    A rival that shares no configuration with adaptive is left out.
    """
    found: dict[str, Ratio] = {}
    for name in rivals:
        samples = [
            np.divide(rounds_of(own), rounds_of(other))
            for rows in by_configuration.values()
            if (own := row_of(rows, ADAPTIVE)) and (other := row_of(rows, name))
        ]
        if samples:
            found[name] = geometric_mean(samples)
    return found


def lowest(ratios: Mapping[Configuration, Ratio]) -> tuple[Configuration, Ratio]:
    return min(ratios.items(), key=lambda item: item[1].value)


def highest(ratios: Mapping[Configuration, Ratio]) -> tuple[Configuration, Ratio]:
    return max(ratios.items(), key=lambda item: item[1].value)


def row_of(rows: Sequence[Row], policy: str) -> Row | None:
    return next((row for row in rows if row["policy"] == policy), None)


def rounds_of(row: Row, figure: str = "output_throughput") -> list[float]:
    """What each round measured."""
    return row["round_figures"][figure]
