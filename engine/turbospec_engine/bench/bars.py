"""The bars that the adaptive policy is held to, judged from the rows. A miss is printed as what it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from turbospec_engine.bench.cells import ADAPTIVE, OFF, STATIC_PREFIX, Cell
from turbospec_engine.bench.results import Row, by_cell
from turbospec_engine.bench.stats import BestFixed, Ratio, best_fixed, geometric_mean, median_ratio, paired_ratio

MIN_ROUNDS = 2
"""Choosing the best fixed K on half of the rounds needs two."""

BEST_FIXED_OVERALL = 1.0
BEST_FIXED_ANYWHERE = 0.95
OFF_ANYWHERE = 0.97
PEERS = ("ema-tiers", "goodput")
PEERS_OVERALL = 1.0
FIRST_TOKEN_LIMIT = 1.05
CONTROLLER_SHARE_LIMIT = 0.01
ORDER_CELL = Cell("code", "good", 1)
ORDER_POLICY = "static-15"


@dataclass(frozen=True, slots=True)
class Verdict:
    bar: str
    met: bool | None
    """None where the rows do not hold what the bar needs."""
    figures: str

    def document(self) -> dict[str, Any]:
        return asdict(self)


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Every bar, in order."""
    cells = by_cell([row for row in rows if row["emit"] == "before_draft"])
    return [
        _against_best_fixed(cells),
        _against_off(cells),
        _against_peers(cells),
        _first_token(cells),
        _controller_share(cells),
        _order_of_emission(rows),
    ]


def best_fixed_of(rows: Sequence[Row], policy: str = ADAPTIVE) -> BestFixed | None:
    """A policy's throughput against the best fixed K of its cell; None without fixed Ks or without two rounds."""
    own = _row(rows, policy)
    rivals = {row["policy"]: _rounds(row) for row in rows if row["policy"].startswith(STATIC_PREFIX)}
    if own is None or not rivals or own["rounds"] < MIN_ROUNDS:
        return None
    return best_fixed(_rounds(own), rivals)


def best_fixed_line(rows: Sequence[Row]) -> str | None:
    """A cell's best fixed K and how adaptive compares with it; None where there is nothing to compare."""
    compared = best_fixed_of([row for row in rows if row["emit"] == "before_draft"])
    if compared is None:
        return None
    names = " and ".join(dict.fromkeys(compared.rivals))
    return f"best fixed K, chosen on the other half of the rounds: {names}; adaptive × {median_ratio(compared.ratios)}"


def _against_best_fixed(cells: dict[Cell, list[Row]]) -> Verdict:
    bar = (
        f"tokens/s of adaptive over the best fixed K: geometric mean ≥ {BEST_FIXED_OVERALL:g}, "
        f"no cell under {BEST_FIXED_ANYWHERE:g}"
    )
    ratios = {cell: compared.ratios for cell, rows in cells.items() if (compared := best_fixed_of(rows)) is not None}
    if not ratios:
        return Verdict(bar, None, "needs adaptive, fixed Ks and two rounds")
    overall = geometric_mean(list(ratios.values()))
    worst, worst_ratio = _extreme({cell: median_ratio(sample) for cell, sample in ratios.items()}, min)
    met = overall.value >= BEST_FIXED_OVERALL and worst_ratio.value >= BEST_FIXED_ANYWHERE
    return Verdict(bar, met, f"{overall} over {len(ratios)} cells; lowest {worst_ratio} in {worst.name}")


def _against_off(cells: dict[Cell, list[Row]]) -> Verdict:
    bar = f"tokens/s of adaptive over off: no cell under {OFF_ANYWHERE:g}"
    ratios = _ratios(cells, OFF, "output_throughput")
    if not ratios:
        return Verdict(bar, None, "needs adaptive")
    worst, worst_ratio = _extreme(ratios, min)
    best, best_ratio = _extreme(ratios, max)
    figures = f"lowest {worst_ratio} in {worst.name}, highest {best_ratio} in {best.name}"
    return Verdict(bar, worst_ratio.value >= OFF_ANYWHERE, figures)


