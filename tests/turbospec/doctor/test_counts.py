from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from turbospec.doctor.counts import DraftCounts, read_bench, read_metrics, read_server
from turbospec.errors import UserError

PAGE = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 400.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3000.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 900.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 300.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 300.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 240.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 60.0
"""
ADAPTIVE = """\
# TYPE turbospec_drafted_per_position_total counter
turbospec_drafted_per_position_total{position="0"} 1000.0
turbospec_drafted_per_position_total{position="1"} 500.0
# TYPE turbospec_accepted_per_position_total counter
turbospec_accepted_per_position_total{position="0"} 600.0
turbospec_accepted_per_position_total{position="1"} 240.0
"""
BENCH: dict[str, Any] = {
    "output_throughput": 100.0,
    "mean_tpot_ms": 9.0,
    "p99_ttft_ms": 50.0,
    "total_output_tokens": 5000,
    "completed": 50,
    "request_rate": "inf",
    "max_concurrency": 8,
    "spec_decode_num_drafts": 1000,
    "spec_decode_draft_tokens": 3000,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.24, 0.06],
}


def test_counts_of_all_engines_add_up() -> None:
    counts = read_metrics(PAGE, "page")
    assert counts == DraftCounts(1000, 3000, (600.0, 240.0, 60.0))
    assert counts.mean_draft_length == 3.0
    np.testing.assert_allclose(counts.conditional(), [0.6, 0.4, 0.25])


def test_drafts_of_different_lengths_are_told_apart_where_the_server_counts_them() -> None:
    """Half of the drafts had one token: of 600 accepted first ones, 300 had a second."""
    counts = read_metrics(PAGE + ADAPTIVE, "page")
    np.testing.assert_allclose(counts.conditional(), [0.6, 0.8])


def test_a_position_nobody_reached_is_unknown() -> None:
    conditional = DraftCounts(10, 20, (0.0, 0.0)).conditional()
    assert conditional[0] == 0.0
    assert np.isnan(conditional[1])


def test_a_window_is_the_difference_of_two_readings() -> None:
    before, after = DraftCounts(100, 300, (60.0, 24.0)), DraftCounts(150, 450, (90.0, 30.0))
    assert after.since(before) == DraftCounts(50, 150, (30.0, 6.0))


def test_a_window_may_begin_before_positions_are_counted() -> None:
    after = DraftCounts(150, 300, (90.0, 30.0), (150.0, 60.0))
    assert after.since(DraftCounts(10, 30, (6.0, 2.0, 1.0))) == DraftCounts(140, 270, (90.0, 30.0), (150.0, 60.0))


@pytest.mark.parametrize("after", [DraftCounts(3, 9, (2.0, 1.0)), DraftCounts(500, 900, (90.0, 60.0, 30.0))])
def test_a_server_that_was_restarted_meanwhile_is_said(after: DraftCounts) -> None:
    with pytest.raises(UserError, match="restarted"):
        after.since(DraftCounts(100, 200, (50.0, 20.0)))


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("", "no vLLM metrics"),
        ("other_total 3\n", "no vLLM metrics"),
        ("vllm:num_requests_running 3\n", "does not speculate"),
        ("<html>not found</html>", "Prometheus"),
    ],
)
def test_a_page_of_something_else_is_named(page: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_metrics(page, "http://there/metrics")


@pytest.fixture
def server() -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            if self.path == "/metrics":
                self.wfile.write(PAGE.encode())

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


@pytest.mark.parametrize("suffix", ["", "/", "/metrics"])
def test_a_server_is_read_wherever_its_address_ends(server: str, suffix: str) -> None:
    assert read_server(server + suffix).drafts == 1000


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1", r"^http://127\.0\.0\.1:1/metrics does not answer \(.*refused.*\); is the server up"),
        ("http://", "^http://: not an address; give one such as http://"),
        ("127.0.0.1:8000", r"^127\.0\.0\.1:8000: not an address; give one such as http://"),
        ("file:///etc/passwd", "^file:///etc/passwd: not an address; give one such as http://"),
    ],
)
def test_an_address_that_does_not_answer_is_the_users_mistake(url: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_server(url)


def test_a_path_that_is_no_metrics_page_is_the_users_mistake(server: str) -> None:
    with pytest.raises(UserError, match="does not answer"):
        read_server(server + "/v1")


def test_a_bench_result_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(BENCH))
    result = read_bench(path)
    assert result.counts is not None
    np.testing.assert_allclose(result.counts.conditional(), [0.6, 0.4, 0.25])
    assert (result.tokens_per_request, result.max_concurrency) == (100.0, 8)


def test_a_run_without_speculation_has_no_counts(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({key: value for key, value in BENCH.items() if not key.startswith("spec")}))
    assert read_bench(path).counts is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not a result"),
        ("[]", "not a result"),
        ('{"completed": 3}', "not a result"),
        (json.dumps(BENCH | {"completed": 0}), "no request"),
        (json.dumps(BENCH | {"mean_tpot_ms": 0.0}), "no request"),
    ],
)
def test_a_file_of_something_else_is_the_users_mistake(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(UserError, match=says):
        read_bench(path)


def test_a_missing_file_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.json: cannot be read"):
        read_bench(tmp_path / "gone.json")
