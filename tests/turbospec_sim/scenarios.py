"""Small scenarios for tests, and engines whose arrays can be looked into."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np

from turbospec.controller import Controller, GuardConfig
from turbospec.interface import Policy, Source, StepOutcome, StepPlan, StepView
from turbospec_sim.engine import SimulatedEngine
from turbospec_sim.run import engine_state
from turbospec_sim.scenario import Scenario
from turbospec_sim.state import EngineState
from turbospec_sim.workload.offered import offered_requests

BASE: dict[str, Any] = {
    "version": 1,
    "policy": "static-3",
    "rates": [20.0],
    "server": {"kv_cache_tokens": 100_000, "max_num_seqs": 16, "max_num_batched_tokens": 512},
    "drafter": {"max_draft": 5},
    "latency": {
        "source": "coefficients",
        "verify_floor_seconds": 0.02,
        "verify_token_seconds": 1e-4,
        "verify_combined": "plus",
        "host_seconds": 1e-3,
        "draft_start_seconds": 5e-4,
        "draft_pass_seconds": 2e-3,
        "draft_row_seconds": 1e-5,
        "catch_up_token_seconds": 1e-6,
    },
    "workload": {
        "requests": 60,
        "arrivals": {"process": "poisson"},
        "classes": [
            {
                "name": "chat",
                "prompt_tokens": {"distribution": "uniform", "low": 20, "high": 300},
                "output_tokens": {"distribution": "uniform", "low": 1, "high": 60},
                "acceptance": {"process": "iid", "rate": 0.7},
            }
        ],
    },
}


def document(**changes: Any) -> dict[str, Any]:
    """A scenario's document; `server__max_num_seqs=4` changes one field, `chat__…` one of its class."""
    made = copy.deepcopy(BASE)
    for name, value in changes.items():
        node = made
        *parents, last = name.split("__")
        for parent in parents:
            node = made["workload"]["classes"][0] if parent == "chat" else node[parent]
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return made


def scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate_json(json.dumps(document(**changes)), strict=True)


def closed(concurrency: int, **changes: Any) -> Scenario:
    return scenario(workload__arrivals={"process": "closed", "concurrency": concurrency}, rates=None, **changes)


def state_of(made: Scenario, seed: int = 0) -> EngineState:
    return engine_state(made, offered_requests(made.workload, made.rates[0] if made.rates else None, seed), seed)


def serve(state: EngineState, policy: Policy, *listeners: Any) -> SimulatedEngine:
    """Serve a state's requests to the end."""
    controller = Controller(policy, guard=GuardConfig(max_decision_seconds=3600.0), listeners=listeners)
    engine = SimulatedEngine(state, controller)
    engine.run()
    assert controller.stats.guard_trips == 0
    assert controller.listeners == list(listeners)  # one that raises is dropped
    return engine


class RandomPolicy:
    """Any draft lengths within the limits, of any source."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def plan(self, view: StepView) -> StepPlan:
        if view.lookup is None:
            return StepPlan(self._rng.integers(0, view.draft_limits + 1))
        sources = self._rng.integers(0, 2, view.size)
        limits = np.where(sources == Source.LOOKUP, view.lookup.lengths, view.draft_limits)
        return StepPlan(self._rng.integers(0, limits + 1), sources=sources)

    def observe(self, outcome: StepOutcome) -> None:
        pass


class LookupPolicy:
    """Drafts up to `length` tokens from the look-up where it finds some, else `otherwise` tokens from the drafter."""

    def __init__(self, length: int, otherwise: int = 0) -> None:
        self.length, self.otherwise = length, otherwise

    def plan(self, view: StepView) -> StepPlan:
        assert view.lookup is not None
        found = np.minimum(view.lookup.lengths, self.length)
        sources = np.where(found > 0, Source.LOOKUP.value, Source.DRAFTER.value)
        return StepPlan(np.where(found > 0, found, np.minimum(self.otherwise, view.draft_limits)), sources=sources)

    def observe(self, outcome: StepOutcome) -> None:
        pass


class Pause:
    """Drafts 3 tokens for every request that may draft, but none from step `begin` to step `end`."""

    def __init__(self, begin: int = 0, end: int = 10**9) -> None:
        self.begin, self.end = begin, end

    def plan(self, view: StepView) -> StepPlan:
        length = 0 if self.begin <= view.step < self.end else 3
        return StepPlan(np.minimum(view.draft_limits, length))

    def observe(self, outcome: StepOutcome) -> None:
        pass


class Steps:
    """Keeps every step."""

    def __init__(self) -> None:
        self.seen: list[tuple[StepView, StepPlan, StepOutcome]] = []

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.seen.append((view, plan, outcome))

    def acceptances(self) -> dict[tuple[int, int], bool]:
        """Whether the draft of an output position of a request was accepted, where one was judged."""
        judged: dict[tuple[int, int], bool] = {}
        for view, _, outcome in self.seen:
            for row, request in enumerate(view.request_ids.tolist()):
                position, accepted = int(view.emitted_tokens[row]), int(outcome.accepted[row])
                judged |= {(request, position + j): True for j in range(accepted)}
                if accepted < outcome.drafted[row] and not outcome.truncated[row]:
                    judged[request, position + accepted] = False
        return judged
