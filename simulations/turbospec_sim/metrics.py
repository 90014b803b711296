"""A run's figures, defined and named as `vllm bench serve` does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turbospec.interface import FloatArray
from turbospec_sim.emission import gap_percentiles
from turbospec_sim.records import Records
from turbospec_sim.scenario import Slo
from turbospec_sim.state import EngineState

PERCENTILES = (50, 95, 99)


def summarise(state: EngineState, duration: float) -> dict[str, Any]:
    """Figures of the measured requests of a run that took `duration` seconds.

    Time per output token is a request's latency after its first token over its remaining tokens; inter-token latency
    is the time between a request's emissions, so a step that emits several tokens at once counts as one.
    """
    offered = state.offered[int(state.engine["first_measured"][0]) :]
    done = offered[np.isfinite(offered["latency"])]
    inputs, outputs = int(done["prompt_tokens"].sum()), int(done["output_tokens"].sum())
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(offered) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "max_concurrent_requests": max_concurrent_requests(done["sent"], done["latency"]),
    }
    per_token = time_per_output_token(done)
    for name, seconds in (
        ("ttft", done["ttft"]),
        ("tpot", per_token[np.isfinite(per_token)]),
        ("e2el", done["latency"]),
    ):
        figures |= _distribution(name, seconds)
    return figures | _gaps(state) | _steps(state)


def time_per_output_token(done: Records) -> FloatArray:
    """(n,) seconds for each token after the first; NaN for requests that emitted one only."""
    following = (done["output_tokens"] - 1).astype(np.float64)
    following[following == 0] = math.nan
    return (done["latency"] - done["ttft"]) / following


def max_concurrent_requests(sent: FloatArray, latency: FloatArray) -> int:
    """Most requests in flight within one second of the clock that starts with the first, as vLLM's client counts.

    A request counts in every second that it touches, so that requests which follow each other within a second count as
    concurrent.
    """
    if not len(sent):
        return 0
    first = np.sort(np.floor(sent - sent.min()))
    last = np.sort(np.floor(sent + latency - sent.min()))
    # It is highest in a second in which a request begins; a table of all seconds would grow with the run's length.
    begun, over = np.searchsorted(first, first, side="right"), np.searchsorted(last, first, side="left")
    return int((begun - over).max())


def within_slo(done: Records, slo: Slo) -> FloatArray:
    """(n,) 1 for each request within the limits itself, else 0."""
    within = np.ones(len(done))
    if slo.p99_ttft_ms is not None:
        within[done["ttft"] * 1e3 >= slo.p99_ttft_ms] = 0.0
    if slo.p99_tpot_ms is not None:
        within[time_per_output_token(done) * 1e3 >= slo.p99_tpot_ms] = 0.0
    return within


def judged(state: EngineState, figures: dict[str, Any], slo: Slo | None) -> dict[str, Any]:
    """Whether the objectives were met, and what was served within them.

    `request_goodput` is `vllm bench serve`'s; `token_goodput` counts these requests' output tokens. Where there are no
    objectives, everything served counts and `slo_met` is None.
    """
    offered = state.offered[int(state.engine["first_measured"][0]) :]
    done = offered[np.isfinite(offered["latency"])]
    within = within_slo(done, slo) if slo is not None else np.ones(len(done))
    met = None
    if slo is not None:
        limits = {"p99_ttft_ms": slo.p99_ttft_ms, "p99_tpot_ms": slo.p99_tpot_ms}
        missed = [name for name, limit in limits.items() if limit is not None and figures[name] >= limit]
        met = not missed and figures["failed"] == 0
    return {
        "slo_met": met,
        "request_goodput": float(within.sum()) / figures["duration"],
        "token_goodput": float((within * done["output_tokens"]).sum()) / figures["duration"],
    }


def _gaps(state: EngineState) -> dict[str, float]:
    sums = state.totals[0]
    number = int(sums["gaps"])
    mean = sums["gap_seconds"] / number if number else math.nan
    variance = sums["gap_seconds_squared"] / number - mean**2 if number else math.nan
    percentiles = gap_percentiles(state.gaps, np.array(PERCENTILES, np.float64)) * 1e3
    figures = {
        "mean_itl_ms": mean * 1e3,
        "median_itl_ms": float(percentiles[PERCENTILES.index(50)]),
        "std_itl_ms": math.sqrt(max(variance, 0.0)) * 1e3 if number else math.nan,
    }
    return figures | {f"p{p}_itl_ms": float(value) for p, value in zip(PERCENTILES, percentiles, strict=True)}


def _steps(state: EngineState) -> dict[str, Any]:
    """Accepted length as vLLM counts it (1 + accepted tokens a draft), draft length over all decoding requests.

    Prefill is what prompts added to the target's pass, a part of verify's share; the other three make up the whole.
    """
    sums = {name: state.totals[name][0].item() for name in state.totals.dtype.names or ()}
    busy = sums["host_seconds"] + sums["draft_seconds"] + sums["verify_seconds"]
    return {
        "engine_steps": sums["steps"],
        "preemptions": int(state.engine["preemptions"][0]),
        "mean_accepted_length": 1.0 + sums["accepted"] / max(1, sums["drafts"]),
        "mean_draft_length": sums["drafted"] / max(1, sums["decode_rows"]),
        "acceptance_rate": sums["accepted"] / sums["drafted"] if sums["drafted"] else math.nan,
        "draft_time_share": sums["draft_seconds"] / max(busy, 1e-9),
        "verify_time_share": sums["verify_seconds"] / max(busy, 1e-9),
        "host_time_share": sums["host_seconds"] / max(busy, 1e-9),
        "prefill_time_share": sums["prefill_seconds"] / max(busy, 1e-9),
    }


def _distribution(name: str, seconds: FloatArray) -> dict[str, float]:
    values = seconds * 1e3 if len(seconds) else np.full(1, math.nan)
    figures = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    return figures | {f"p{p}_{name}_ms": float(np.percentile(values, p)) for p in PERCENTILES}
