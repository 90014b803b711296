from __future__ import annotations

from pathlib import Path

from turbospec_engine.bench.bars import Verdict, best_fixed_line, judge
from turbospec_engine.bench.cells import Cell, Entry
from turbospec_engine.bench.contender import Run
from turbospec_engine.bench.results import RATIOS, Results

ALONE, BUSY = Cell("code", "good", 1), Cell("code", "good", 32)
PEERS = ("ema-tiers", "goodput")


def verdicts(*cells: tuple[Cell, dict[str, dict[str, float]]], rounds: int = 4) -> dict[str, Verdict]:
    """Judge rows in which the named figures are given and all others are 10; keys are the verdicts' first words."""
    results = Results(Path(), {})
    for cell, policies in cells:
        runs = [
            Run(dict.fromkeys(RATIOS, 10.0) | {"controller_time_share": 0.002} | figures, {})
            for figures in policies.values()
        ]
        results.put(cell, [Entry.parse(name) for name in policies], [runs] * rounds)
    names = ("best fixed", "off", "peers", "first token", "controller", "order")
    return dict(zip(names, judge(results.rows), strict=True))


def tokens(value: float) -> dict[str, float]:
    return {"output_throughput": value}


def test_all_met() -> None:
    judged = verdicts(
        (
            ALONE,
            {"off": tokens(10), "static-3": tokens(14), "adaptive": tokens(15)} | {peer: tokens(12) for peer in PEERS},
        ),
        (
            BUSY,
            {"off": tokens(10), "static-3": tokens(8), "adaptive": tokens(10)} | {peer: tokens(9) for peer in PEERS},
        ),
    )

    met = {name: verdict.met for name, verdict in judged.items()}
    assert met == dict.fromkeys(("best fixed", "off", "peers", "first token", "controller"), True) | {"order": None}


def test_one_bad_cell_misses_and_is_named() -> None:
    judged = verdicts(
        (ALONE, {"off": tokens(10), "static-3": tokens(10), "adaptive": tokens(20)}),
        (BUSY, {"off": tokens(10), "static-3": tokens(10), "adaptive": tokens(9) | {"p99_ttft_ms": 11.0}}),
    )

    for name in ("best fixed", "off", "first token"):
        assert judged[name].met is False
        assert "code/good/c32" in judged[name].figures


def test_a_greedy_controller_misses() -> None:
    judged = verdicts((ALONE, {"off": tokens(10), "adaptive": tokens(10) | {"controller_time_share": 0.03}}))

    assert judged["controller"].met is False


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
    assert judged["off"].met is None


def test_the_line_of_a_cell_names_the_best_fixed() -> None:
    results = Results(Path(), {})
    names = ("off", "static-1", "static-5", "adaptive")
    runs = [Run(dict.fromkeys(RATIOS, 10.0) | tokens(value), {}) for value in (10, 12, 15, 18)]
    results.put(ALONE, [Entry(name) for name in names], [runs] * 2)

    line = best_fixed_line(results.rows)

    assert line is not None
    assert "static-5; adaptive × 1.200" in line
