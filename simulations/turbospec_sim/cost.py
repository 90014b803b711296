"""What a sweep or a search costs: estimated before it begins, so that the absurd is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from turbospec.errors import UserError
from turbospec_sim.fixed_plans import fixed_plans
from turbospec_sim.run import BEST_STATIC
from turbospec_sim.scenario import Scenario
from turbospec_sim.workload.config import RequestClass
from turbospec_sim.workload.offered import offered_requests

STEP_SECONDS = 2e-4
"""Of simulating a step, with the controller's decision; between 0.03 and 1 ms on machines and policies tried."""
RUN_SECONDS = 5e-3
"""Of a run without steps."""
WORTH_SAYING = 60.0
"""Seconds of work from which its cost is said beforehand."""
MOST_HOURS = 100
"""Longer work is refused. It can be done in parts: `--resume` adds to a results file."""
MOST_RUNS = 10**6

UNITS = (("year", 365 * 86400), ("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


@dataclass(frozen=True, slots=True)
class Cost:
    """Runs, their requests, and the seconds that they take one after the other, roughly."""

    runs: int
    requests: int
    seconds: float

    def times(self, factor: float) -> Cost:
        """The cost of so many times the same."""
        return Cost(math.ceil(self.runs * factor), math.ceil(self.requests * factor), self.seconds * factor)

    def plus(self, other: Cost) -> Cost:
        """The cost of both."""
        return Cost(self.runs + other.runs, self.requests + other.requests, self.seconds + other.seconds)

    def check_runs(self, jobs: int) -> None:
        """Refuse an absurd number of runs, before they are listed.

        Raises:
            UserError: there are more than `MOST_RUNS`.
        """
        if self.runs > MOST_RUNS:
            self._refuse(jobs)

    def check(self, jobs: int) -> None:
        """Refuse an absurd cost, of the runs that are not finished.

        Raises:
            UserError: it is absurd.
        """
        self.check_runs(jobs)
        if self.seconds / jobs > MOST_HOURS * 3600:
            self._refuse(jobs)

    def _refuse(self, jobs: int) -> NoReturn:
        raise UserError(
            f"{self._words(jobs)}; the limit is {MOST_HOURS} hours and {MOST_RUNS:,} runs: "
            "use fewer seeds, rates, policies, trials or requests"
        )

    def said(self, jobs: int) -> str | None:
        """The cost in words; None where it is not worth saying."""
        return self._words(jobs) if self.seconds / jobs >= WORTH_SAYING else None

    def _words(self, jobs: int) -> str:
        return f"{self.runs:,} runs of {self.requests:,} requests in all: roughly {_in_words(self.seconds / jobs)}"


def sweep_cost(
    scenarios: Sequence[tuple[str, Scenario]], policies: Sequence[str], rates: Sequence[float], seeds: int
) -> Cost:
    """Cost of all combinations, with one policy each where `policies` is empty; see `sweep.Sweep`.

    Raises:
        UserError: a trace cannot be read.
    """
    runs, requests, seconds = 0, 0, 0.0
    for _, scenario in scenarios:
        number = sum(_tried(policy, scenario) for policy in policies or (scenario.policy,)) * seeds
        for rate in scenario.rates_of_runs(rates):
            one = run_cost(scenario, rate)
            runs, requests, seconds = runs + number, requests + number * one.requests, seconds + number * one.seconds
    return Cost(runs, requests, seconds)


def run_cost(scenario: Scenario, rate: float | None) -> Cost:
    """Cost of one run, at a rate where the workload has one.

    The batch is estimated by Little's law from the rate and the time of a step, which gives the number of steps.

    Raises:
        UserError: a trace cannot be read.
    """
    workload, server = scenario.workload, scenario.server
    if workload.requests is None or any(kind.prompt_tokens is None for kind in workload.classes):
        offered = offered_requests(workload, rate, 0)
        requests, span = len(offered), float(offered["sent"].max())
        prompt, output = float(offered["prompt_tokens"].mean()), float(offered["output_tokens"].mean())
        rate = requests / span if span > 0.0 else math.inf
    else:
        requests = workload.requests + workload.warmup_requests
        shares = sum(kind.share for kind in workload.classes)
        prompt = sum(kind.share * kind.prompt_tokens.mean_tokens for kind in workload.classes if kind.prompt_tokens)
        output = sum(kind.share * _mean_output(kind) for kind in workload.classes)
        prompt, output = prompt / shares, output / shares
    if workload.concurrency is not None:
        batch = float(workload.concurrency)
    else:
        times = scenario.latency.step_times()
        batch = (math.inf if rate is None else rate) * output * (float(times.curve[1, 0]) + times.host)
    batch = min(max(batch, 1.0), server.max_num_seqs, requests)
    steps = requests * (output / batch + prompt / server.max_num_batched_tokens)
    return Cost(1, requests, RUN_SECONDS + STEP_SECONDS * steps)


def _tried(policy: str, scenario: Scenario) -> int:
    """Runs of a policy under one load with one seed."""
    return len(fixed_plans(scenario)) if policy == BEST_STATIC else 1


def _mean_output(kind: RequestClass) -> float:
    """Mean tokens of a class's outputs; where they are cut at `max_tokens`, at most that."""
    assert kind.output_tokens is not None
    return min(kind.output_tokens.mean_tokens, kind.max_tokens or math.inf)


def _in_words(seconds: float) -> str:
    """Such as `3 hours`."""
    if not math.isfinite(seconds):
        return "forever"
    for unit, size in UNITS:
        number = round(seconds / size)
        if number >= 2 or unit == "second":
            return f"{number:,} {unit}{'s' * (number != 1)}"
    raise AssertionError
