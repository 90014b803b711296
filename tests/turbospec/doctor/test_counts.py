from __future__ import annotations

import json
import math
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from turbospec.doctor import counts
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
    read = read_metrics(PAGE, "page")
    assert read == DraftCounts(1000, 3000, (600.0, 240.0, 60.0))
    assert read.mean_draft_length == 3.0
    np.testing.assert_allclose(read.conditional(), [0.6, 0.4, 0.25])


def test_drafts_of_different_lengths_are_told_apart_where_the_server_counts_them() -> None:
    """Half of the drafts had one token: of 600 accepted first ones, 300 had a second."""
    np.testing.assert_allclose(read_metrics(PAGE + ADAPTIVE, "page").conditional(), [0.6, 0.8])


def test_a_position_nobody_reached_is_unknown() -> None:
    conditional = DraftCounts(10, 20, (0.0, 0.0)).conditional()
    assert conditional[0] == 0.0
    assert np.isnan(conditional[1])


def test_a_position_that_almost_nobody_reached_has_a_rate() -> None:
    """Also where a rate of a result is the smallest number there is."""
    for drafted in (None, (5e-324, 90.0)):
        with np.errstate(all="raise", under="ignore"):
            conditional = DraftCounts(1, 2, (5e-324, 90.0), drafted).conditional()
        assert conditional[1] == 1.0


def test_a_window_is_the_difference_of_two_readings() -> None:
    before, after = DraftCounts(100, 300, (60.0, 24.0)), DraftCounts(150, 450, (90.0, 30.0))
    assert after.since(before) == DraftCounts(50, 150, (30.0, 6.0))


def test_a_window_of_two_servers_is_refused() -> None:
    """Behind a load balancer the second may have counted more than the first."""
    before = DraftCounts(100, 300, (60.0, 24.0), started=5.0)
    assert DraftCounts(150, 450, (90.0, 30.0), started=5.0).since(before).started == 5.0
    with pytest.raises(UserError, match="several servers"):
        DraftCounts(150, 450, (90.0, 30.0), started=6.0).since(before)
    with pytest.raises(UserError, match="several servers"):  # more accepted than drafted
        DraftCounts(1100, 3300, (2000.0, 30.0), started=5.0).since(before)


@pytest.mark.parametrize(("values", "off"), [((1.0, 1.0), 0), ((1.0, 0.0), 1)])
def test_in_how_many_engines_turbospec_is_off_is_read(values: tuple[float, float], off: int) -> None:
    lines = (f'turbospec_active{{engine="{engine}"}} {value}\n' for engine, value in enumerate(values))
    page = f"{PAGE}process_start_time_seconds 1.7e9\n{''.join(lines)}"
    read = read_metrics(page, "page")
    assert (read.engines, read.engines_off, read.started) == (2, off, 1.7e9)


def test_a_server_that_no_longer_counts_positions_was_restarted() -> None:
    with pytest.raises(UserError, match="restarted"):
        DraftCounts(150, 300, (90.0, 30.0)).since(DraftCounts(10, 30, (6.0, 2.0), (10.0, 5.0)))


def test_a_window_may_begin_before_positions_are_counted() -> None:
    after = DraftCounts(150, 300, (90.0, 30.0), (150.0, 60.0))
    assert after.since(DraftCounts(10, 30, (6.0, 2.0, 1.0))) == DraftCounts(140, 270, (90.0, 30.0), (150.0, 60.0))


