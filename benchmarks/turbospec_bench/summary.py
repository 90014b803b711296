"""A run's results in sentences: the adaptive policy against `off`, against the best fixed K, and with drafters that
never match. Nothing here is a target: see `targets.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turbospec_bench.comparisons import (
    MIN_ROUNDS,
    Rows,
    best_rival_of,
    highest,
    lowest,
    never_matching,
    ratios_to,
    rounds_of,
    row_of,
)
from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.policy_names import ADAPTIVE, OFF, fixed_length
from turbospec_bench.stats import HONEST_ROUNDS, Ratio, geometric_mean, median_ratio


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison and its result, a sentence each."""

    topic: str
    text: str


def findings(rows: Sequence[Row]) -> list[Finding]:
    """What the rows say about the adaptive policy; empty where they do not have it."""
    configurations = by_configuration([row for row in rows if row["emit"] != "after_draft"])
    having = {configuration: own for configuration, own in configurations.items() if row_of(own, ADAPTIVE)}
    if not having:
        return []
    said = [
        Finding("against off", _against_off(having)),
        Finding("against the best fixed K of each configuration, known only afterwards", _against_best_fixed(having)),
        Finding("against off, where the drafter never matches", _never_matching(never_matching(having))),
    ]
    return [finding for finding in said if finding.text] + [Finding("noise", _noise(having))]


def _against_off(configurations: Rows) -> str:
    samples = {
        configuration: _paired(row_of(rows, ADAPTIVE), row_of(rows, OFF))
        for configuration, rows in configurations.items()
    }
    return _sentence(samples, _rounds(configurations))


def _against_best_fixed(configurations: Rows) -> str:
    compared = {configuration: best_rival_of(rows) for configuration, rows in configurations.items()}
    samples = {configuration: [*best.ratios] for configuration, best in compared.items() if best is not None}
    if not samples:
        return f"Needs a fixed K and {MIN_ROUNDS} rounds: the best K is chosen on one half and compared on the other."
    return _sentence(samples, _rounds(configurations))


def _never_matching(configurations: Rows) -> str:
    if not configurations:
        return ""
    text = _against_off(configurations)
    longest = max(
        (row["policy"] for rows in configurations.values() for row in rows),
        key=lambda policy: fixed_length(policy) or 0,
    )
    if ratios := ratios_to(configurations, OFF, "output_throughput", longest) if fixed_length(longest) else {}:
        configuration, ratio = lowest(ratios)
        text += f" For comparison, {longest} has {ratio.value:.2f}× the tokens/s of off in {configuration.name}."
    return text


def _noise(configurations: Rows) -> str:
    rounds = _rounds(configurations)
    if rounds < MIN_ROUNDS:
        return "One round tells nothing about noise; use --rounds for more."
    text = "Brackets are 95 % intervals over rounds; within noise means that the interval includes 1."
    if rounds < HONEST_ROUNDS:
        text += f" Intervals over {rounds} rounds are too narrow; --rounds {HONEST_ROUNDS} or more makes them reliable."
    if disturbed := sum(len(rows[0].get("disturbed_rounds", ())) for rows in configurations.values()):
        of = sum(rows[0]["rounds"] for rows in configurations.values())
        text += f" Other processes disturbed {disturbed} of {of} rounds."
    return text


def _sentence(samples: Mapping[Configuration, Sequence[float]], rounds: int) -> str:
    """Adaptive's tokens/s as ratios to another's, over all configurations and at the extremes."""
    ratios = {configuration: median_ratio(sample) for configuration, sample in samples.items()}
    total = geometric_mean([*samples.values()])
    if len(ratios) == 1:
        return f"{_difference(total)} ({_figures(total, rounds)} in {next(iter(ratios)).name})."
    text = f"{_difference(total)} ({_figures(total, rounds)}, geometric mean over {len(ratios)} configurations)."
    (worst, least), (best, most) = lowest(ratios), highest(ratios)
    if rounds >= MIN_ROUNDS:
        counts = {
            "faster": sum(ratio.low > 1 for ratio in ratios.values()),
            "slower": sum(ratio.high < 1 for ratio in ratios.values()),
            "within noise": sum(ratio.low <= 1 <= ratio.high for ratio in ratios.values()),
        }
        said = ", ".join(f"{word} in {count}" for word, count in counts.items() if count)
        text += f" {said[0].upper()}{said[1:]}."
    return f"{text} Lowest {_figures(least, rounds)} in {worst.name}, highest {_figures(most, rounds)} in {best.name}."


def _difference(ratio: Ratio) -> str:
    percent = round(100 * (ratio.value - 1))
    text = f"{abs(percent)} % {'more' if percent > 0 else 'fewer'} tokens/s" if percent else "As many tokens/s"
    return text + (", within noise" if ratio.low < ratio.high and ratio.low <= 1 <= ratio.high else "")


def _figures(ratio: Ratio, rounds: int) -> str:
    return f"{ratio.value:.2f}×" + (f" [{ratio.low:.2f}, {ratio.high:.2f}]" if rounds >= MIN_ROUNDS else "")


def _paired(own: Row | None, other: Row | None) -> list[float]:
    assert own is not None
    assert other is not None, "off is in every configuration"
    return [value / baseline for value, baseline in zip(rounds_of(own), rounds_of(other), strict=True)]


def _rounds(configurations: Rows) -> int:
    """The fewest rounds of any configuration."""
    return min(row["rounds"] for rows in configurations.values() for row in rows)
