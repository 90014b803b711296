from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import closed, scenario, serve, state_of
from turbospec import UserError
from turbospec.policy.static import StaticPolicy
from turbospec_sim.calibration import Calibration, Case, Coefficient, calibrate, identified, residual_weights
from turbospec_sim.measurements import Measurement
from turbospec_sim.run import Run, simulate
from turbospec_sim.scenario import Scenario
from turbospec_sim.scenario_edit import with_values
from turbospec_sim.scenario_fields import number, upper_limit, with_numbers

FLOOR, PASS, HOST = "latency.verify_floor_seconds", "latency.draft_pass_seconds", "latency.host_seconds"
RATE = "workload.classes.0.acceptance.rate"


def measured(truth: Scenario, policy: str, *figures: str) -> Case:
    """What another seed of a server shows."""
    row = simulate(Run("s", truth, policy, None, 17))
    return Case("s", Measurement("run", None, policy, {name: row[name] for name in figures}))


def fitted(fields: list[str], *policies: str) -> Calibration:
    """A fit of fields to a server with a floor of 40 ms, passes of 3 ms and acceptance of 0.5."""
    start = closed(4, workload__requests=40, latency__host_seconds=0.02)
    truth = with_numbers(start, {FLOOR: 0.04, PASS: 0.003, RATE: 0.5})
    cases = [measured(truth, policy, "mean_tpot_ms", "mean_ttft_ms", "output_throughput") for policy in policies]
    return calibrate({"s": start}, cases, [Coefficient.of(name, [name], {"s": start}) for name in fields], seeds=2)


def test_known_coefficients_are_found_within_their_intervals() -> None:
    found = fitted([FLOOR, PASS, RATE], "off", "static-1", "static-5")
    for place, truth in enumerate((0.04, 0.003, 0.5)):
        value = found.coefficients[place].value(float(found.changes[place]))
        low, high = found.interval(place)
        assert value == pytest.approx(truth, rel=0.25)
        assert low < truth < high
    assert found.unidentified == []
    assert found.freedom == 9 - 3
    assert number(found.scenarios["s"], FLOOR) == pytest.approx(0.04, rel=0.05)
    assert np.abs(found.log_ratios.mean(axis=0)).max() < 0.1


def test_few_figures_and_few_seeds_make_wide_intervals() -> None:
    one = Coefficient("a", (FLOOR,), ("s",), 1.0)
    found = Calibration([one], {}, np.zeros(1), np.array([0.1]), [], [], np.zeros((2, 3)), freedom=2)
    assert found.interval(0)[1] == pytest.approx(np.exp(0.1 * 4.303), rel=1e-3)  # Student's t
    ratios = np.array([[-0.3, 0.0], [0.3, 0.0]])
    assert 1.0 / residual_weights(ratios) == pytest.approx([np.hypot(0.3 * 2**0.5 * 1.5**0.5, 0.05), 0.05])


def test_what_the_data_do_not_tell_is_named() -> None:
    found = fitted([FLOOR, HOST, PASS], "off")
    assert (PASS,) in found.unidentified  # nothing is drafted
    assert any(set(names) == {FLOOR, HOST} for names in found.unidentified)  # only their sum is seen


def test_directions_without_information_are_told_from_those_with() -> None:
    names = ["a", "b", "c"]
    errors, unknown = identified(np.array([[10.0, 0.0, 0.0], [0.0, 20.0, 0.0], [0.0, 0.0, 0.0]]), 1.0, names)
    assert errors[:2] == pytest.approx([0.1, 0.05])
    assert errors[2] > 1e3
    assert unknown == [("c",)]
    _, unknown = identified(np.array([[10.0, 10.0, 0.0], [0.0, 0.0, 10.0]]), 4.0, names)
    assert [set(one) for one in unknown] == [{"a", "b"}]


def test_a_coefficient_keeps_within_its_fields_limits() -> None:
    made = scenario()
    limited, free = (Coefficient.of(name, [name], {"s": made}) for name in (RATE, HOST))
    assert upper_limit(made, RATE) == 1.0
    assert limited.value(0.0) == pytest.approx(0.7)
    assert 0.999 < limited.value(50.0) <= 1.0
    assert free.value(1.0) == pytest.approx(1e-3 * np.e)


def test_what_a_source_derives_is_where_a_fit_begins() -> None:
    latency = {"source": "roofline", "gpu": "h100", "target": "qwen3-8b"}
    made = scenario(latency=latency)
    derived = number(made, "latency.kv_token_seconds")
    assert derived == pytest.approx(made.latency.step_times().kv_token)
    other = with_numbers(made, {"latency.kv_token_seconds": 2 * derived})
    assert other.latency.step_times().kv_token == pytest.approx(2 * derived)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("latency.host_second", "no field `host_second` in this scenario; did you mean `host_seconds`"),
        ("latency.host_seconds.x", "no field `x`"),
        ("workload.classes.1.share", "no field `1`"),
        ("server.max_num_seqs", "only real numbers can be fitted, but this is `16`"),
        ("server.frontend_seconds", "it is 0, but a fit needs a start above 0"),
        ("slo", "not given"),
        ("server", "several values"),
    ],
)
def test_fields_that_cannot_be_fitted_are_refused(field: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        number(scenario(), field)


def test_numbers_are_put_into_a_files_text_and_nothing_else_changes() -> None:
    text = "# head\na:\n  # inner\n  b: 1.5   # why\n  c: {d: 2, e: x}\nf: [1, {g: 3}]\n"
    made = with_values(text, {"a.b": 0.25, "a.c.d": 5e-8, "f.1.g": 7.0, "a.new": 1.0, "a.c.new": 2.0})
    assert made == (
        "# head\na:\n  # inner\n  new: 1\n  b: 0.25   # why\n  c: {new: 2, d: 5e-08, e: x}\nf: [1, {g: 7}]\n"
    )
    assert with_values("a:\n  b:\n  c: 1\n", {"a.b": 0.25}) == "a:\n  b: 0.25\n  c: 1\n", "a blank field"
    with pytest.raises(
        UserError, match="`gpu` is the name `h100`; write its fields out, so that `bandwidth` can be set"
    ):
        with_values("a: {gpu: h100}\n", {"a.gpu.bandwidth": 3.0})


def test_scenarios_with_different_starts_share_their_geometric_mean() -> None:
    scenarios = {name: scenario(latency__host_seconds=seconds) for name, seconds in (("a", 1e-3), ("b", 4e-3))}
    assert Coefficient.of("x", ["latency.host_seconds"], scenarios).start == pytest.approx(2e-3)


@pytest.mark.parametrize("order", ["before_draft", "after_draft"])
def test_what_the_first_draft_takes_more_is_taken_once(order: str) -> None:
    def ttft(**latency: Any) -> Any:
        state = state_of(closed(1, workload__requests=4, server__emit=order, chat__output_tokens={
            "distribution": "constant", "tokens": 12}, **latency))  # fmt: skip
        serve(state, StaticPolicy(3))
        return state.offered.copy()

    plain, draft = ttft(), ttft(latency__cold_draft_seconds=0.25)
    assert draft["latency"] - plain["latency"] == pytest.approx([0.25, 0, 0, 0])
    delayed = 0.25 if order == "after_draft" else 0.0
    assert draft["ttft"] - plain["ttft"] == pytest.approx([delayed, 0, 0, 0])
