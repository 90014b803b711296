"""The table of an ablation: what each mechanism earns, by group of cases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospec_bench.ablation.cases import AnyCase
from turbospec_bench.ablation.mechanisms import MECHANISMS, NOTHING, Mechanism
from turbospec_bench.ablation.runs import FIRST_STEPS, FIXED, SETTLED_STEP
from turbospec_sim.replications import half_width
from turbospec_sim.tuning.objective import LARGEST_LOG_RATIO

Row = Mapping[str, Any]
GOODPUT, OUTPUT, TTFT = "token_goodput", "output_throughput", "p99_ttft_ms"
EARNS = 0.005
"""Relative gain from which a mechanism earns something: the issue's half of a percent."""


@dataclass(frozen=True)
class Effect:
    """Figures without a mechanism over those with it, one for each case: means over seeds of logarithms of ratios."""

    cases: dict[str, float]
    """By case."""
    all_seeds: dict[str, tuple[float, float]]
    """By case, the least and the largest over seeds."""

    @property
    def mean(self) -> float:
        """Geometric mean ratio over cases; NaN without any."""
        return math.exp(float(np.mean(list(self.cases.values())))) if self.cases else math.nan

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of that mean over cases."""
        return half_width(np.array(list(self.cases.values())))

    def worst(self) -> tuple[str, float]:
        """The case that loses most, and its ratio."""
        case = min(self.cases, key=self.cases.__getitem__)
        return case, math.exp(self.cases[case])

    def best(self) -> tuple[str, float]:
        """The case that gains most, and its ratio."""
        case = max(self.cases, key=self.cases.__getitem__)
        return case, math.exp(self.cases[case])

    def losing(self) -> list[str]:
        """Cases that are worse by `EARNS` without the mechanism with every seed."""
        return [case for case, (_, most) in self.all_seeds.items() if most <= math.log(1.0 - EARNS)]

    def gaining(self) -> list[str]:
        """Cases that are better by `EARNS` without the mechanism with every seed."""
        return [case for case, (least, _) in self.all_seeds.items() if least >= math.log(1.0 + EARNS)]


def effect(rows: Iterable[Row], mechanism: str, figure: str, cases: set[str]) -> Effect:
    """What becomes of a figure in some cases without a mechanism, paired by case and seed."""
    by_key = {(row["case"], row["mechanism"], row["seed"]): row for row in rows}
    logs: dict[str, list[float]] = {}
    for (case, name, seed), row in by_key.items():
        full = by_key.get((case, NOTHING.name, seed))
        if name != mechanism or case not in cases or full is None:
            continue
        logs.setdefault(case, []).append(_log_ratio(row[figure], full[figure]))
    means = {case: float(np.mean(values)) for case, values in logs.items()}
    return Effect(means, {case: (min(values), max(values)) for case, values in logs.items()})


def _log_ratio(value: float | None, base: float | None) -> float:
    """Clipped, because a run that served nothing counts too: its goodput is 0, and its latency, which it lacks,
    infinite."""
    value, base = (math.inf if figure is None or math.isnan(figure) else figure for figure in (value, base))
    if value == base:
        return 0.0
    with np.errstate(divide="ignore"):
        return float(np.clip(np.log(value) - np.log(base), -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))


def changed_share(rows: Iterable[Row], mechanism: str) -> float:
    """Share of runs in which any draft length differs without the mechanism, mean over cases; NaN without runs."""
    by_key = {(row["case"], row["mechanism"], row["seed"]): row for row in rows}
    differs: dict[str, list[bool]] = {}
    for (case, name, seed), row in by_key.items():
        if name == mechanism and (full := by_key.get((case, NOTHING.name, seed))) is not None:
            differs.setdefault(case, []).append(row["decisions"] != full["decisions"])
    return float(np.mean([np.mean(several) for several in differs.values()])) if differs else math.nan


def groups_of(cases: Sequence[AnyCase]) -> dict[str, set[str]]:
    """Names of the cases of each group, and of all."""
    groups: dict[str, set[str]] = {"all": {case.name for case in cases}}
    for case in cases:
        for group in case.groups:
            groups.setdefault(group, set()).add(case.name)
    return groups


def table(rows: Sequence[Row], cases: Sequence[AnyCase]) -> list[list[str]]:
    """Head and lines: one for each mechanism that has rows."""
    groups = groups_of(cases)
    head = ["without", "runs that differ", *(f"goodput, {group}" for group in groups)]
    head += ["output tokens/s", "P99 TTFT", "worst case", "best case", "cases that lose / gain 0.5 %"]
    lines = [head]
    for mechanism in MECHANISMS:
        effects = {group: effect(rows, mechanism, GOODPUT, names) for group, names in groups.items()}
        whole = effects["all"]
        if not whole.cases:
            continue
        (worst, lost), (best, won) = whole.worst(), whole.best()
        lines.append(
            [
                mechanism,
                f"{changed_share(rows, mechanism):.0%}",
                *(_words(one) for one in effects.values()),
                _words(effect(rows, mechanism, OUTPUT, groups["all"])),
                _words(effect(rows, mechanism, TTFT, groups["all"])),
                f"{lost:.3f} {worst}",
                f"{won:.3f} {best}",
                f"{len(whole.losing())} / {len(whole.gaining())} of {len(whole.cases)}",
            ]
        )
    return lines


def descriptions() -> list[list[str]]:
    """Head and lines: each mechanism with the constants and settings that switch it off."""
    head = ["mechanism", "off with", "what it does, and what is done without it"]
    return [head, *([each.name, _values(each), each.does] for each in MECHANISMS.values())]


def _values(mechanism: Mechanism) -> str:
    changed = {**mechanism.constants, **mechanism.settings}
    return ", ".join(f"`{name}` = {value:g}" for name, value in changed.items())


def best_fixed(rows: Sequence[Row], figure: str = GOODPUT) -> list[list[str]]:
    """Head and lines: `adaptive` over the best fixed draft length of each case, means over seeds.

    In tokens/s: of the run, of its first steps, of the settled rest. For a machine that changes its speed there is a
    line for each phase.
    """
    lines = [["case", "best K", "`adaptive` / best K", f"first {FIRST_STEPS} steps", f"from step {SETTLED_STEP}"]]
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row["case"], []).append(row)
    for case, every in by_case.items():
        own = _paired(every)
        phases = sorted({part for row in own for part in row["parts"] if part.startswith("phase-")})
        for phase in [None, *phases]:
            best, ratio = _over_best(own, figure, phase)
            if best is None:
                continue
            label = case if phase is None else f"{case}, {phase}"
            rest = [_over_best(own, figure, part)[1] for part in ("first", "settled")] if phase is None else []
            lines.append([label, best, ratio, *(rest or ["–", "–"])])
    return lines


def _paired(rows: Sequence[Row]) -> list[Row]:
    """A case's rows of `adaptive` and of fixed lengths, of the seeds that all of them have."""
    compared = [row for row in rows if row["mechanism"] == NOTHING.name or row["mechanism"].startswith(FIXED)]
    seeds: dict[str, set[int]] = {}
    for row in compared:
        seeds.setdefault(row["mechanism"], set()).add(row["seed"])
    common = set.intersection(*seeds.values()) if seeds else set()
    return [row for row in compared if row["seed"] in common]


def _over_best(rows: Sequence[Row], figure: str, part: str | None) -> tuple[str | None, str]:
    """The best fixed length and the ratio to it, of a figure or of a part's tokens/s; None without fixed lengths."""
    means = _means(rows, figure, part)
    fixed = {name.removeprefix(FIXED): value for name, value in means.items() if name.startswith(FIXED)}
    if not fixed or NOTHING.name not in means:
        return None, "–"
    best = max(fixed, key=fixed.__getitem__)
    return best, f"{means[NOTHING.name] / fixed[best]:.3f}" if fixed[best] else "–"


def _means(rows: Sequence[Row], figure: str, part: str | None) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        value = row[figure] if part is None else row["parts"].get(part)
        if value is not None:
            values.setdefault(row["mechanism"], []).append(value)
    return {name: float(np.mean(several)) for name, several in values.items()}


def plain_text(lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *others = lines
    rows = [head, ["---"] * len(head), *others]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _words(one: Effect) -> str:
    if not one.cases:
        return "–"
    half = one.half_width
    return f"{one.mean:.4f}" if math.isnan(half) else f"{one.mean:.4f} ± {half:.4f}"
