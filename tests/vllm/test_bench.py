"""`turbospec bench vllm` with a real vLLM: a cell as small as it can be, from servers' start to the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

REPOSITORY = Path(__file__).parents[2]


def test_one_cell(tmp_path: Path) -> None:
    turbospec = Path(sys.executable).with_name("turbospec")
    selection = ["--workload", "text", "--drafter", "good", "--concurrency", "2", "--rounds", "1"]
    policies = ["--policy", "static-1", "--policy", "adaptive"]
    results = tmp_path / "out.json"

    done = subprocess.run(
        [
            *(turbospec, "bench", "vllm", *selection, *policies, "--json", results),
            *("--vllm", f"{sys.executable} -m tests.vllm.command"),
        ],
        cwd=REPOSITORY,
        env={name: value for name, value in os.environ.items() if not name.startswith("TURBOSPEC_")},
        capture_output=True,
        text=True,
        timeout=1200,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    rows = {row["policy"]: row for row in json.loads(results.read_text())["rows"]}
    assert [*rows] == ["off", "static-1", "adaptive"]
    for row in rows.values():
        assert row["failed"] == 0
        assert row["total_output_tokens"] == rows["off"]["total_output_tokens"] > 500
        # Greedy texts are the same, but for near ties that another batch may turn.
        assert row["distinct_2"] == pytest.approx(rows["off"]["distinct_2"], abs=0.2)
        assert 0 < row["mean_tpot_ms"] < row["p99_ttft_ms"] * 100
        assert row["p50_e2el_ms"] <= row["p99_e2el_ms"]
    assert rows["off"]["mean_draft_length"] == 0
    assert rows["static-1"]["mean_draft_length"] == pytest.approx(1, abs=0.1)
    assert 0.3 < rows["static-1"]["acceptance_by_position"][0] < 0.95
    assert 0 < rows["adaptive"]["mean_draft_length"] < 15
    assert rows["adaptive"]["ratio_to_off"]["output_throughput"]["value"] > 0
    assert "TurboSpec chooses draft lengths by policy adaptive" in (tmp_path / "out-logs/good-adaptive.log").read_text()
    for name in ("off", "good-static-1"):
        assert "TurboSpec" not in (tmp_path / f"out-logs/{name}.log").read_text()
    assert "text/good/c2" in (tmp_path / "out.html").read_text()
