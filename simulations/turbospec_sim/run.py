"""One run: a scenario under a policy at a rate with a seed, and its row of figures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospec.controller import MAX_DECISION_SECONDS, Controller, GuardConfig, StepListener
from turbospec.errors import UserError
from turbospec.files.results_file import ALL_AT_ONCE
from turbospec.interface import Policy
from turbospec.policy import PolicyConfig, find_policy, read_policy
from turbospec.policy.adaptive_verification import VllmAdaptiveVerificationConfig
from turbospec.policy.registered import build_policy
from turbospec_sim import fixed_plans
from turbospec_sim.acceptance import acceptance_tables
from turbospec_sim.engine import SimulatedEngine
from turbospec_sim.fixed_plans import FixedPlans
from turbospec_sim.metrics import judged, summarise
from turbospec_sim.oracle import OraclePolicy
from turbospec_sim.records import Records
from turbospec_sim.scenario import Scenario
from turbospec_sim.startup_profile import startup_profile
from turbospec_sim.state import EngineState
from turbospec_sim.timeline import timeline
from turbospec_sim.workload.offered import offered_requests

ORACLE = "oracle"
"""The policy that plans with the true acceptance and the true costs."""
BEST_STATIC = "best_static"
"""The fixed plans with the highest token goodput, chosen in hindsight from one run of each; see `fixed_plans`."""


FIELDS = (
    "scenario", "policy", "request_rate", "concurrency", "seed", "emit",
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "output_throughput", "total_token_throughput", "max_concurrent_requests",
    *(f"{statistic}_{name}_ms" for name in ("ttft", "tpot", "e2el", "itl")
      for statistic in ("mean", "median", "std", "p50", "p95", "p99")),
    "engine_steps", "preemptions", "mean_accepted_length", "mean_draft_length", "acceptance_rate",
    "draft_time_share", "verify_time_share", "host_time_share", "prefill_time_share",
    "slo_met", "request_goodput", "token_goodput", "refused", *fixed_plans.FIELDS, "guard_trips", "timeline",
    "wall_seconds",
)  # fmt: skip
"""Fields of a run's row, in their order."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one simulation runs."""

    name: str
    """The scenario's name."""
    scenario: Scenario
    policy: str
    """Name or file of a policy; `oracle`; or `best_static`, with `fixed`."""
    rate: float | None
    """Requests/s; None where the workload has no rate."""
    seed: int
    fixed: FixedPlans | None = None
    settings: PolicyConfig | None = None
    """Settings in place of those of the policy's file."""


def simulate(run: Run, *, listeners: Sequence[StepListener] = ()) -> dict[str, Any]:
    """Simulate a run.

    Args:
        run: what to simulate.
        listeners: are called with every step, as with any engine; a decision trace is one.

    Returns:
        A row of results. All but `wall_seconds` is a function of `run` alone.

    Raises:
        UserError: the policy, or a file that the scenario names, cannot be read; or no request fits the KV cache.
    """
    began = time.perf_counter()
    scenario = run.scenario
    offered = offered_requests(scenario.workload, run.rate, run.seed)
    refused, all_are = too_large(scenario, offered)
    if all_are:
        raise UserError(f"scenario `{run.name}`: no request can be served: {refused}")
    state = engine_state(scenario, offered, run.seed)
    figures, guard_trips = serve(state, *_policy(run, state), listeners)
    return {
        "scenario": run.name,
        "policy": run.policy,
        "request_rate": _shown_rate(run, state),
        "concurrency": scenario.workload.concurrency,
        "seed": run.seed,
        "emit": scenario.server.emit,
        **figures,
        **judged(state, figures, scenario.slo),
        "refused": refused,
        **fixed_plans.chosen(run.fixed),
        "guard_trips": guard_trips,
        "timeline": timeline(state.engine, state.totals),
        "wall_seconds": time.perf_counter() - began,
    }


def engine_state(scenario: Scenario, offered: Records, seed: int) -> EngineState:
    """A scenario's engine before the first arrival.

    Args:
        scenario: of the run.
        offered: its requests, warm-up first.
        seed: of the run.
    """
    return EngineState(
        engine=scenario.engine(seed),
        offered=offered,
        acceptance=acceptance_tables(scenario.workload.classes),
        times=scenario.latency.step_times(),
        concurrency=scenario.workload.concurrency,
        confidence_correlation=scenario.drafter.confidence_correlation,
        calls_gate=scenario.drafter.calls_gate,
        appends_lookup=scenario.drafter.appends_lookup,
    )


def serve(
    state: EngineState, policy: Policy, guard: GuardConfig, listeners: Sequence[StepListener] = ()
) -> tuple[dict[str, Any], int]:
    """Serve all requests of a state.

    Returns:
        The figures of `metrics.summarise`, and the number of fallbacks by the guard.
    """
    # Decision time is not part of simulated time, and a result must not depend on the speed of this machine.
    guard = guard.model_copy(update={"max_decision_seconds": MAX_DECISION_SECONDS})
    controller = Controller(policy, guard=guard, listeners=listeners)
    engine = SimulatedEngine(state, controller)
    engine.run()
    return summarise(state, max(engine.now - engine.measured_from, 1e-9)), controller.stats.guard_trips


def too_large(scenario: Scenario, offered: Records) -> tuple[str | None, bool]:
    """In words, why the server refuses measured requests, whose tokens exceed its KV cache; None where it does not.

    Returns:
        The words, and whether it refuses all measured requests.
    """
    measured = offered[scenario.workload.warmup_requests :]
    limits = np.array([kind.max_tokens or 0 for kind in scenario.workload.classes], np.int64)[measured["class_id"]]
    needed = measured["prompt_tokens"] + np.where(limits > 0, limits, measured["output_tokens"])
    server = scenario.server
    room = server.kv_cache_tokens // server.block_size * server.block_size
    refused = needed > room
    if not refused.any():
        return None, False
    largest = int(needed.argmax())
    name = scenario.workload.classes[int(measured["class_id"][largest])].name
    words = (
        f"{refused.sum():,} of {len(measured):,} requests do not fit the KV cache of {room:,} tokens "
        f"(server.kv_cache_tokens); the largest, of class `{name}`, needs {needed[largest]:,} for prompt and output"
    )
    return words, bool(refused.all())


def check_policy(name: str) -> None:
    """Raises:
    UserError: there is no such policy, or its file is wrong.
    """
    if name not in (ORACLE, BEST_STATIC):
        read_policy(find_policy(name))


def _policy(run: Run, state: EngineState) -> tuple[Policy, GuardConfig]:
    if run.fixed is not None:
        return run.fixed, GuardConfig()
    if run.policy == ORACLE:
        return OraclePolicy(state), GuardConfig()
    config = run.settings or read_policy(find_policy(run.policy))
    profile = run.scenario.latency.profile()
    if profile is None and isinstance(config, VllmAdaptiveVerificationConfig):
        profile = startup_profile(state, config.profile_context_tokens, run.seed)
    return build_policy(config, profile, run.seed), config.guard


def _shown_rate(run: Run, state: EngineState) -> float | str:
    """The rate as `vllm bench serve` reports it; for a trace, its mean."""
    if run.rate is not None:
        return run.rate
    if run.scenario.workload.concurrency is not None:
        return ALL_AT_ONCE
    span = float(state.offered["sent"].max())
    return len(state.offered) / span if span > 0.0 else ALL_AT_ONCE
