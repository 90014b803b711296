from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from turbospec.models.latency import LatencyModel, step_features
from turbospec.models.profile import LatencySample, Profile
from turbospec_sim.hardware import MODELS
from turbospec_sim.latency_config import Latency
from turbospec_sim.step_time import StepTimes, noise, padded, pass_seconds

ADAPTER: TypeAdapter[Any] = TypeAdapter(Latency)


def times(**fields: Any) -> StepTimes:
    return ADAPTER.validate_json(json.dumps(fields), strict=True).step_times()


def test_floor_and_slope_are_combined_as_asked() -> None:
    given = {"source": "coefficients", "verify_floor_seconds": 0.02, "verify_token_seconds": 1e-4}
    longer, both = times(**given).curve, times(**given, verify_combined="plus").curve
    for tokens in (1, 199, 200, 201, 5000):
        assert pass_seconds(longer, tokens) == pytest.approx(max(0.02, 1e-4 * tokens))
        assert pass_seconds(both, tokens) == pytest.approx(0.02 + 1e-4 * tokens)


def test_a_curve_is_followed_and_goes_on_past_its_end() -> None:
    curve = times(source="coefficients", verify_curve=[[0, 0.01], [8, 0.01], [16, 0.02], [64, 0.03]]).curve
    found = [pass_seconds(curve, tokens) for tokens in (1, 8, 12, 16, 40, 112)]
    assert found == pytest.approx([0.01, 0.01, 0.015, 0.02, 0.025, 0.04])


def test_graphs_pad_up_to_their_largest_size() -> None:
    sizes = np.array([1, 2, 4, 8])
    assert [padded(tokens, sizes) for tokens in (1, 3, 8, 9)] == [1, 4, 8, 9]


def test_a_batch_has_full_graphs_up_to_the_largest_size() -> None:
    made = times(
        source="coefficients", verify_curve=[[0, 0.01], [8, 0.01]], graph_sizes=[8, 16], graph_lengths=[0, 1, 3]
    )
    assert [made.full_graphs(requests) for requests in (4, 5, 8, 9, 17)] == [(0, 1, 3), (0, 1), (0, 1), (0,), ()]


def test_noise_changes_no_mean() -> None:
    record = StepTimes(np.zeros((2, 2)), noise=0.2).record[0]
    factors = np.array([noise(record, 0, step, 0) for step in range(20_000)])
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.2, abs=0.005)
    assert noise(StepTimes(np.zeros((2, 2))).record[0], 0, 3, 0) == 1.0


def test_models_have_as_many_weights_as_their_names_say() -> None:
    def weights(name: str) -> float:
        shape = MODELS[name]
        return shape.layers * shape.layer_parameters + shape.head_parameters

    for name, billions in (("llama-3.3-70b", 70), ("qwen3-32b", 32), ("qwen3-8b", 7.6), ("llama-3.2-1b", 1.24)):
        assert weights(name) == pytest.approx(billions * 1e9, rel=0.03)


def test_a_roofline_reads_weights_or_computes_tokens() -> None:
    fields = {"source": "roofline", "gpu": "h100", "target": "qwen3-8b", "flops_efficiency": 0.5}
    one, two = times(**fields, bandwidth_efficiency=1.0), times(**fields, bandwidth_efficiency=1.0, gpus=2)
    assert pass_seconds(one.curve, 1) == pytest.approx(2 * 7.57e9 / 3350e9, rel=0.01)
    assert pass_seconds(one.curve, 8000) == pytest.approx(8000 * 2 * 6.95e9 / (0.5 * 989e12), rel=0.01)
    assert pass_seconds(two.curve, 8000) == pytest.approx(pass_seconds(one.curve, 8000) / 2)
    assert times(**fields, kv_token_seconds=3e-9).kv_token == 3e-9  # a given value overrides the derived one


def test_a_profile_is_fitted_as_the_controller_fits_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples: list[LatencySample] = []
    for _ in range(400):
        tokens, rows, context = int(rng.integers(1, 200)), int(rng.integers(1, 16)), int(rng.integers(0, 9000))
        draft, verify = 1e-3 + 3 * 2e-3 + 3 * rows * 1e-5, 0.01 + 5e-5 * tokens + 1e-7 * context
        samples.append(LatencySample((rows,) * 3, 0, 0, tokens, 0, context, draft, verify, draft + verify + 1e-3))
    path = tmp_path / "profile.json"
    Profile(samples).save(path)
    fitted, model = times(source="profile", file=str(path)), LatencyModel.fit(samples)
    for tokens in (1, 3, 50, 128, 190):
        expected = model.verify.predict(step_features(float(tokens), 1000.0, 0.0))
        assert pass_seconds(fitted.curve, tokens) + 1000 * fitted.kv_token == pytest.approx(expected)
    assert pass_seconds(fitted.curve, 100) == pytest.approx(0.01 + 5e-3, rel=0.02)
    assert fitted.draft_pass * 3 + fitted.draft_start == pytest.approx(7e-3, rel=0.02)


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "coefficients"},
        {"source": "coefficients", "verify_floor_seconds": 0.1},
        {"source": "coefficients", "verify_curve": [[1, 0.1], [2, 0.2]]},
        {"source": "coefficients", "verify_curve": [[0, 0.02], [64, 0.01]]},
        {"source": "roofline", "gpu": "h300", "target": "qwen3-8b"},
        {"source": "roofline", "gpu": "h100", "target": "qwen3-8b", "graph_sizes": [4, 2]},
        {"source": "roofline", "gpu": "h100", "target": "qwen3-8b", "graph_lengths": [0, 0]},
        {"source": "roofline", "gpu": "h100", "target": "qwen3-8b", "piecewise_seconds": 0.001},
        {"source": "roofline", "gpu": "h100", "target": "qwen3-8b", "ungraphed_seconds": 0.001},
    ],
)
def test_incomplete_sources_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        times(**fields)