def _against_peers(cells: dict[Cell, list[Row]]) -> Verdict:
    bar = f"tokens/s of adaptive over each of {', '.join(PEERS)}: geometric mean > {PEERS_OVERALL:g}"
    overall: dict[str, Ratio] = {}
    for peer in PEERS:
        samples = [
            np.divide(_rounds(own), _rounds(other))
            for rows in cells.values()
            if (own := _row(rows, ADAPTIVE)) and (other := _row(rows, peer))
        ]
        if samples:
            overall[peer] = geometric_mean(samples)
    if len(overall) < len(PEERS):
        return Verdict(bar, None, f"needs adaptive, {' and '.join(PEERS)}")
    figures = ", ".join(f"{peer} {ratio}" for peer, ratio in overall.items())
    return Verdict(bar, all(ratio.value > PEERS_OVERALL for ratio in overall.values()), figures)


def _first_token(cells: dict[Cell, list[Row]]) -> Verdict:
    bar = f"P99 TTFT of adaptive over off: no cell above {FIRST_TOKEN_LIMIT:g}"
    ratios = _ratios(cells, OFF, "p99_ttft_ms")
    if not ratios:
        return Verdict(bar, None, "needs adaptive")
    worst, worst_ratio = _extreme(ratios, max)
    over = [cell.name for cell, ratio in ratios.items() if ratio.value > FIRST_TOKEN_LIMIT]
    figures = f"highest {worst_ratio} in {worst.name}" + (f"; above it: {', '.join(over)}" if over else "")
    return Verdict(bar, not over, figures)


def _controller_share(cells: dict[Cell, list[Row]]) -> Verdict:
    bar = f"controller's share of step time: no cell above {CONTROLLER_SHARE_LIMIT:.0%}"
    own = {cell: _row(rows, ADAPTIVE) for cell, rows in cells.items()}
    shares = {cell: float(row["controller_time_share"]) for cell, row in own.items() if row is not None}
    if not shares:
        return Verdict(bar, None, "needs adaptive")
    worst = max(shares, key=lambda cell: shares[cell])
    return Verdict(bar, shares[worst] <= CONTROLLER_SHARE_LIMIT, f"highest {shares[worst]:.2%} in {worst.name}")


def _order_of_emission(rows: Sequence[Row]) -> Verdict:
    bar = f"{ORDER_POLICY} that drafts before it emits, against off, one request at a time: TTFT up, TPOT down"
    found = [
        row
        for row in by_cell(rows).get(ORDER_CELL, [])
        if row["emit"] == "after_draft" and row["policy"] == ORDER_POLICY
    ]
    if not found:
        return Verdict(bar, None, f"needs {ORDER_POLICY}:after_draft in {ORDER_CELL.name}")
    names = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms")
    mean, p99, per_token = (Ratio(**found[0]["ratio_to_off"][name]) for name in names)
    met = mean.value > 1 and p99.value > 1 and per_token.value < 1
    return Verdict(bar, met, f"mean TTFT × {mean}, P99 TTFT × {p99}, mean TPOT × {per_token}")


def _ratios(cells: dict[Cell, list[Row]], baseline: str, figure: str) -> dict[Cell, Ratio]:
    """Adaptive's paired ratio to a baseline in every cell that has both."""
    return {
        cell: paired_ratio(_rounds(own, figure), _rounds(other, figure))
        for cell, rows in cells.items()
        if (own := _row(rows, ADAPTIVE)) and (other := _row(rows, baseline))
    }


def _extreme(ratios: dict[Cell, Ratio], choose: Callable[..., tuple[Cell, Ratio]]) -> tuple[Cell, Ratio]:
    return choose(ratios.items(), key=lambda item: item[1].value)


def _row(rows: Sequence[Row], policy: str) -> Row | None:
    return next((row for row in rows if row["policy"] == policy), None)


def _rounds(row: Row, figure: str = "output_throughput") -> list[float]:
    return row["round_figures"][figure]
