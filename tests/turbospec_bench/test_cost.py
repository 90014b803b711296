from __future__ import annotations

from pathlib import Path

import pytest

from turbospec import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.cost import Cost
from turbospec_bench.matrix import runs_of
from turbospec_bench.results import RATIOS, Results
from turbospec_bench.texts import Shape
from turbospec_bench.variant import Variant

VARIANTS = (Variant("off"), Variant("adaptive"))
FOUR, SLOW = Configuration("code", "good", 4), Configuration("code", "good", request_rate=0.5)


def cost(*configurations: Configuration, rounds: int = 3, resumed: Results | None = None) -> Cost:
    plan = [(configuration, VARIANTS) for configuration in configurations]
    return Cost.of(plan, rounds, resumed, runs_of, lambda _: Shape(10, 8))


def test_runs_and_requests_are_counted_and_arrivals_take_their_time() -> None:
    assert cost(FOUR) == Cost(1, 8, 80, 0.0)
    assert cost(FOUR, SLOW) == Cost(2, 16, 160, 8 * 10 / 0.5)
    assert cost(FOUR, SLOW).line() == "2 configurations, 16 runs, 160 requests, at least 3 min"


def test_of_a_run_that_is_resumed_the_rest_is_counted_as_long_as_what_is_finished() -> None:
    resumed = Results(Path(), {})
    run = Run(dict.fromkeys(RATIOS, 1.0) | {"duration": 60.0}, {})
    resumed.put(FOUR, VARIANTS, [[run, run]] * 2)
    assert cost(FOUR, resumed=resumed) == Cost(1, 4, 40, 240.0)
    assert cost(FOUR, rounds=2, resumed=resumed) == Cost(0, 0, 0, 0.0)


def test_weeks_are_refused_with_the_estimate() -> None:
    cost(FOUR, SLOW).check()
    for absurd in (cost(FOUR, rounds=10**6), cost(Configuration("code", "good", request_rate=1e-5))):
        with pytest.raises(UserError, match=r"this benchmark has 1 configuration, \d+ runs, .*; lower --rounds"):
            absurd.check()
