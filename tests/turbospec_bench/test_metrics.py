"""Latency figures are those of `vllm bench serve`."""

from __future__ import annotations

import math

import pytest

from turbospec_bench.metrics import RequestRecord, summarise


def test_figures_of_two_requests() -> None:
    records = [
        # Three events, the last of two tokens: 4 tokens from 0.1 s to 0.4 s after sending.
        RequestRecord(sent=1.0, prompt_tokens=10, output_times=[1.1, 1.2, 1.4], token_ids=[1, 2, 3, 4]),
        RequestRecord(sent=1.5, prompt_tokens=20, output_times=[1.8, 2.0], token_ids=[1, 2]),
    ]

    figures = summarise(records, duration=2.0)

    assert figures["mean_ttft_ms"] == pytest.approx(200)
    assert figures["mean_tpot_ms"] == pytest.approx((100 + 200) / 2)
    assert figures["mean_itl_ms"] == pytest.approx((100 + 200 + 200) / 3)
    assert figures["median_e2el_ms"] == pytest.approx((400 + 500) / 2)
    assert figures["p99_ttft_ms"] == pytest.approx(100 + 0.99 * 200)
    assert figures["output_throughput"] == pytest.approx(3.0)
    assert figures["total_token_throughput"] == pytest.approx(18.0)
    assert figures["request_throughput"] == pytest.approx(1.0)


def test_tokens_that_come_with_the_first_one_take_no_time_per_token() -> None:
    record = RequestRecord(sent=0.0, prompt_tokens=5)
    for now, token_ids in ((1.0, [1, 2, 3]), (2.0, [4]), (3.0, [5])):
        record.receive(now, token_ids)

    assert summarise([record], duration=3.0)["mean_tpot_ms"] == pytest.approx(1000)
    assert summarise([record], duration=3.0)["mean_itl_ms"] == pytest.approx(1000)


def test_failed_requests_count_as_failed_only() -> None:
    records = [
        RequestRecord(sent=0.0, prompt_tokens=5, output_times=[1.0], token_ids=[7]),
        RequestRecord(sent=0.0, prompt_tokens=5, failed=True),
    ]

    figures = summarise(records, duration=1.0)

    assert (figures["completed"], figures["failed"]) == (1, 1)
    assert figures["total_input_tokens"] == 5
    assert math.isnan(figures["mean_tpot_ms"])  # one token has no time per further token
