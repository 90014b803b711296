"""Time of a simulated step.

    step    = host + target's pass + drafting
    host    = fixed + per request
    target  = curve(tokens, padded to a CUDA graph's size) + per KV token read + per pair of a prompt's attention
              + per token that a next token is sampled after + fixed where verified tokens are selected after drafting
              + fixed and per request without a full CUDA graph + fixed with prompts + fixed without any graph
    draft   = start + Σ over passes (fixed + per row + per KV token) + fixed and per token of catch-up,
              and a fixed time once, at the first draft

The curve is piecewise linear: max(floor, tokens · slope), floor + tokens · slope, or measured points. Drafting has the
form that the planner assumes; the target's pass may differ from what the controller's latency model can express.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.randomness import normal
from turbospec_sim.records import TIMES, Record, Records

NOISE_STREAM = np.uint64(0x7E57)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Coefficients of a step's time, in seconds."""

    curve: FloatArray
    """(2, knots) tokens of the target's pass, rising from 0, and its seconds; the last slope continues past the end."""
    host: float = 0.0
    host_request: float = 0.0
    lookup_request: float = 0.0
    """For each request of a step, in an engine with a look-up: part of the host's time."""
    decision: float = 0.0
    """For each step with a view."""
    kv_token: float = 0.0
    """For each KV token that the target's pass reads."""
    attention_pair: float = 0.0
    """For each pair of a prompt token and a token that it attends to: the quadratic part of a prefill."""
    sampled_token: float = 0.0
    """For each token of the target's pass that a token is sampled after: those of decoding requests, drafts too."""
    prompt: float = 0.0
    """For a target's pass with prompt tokens, which replays piecewise graphs where others replay a full one."""
    ungraphed: float = 0.0
    """For a target's pass over more tokens than the largest of `graph_sizes`."""
    draft_start: float = 0.0
    draft_pass: float = 0.0
    draft_row: float = 0.0
    draft_kv_token: float = 0.0
    catch_up_token: float = 0.0
    """For each token that the drafter's first pass computes beyond one or two a request, prompt tokens included."""
    catch_up: float = 0.0
    """For a first pass that computes such tokens."""
    cold_draft: float = 0.0
    """Additional time of the first draft of a run."""
    piecewise: float = 0.0
    """For a step that replays no full CUDA graph, where there are any (`graph_lengths`)."""
    piecewise_request: float = 0.0
    """For each request of such a step."""
    selection: float = 0.0
    """For a target's pass over drafts of which the verified tokens were selected after drafting."""
    noise: float = 0.0
    """Standard deviation of the logarithm of the target's and the drafter's time; the means do not change."""
    graph_sizes: Sequence[int] = field(default=())
    """Tokens to which CUDA graphs pad a pass, rising; a larger pass is not padded."""
    graph_lengths: Sequence[int] = field(default=())
    """Draft lengths with full CUDA graphs for a batch that verifies so many draft tokens for each request, rising."""
    cold_target_factor: float = 1.0
    """Factor on the target's time in the first step; it decays exponentially to 1."""
    cold_target_steps: float = 1.0
    """Steps in which that factor's distance from 1 falls to 1/e."""
    cold_drafter_factor: float = 1.0
    """The same for the drafter, by the steps in which it has drafted."""
    cold_drafter_steps: float = 1.0
    stall_probability: float = 0.0
    """Probability that a stall begins with a step, outside of stalls."""
    stall_steps: float = 1.0
    """Mean length of a stall in steps; lengths are geometric."""
    stall_factor: float = 1.0
    """Factor on the duration of a step in a stall."""
    changes: FloatArray = field(default_factory=lambda: np.zeros((0, 4)))
    """(changes, 4) of the machine's speed: seconds since the measured part began, rising, and the factors from there on
    on the duration of the whole step, of the target's pass and of drafting."""

    @property
    def record(self) -> Records:
        """(1,) `records.TIMES` record."""
        record = np.zeros(1, TIMES)
        for name in TIMES.names or ():
            record[name] = getattr(self, name)
        return record

    @property
    def padding(self) -> IntArray:
        return np.array(self.graph_sizes, np.int64)

    @property
    def largest_graph(self) -> int:
        """As in a `StepView`."""
        return self.graph_sizes[-1] if self.graph_sizes else 0

    def full_graphs(self, requests: int) -> tuple[int, ...]:
        """Those of `graph_lengths` that have a graph for a batch of `requests`."""
        most = self.largest_graph or math.inf
        return tuple(length for length in self.graph_lengths if requests * (length + 1) <= most)


def floor_and_slope(floor: float, token: float, *, combined: str) -> FloatArray:
    """(2, knots) curve of a pass with a memory-bound floor and a compute-bound slope.

    Args:
        floor: seconds to read the weights.
        token: seconds to compute a token.
        combined: "max", as in the roofline model (Williams, Waterman, Patterson, CACM 52(4), 2009), or "plus", where
            the two do not overlap.
    """
    if combined == "plus" or token <= 0.0:
        return np.array([[0.0, 1.0], [floor, floor + token]])
    ridge = max(floor / token, 1e-6)
    return np.array([[0.0, ridge, ridge + 1.0], [floor, floor, floor + token]])


@compiled
def padded(tokens: int, sizes: IntArray) -> int:
    """Tokens of a pass after padding to a CUDA graph's size."""
    for size in sizes:
        if size >= tokens:
            return size
    return tokens


@compiled
def pass_seconds(curve: FloatArray, tokens: int) -> float:
    """Seconds of a target's pass over `tokens` tokens, without reading the KV cache."""
    last = curve.shape[1] - 1
    upper = 1
    while upper < last and curve[0, upper] < tokens:
        upper += 1
    low, high = curve[0, upper - 1], curve[0, upper]
    slope = (curve[1, upper] - curve[1, upper - 1]) / (high - low)
    return curve[1, upper - 1] + slope * (tokens - low)


@compiled
def padded_pass_seconds(times: Record, curve: FloatArray, sizes: IntArray, tokens: int) -> float:
    """The same with CUDA graphs of these sizes."""
    seconds = pass_seconds(curve, padded(tokens, sizes))
    if len(sizes) and tokens > sizes[-1]:
        seconds += times.ungraphed
    return seconds


@compiled
def noise(times: Record, seed: int, step: int, part: int) -> float:
    """Log-normal factor of mean 1 on the time of a part of a step."""
    sigma = times.noise
    if sigma == 0.0:
        return 1.0
    stream = NOISE_STREAM + np.uint64(seed) * np.uint64(2) + np.uint64(part)
    return math.exp(sigma * normal(stream, step) - 0.5 * sigma * sigma)
