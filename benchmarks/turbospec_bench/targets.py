"""The bars that the adaptive policy is held to, judged from the rows. A miss is printed as what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.matrix import ADAPTIVE, LONE_REQUEST, YARDSTICKS
from turbospec_bench.policy_names import OFF, fixed_length
from turbospec_bench.stats import BestFixed, Ratio, best_fixed, geometric_mean, median_ratio, paired_ratio

MIN_ROUNDS = 2
"""Choosing the best fixed K on half of the rounds needs two."""

BEST_FIXED = 0.97
OFF_MISMATCHED = 0.98
FIRST_TOKEN_LIMIT = 1.05
CONTROLLER_SHARE_LIMIT = 0.01
PEERS = ("ema-tiers", "goodput")
VARYING = ("shift", "mixed")
"""Workloads in which no fixed draft length is right."""
ORDER_POLICY = "static-15"

Held = tuple[Ratio, Callable[[float], bool]]
"""A ratio and what it is held to."""


@dataclass(frozen=True, slots=True)
class Verdict:
    bar: str
    met: bool | None
    """By the point estimates; None where the rows do not hold what the bar needs."""
    figures: str
    within_noise: bool = False
    """Whether the 95 % intervals leave it open: some reach across the bar and none lies wholly beyond it."""

    @classmethod
    def of(cls, bar: str, held: Sequence[Held], figures: str) -> Verdict:
        """Met if every ratio passes; surely so if both ends of each interval do, surely not if both of one fail."""
        surely_met = all(passes(ratio.low) and passes(ratio.high) for ratio, passes in held)
        surely_missed = any(not passes(ratio.low) and not passes(ratio.high) for ratio, passes in held)
        met = all(passes(ratio.value) for ratio, passes in held)
        return cls(bar, met, figures, within_noise=not surely_met and not surely_missed)

    def document(self) -> dict[str, Any]:
        return asdict(self)


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Every bar, in order."""
    configurations = by_configuration([row for row in rows if row["emit"] == "before_draft"])
    return [
        best_rival_in_each_configuration(
            f"tokens/s of adaptive over the best of off and the fixed Ks: no configuration under {BEST_FIXED:g}",
            configurations,
            is_fixed,
        ),
        _every_fixed_overall(configurations),
        _mismatched(configurations),
        _first_token(configurations),
        _varying(configurations),
        _yardsticks(configurations),
        controller_share(configurations),
        _order_of_emission(rows),
    ]


def is_fixed(policy: str) -> bool:
    return fixed_length(policy) is not None


def best_rival_of(rows: Sequence[Row], is_rival: Callable[[str], bool] = is_fixed) -> BestFixed | None:
    """Adaptive's throughput against the best rival of its configuration; None without rivals or without two rounds."""
    own = row_of(rows, ADAPTIVE)
    rivals = {row["policy"]: rounds_of(row) for row in rows if is_rival(row["policy"])}
    if own is None or not rivals or own["rounds"] < MIN_ROUNDS:
        return None
    return best_fixed(rounds_of(own), rivals)


def best_fixed_line(rows: Sequence[Row]) -> str | None:
    """A configuration's best fixed K and how adaptive compares with it; None where there is nothing to compare."""
    compared = best_rival_of([row for row in rows if row["emit"] == "before_draft"])
    if compared is None:
        return None
    names = " and ".join(dict.fromkeys(compared.rivals))
    return f"best fixed K, chosen on the other half of the rounds: {names}; adaptive × {median_ratio(compared.ratios)}"


def best_rival_in_each_configuration(
    bar: str, configurations: dict[Configuration, list[Row]], is_rival: Callable[[str], bool]
) -> Verdict:
    ratios = {
        configuration: median_ratio(compared.ratios)
        for configuration, rows in configurations.items()
        if (compared := best_rival_of(rows, is_rival)) is not None
    }
    if not ratios:
        return Verdict(bar, None, "needs adaptive, its rivals and two rounds")
    return at_least(bar, BEST_FIXED, ratios)