@pytest.mark.parametrize(
    "after",
    [
        DraftCounts(3, 9, (2.0, 1.0)),
        DraftCounts(500, 900, (90.0, 60.0, 30.0)),
        DraftCounts(500, 900, (90.0, 10.0)),
        DraftCounts(500, 100, (90.0, 30.0)),
    ],
)
def test_a_server_that_was_restarted_meanwhile_is_said(after: DraftCounts) -> None:
    with pytest.raises(UserError, match="restarted"):
        after.since(DraftCounts(100, 200, (50.0, 20.0)))


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("", "no vLLM metrics"),
        ("other_total 3\n", "no vLLM metrics"),
        ("vllm:num_requests_running 3\n", "does not speculate"),
        ("<html>not found</html>", "no vLLM metrics"),
        (PAGE.replace(" 600.0", " 600.0 x"), "Prometheus"),
        (PAGE.replace('engine="0",', 'engine="0,'), "Prometheus"),
    ],
)
def test_a_page_of_something_else_is_named(page: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_metrics(page, "http://there/metrics")


@pytest.fixture
def server() -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            if found:
                self.wfile.write(PAGE.encode())

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as listening:
        Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def page_with(
    position: str = "0", count: str = "1.0", metric: str = "vllm:spec_decode_num_accepted_tokens_per_pos"
) -> str:
    lines = [line for line in PAGE.splitlines() if not line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos")]
    return "\n".join([*lines, f'{metric}_total{{position="{position}"}} {count}', ""])


@pytest.mark.parametrize("position", ["10000000", "1024", "-1", "1.5", "", "x", "٣", "9" * 400, "nan"])
def test_a_position_that_no_draft_has_is_refused(position: str) -> None:
    with pytest.raises(UserError, match="draft position"):
        read_metrics(page_with(position), "page")


@pytest.mark.parametrize("count", ["NaN", "Inf", "+Inf", "-Inf", "-1", "1e16", "9" * 400, "-" + "9" * 400])
@pytest.mark.parametrize(
    "metric", ["vllm:spec_decode_num_drafts", "turbospec_drafted_per_position", "turbospec_accepted_per_position"]
)
def test_a_count_that_is_none_is_refused(count: str, metric: str) -> None:
    with pytest.raises(UserError, match="is no count"):
        read_metrics(page_with(count=count, metric=metric), "page")


@pytest.mark.parametrize(
    "line",
    [
        "turbospec_drafted_per_position_total 3",
        'turbospec_drafted_per_position_total{position="0"} 3 ' + "9" * 400,
        'turbospec_drafted_per_position_total{position="0"} 1_000',
        'turbospec_drafted_per_position_total{position="0"',
        'turbospec_drafted_per_position_total{position="0",position="1"} 1',
        'turbospec_drafted_per_position_total{position="0"} 1\nturbospec_drafted_per_position_total{position="0"} 1',
        'turbospec_drafted_per_position_total{position="' + '\\"' * 500_000 + '"} 1',
    ],
)
def test_a_line_that_cannot_be_read_is_refused(line: str) -> None:
    with pytest.raises(UserError, match=r"^page is not a page of Prometheus metrics") as refused:
        read_metrics(PAGE + line + "\n", "page")
    assert len(str(refused.value)) < 200


def test_more_counts_than_a_server_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MAX_SAMPLES", 3)
    with pytest.raises(UserError, match="more than 3 counts of drafts"):
        read_metrics(PAGE, "page")


def test_other_metrics_are_not_even_parsed() -> None:
    page = 'python_info{version="' + '\\"' * 500_000 + "\nother NaN\n# HELP \\\n" + PAGE
    assert read_metrics(page, "page").drafts == 1000


@pytest.mark.parametrize(
    ("replaced", "by"),
    [
        ('position="0"} 300.0', 'position="0"} 3000.0'),  # more accepted than drafted
        ('position="2"} 60.0', 'position="2"} 600.0'),  # more accepted at a position than at the one before
        ('engine="0",model_name="m"} 3000.0', 'engine="0",model_name="m"} 30.0'),  # fewer tokens than drafts
    ],
)
def test_counts_that_contradict_one_another_are_refused(replaced: str, by: str) -> None:
    assert replaced in PAGE
    with pytest.raises(UserError, match="contradict"):
        read_metrics(PAGE.replace(replaced, by), "page")


def test_counts_of_several_processes_may_differ_a_little() -> None:
    assert read_metrics(PAGE.replace('position="2"} 60.0', 'position="2"} 250.0'), "page").conditional()[2] == 1.0


def test_a_position_without_acceptance_has_none_accepted() -> None:
    page = PAGE + "\n".join(line for line in ADAPTIVE.splitlines() if "accepted" not in line) + "\n"
    assert read_metrics(page, "page").conditional()[0] == 0.0


@pytest.mark.parametrize("suffix", ["", "/", "/metrics", "?a=b"])
def test_a_server_is_read_wherever_its_address_ends(server: str, suffix: str) -> None:
    assert read_server(server + suffix).drafts == 1000


def test_a_path_that_is_no_metrics_page_is_the_users_mistake(server: str) -> None:
    with pytest.raises(UserError, match="answers 404 Not Found; give the address of a vLLM server"):
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
        (json.dumps(BENCH | {"mean_tpot_ms": 5e-324}), "no request"),
        (json.dumps(BENCH | {"mean_tpot_ms": math.nan}), "NaN is not JSON"),
        (json.dumps(BENCH | {"mean_tpot_ms": True}), "mean_tpot_ms"),
        (json.dumps(BENCH | {"mean_tpot_ms": "9"}), "mean_tpot_ms"),
        (json.dumps(BENCH | {"output_throughput": -1}), "output_throughput"),
        (json.dumps(BENCH | {"output_throughput": 1e300}), "output_throughput"),
        (json.dumps(BENCH | {"completed": 10**400}), "out of range"),
        (json.dumps(BENCH | {"completed": [[[]]]}), "completed"),
        (json.dumps(BENCH | {"request_rate": "x" * 1000}), "request_rate"),
        (json.dumps(BENCH | {"max_concurrency": {}}), "max_concurrency"),
        (json.dumps(BENCH | {"spec_decode_draft_tokens": 0}), "contradict"),
        (json.dumps(BENCH | {"spec_decode_per_position_acceptance_rates": [1.2]}), "acceptance_rates"),
        (json.dumps(BENCH | {"spec_decode_per_position_acceptance_rates": [-0.1]}), "acceptance_rates"),
        (json.dumps(BENCH | {"spec_decode_per_position_acceptance_rates": [0.2, 0.9]}), "contradict"),
        (json.dumps(BENCH | {"spec_decode_per_position_acceptance_rates": [0.0] * 2000}), "acceptance_rates"),
        ("[" * 5000 + "]" * 5000, "nested"),
    ],
)
def test_a_file_of_something_else_is_the_users_mistake(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(UserError, match=says):
        read_bench(path)


def test_a_missing_file_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.json: no such result"):
        read_bench(tmp_path / "gone.json")
