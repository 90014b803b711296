"""Latency and throughput of one run, defined and named as `vllm bench serve` does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

PERCENTILES = (50, 95, 99)


@dataclass(slots=True)
class RequestRecord:
    """What a client measured of one request. Times are seconds of one monotonic clock."""

    sent: float
    """Arrival: the submission at a fixed concurrency, the drawn arrival time under Poisson arrivals."""
    prompt_tokens: int
    output_times: list[float] = field(default_factory=list[float])
    """When each output event (one or more tokens at once) reached the client."""
    token_ids: list[int] = field(default_factory=list[int])
    first_tokens: int = 1
    """Tokens of the first event."""
    failed: bool = False

    def receive(self, now: float, token_ids: Sequence[int]) -> None:
        """Take in an output event."""
        if not self.output_times:
            self.first_tokens = len(token_ids)
        self.output_times.append(now)
        self.token_ids += token_ids

    @property
    def latency(self) -> float:
        return self.output_times[-1] - self.sent

    @property
    def time_to_first_token(self) -> float:
        return self.output_times[0] - self.sent


def summarise(records: Sequence[RequestRecord], duration: float) -> dict[str, float]:
    """Figures of a run of `duration` seconds, under the field names of `vllm bench serve`.

    Time per output token is a request's latency after its first event over the tokens after it. `vllm bench serve`
    takes the first event for one token; here it is more only in transformers' assisted generation, which drafts before
    the first token. Inter-token latency is the time between output events, so a step that emits several tokens at once
    counts as one.
    """
    done = [record for record in records if not record.failed and record.output_times]
    inputs = sum(record.prompt_tokens for record in done)
    outputs = sum(len(record.token_ids) for record in done)
    first = [record.time_to_first_token for record in done]
    per_token = [
        (record.latency - record.time_to_first_token) / (len(record.token_ids) - record.first_tokens)
        for record in done
        if len(record.token_ids) > record.first_tokens
    ]
    gaps = [gap for record in done for gap in np.diff(record.output_times).tolist()]
    figures: dict[str, float] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
    }
    for name, seconds in (
        ("ttft", first),
        ("tpot", per_token),
        ("itl", gaps),
        ("e2el", [record.latency for record in done]),
    ):
        figures |= _distribution(name, seconds)
    return figures


def _distribution(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = np.asarray(seconds, float) * 1e3 if seconds else np.full(1, math.nan)
    figures = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    return figures | {f"p{p}_{name}_ms": float(np.percentile(values, p)) for p in PERCENTILES}
