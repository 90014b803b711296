"""What a simulated step takes.

    step    = host + target's pass + drafting
    host    = fixed + per request
    target  = curve(tokens, padded to a CUDA graph's size) + per KV token read + per pair of a prompt's attention
              + per token after which the next is chosen
    draft   = start + Σ over passes (fixed + per row + per KV token) + per token that the drafter catches up,
              and once what its first drafting takes more

The curve is piecewise linear: max(floor, tokens · slope), floor + tokens · slope, and measured ones are all of that
kind. Drafting has the form that the planner assumes; the target's pass is free to differ from what the controller's
latency model can express.
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
    """(2, knots) tokens of the target's pass, rising from 0, and its seconds there; past the last the slope goes on."""
    host: float = 0.0
    host_request: float = 0.0
    decision: float = 0.0
    """Each of the controller's decisions."""
    kv_token: float = 0.0
    """Each KV token that the target's pass reads."""
    attention_pair: float = 0.0
    """Each pair of a prompt's token and one that it attends to: the part of a prefill that grows with its square."""
    sampled_token: float = 0.0
    """Each token of the target's pass after which the next one is chosen: those of decoding requests, drafts too."""
    draft_start: float = 0.0
    draft_pass: float = 0.0
    draft_row: float = 0.0
    draft_kv_token: float = 0.0
    catch_up_token: float = 0.0
    """Each token beyond one or two a request that the drafter's first pass computes, prompts included."""
    cold_draft: float = 0.0
    """The drafter's first work, beyond what it takes later."""
    noise: float = 0.0
    """Standard deviation of the logarithm of the target's and the drafter's time; their means stay as they are."""
    graph_sizes: Sequence[int] = field(default=())
    """Tokens to which CUDA graphs pad a pass, rising; a larger pass is not padded."""

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


def floor_and_slope(floor: float, token: float, *, combined: str) -> FloatArray:
    """(2, knots) the curve of a pass with a memory-bound floor and a compute-bound slope.

    Args:
        floor: seconds to read the weights.
        token: seconds to compute a token.
        combined: "max", as in the roofline model (Williams, Waterman, Patterson, CACM 52(4), 2009), or "plus", where
            nothing of one is hidden behind the other.
    """
    if combined == "plus" or token <= 0.0:
        return np.array([[0.0, 1.0], [floor, floor + token]])
    ridge = max(floor / token, 1e-6)
    return np.array([[0.0, ridge, ridge + 1.0], [floor, floor, floor + token]])


@compiled
def padded(tokens: int, sizes: IntArray) -> int:
    """What graph padding makes of a pass's tokens."""
    for size in sizes:
        if size >= tokens:
            return size
    return tokens


@compiled
def pass_seconds(curve: FloatArray, tokens: int) -> float:
    """Seconds of a target's pass over so many tokens, without what it reads of the KV cache."""
    last = curve.shape[1] - 1
    upper = 1
    while upper < last and curve[0, upper] < tokens:
        upper += 1
    low, high = curve[0, upper - 1], curve[0, upper]
    slope = (curve[1, upper] - curve[1, upper - 1]) / (high - low)
    return curve[1, upper - 1] + slope * (tokens - low)


@compiled
def noise(times: Record, seed: int, step: int, part: int) -> float:
    """A factor of mean 1 for a part of a step."""
    sigma = times.noise
    if sigma == 0.0:
        return 1.0
    stream = NOISE_STREAM + np.uint64(seed) * np.uint64(2) + np.uint64(part)
    return math.exp(sigma * normal(stream, step) - 0.5 * sigma * sigma)
