"""The stock: valid files of every format that a command reads, small enough that every case gets a copy of its own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.turbospec_bench.tiny import write_models, write_workloads
from tests.turbospec_sim.scenarios import document
from turbospec.files.results_file import save
from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.observability.trace import DecisionTrace
from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.results import Results
from turbospec_bench.results_format import RATIOS
from turbospec_bench.variant import Variant
from turbospec_sim import run
from turbospec_sim.scenario import Scenario

CSV = """\
run,rate_rps,ttft_p99_ms,tpot_p99_ms,output_tok_s,policy
scenario,20,90,45,140,static-3
scenario,10,95,50,250,off
"""
ARRIVALS = "arrival_time,prompt_tokens,output_tokens,class\n0.0,20,5,chat\n0.1,30,8,chat\n0.2,300,3,chat\n"
POLICIES = {
    "policy": "version: 1\npolicy: adaptive\nprobe_share: 0.01\nfirst_token_weight: 8.0\n",
    "static": "version: 1\npolicy: static\ndraft_length: 2\n",
    "table": "version: 1\npolicy: batch_table\ntable:\n  - {first: 1, last: 4, draft_length: 5}\n",
}
BENCH: dict[str, Any] = {
    "output_throughput": 100.0,
    "mean_ttft_ms": 20.0,
    "mean_tpot_ms": 9.0,
    "p99_ttft_ms": 50.0,
    "p99_tpot_ms": 12.0,
    "total_output_tokens": 5000,
    "completed": 50,
    "request_rate": "inf",
    "max_concurrency": 8,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 3000,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.24, 0.06],
}
METRICS = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 400.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 900.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 600.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 240.0
turbospec_drafted_per_position_total{position="0"} 1000.0
turbospec_drafted_per_position_total{position="1"} 500.0
turbospec_accepted_per_position_total{position="0"} 600.0
turbospec_accepted_per_position_total{position="1"} 240.0
"""
"""A metrics page, saved as `metrics.txt`."""
FIGURES = (
    "total_output_tokens", "completed", "failed", "duration", "request_throughput", "acceptance_rate",
    "mean_accepted_length", "mean_draft_length", "draft_time_share", "controller_time_share", "distinct_2",
    "loop_share",
)  # fmt: skip


class _Outcomes:
    """Keeps the outcomes of a simulation, for a profile."""

    def __init__(self) -> None:
        self.seen: list[StepOutcome] = []

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.seen.append(outcome)


def make_stock(folder: Path) -> None:
    """Write everything: models and files."""
    _apart(write_models, folder / "models")
    make_files(folder)


def make_files(folder: Path) -> None:
    """Write all but models. Simulates two runs, which also compiles what the simulator compiles."""
    write_workloads(folder / "workloads")
    for name, text in POLICIES.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "measured.csv").write_text(CSV)
    (folder / "measured.json").write_text(json.dumps(BENCH | {"request_rate": 20.0, "run": "scenario"}))
    (folder / "bench.json").write_text(json.dumps(BENCH))
    (folder / "metrics.txt").write_text(METRICS)
    (folder / "arrivals.csv").write_text(ARRIVALS)
    (folder / "texts.jsonl").write_text('{"text": "a b c d e f", "answer": " x a b c d e f y z a b c d e f"}\n' * 3)
    (folder / "arrivals.jsonl").write_text(
        "".join(
            json.dumps({"arrival_time": n / 10, "prompt_tokens": 20 + n, "output_tokens": 4}) + "\n" for n in range(6)
        )
    )
    (folder / "accepted.jsonl").write_text("[1, 0, 1, 1]\n[0.5, 0.25, 1.0]\n")
    small = document(workload__requests=12, slo={"p99_ttft_ms": 1000, "p99_tpot_ms": 100})
    recorded = document(
        workload__requests=None,
        workload__arrivals={"process": "trace", "file": "arrivals.csv"},
        chat__acceptance={"process": "trace", "file": "accepted.jsonl"},
        rates=None,
    )
    profiled = small | {"latency": {"source": "profile", "file": "profile.json"}}
    for name, made in (("scenario", small), ("recorded", recorded), ("profiled", profiled)):
        (folder / f"{name}.yaml").write_text(_yaml(made))
    rows = _simulate(folder, Scenario.model_validate_json(json.dumps(small), strict=True))
    save(folder / "simulated.json", {"seeds": 1, "scenarios": {"scenario": small}}, rows)
    _bench_results(folder / "results.json")


def _apart(function: Callable[[Path], None], folder: Path) -> None:
    """Call a function in a process of its own: torch cannot be used in a fork of a process that used it."""
    process = os.fork()
    if not process:
        status = 1
        try:
            function(folder)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(process, 0)
    assert status == 0, f"{function.__name__} failed"


def _simulate(folder: Path, scenario: Scenario) -> list[dict[str, Any]]:
    """Rows of simulated runs; a trace and a profile are made of the first."""
    outcomes = _Outcomes()
    with DecisionTrace(folder / "trace.jsonl") as trace:
        first = run.simulate(run.Run("scenario", scenario, "adaptive", 20.0, 0), listeners=[trace, outcomes])
    Profile.from_outcomes(outcomes.seen[:60], target="models/target", device="cpu", dtype="bfloat16").save(
        folder / "profile.json"
    )
    lines = (folder / "trace.jsonl").read_text().splitlines(keepends=True)
    (folder / "trace.jsonl").write_text("".join(lines[:40]))
    return [first, run.simulate(run.Run("scenario", scenario, "static-3", 20.0, 0))]


def _bench_results(path: Path) -> None:
    made = Results(
        path, {"seed": 0, "rounds": 2, "device": "cpu", "dtype": "bfloat16", "threads": 1, "omp_wait_policy": ""}
    )
    names: tuple[str, ...] = (*RATIOS, *FIGURES)
    figures: dict[str, float] = dict.fromkeys(names, 10.0)
    runs = [[Run(figures, {}), Run(figures | {"output_throughput": 12.0, "duration": math.nan}, {})]] * 2
    for concurrency in (1, 8):
        made.put(Configuration("code", "good", concurrency), (Variant("off"), Variant("static-1")), runs)
    made.save()


def _yaml(settings: dict[str, Any], indent: str = "") -> str:
    """Block style as people write it, so that a mutated line is one setting."""
    lines: list[str] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}".rstrip("\n"))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            items = [_yaml(item, indent + "    ").rstrip("\n") for item in value]
            lines += [f"{indent}{name}:", *(f"{indent}  - {item.lstrip()}" for item in items)]
        else:
            lines.append(f"{indent}{name}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"
