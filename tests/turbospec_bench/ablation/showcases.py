"""Small cases in which the mechanisms of `adaptive` show."""

from __future__ import annotations

from typing import Any

from tests.turbospec_sim.scenarios import closed, scenario
from turbospec_bench.ablation.cases import Case, ProfileKind, synthetic_cases
from turbospec_sim.scenario import Scenario

SHORT = {"distribution": "lognormal", "mean": 60, "sigma": 0.6, "low": 4, "high": 300}
GOOD, WEAK = {"process": "iid", "rate": 0.8}, {"process": "iid", "rate": 0.3}
CHAT = {"name": "chat", "prompt_tokens": SHORT, "output_tokens": SHORT, "acceptance": GOOD}
BREAK_EVEN = {"verify_floor_seconds": 4e-3, "verify_token_seconds": 1e-4, "draft_pass_seconds": 1e-3}


def case(name: str, made: Scenario, profile: ProfileKind = "none") -> Case:
    return Case(name, (), made, made.rates[0] if made.rates else None, profile)


def _times(**changes: Any) -> dict[str, Any]:
    usual = {
        "source": "coefficients",
        "verify_floor_seconds": 0.01,
        "verify_token_seconds": 1e-4,
        "verify_combined": "plus",
        "host_seconds": 1e-3,
        "kv_token_seconds": 2e-7,
        "draft_start_seconds": 5e-4,
        "draft_pass_seconds": 1e-3,
        "draft_row_seconds": 1e-5,
        "catch_up_token_seconds": 1e-5,
        "noise": 0.05,
    }
    return usual | changes


def _two_classes() -> list[dict[str, Any]]:
    return [CHAT | {"share": 0.5}, CHAT | {"name": "other", "share": 0.5, "acceptance": WEAK}]


def _loop(concurrency: int, requests: int, **changes: Any) -> Scenario:
    """A closed loop of requests of both classes."""
    workload = {
        "requests": requests,
        "classes": _two_classes(),
        "arrivals": {"process": "closed", "concurrency": concurrency},
    }
    return closed(concurrency, latency=_times(**changes), workload=workload)


def _open(arrivals: dict[str, Any], rate: float, slots: int) -> Scenario:
    workload = {"requests": 120, "classes": _two_classes(), "arrivals": arrivals}
    return scenario(latency=_times(), rates=[rate], server__max_num_seqs=slots, workload=workload)


def _changing(concurrency: int, requests: int, acceptance: dict[str, Any], **changes: Any) -> Scenario:
    return closed(concurrency, latency=_times(**changes), workload__requests=requests, chat__acceptance=acceptance)


def showcases() -> list[Case]:
    """Cases that take a tenth of a second each."""
    few = _loop(6, 40, **BREAK_EVEN)
    recovers = {"process": "collapse", "before": [0.02], "after": [0.9], "at_seconds": 3}
    collapses = {"process": "collapse", "before": [0.9], "after": [0.1], "at_seconds": 3}
    quicker = {"draft_pass_seconds": 0.03, "speed": [{"at_seconds": 4, "step": 0.2, "drafter": 0.3}]}
    stalls = {"stalls": {"probability": 0.05, "factor": 3.0}}
    return [
        case("few", few),
        case("few, wrong profile", few, "draft-doubled"),
        case("lone", _loop(1, 40, **BREAK_EVEN)),
        case("queue", _open({"process": "poisson"}, 40.0, 8)),
        case("bursts", _open({"process": "bursts", "on_seconds": 1, "off_seconds": 3}, 15.0, 24)),
        case("stalls", _loop(12, 120, draft_pass_seconds=3e-3, **stalls)),
        case("useless", _changing(8, 60, {"process": "iid", "rate": 0.02})),
        case("recovers", _changing(6, 150, recovers)),
        case("collapses", _changing(16, 250, collapses)),
        case("quicker", _changing(4, 150, GOOD, **quicker)),
        case("graphs", _loop(8, 120, graph_lengths=[0, 1, 3], piecewise_seconds=4e-3)),
        *(each for each in synthetic_cases(6.0, concurrencies=(8,), profiles=("draft-doubled",)) if "8b" in each.name),
    ]
