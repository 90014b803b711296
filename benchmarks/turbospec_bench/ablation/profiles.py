"""Profiles of simulated engines, and profiles with a part that is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from turbospec.controller import GuardConfig
from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import LatencySample, Profile
from turbospec_bench.ablation.cases import ProfileKind
from turbospec_sim.acceptance import acceptance_tables
from turbospec_sim.run import serve
from turbospec_sim.scenario import Scenario
from turbospec_sim.state import EngineState
from turbospec_sim.workload.arrivals import ClosedLoop
from turbospec_sim.workload.offered import offered_requests

LENGTHS = (0, 1, 3, 5)
"""Draft lengths of the profiled steps, in turn."""
SAMPLES = 60
"""Steps of each batch size."""
SEED = 2**31
"""Of the profiled requests, which no run has."""
FACTORS = {
    "draft-halved": (0.5, 1.0),
    "draft-doubled": (2.0, 1.0),
    "verify-halved": (1.0, 0.5),
    "verify-doubled": (1.0, 2.0),
}
"""On the seconds of drafting and of the target's pass."""


class _InTurn:
    """Drafts each of `LENGTHS` in turn, and keeps the outcomes."""

    def __init__(self) -> None:
        self.samples: list[LatencySample] = []
        self._steps = 0

    def plan(self, view: StepView) -> StepPlan:
        self._steps += 1
        return StepPlan(np.minimum(view.draft_limits, LENGTHS[self._steps % len(LENGTHS)]))

    def observe(self, outcome: StepOutcome) -> None:
        self.samples.append(LatencySample.from_outcome(outcome))


def profile_of(scenario: Scenario, kind: ProfileKind) -> Profile | None:
    """A profile of a closed loop's engine at batch sizes up to its own; None for no profile."""
    if kind == "none":
        return None
    samples: list[LatencySample] = []
    size = scenario.workload.concurrency or 1
    while size >= 1:
        samples += _measured(scenario, size)
        size //= 4
    draft, verify = FACTORS.get(kind, (1.0, 1.0))
    return Profile([_scaled(sample, draft, verify) for sample in samples])


def _measured(scenario: Scenario, concurrency: int) -> list[LatencySample]:
    arrivals = ClosedLoop(process="closed", concurrency=concurrency)
    workload = scenario.workload.model_copy(
        update={"arrivals": arrivals, "requests": concurrency, "warmup_requests": 0}
    )
    state = EngineState(
        engine=scenario.engine(0),
        offered=offered_requests(workload, None, SEED),
        acceptance=acceptance_tables(workload.classes),
        times=scenario.latency.step_times(),
        concurrency=concurrency,
    )
    policy = _InTurn()
    serve(state, policy, GuardConfig())
    chosen = np.linspace(0, len(policy.samples) - 1, SAMPLES)
    return [policy.samples[math.floor(place)] for place in chosen]


def _scaled(sample: LatencySample, draft: float, verify: float) -> LatencySample:
    drafting, verifying = sample.draft_seconds * draft, sample.verify_seconds * verify
    whole = sample.step_seconds + drafting - sample.draft_seconds + verifying - sample.verify_seconds
    return replace(sample, draft_seconds=drafting, verify_seconds=verifying, step_seconds=whole)
