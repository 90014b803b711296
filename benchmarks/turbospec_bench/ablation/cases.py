"""What an ablation simulates: the shipped scenarios, synthetic engines, and recorded runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from turbospec_sim.scenario import Scenario
from turbospec_sim.scenario_file import read_scenario, shipped_scenarios

ProfileKind = Literal["none", "right", "draft-halved", "draft-doubled", "verify-halved", "verify-doubled"]
PROFILES: tuple[ProfileKind, ...] = get_args(ProfileKind)
"""Profiles that policies get: none, one measured on the simulated engine, and the same with a part that is wrong."""
CONCURRENCIES = (1, 8, 64, 256, 1024)
MAX_DRAFT = 5
SCALED = frozenset(("requests", "period_seconds", "begin_seconds", "end_seconds", "at_seconds", "until_seconds"))
"""Fields of a scenario that a shorter run divides."""
LEAST_REQUESTS = 60
"""A shorter run keeps so many."""


@dataclass(frozen=True)
class Case:
    """One load of one server."""

    name: str
    groups: tuple[str, ...]
    """What it counts for in the table."""
    scenario: Scenario
    rate: float | None
    profile: ProfileKind | None = None
    """None: the scenario's own."""


@dataclass(frozen=True)
class RecordedCase:
    """A decision trace of one run, which is replayed: unknown draft tokens are rejected."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)  # traces of a benchmark share their file names

    @property
    def groups(self) -> tuple[str, ...]:
        return ("traces",)


AnyCase = Case | RecordedCase


def shipped_cases(shorter: float = 1.0) -> Iterator[Case]:
    """All shipped scenarios at all of their rates.

    Args:
        shorter: factor by which runs have fewer requests, and changes over time come sooner.
    """
    for name, path in sorted(shipped_scenarios().items()):
        scenario = _shortened(read_scenario(path), shorter)
        for rate in scenario.rates or (None,):
            label = name if rate is None else f"{name} {rate:g}/s"
            yield Case(label, ("scenarios",), scenario, rate)


ENGINES: dict[str, dict[str, Any]] = {
    # Two CPU cores and models of 20 M and 2 M parameters: every token takes its time.
    "cpu": {
        "source": "coefficients",
        "verify_floor_seconds": 4e-3,
        "verify_token_seconds": 6e-4,
        "verify_combined": "plus",
        "host_seconds": 3e-4,
        "host_request_seconds": 2e-5,
        "kv_token_seconds": 2e-7,
        "draft_start_seconds": 2e-4,
        "draft_pass_seconds": 9e-4,
        "draft_row_seconds": 1e-4,
        "catch_up_token_seconds": 5e-5,
        "noise": 0.08,
    },
    "gpu-8b": {
        "source": "roofline",
        "gpu": "h100",
        "target": "qwen3-8b",
        "drafter": "qwen3-8b-eagle3",
        "host_seconds": 1.5e-3,
        "host_request_seconds": 2e-6,
        "draft_overhead_seconds": 5e-4,
        "noise": 0.03,
    },
    "gpu-70b": {
        "source": "roofline",
        "gpu": "h100",
        "gpus": 4,
        "target": "llama-3.3-70b",
        "drafter": "llama-3.3-70b-eagle3",
        "host_seconds": 2e-3,
        "host_request_seconds": 2e-6,
        "draft_overhead_seconds": 8e-4,
        "noise": 0.03,
        "graph_sizes": [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)],
        "graph_lengths": [0, 1, 2, 3, 5],
        "piecewise_seconds": 2e-3,
    },
}
"""Step times of the synthetic engines."""
DRAFTERS = {
    "good": [0.85, 0.8, 0.77, 0.74, 0.7],
    "weak": [0.5, 0.42, 0.36, 0.32, 0.3],
    "useless": [0.02, 0.02, 0.02, 0.02, 0.02],
}
"""Acceptance by position."""
MIXED = {"mixed": ("good", "useless")}
"""Drafters that are good for some requests and not for others, which nothing tells apart beforehand."""
CPU_CONCURRENCIES = (1, 8, 64)
CHANGE_SECONDS = 5.0
"""When the change of a changing case happens."""
CHANGING_REQUESTS = {8: 150, 64: 900}
"""By concurrency: enough for three times as long."""
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "drafter recovers": ({"before": DRAFTERS["useless"], "after": DRAFTERS["good"]}, {}),
    "drafter recovers a little": ({"before": DRAFTERS["useless"], "after": DRAFTERS["weak"]}, {}),
    "drafter collapses": ({"before": DRAFTERS["good"], "after": DRAFTERS["useless"]}, {}),
    "drafting becomes quicker": (
        {"before": DRAFTERS["weak"], "after": DRAFTERS["weak"]},
        {"speed": [{"at_seconds": 0, "drafter": 6.0}, {"at_seconds": CHANGE_SECONDS}]},
    ),
    "drafting becomes slower": (
        {"before": DRAFTERS["weak"], "after": DRAFTERS["weak"]},
        {"speed": [{"at_seconds": CHANGE_SECONDS, "drafter": 6.0}]},
    ),
    "all becomes quicker": (
        {"before": DRAFTERS["weak"], "after": DRAFTERS["weak"]},
        {"speed": [{"at_seconds": 0, "step": 2.0, "drafter": 3.0}, {"at_seconds": CHANGE_SECONDS, "step": 0.5}]},
    ),
    "cold start": (
        {"before": DRAFTERS["good"], "after": DRAFTERS["good"]},
        {"cold_target": {"factor": 3.0, "steps": 20}, "cold_drafter": {"factor": 8.0, "steps": 40}},
    ),
    "stalls": (
        {"before": DRAFTERS["weak"], "after": DRAFTERS["weak"]},
        {"stalls": {"probability": 0.01, "mean_steps": 5, "factor": 3.0}},
    ),
}
"""Acceptance before and after the change, and fields of the latency; on the engine gpu-8b."""


def synthetic_cases(
    shorter: float = 1.0,
    *,
    concurrencies: Sequence[int] = CONCURRENCIES,
    profiles: Sequence[ProfileKind] = PROFILES,
) -> Iterator[Case]:
    """Closed loops on synthetic engines, with several drafters and profiles that are right, wrong or missing."""
    for engine in ENGINES:
        for concurrency in concurrencies:
            if engine == "cpu" and concurrency not in CPU_CONCURRENCIES:
                continue
            for drafter in (*DRAFTERS, *MIXED):
                scenario = _synthetic(engine, concurrency, drafter, shorter)
                for profile in profiles:
                    right = profile if profile in ("none", "right") else "wrong"
                    groups = (engine, f"profile {right}", f"drafter {drafter}")
                    yield Case(f"{engine} {concurrency} {drafter} {profile}", groups, scenario, None, profile)


def changing_cases() -> Iterator[Case]:
    """Closed loops in which the drafter, its speed or the machine's changes after `CHANGE_SECONDS`."""
    for name, (acceptance, latency) in CHANGES.items():
        process = {"process": "collapse", "at_seconds": CHANGE_SECONDS} | acceptance
        for concurrency, requests in CHANGING_REQUESTS.items():
            scenario = _closed_loop("gpu-8b", concurrency, requests, [process], latency)
            yield Case(f"{name}, {concurrency}", ("changes",), scenario, None, "none")


