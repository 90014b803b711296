from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec_sim.scenarios import closed, scenario
from turbospec import UserError
from turbospec_sim.cost import Cost, run_cost, sweep_cost
from turbospec_sim.run import Run, simulate
from turbospec_sim.sweep import Sweep


def test_a_sweeps_cost_counts_its_runs_and_requests() -> None:
    scenarios = [("a", scenario(rates=[1.0, 2.0])), ("b", closed(2))]
    cost = sweep_cost(scenarios, ("off", "best_static"), (), 5)
    assert cost.runs == len(Sweep(scenarios, ("off", "best_static"), (), 5).runs())
    assert cost.requests == 60 * cost.runs
    twenty_digits = sweep_cost(scenarios, (), (), 10**20)
    assert twenty_digits.runs == 3 * 10**20


@pytest.mark.parametrize("made", [scenario(), scenario(rates=[1e3]), scenario(rates=[0.01]), closed(1), closed(16)])
def test_steps_are_estimated_to_within_a_factor(made: Any) -> None:
    rate = made.rates[0] if made.rates else None
    steps = simulate(Run("a", made, "off", rate, 0))["engine_steps"]
    estimate = (run_cost(made, rate).seconds - run_cost(scenario(workload__requests=1), 1.0).seconds) / 2e-4
    assert steps / 4 < estimate < steps * 4


def test_outputs_that_are_cut_cost_fewer_steps() -> None:
    assert run_cost(closed(4, chat__max_tokens=5), None).seconds < run_cost(closed(4), None).seconds / 2


def test_a_traces_cost_is_that_of_its_requests(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    lines = [{"arrival_time": place, "prompt_tokens": 10, "output_tokens": 100} for place in range(30)]
    file.write_text("\n".join(map(json.dumps, lines)))
    made = scenario(
        rates=None, workload__requests=None, workload__arrivals={"process": "trace", "file": str(file)},
        chat__prompt_tokens=None, chat__output_tokens=None,
    )  # fmt: skip
    cost = run_cost(made, None)
    assert cost.requests == 30
    assert cost.seconds > run_cost(scenario(workload__requests=1), 1.0).seconds


def test_little_work_is_not_worth_a_line_and_the_absurd_is_refused() -> None:
    assert Cost(10, 1000, 30.0).said(1) is None
    assert Cost(10, 10_000, 7200.0).said(1) == "10 runs of 10,000 requests in all: roughly 2 hours"
    assert Cost(10, 10_000, 7200.0).said(4) == "10 runs of 10,000 requests in all: roughly 30 minutes"
    assert Cost(10, 10_000, 7200.0).said(1000) is None
    for absurd in (Cost(10, 10**9, 1e10), Cost(10**7, 10**7, 10.0), Cost(1, 1, math.inf)):
        with pytest.raises(UserError, match="use fewer seeds"):
            absurd.check(2)


def test_costs_add_up_and_have_multiples() -> None:
    assert Cost(1, 10, 2.0).times(2.5).plus(Cost(1, 1, 1.0)) == Cost(4, 26, 6.0)
