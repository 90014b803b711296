from __future__ import annotations

import math

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import Steps, scenario, serve, state_of
from turbospec.policy.static import StaticPolicy
from turbospec_sim.emission import GAP_BINS, GAP_MIN, gap_percentiles
from turbospec_sim.metrics import judged, max_concurrent_requests, summarise
from turbospec_sim.scenario import Slo
from turbospec_sim.state import EngineState


@pytest.fixture(scope="module")
def served() -> tuple[EngineState, Steps, float]:
    state, steps = state_of(scenario(server__emit="before_draft")), Steps()
    engine = serve(state, StaticPolicy(3), steps)
    return state, steps, engine.now


def client_times(steps: Steps) -> dict[int, list[float]]:
    """When each request's tokens reached its client, from the steps alone."""
    times: dict[int, list[float]] = {}
    for view, _, outcome in steps.seen:
        for request in view.request_ids[outcome.emitted > 0].tolist():
            times.setdefault(request, []).append(view.now + outcome.step_seconds)
    return times


def test_figures_are_those_of_a_client_that_times_its_chunks(served: tuple[EngineState, Steps, float]) -> None:
    state, steps, duration = served
    figures = summarise(state, duration)
    times, sent, lengths = client_times(steps), state.offered["sent"], state.offered["output_tokens"]
    ttft = np.array([times[i][0] - sent[i] for i in range(len(sent))]) * 1e3
    tpot = [(times[i][-1] - times[i][0]) / (lengths[i] - 1) * 1e3 for i in range(len(sent)) if lengths[i] > 1]
    itl = np.concatenate([np.diff(one) for one in times.values()]) * 1e3
    assert [figures[f"p{p}_ttft_ms"] for p in (50, 95, 99)] == pytest.approx(np.percentile(ttft, [50, 95, 99]))
    assert [figures[f"p{p}_tpot_ms"] for p in (50, 95, 99)] == pytest.approx(np.percentile(tpot, [50, 95, 99]))
    assert [figures["mean_itl_ms"], figures["std_itl_ms"]] == pytest.approx([itl.mean(), itl.std()])
    assert figures["p50_itl_ms"] == pytest.approx(np.percentile(itl, 50), rel=0.02)
    assert figures["output_throughput"] == pytest.approx(lengths.sum() / duration)
    assert figures["completed"] == len(sent)


def test_time_shares_add_up_to_the_steps(served: tuple[EngineState, Steps, float]) -> None:
    state, steps, duration = served
    figures = summarise(state, duration)
    shares = [figures[f"{part}_time_share"] for part in ("draft", "verify", "host")]
    assert sum(shares) == pytest.approx(1.0)
    drafting = sum(outcome.draft_seconds for _, _, outcome in steps.seen)
    assert shares[0] == pytest.approx(drafting / sum(outcome.step_seconds for _, _, outcome in steps.seen))
    assert figures["engine_steps"] == len(steps.seen)


def test_prefill_is_what_prompts_add_to_the_targets_pass(served: tuple[EngineState, Steps, float]) -> None:
    state, steps, duration = served
    # 0.1 ms a token here, and the pass as a whole where it is for prompts alone.
    added = [
        outcome.verify_seconds if outcome.prefill_tokens == outcome.tokens_batched else 1e-4 * outcome.prefill_tokens
        for _, _, outcome in steps.seen
    ]
    assert 0.0 < sum(added) < sum(outcome.verify_seconds for _, _, outcome in steps.seen)
    share = sum(added) / sum(outcome.step_seconds for _, _, outcome in steps.seen)
    assert summarise(state, duration)["prefill_time_share"] == pytest.approx(share)


def test_concurrency_is_counted_by_seconds_as_vllm_counts_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        sent, latency = 100.0 + rng.uniform(0, 30, 40), rng.exponential(5, 40)
        seconds = np.zeros(int(np.ceil((sent + latency).max() - sent.min())) + 1)
        for start, length in zip(sent, latency, strict=True):
            seconds[int(start - sent.min()) : int(start + length - sent.min()) + 1] += 1
        assert max_concurrent_requests(sent, latency) == seconds.max()


def test_peak_concurrency_needs_no_memory_for_a_long_run() -> None:
    sent = np.array([0.0, 0.5, 1e15])
    assert max_concurrent_requests(sent, np.array([1e300, 0.2, 1.0])) == 2


@pytest.mark.parametrize("number", [1, 2, 7, 100_000])
def test_gaps_are_kept_to_a_tenth_of_a_percent(number: int) -> None:
    gaps = np.random.default_rng(0).lognormal(-3.5, 0.8, number)
    histogram = np.zeros(GAP_BINS, np.int64)
    np.add.at(histogram, (np.log(gaps / GAP_MIN) * 1000).astype(int), 1)
    percentiles = np.array([1.0, 50.0, 95.0, 99.0])
    assert gap_percentiles(histogram, percentiles) == pytest.approx(np.percentile(gaps, percentiles), rel=1.1e-3)
    assert math.isnan(gap_percentiles(np.zeros(GAP_BINS, np.int64), percentiles)[0])


def test_an_slo_is_judged_by_percentiles_and_goodput_by_requests(served: tuple[EngineState, Steps, float]) -> None:
    state, _, duration = served
    figures = summarise(state, duration)
    ttft, tpot = figures["p99_ttft_ms"], figures["p99_tpot_ms"]
    assert judged(state, figures, None)["slo_met"] is None
    assert judged(state, figures, Slo(p99_ttft_ms=ttft * 1.01, p99_tpot_ms=tpot * 1.01))["slo_met"]
    assert not judged(state, figures, Slo(p99_ttft_ms=ttft))["slo_met"]
    assert not judged(state, figures, Slo(p99_tpot_ms=tpot))["slo_met"]
    half = judged(state, figures, Slo(p99_ttft_ms=figures["median_ttft_ms"]))
    assert half["request_goodput"] == pytest.approx(figures["request_throughput"] / 2)
    assert half["token_goodput"] < figures["output_throughput"]