@cache
def _synthetic(engine: str, concurrency: int, drafter: str, shorter: float) -> Scenario:
    # About a thousand steps at one token a step, however many requests run at once.
    requests = max(round(6 * concurrency / shorter), concurrency + 4)
    kinds = MIXED.get(drafter, (drafter,))
    acceptance = [{"process": "by_position", "rates": DRAFTERS[kind]} for kind in kinds]
    return _closed_loop(engine, concurrency, requests, acceptance, {})


def _closed_loop(
    engine: str, concurrency: int, requests: int, acceptances: Sequence[dict[str, Any]], latency: dict[str, Any]
) -> Scenario:
    """Requests of as many kinds as there are acceptance processes, in equal shares."""
    lengths = {"distribution": "lognormal", "mean": 200, "sigma": 0.5, "low": 16, "high": 1000}
    document = {
        "version": 1,
        "policy": "adaptive",
        "server": {
            "max_num_seqs": concurrency,
            "max_num_batched_tokens": 8192,
            "kv_cache_tokens": 3_000_000,
            "emit": "before_draft" if engine == "cpu" else "after_draft",
        },
        "drafter": {"max_draft": MAX_DRAFT, "batch": engine != "cpu"},
        "latency": ENGINES[engine] | latency,
        "workload": {
            "requests": requests,
            "arrivals": {"process": "closed", "concurrency": concurrency},
            "classes": [
                {
                    "name": f"kind-{number}",
                    "prompt_tokens": lengths,
                    "output_tokens": lengths,
                    "acceptance": acceptance,
                    "hidden": True,
                }
                for number, acceptance in enumerate(acceptances)
            ],
        },
    }
    return Scenario.model_validate_json(json.dumps(document), strict=True)


def _shortened(scenario: Scenario, shorter: float) -> Scenario:
    if shorter == 1.0:
        return scenario
    return Scenario.model_validate(_scaled(scenario.model_dump(), shorter))


def _scaled(node: Any, shorter: float) -> Any:
    if isinstance(node, dict):
        return {name: _divided(name, value, shorter) for name, value in node.items()}
    return tuple(_scaled(item, shorter) for item in node) if isinstance(node, list | tuple) else node


def _divided(name: str, value: Any, shorter: float) -> Any:
    if name not in SCALED or value is None:
        return _scaled(value, shorter)
    return min(value, max(round(value / shorter), LEAST_REQUESTS)) if name == "requests" else value / shorter