def _every_fixed_overall(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = "tokens/s of adaptive over each of off, the fixed Ks and its peers, geometric mean over all configurations: above 1"
    names = {row["policy"] for rows in configurations.values() for row in rows}
    lengths = {name: length for name in names if (length := fixed_length(name)) is not None}
    found = overall(configurations, (*sorted(lengths, key=lengths.__getitem__), *PEERS))
    if not found:
        return Verdict(bar, None, "needs adaptive")
    figures = ", ".join(f"{name} {ratio}" for name, ratio in found.items())
    return Verdict.of(bar, all_above_1(found.values()), figures)


def _mismatched(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = f"adaptive over off with the mismatched drafter: tokens/s ≥ {OFF_MISMATCHED:g}, TPOT ≤ 1/{OFF_MISMATCHED:g}"
    hopeless = {
        configuration: rows for configuration, rows in configurations.items() if configuration.drafter == "mismatched"
    }
    throughput, per_token = (ratios_to(hopeless, OFF, name) for name in ("output_throughput", "mean_tpot_ms"))
    if not throughput:
        return Verdict(bar, None, "needs adaptive and the mismatched drafter")
    slowest, least = extreme(throughput, min)
    longest, most = extreme(per_token, max)
    held: list[Held] = [(ratio, lambda value: value >= OFF_MISMATCHED) for ratio in throughput.values()]
    held += [(ratio, lambda value: value <= 1 / OFF_MISMATCHED) for ratio in per_token.values()]
    return Verdict.of(bar, held, f"tokens/s × {least} in {slowest.name}, mean TPOT × {most} in {longest.name}")


def _varying(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = f"tokens/s of adaptive over every other policy, in each configuration of {' and '.join(VARYING)}: above 1"
    lowest: dict[str, Ratio] = {}
    for configuration, rows in configurations.items():
        own = row_of(rows, ADAPTIVE)
        rivals = [row for row in rows if row["policy"] in PEERS or fixed_length(row["policy"]) is not None]
        if own is not None and rivals and configuration.workload in VARYING:
            best = max(rivals, key=lambda row: float(row["output_throughput"]))
            lowest[f"{configuration.name} ({best['policy']})"] = paired_ratio(rounds_of(own), rounds_of(best))
    if not lowest:
        return Verdict(bar, None, f"needs adaptive on {' or '.join(VARYING)}")
    figures = "over the best of them: " + ", ".join(f"{name} {ratio}" for name, ratio in lowest.items())
    return Verdict.of(bar, all_above_1(lowest.values()), figures)


def _yardsticks(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = "tokens/s of adaptive over each of transformers' schedules, one request at a time: above 1"
    rows = configurations.get(LONE_REQUEST, [])
    own = row_of(rows, ADAPTIVE)
    rivals = [row for row in rows if row["policy"] in YARDSTICKS]
    if own is None or not rivals:
        return Verdict(bar, None, f"needs adaptive and transformers' schedules in {LONE_REQUEST.name}")
    ratios = {row["policy"]: paired_ratio(rounds_of(own), rounds_of(row)) for row in rivals}
    figures = ", ".join(f"{name} {ratio}" for name, ratio in ratios.items())
    return Verdict.of(bar, all_above_1(ratios.values()), figures)


def _first_token(configurations: dict[Configuration, list[Row]]) -> Verdict:
    bar = f"P99 TTFT of adaptive over off: no configuration above {FIRST_TOKEN_LIMIT:g}"
    ratios = ratios_to(configurations, OFF, "p99_ttft_ms")
    return at_most(bar, FIRST_TOKEN_LIMIT, ratios) if ratios else Verdict(bar, None, "needs adaptive")


def controller_share(configurations: dict[Configuration, list[Row]]) -> Verdict:
    """Holds the time that adaptive takes of the steps to its limit."""
    bar = f"controller's share of step time: no configuration above {CONTROLLER_SHARE_LIMIT:.0%}"
    own = {configuration: row_of(rows, ADAPTIVE) for configuration, rows in configurations.items()}
    known = {configuration: row.get("controller_time_share") for configuration, row in own.items() if row is not None}
    shares = {configuration: float(share) for configuration, share in known.items() if share is not None}
    if not shares:
        return Verdict(bar, None, "needs adaptive")
    worst = max(shares, key=lambda configuration: shares[configuration])
    return Verdict(bar, shares[worst] <= CONTROLLER_SHARE_LIMIT, f"highest {shares[worst]:.2%} in {worst.name}")


def _order_of_emission(rows: Sequence[Row]) -> Verdict:
    bar = f"{ORDER_POLICY} that drafts before it emits, against off, one request at a time: TTFT up, TPOT down"
    found = [
        row
        for row in by_configuration(rows).get(LONE_REQUEST, [])
        if row["emit"] == "after_draft" and row["policy"] == ORDER_POLICY
    ]
    if not found:
        return Verdict(bar, None, f"needs {ORDER_POLICY}:after_draft in {LONE_REQUEST.name}")
    names = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms")
    mean, p99, per_token = (Ratio(**found[0]["ratio_to_off"][name]) for name in names)
    held = [*all_above_1((mean, p99)), (per_token, lambda value: value < 1)]
    return Verdict.of(bar, held, f"mean TTFT × {mean}, P99 TTFT × {p99}, mean TPOT × {per_token}")


def at_least(bar: str, limit: float, ratios: dict[Configuration, Ratio]) -> Verdict:
    """The lowest of some ratios, and which configurations are below the limit."""
    worst, worst_ratio = extreme(ratios, min)
    under = [configuration.name for configuration, ratio in ratios.items() if ratio.value < limit]
    figures = f"lowest {worst_ratio} in {worst.name}" + (f"; under it: {', '.join(under)}" if under else "")
    return Verdict.of(bar, [(ratio, lambda value: value >= limit) for ratio in ratios.values()], figures)


def at_most(bar: str, limit: float, ratios: dict[Configuration, Ratio]) -> Verdict:
    """The highest of some ratios, and which configurations are above the limit."""
    worst, worst_ratio = extreme(ratios, max)
    over = [configuration.name for configuration, ratio in ratios.items() if ratio.value > limit]
    figures = f"highest {worst_ratio} in {worst.name}" + (f"; above it: {', '.join(over)}" if over else "")
    return Verdict.of(bar, [(ratio, lambda value: value <= limit) for ratio in ratios.values()], figures)


def all_above_1(ratios: Iterable[Ratio]) -> list[Held]:
    return [(ratio, lambda value: value > 1) for ratio in ratios]


def ratios_to(
    configurations: dict[Configuration, list[Row]], baseline: str, figure: str, policy: str = ADAPTIVE
) -> dict[Configuration, Ratio]:
    """A policy's paired ratio to a baseline in every configuration that has both."""
    return {
        configuration: paired_ratio(rounds_of(own, figure), rounds_of(other, figure))
        for configuration, rows in configurations.items()
        if (own := row_of(rows, policy)) and (other := row_of(rows, baseline))
    }


def overall(configurations: dict[Configuration, list[Row]], rivals: Iterable[str]) -> dict[str, Ratio]:
    """Geometric mean over configurations of adaptive's paired ratios to each rival; without those that it never met."""
    found: dict[str, Ratio] = {}
    for name in rivals:
        samples = [
            np.divide(rounds_of(own), rounds_of(other))
            for rows in configurations.values()
            if (own := row_of(rows, ADAPTIVE)) and (other := row_of(rows, name))
        ]
        if samples:
            found[name] = geometric_mean(samples)
    return found


def extreme(
    ratios: dict[Configuration, Ratio], choose: Callable[..., tuple[Configuration, Ratio]]
) -> tuple[Configuration, Ratio]:
    return choose(ratios.items(), key=lambda item: item[1].value)


def row_of(rows: Sequence[Row], policy: str) -> Row | None:
    return next((row for row in rows if row["policy"] == policy), None)


def rounds_of(row: Row, figure: str = "output_throughput") -> list[float]:
    return row["round_figures"][figure]
