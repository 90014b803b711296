from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.turbospec_bench.vllm.fake_vllm import result
from turbospec import UserError
from turbospec_bench.metrics import RequestRecord, summarise
from turbospec_bench.recorder import StepTotals
from turbospec_bench.vllm.figures import OPTIONS, bench_figures, bench_record, host_share, is_planning, read_result

DRAFTED = {
    "spec_decode_num_drafts": 40,
    "spec_decode_draft_tokens": 120,
    "spec_decode_accepted_tokens": 60,
    "spec_decode_per_position_acceptance_rates": [0.9, 0.4, 0.2],
}


def test_names_are_those_of_the_embedded_engine() -> None:
    known = summarise([RequestRecord(0.0, 5, [1.0, 2.0], [1, 2])], 2.0).keys() | StepTotals().figures().keys()

    assert known - bench_figures(result(2, 50.0)).keys() == {"draft_time_share", "controller_time_share"}
    assert "50,95,99" in OPTIONS


def test_draft_lengths_count_the_steps_without_a_draft() -> None:
    figures = bench_figures(result(2, 50.0, **DRAFTED))  # 102 tokens, 2 of them first ones: 40 steps of drafts' 60

    assert figures["output_throughput"] == 50
    assert figures["mean_accepted_length"] == pytest.approx(1 + 60 / 40)
    assert figures["acceptance_rate"] == pytest.approx(0.5)
    assert figures["mean_draft_length"] == pytest.approx(120 / 40)
    assert bench_figures(result(4, 50.0, **DRAFTED))["mean_draft_length"] == pytest.approx(120 / 140)
    assert bench_record(result(2, 50.0, **DRAFTED)) == {"acceptance_by_position": [0.9, 0.4, 0.2]}


def test_the_share_of_turbospec_is_of_the_steps_between_two_readings() -> None:
    def reading(engine: float, host: float) -> str:
        return f"turbospec_engine_seconds_total {engine}\nturbospec_host_seconds_total {host}\n"

    assert host_share(reading(10, 1), reading(20, 1.5)) == {"controller_time_share": pytest.approx(0.05)}
    assert math.isnan(host_share(reading(10, 1), reading(10, 1))["controller_time_share"])
    assert math.isnan(host_share("vllm_steps_total 3\n", "vllm_steps_total 9\n")["controller_time_share"])


@pytest.mark.parametrize(
    ("metrics", "planning"),
    [("turbospec_active 1\n", True), ("turbospec_active 0\n", False), ("vllm_steps_total 3\n", None)],
)
def test_the_metrics_tell_whether_turbospec_plans(metrics: str, planning: bool | None) -> None:
    assert is_planning(metrics) is planning


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean_ttft_ms": None}, "mean_ttft_ms"),
        ({"output_throughput": float("nan")}, "output_throughput"),
        ({"errors": [3]}, "errors"),
        ({"spec_decode_num_drafts": "many"}, "num_drafts"),
    ],
)
def test_a_result_of_something_else_is_one_line(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result(2, 50.0, itls=[float("inf")])))
    assert read_result(path)["completed"] == 2
    path.write_text(json.dumps(result(2, 50.0, **change)))
    with pytest.raises(UserError, match=words):
        read_result(path)
    path.write_text("[" * 10**5)
    with pytest.raises(UserError, match="no JSON"):
        read_result(path)


def test_nothing_drafted() -> None:
    figures = bench_figures(result(2, 50.0))

    assert (figures["mean_draft_length"], figures["mean_accepted_length"]) == (0, 1)
    assert math.isnan(figures["acceptance_rate"])
    assert bench_record(result(2, 50.0)) == {"acceptance_by_position": []}
