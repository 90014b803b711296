"""Traces for tests, written by the simulator."""

from __future__ import annotations

from pathlib import Path

from tests.turbospec_sim.scenarios import serve, state_of
from turbospec.observability.trace import DecisionTrace, TraceStep, read_trace
from turbospec.policy import load_policy
from turbospec_sim.scenario import Scenario


def written(path: Path, made: Scenario, policy: str) -> list[TraceStep]:
    """The steps of a scenario under a policy, from the trace that it wrote."""
    with DecisionTrace(path) as trace:
        serve(state_of(made), load_policy(policy), trace)
    return list(read_trace(path))
