from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.turbospec_bench.ablation.showcases import case, showcases
from tests.turbospec_sim.scenarios import scenario
from turbospec.policy import find_policy, read_policy
from turbospec.policy.adaptive.policy import AdaptivePolicy
from turbospec_bench.ablation.cases import Case
from turbospec_bench.ablation.mechanisms import MECHANISMS, NOTHING
from turbospec_bench.ablation.runs import Row, run_case
from turbospec_sim.run import Run, simulate

CASES = {each.name: each for each in showcases()}
CONSTANTS = AdaptivePolicy.constants
PLAIN = read_policy(find_policy("adaptive"))


@cache
def whole(name: str) -> Row:
    return run_case(CASES[name], NOTHING.name, 0)


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_a_mechanism_that_is_switched_off_is_missed_somewhere(mechanism: str) -> None:
    differs = (run_case(each, mechanism, 0)["decisions"] != whole(name)["decisions"] for name, each in CASES.items())
    assert any(differs)


def test_nothing_switched_off_is_the_plain_policy() -> None:
    for made in (scenario(), scenario(server__emit="before_draft", latency__noise=0.1)):
        each: Case = case("s", made)
        for seed in range(2):
            row = run_case(each, NOTHING.name, seed)
            plain = simulate(Run("s", made, "adaptive", 20.0, seed))
            for figure in ("token_goodput", "output_throughput", "p99_ttft_ms", "mean_draft_length", "duration"):
                assert row[figure] == plain[figure]


def test_afterwards_everything_is_as_before() -> None:
    before = whole("few")
    for mechanism in MECHANISMS.values():
        with mechanism.off() as config:
            changed = (AdaptivePolicy.constants, config.model_dump())
        assert changed != (CONSTANTS, PLAIN.model_dump())
        assert AdaptivePolicy.constants == CONSTANTS
    assert run_case(CASES["few"], NOTHING.name, 0) == before


def test_settings_are_switched_off_as_constants_are() -> None:
    with MECHANISMS["first-token-price"].off() as config:
        assert config.model_dump() == PLAIN.model_dump() | {"first_token_weight": 0.0}
        assert AdaptivePolicy.constants == CONSTANTS
    with MECHANISMS["drift"].off() as config:
        assert config.model_dump() == PLAIN.model_dump()
        assert AdaptivePolicy.constants == CONSTANTS._replace(drift=0.0)


def test_a_row_is_a_function_of_its_arguments() -> None:
    for mechanism in (NOTHING.name, "experiments", "fixed-2"):
        rows = [run_case(CASES["few, wrong profile"], mechanism, 1) for _ in range(2)]
        assert repr(rows[0]) == repr(rows[1])
    assert run_case(CASES["few"], "fixed-2", 0)["decisions"] != run_case(CASES["few"], "fixed-3", 0)["decisions"]


def test_phases_of_a_changing_machine_have_figures_of_their_own() -> None:
    parts = whole("quicker")["parts"]
    assert parts["phase-1"] > 2.0 * parts["phase-0"]
    assert np.isfinite([parts["first"], parts["settled"]]).all()
