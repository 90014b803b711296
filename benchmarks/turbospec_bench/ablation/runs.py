"""One run of a case: `adaptive` with a mechanism switched off, or a fixed draft length."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from turbospec.controller import GuardConfig
from turbospec.interface import Policy, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.observability.trace import read_trace
from turbospec.policy.config import PolicyConfig
from turbospec.policy.static import StaticPolicy
from turbospec_bench.ablation.cases import AnyCase, Case, RecordedCase
from turbospec_bench.ablation.mechanisms import MECHANISMS, NOTHING
from turbospec_bench.ablation.profiles import profile_of
from turbospec_sim.metrics import judged
from turbospec_sim.replay import Replay
from turbospec_sim.run import engine_state, serve
from turbospec_sim.state import EngineState
from turbospec_sim.workload.offered import offered_requests

FIXED = "fixed-"
"""Beginning of the names of runs with a fixed draft length, which `adaptive` is compared with."""
FIRST_STEPS, SETTLED_STEP = 100, 200
"""A run's first steps, and the step from which it has settled; their tokens/s are figures of their own."""
FULL = "full"
"""The part of a run in which a closed loop is full; all of another run."""
FULL_SHARE = 0.9
"""Share of a closed loop's requests that run in the steps that count for these figures."""
FIGURES = ("output_throughput", "p99_ttft_ms", "mean_draft_length", "duration")
Row = dict[str, Any]
Part = tuple[AnyCase, str, int]
"""The arguments of `run_case`."""


@dataclass
class _Steps:
    """Listener: a digest of all draft lengths, and tokens/s of parts of the run.

    Args:
        moments: simulated seconds at which a phase ends and the next one begins.
        full: least requests of a step that counts for the parts: the end of a closed loop, when few are left, does not.
    """

    moments: tuple[float, ...]
    full: float
    digest: int = 0
    steps: int = 0
    parts: dict[str, list[float]] = field(default_factory=dict)
    """Tokens and seconds."""

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.digest = zlib.crc32(np.ascontiguousarray(plan.draft_lengths, np.int16).tobytes(), self.digest)
        self.steps += 1
        if view.size < self.full:
            return
        tokens, seconds = float(outcome.emitted.sum()), outcome.step_seconds
        self._add(FULL, tokens, seconds)
        if self.steps <= FIRST_STEPS:
            self._add("first", tokens, seconds)
        elif self.steps > SETTLED_STEP:
            self._add("settled", tokens, seconds)
        if self.moments:
            self._add(f"phase-{sum(view.now >= moment for moment in self.moments)}", tokens, seconds)

    def _add(self, part: str, tokens: float, seconds: float) -> None:
        sums = self.parts.setdefault(part, [0.0, 0.0])
        sums[0] += tokens
        sums[1] += seconds


def fixed_lengths(case: AnyCase) -> list[str]:
    """Names of a case's runs with fixed draft lengths; of a recorded run none, because it knows too little of them."""
    if isinstance(case, RecordedCase):
        return []
    return [f"{FIXED}{length}" for length in range(case.scenario.drafter.max_draft + 1)]


def run_cases(parts: Sequence[Part]) -> list[Row]:
    """Several, in a process of its own; it can therefore not be in the module that is run."""
    return [run_case(*part) for part in parts]


def run_case(case: AnyCase, mechanism: str, seed: int) -> Row:
    """Simulate a case.

    Args:
        case: what to simulate.
        mechanism: what is switched off; "nothing"; or one of `fixed_lengths`.
        seed: counts from 0; 0 is the scenario's own.

    Returns:
        A row; a function of the arguments alone.

    Raises:
        UserError: a recorded run cannot be read or replayed.
    """
    row = {"case": case.name, "mechanism": mechanism, "seed": seed}
    return row | (_replayed(case, mechanism) if isinstance(case, RecordedCase) else _simulated(case, mechanism, seed))


def _simulated(case: Case, mechanism: str, seed: int) -> Row:
    scenario, number = case.scenario, case.scenario.seed + seed
    state = engine_state(scenario, offered_requests(scenario.workload, case.rate, number), number)
    moments = tuple(change.at_seconds for change in scenario.latency.speed)
    steps = _Steps(moments, FULL_SHARE * (scenario.workload.concurrency or 0))
    if mechanism.startswith(FIXED):
        figures, trips = _serve(state, StaticPolicy(int(mechanism.removeprefix(FIXED))), steps)
    else:
        with _off(mechanism) as config:
            figures, trips = _serve(state, config.build(_profile(case), 0), steps)
    rates = {part: tokens / seconds if seconds else math.nan for part, (tokens, seconds) in steps.parts.items()}
    closed = scenario.workload.concurrency is not None and scenario.slo is None
    goodput = judged(state, figures, scenario.slo)["token_goodput"]
    return {
        # How long the last requests of a closed loop take is mostly chance.
        "token_goodput": rates.get(FULL, goodput) if closed else goodput,
        **{name: figures[name] for name in FIGURES},
        "parts": rates,
        "decisions": steps.digest,
        "guard_trips": trips,
    }


def _replayed(case: RecordedCase, mechanism: str) -> Row:
    with _off(mechanism) as config:
        pessimistic, _ = _replay(case.path).rows("adaptive", config)
    figures = {name: pessimistic[name] for name in FIGURES}
    return {
        "token_goodput": pessimistic["output_throughput"],
        **figures,
        "parts": {},
        "decisions": zlib.crc32(repr(pessimistic).encode()),
        "guard_trips": pessimistic["guard_trips"],
    }


@lru_cache(maxsize=4)
def _replay(path: Path) -> Replay:
    return Replay(list(read_trace(path)))


def _off(mechanism: str) -> AbstractContextManager[PolicyConfig]:
    return (NOTHING if mechanism == NOTHING.name else MECHANISMS[mechanism]).off()


def _serve(state: EngineState, policy: Policy, steps: _Steps) -> tuple[dict[str, Any], int]:
    return serve(state, policy, GuardConfig(), [steps])


def _profile(case: Case) -> Profile | None:
    return case.scenario.latency.profile() if case.profile is None else _synthetic_profile(case)


@lru_cache(maxsize=8)
def _synthetic_profile(case: Case) -> Profile | None:
    assert case.profile is not None
    return profile_of(case.scenario, case.profile)
