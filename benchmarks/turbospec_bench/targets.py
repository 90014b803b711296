"""The project's development targets for the embedded engine, judged from the rows of a results file.

For developers and CI: `turbospec bench --check-targets` and `turbospec bench targets`. What a run shows its user is in
`summary.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from turbospec_bench.comparisons import (
    Rows,
    best_rival_of,
    highest,
    is_fixed,
    lowest,
    never_matching,
    overall,
    ratios_to,
    rounds_of,
    row_of,
)
from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.matrix import LONE_REQUEST, TRANSFORMERS_POLICIES
from turbospec_bench.policy_names import ADAPTIVE, OFF, fixed_length
from turbospec_bench.stats import Ratio, median_ratio, paired_ratio

BEST_FIXED = 0.97
OFF_MISMATCHED = 0.98
FIRST_TOKEN_LIMIT = 1.05
CONTROLLER_SHARE_LIMIT = 0.01
PEERS = ("ema-tiers", "goodput")
VARYING = ("shift", "mixed")
"""Workloads in which no fixed draft length is right."""
ORDER_POLICY = "static-15"

Test = tuple[Ratio, Callable[[float], bool]]
"""A ratio and whether a value of it meets the target."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and whether the rows meet it."""

    target: str
    met: bool | None
    """By the point estimates; None where the rows lack what the target needs."""
    figures: str
    within_noise: bool = False
    """Whether the 95 % intervals leave it open: some include the target and none lies wholly on the missed side."""
    too_few_rounds: bool = False
    """Whether there are too few rounds for such an interval. The target is then not missed beyond noise either."""

    @classmethod
    def of(cls, target: str, tests: Sequence[Test], figures: str) -> Verdict:
        """Met if every ratio passes; within noise unless all intervals pass at both ends or one fails at both."""
        surely_met = all(passes(ratio.low) and passes(ratio.high) for ratio, passes in tests)
        surely_missed = any(not passes(ratio.low) and not passes(ratio.high) for ratio, passes in tests)
        met = all(passes(ratio.value) for ratio, passes in tests)
        too_few = any(not ratio.has_honest_interval for ratio, _ in tests)
        return cls(target, met, figures, not surely_met and not surely_missed, too_few)

    def unless_lacking(self, lacking: Iterable[str]) -> Verdict:
        """The verdict where the rows lack something that the target names: not met by the others alone."""
        needs = ", ".join(dict.fromkeys(lacking))
        return replace(self, met=None, figures=f"{self.figures}; needs {needs}") if needs and self.met else self

    @property
    def surely_missed(self) -> bool:
        """Missed beyond noise."""
        return self.met is False and not self.within_noise and not self.too_few_rounds


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Every target, in order."""
    configurations = by_configuration([row for row in rows if row["emit"] != "after_draft"])
    return [
        at_least_best_rival(
            "tokens/s of adaptive over the best of off and the fixed Ks: no configuration under",
            configurations,
            is_fixed,
        ),
        _every_fixed_overall(configurations),
        _mismatched(configurations),
        _first_token(configurations),
        _varying(configurations),
        _transformers(configurations),
        controller_share(configurations),
        _order_of_emission(rows),
    ]


def at_least_best_rival(target: str, configurations: Rows, is_rival: Callable[[str], bool]) -> Verdict:
    """Adaptive at `BEST_FIXED` of the best rival or above in every configuration; `target` lacks the limit."""
    target = f"{target} {BEST_FIXED:g}"
    ratios = {
        configuration: median_ratio(compared.ratios)
        for configuration, rows in configurations.items()
        if (compared := best_rival_of(rows, is_rival)) is not None
    }
    if not ratios:
        return Verdict(target, None, "needs adaptive, its rivals and two rounds")
    return at_least(target, BEST_FIXED, ratios).unless_lacking(
        f"two rounds and a rival beside {OFF} in {configuration.name}"
        for configuration, rows in configurations.items()
        if row_of(rows, ADAPTIVE)
        and (configuration not in ratios or not any(is_rival(row["policy"]) and row["policy"] != OFF for row in rows))
    )


def _every_fixed_overall(configurations: Rows) -> Verdict:
    target = (
        "tokens/s of adaptive over each of off, the fixed Ks and its peers, geometric mean over all configurations: "
        "above 1"
    )
    names = {row["policy"] for rows in configurations.values() for row in rows}
    lengths = {name: length for name in names if (length := fixed_length(name)) is not None}
    return above_each(target, configurations, (*sorted(lengths, key=lengths.__getitem__), *PEERS))


def _mismatched(configurations: Rows) -> Verdict:
    limits = f"tokens/s ≥ {OFF_MISMATCHED:g}, TPOT ≤ 1/{OFF_MISMATCHED:g}"
    target = f"adaptive over off with the mismatched drafter: {limits}"
    never = never_matching(configurations)
    throughput, per_token = (ratios_to(never, OFF, name) for name in ("output_throughput", "mean_tpot_ms"))
    if not throughput:
        return Verdict(target, None, "needs adaptive and the mismatched drafter")
    slowest, least = lowest(throughput)
    longest, most = highest(per_token)
    tests: list[Test] = [(ratio, lambda value: value >= OFF_MISMATCHED) for ratio in throughput.values()]
    tests += [(ratio, lambda value: value <= 1 / OFF_MISMATCHED) for ratio in per_token.values()]
    return Verdict.of(target, tests, f"tokens/s × {least} in {slowest.name}, mean TPOT × {most} in {longest.name}")


def _varying(configurations: Rows) -> Verdict:
    where = " and ".join(VARYING)
    target = (
        f"tokens/s of adaptive over the best of the fixed Ks and its peers, in each configuration of {where}: above 1"
    )
    found = {
        f"{configuration.name} ({' or '.join(dict.fromkeys(best.rivals))})": median_ratio(best.ratios)
        for configuration, rows in configurations.items()
        if configuration.workload in VARYING
        and (best := best_rival_of(rows, lambda policy: policy in PEERS or is_fixed(policy))) is not None
    }
    verdict = above_1(
        target, found, f"needs adaptive on {' or '.join(VARYING)}, and two rounds", "over the best of them: "
    )
    return verdict.unless_lacking(
        f"{peer} in {configuration.name}"
        for configuration, rows in configurations.items()
        for peer in PEERS
        if configuration.workload in VARYING and row_of(rows, ADAPTIVE) and not row_of(rows, peer)
    )


def _transformers(configurations: Rows) -> Verdict:
    target = "tokens/s of adaptive over each of transformers' schedules, one request at a time: above 1"
    rows = configurations.get(LONE_REQUEST, [])
    own = row_of(rows, ADAPTIVE)
    found = {
        row["policy"]: paired_ratio(rounds_of(own), rounds_of(row))
        for row in rows
        if own is not None and row["policy"] in TRANSFORMERS_POLICIES
    }
    verdict = above_1(target, found, f"needs adaptive and transformers' schedules in {LONE_REQUEST.name}")
    return verdict.unless_lacking(name for name in TRANSFORMERS_POLICIES if name not in found)


def _first_token(configurations: Rows) -> Verdict:
    target = f"P99 TTFT of adaptive over off: no configuration above {FIRST_TOKEN_LIMIT:g}"
    ratios = ratios_to(configurations, OFF, "p99_ttft_ms")
    return at_most(target, FIRST_TOKEN_LIMIT, ratios) if ratios else Verdict(target, None, "needs adaptive")


def controller_share(configurations: Rows) -> Verdict:
    """The share of step time that adaptive takes, against its limit."""
    target = f"controller's share of step time: no configuration above {CONTROLLER_SHARE_LIMIT:.0%}"
    known = {
        configuration: row["round_figures"].get("controller_time_share", [])
        for configuration, rows in configurations.items()
        if (row := row_of(rows, ADAPTIVE))
    }
    shares = {
        configuration: median_ratio(found)
        for configuration, rounds in known.items()
        if (found := [share for share in rounds if share is not None and math.isfinite(share)])
    }
    if not shares:
        return Verdict(target, None, "needs adaptive" if not known else "needs adaptive's share, which no row has")
    worst, share = highest(shares)
    tests: list[Test] = [(each, lambda value: value <= CONTROLLER_SHARE_LIMIT) for each in shares.values()]
    return Verdict.of(target, tests, f"highest {share.value:.2%} in {worst.name}").unless_lacking(
        f"the share in {configuration.name}" for configuration in known if configuration not in shares
    )


def _order_of_emission(rows: Sequence[Row]) -> Verdict:
    target = f"{ORDER_POLICY} that drafts before it emits, against off, one request at a time: TTFT up, TPOT down"
    found = [
        row
        for row in by_configuration(rows).get(LONE_REQUEST, [])
        if row["emit"] == "after_draft" and row["policy"] == ORDER_POLICY
    ]
    if not found:
        return Verdict(target, None, f"needs {ORDER_POLICY}:after_draft in {LONE_REQUEST.name}")
    names = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms")
    row = found[0]
    mean, p99, per_token = (Ratio(**row["ratio_to_off"][name], rounds=row["rounds"]) for name in names)
    tests = [*_all_above_1((mean, p99)), (per_token, lambda value: value < 1)]
    return Verdict.of(target, tests, f"mean TTFT × {mean}, P99 TTFT × {p99}, mean TPOT × {per_token}")


def at_least(target: str, limit: float, ratios: Mapping[Configuration, Ratio]) -> Verdict:
    """Judge the lowest of some ratios; the figures name the configurations below the limit."""
    worst, worst_ratio = lowest(ratios)
    under = [configuration.name for configuration, ratio in ratios.items() if ratio.value < limit]
    figures = f"lowest {worst_ratio} in {worst.name}" + (f"; under it: {', '.join(under)}" if under else "")
    return Verdict.of(target, [(ratio, lambda value: value >= limit) for ratio in ratios.values()], figures)


def at_most(target: str, limit: float, ratios: Mapping[Configuration, Ratio]) -> Verdict:
    """Judge the highest of some ratios; the figures name the configurations above the limit."""
    worst, worst_ratio = highest(ratios)
    over = [configuration.name for configuration, ratio in ratios.items() if ratio.value > limit]
    figures = f"highest {worst_ratio} in {worst.name}" + (f"; above it: {', '.join(over)}" if over else "")
    return Verdict.of(target, [(ratio, lambda value: value <= limit) for ratio in ratios.values()], figures)


def above_each(target: str, configurations: Rows, rivals: Collection[str]) -> Verdict:
    """Judge adaptive's geometric means over each rival; not met where a configuration lacks one, or any but `off`."""
    verdict = above_1(target, overall(configurations, rivals), "needs adaptive")
    lacking = [
        f"{name} in every configuration"
        for name in rivals
        if any(row_of(rows, ADAPTIVE) and not row_of(rows, name) for rows in configurations.values())
    ]
    return verdict.unless_lacking(lacking if any(name != OFF for name in rivals) else ["other policies"])


def above_1(target: str, ratios: Mapping[str, Ratio], needs: str, words: str = "") -> Verdict:
    """Judge named ratios that must all be above 1; `needs` says what is missing where there are none."""
    if not ratios:
        return Verdict(target, None, needs)
    figures = words + ", ".join(f"{name} {ratio}" for name, ratio in ratios.items())
    return Verdict.of(target, _all_above_1(ratios.values()), figures)


def _all_above_1(ratios: Iterable[Ratio]) -> list[Test]:
    return [(ratio, lambda value: value > 1) for ratio in ratios]
