"""How much longer than usual a part of a step takes: noise, cold first steps, stalls, a machine that changes its speed.

Each is a factor on the time of a part. A factor does not depend on the policy, except through the time of the step and
the number of the steps before it.
"""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.randomness import uniform
from turbospec_sim.records import Records
from turbospec_sim.step_time import noise

TARGET_PART, DRAFTER_PART, HOST_PART = 0, 1, 2
"""Parts of a step. The first two have a noise of their own."""
AT, STEP_FACTOR, TARGET_FACTOR, DRAFTER_FACTOR = 0, 1, 2, 3
"""Columns of `StepTimes.changes`."""
STALL_STREAM = np.uint64(0x57A11)


@compiled
def begin_step(engine: Records) -> None:
    """Draw whether a stall begins with this step, and how many steps it lasts: geometric, at least 1."""
    state = engine[0]
    times = state.times
    if times.stall_probability <= 0.0 or state.step < state.stalled_until:
        return
    stream = STALL_STREAM + np.uint64(state.seed)
    if uniform(stream, 2 * state.step) >= times.stall_probability:
        return
    steps = 1
    if times.stall_steps > 1.0:
        steps += int(math.log(1.0 - uniform(stream, 2 * state.step + 1)) / math.log(1.0 - 1.0 / times.stall_steps))
    state.stalled_until = state.step + steps


@compiled
def pace(arrays: EngineArrays, part: int, now: float) -> float:
    """Factor on the time of a part of the present step; `now` is when it begins."""
    state = arrays.engine[0]
    times = state.times
    factor = 1.0
    if part != HOST_PART:
        factor = noise(times, state.seed, state.step, part)
    if part == TARGET_PART:
        factor *= _cold(times.cold_target_factor, times.cold_target_steps, state.step)
    elif part == DRAFTER_PART:
        factor *= _cold(times.cold_drafter_factor, times.cold_drafter_steps, state.draft_steps)
    if state.step < state.stalled_until:
        factor *= times.stall_factor
    if len(arrays.changes) and state.sent > state.first_measured:
        factor *= _speed(arrays.changes, now - state.origin, part)
    return factor


@compiled
def _cold(factor: float, steps: float, before: int) -> float:
    """Factor of a cold part that has run in `before` steps; it decays exponentially from `factor` to 1."""
    if factor <= 1.0:
        return 1.0
    return 1.0 + (factor - 1.0) * math.exp(-before / steps)


@compiled
def _speed(changes: FloatArray, elapsed: float, part: int) -> float:
    """Factor of the last change until `elapsed` seconds of the measured part; 1 before the first."""
    last = -1
    while last + 1 < len(changes) and changes[last + 1, AT] <= elapsed:
        last += 1
    if last < 0:
        return 1.0
    factor = changes[last, STEP_FACTOR]
    if part == TARGET_PART:
        factor *= changes[last, TARGET_FACTOR]
    elif part == DRAFTER_PART:
        factor *= changes[last, DRAFTER_FACTOR]
    return factor
