"""Figures of a run, with the definitions and names of `vllm bench serve`."""

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

    TPOT is a request's latency after its first token, divided by its remaining tokens. ITL is the time between a
    request's emissions: several tokens that a step emits at once count as one emission.
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
    """(n,) TPOT in seconds; NaN for requests that emitted only one token."""
    following = (done["output_tokens"] - 1).astype(np.float64)
    following[following == 0] = math.nan
    return (done["latency"] - done["ttft"]) / following


def max_concurrent_requests(sent: FloatArray, latency: FloatArray) -> int:
    """Most requests in flight in one second, as vLLM's client counts; seconds start with the first request.

    A request counts in every second that it overlaps, so that requests which follow each other within a second count as
    concurrent.
    """
    if not len(sent):
        return 0
    first = np.sort(np.floor(sent - sent.min()))
    last = np.sort(np.floor(sent + latency - sent.min()))
    # The maximum is in a second in which a request begins; a table of all seconds would grow with the run's length.
    begun, over = np.searchsorted(first, first, side="right"), np.searchsorted(last, first, side="left")
    return int((begun - over).max())


def within_slo(done: Records, slo: Slo) -> FloatArray:
    """(n,) 1 for each request that is within the SLO's limits, else 0."""
    within = np.ones(len(done))
    if slo.p99_ttft_ms is not None:
        within[done["ttft"] * 1e3 >= slo.p99_ttft_ms] = 0.0
    if slo.p99_tpot_ms is not None:
        within[time_per_output_token(done) * 1e3 >= slo.p99_tpot_ms] = 0.0
    return within


def judged(state: EngineState, figures: dict[str, Any], slo: Slo | None) -> dict[str, Any]:
    """Whether the SLO was met, and goodput.

    `request_goodput` is that of `vllm bench serve`, except that a time equal to its limit misses it. `token_goodput`
    counts the output tokens of the same requests. Without an SLO, every request counts and `slo_met` is None.
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
    """Figures of the steps. Accepted length as vLLM counts it: 1 + accepted tokens per draft. Draft length K: mean over
    all decoding requests.

    The shares of draft, verify and host add up to 1. That of prefill, what prompts added to the target's pass, is part
    of verify's share.
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
