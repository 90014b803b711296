"""The latency model: offline fit, online correction, use without a profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.factories import make_outcome, make_view
from turbospec.interface import StepOutcome
from turbospec.models.latency import VERIFY_KNOTS, LatencyModel, draft_features, host_features, verify_features
from turbospec.models.profile import LatencySample


def measured(rng: np.random.Generator, requests: int, draft: int, *, slow: float = 1.0, context: int = 200):
    """A step of a synthetic machine: a floor of 6 ms, compute-bound beyond 64 tokens, 1.2 ms per drafter pass."""
    tokens = requests * (1 + draft)
    verify = 6e-3 + 2e-5 * tokens + 6e-5 * max(0, tokens - 64) + 2e-8 * requests * context
    drafting = 3e-4 + draft * (1.2e-3 + 1.5e-5 * requests) if draft else 0.0
    noise = rng.lognormal(0.0, 0.03, 2)
    verify, drafting = slow * verify * noise[0], slow * drafting * noise[1]
    return LatencySample(
        draft_rows=(requests,) * draft,
        draft_context_tokens=requests * context * draft,
        catch_up_tokens=0,
        tokens_batched=tokens,
        prefill_tokens=0,
        context_tokens=requests * context,
        draft_seconds=drafting,
        verify_seconds=verify,
        step_seconds=drafting + verify + 4e-4 + 1e-5 * requests,
    )


def grid(rng: np.random.Generator) -> list[LatencySample]:
    return [
        measured(rng, n, k, context=c) for n in (1, 2, 4, 8, 16, 32) for k in (0, 1, 3, 5, 8, 15) for c in (64, 256)
    ] * 2


def relative_errors(model: LatencyModel, samples: list[LatencySample]) -> np.ndarray:
    return np.array([model.predict_sample(s) / s.step_seconds - 1.0 for s in samples])


def pass_seconds(model: LatencyModel, tokens: np.ndarray, context: float = 0.0) -> np.ndarray:
    """(n,) predicted seconds of passes without prompts that replay their graphs."""
    features = verify_features(tokens, np.full(len(tokens), context))
    return features @ model.verify.weights[: features.shape[1]]


def test_offline_fit_predicts_unseen_steps() -> None:
    rng = np.random.default_rng(0)
    model = LatencyModel.fit(grid(rng))
    unseen = [measured(rng, n, k, context=150) for n in (3, 6, 12, 24) for k in (0, 2, 4, 6, 10)]
    assert np.abs(relative_errors(model, unseen)).mean() < 0.05


def test_verify_curve_is_the_model_and_never_decreases() -> None:
    rng = np.random.default_rng(1)
    model = LatencyModel.fit(grid(rng))
    for base in (1, 2, 7, 64, 500):
        curve = model.verify_curve(base, 120, 900.0, 4)
        tokens = np.arange(base, base + 121, dtype=float)
        expected = pass_seconds(model, tokens, 900.0) + model.host_seconds(4)
        assert curve == pytest.approx(expected, rel=1e-9)
        assert (np.diff(curve) >= 0).all()


def test_no_profile_is_needed() -> None:
    rng = np.random.default_rng(2)
    model = LatencyModel()
    assert not model.calibrated
    for draft in (0, 2, 0, 5, 1, 0, 3, 4, 0, 2) * 3:
        model.learn(measured(rng, 8, draft), 8)
    assert model.calibrated
    later = [measured(rng, 8, k) for k in (0, 1, 2, 4, 6)]
    assert np.abs(relative_errors(model, later)).mean() < 0.1


@pytest.mark.parametrize("slow", [1.6, 0.6])
def test_a_change_of_hardware_speed_is_followed(slow: float) -> None:
    rng = np.random.default_rng(4)
    model = LatencyModel.fit(grid(rng))
    for step in range(200):
        model.learn(measured(rng, 8, step % 4, slow=slow), 8)
    later = [measured(rng, 8, k, slow=slow) for k in (0, 1, 2, 3)]
    assert np.abs(relative_errors(model, later)).mean() < 0.08


def test_the_time_ratio_compares_steps_without_drafts_with_the_last_draft() -> None:
    rng = np.random.default_rng(5)
    model = LatencyModel()
    assert model.no_draft_time_ratio == 1.0
    for draft in (0, 2, 0, 5, 1, 0, 3, 4) * 4:
        model.learn(measured(rng, 4, draft, slow=3.0), 4)
    assert model.no_draft_time_ratio == pytest.approx(1.0, abs=0.1)
    for _ in range(100):
        model.learn(measured(rng, 4, 0), 4)
    assert model.no_draft_time_ratio == pytest.approx(1 / 3, rel=0.1)
    model.learn(measured(rng, 4, 1), 4)
    assert model.no_draft_time_ratio == 1.0


def test_forgotten_draft_costs_are_learnt_anew() -> None:
    rng = np.random.default_rng(6)
    model = LatencyModel.fit(grid(rng))
    before = model.verify_curve(4, 8, 800.0, 4)
    model.forget_draft_costs()
    assert not model.calibrated
    assert model.verify_curve(4, 8, 800.0, 4) == pytest.approx(before)
    for draft in (0, 2, 0, 5, 1, 0, 3, 4):
        model.learn(measured(rng, 4, draft, slow=0.2), 4)
    assert model.calibrated
    per_step, per_pass, per_row = model.draft_costs(200.0)
    assert per_step + 3 * per_pass + 12 * per_row == pytest.approx(0.2 * (3e-4 + 3 * 1.26e-3), rel=0.2)


def test_one_large_step_does_not_spoil_predictions_for_small_ones() -> None:
    """As when a hundred requests are admitted at once, and the model has seen only short steps."""
    rng = np.random.default_rng(9)
    model = LatencyModel()
    for step in range(150):
        model.learn(measured(rng, 100, (0, 1, 1, 1)[step % 4]), 100)
    usual = [measured(rng, 100, k) for k in (0, 1)] * 8
    before = np.abs(relative_errors(model, usual)).mean()
    for tokens in (246, 968, 340):
        # Compute-bound at half the tokens, and with a steeper slope, than anything that the model has seen.
        verify = 6e-3 + 1.2e-4 * tokens
        model.learn(replace(usual[0], tokens_batched=tokens, verify_seconds=verify, step_seconds=verify + 1e-3), 100)
    assert np.abs(relative_errors(model, usual)).mean() < before + 0.05


def test_steps_that_reused_a_plan_are_learnt_from() -> None:
    rng = np.random.default_rng(7)
    model, view = LatencyModel.fit(grid(rng)), make_view(8)
    outcome = make_outcome(view, 0, 0, draft_seconds=0.0, verify_seconds=0.0, step_seconds=0.0)
    for _ in range(300):
        model.learn(replace(outcome, reused_plan_steps=10, reused_plan_tokens=80, reused_plan_seconds=0.1), 8)
    assert model.verify_curve(8, 0, 0.0, 8)[0] == pytest.approx(0.01, rel=0.1)


def test_a_stall_hardly_moves_the_model() -> None:
    rng = np.random.default_rng(5)
    model = LatencyModel.fit(grid(rng))
    for _ in range(100):
        model.learn(measured(rng, 8, 3), 8)
    usual = measured(rng, 8, 3)
    before = model.predict_sample(usual)
    model.learn(measured(rng, 8, 3, slow=50.0), 8)
    assert model.predict_sample(usual) == pytest.approx(before, rel=0.05)


def test_a_repeated_step_does_not_erase_the_others() -> None:
    rng = np.random.default_rng(6)
    model = LatencyModel.fit(grid(rng))
    rare = [measured(rng, 32, 8), measured(rng, 1, 15), measured(rng, 16, 1)]
    before = np.abs(relative_errors(model, rare)).mean()
    for _ in range(5000):
        model.learn(measured(rng, 8, 0), 8)
    assert np.abs(relative_errors(model, rare)).mean() < before + 0.05


def test_host_time_is_what_a_step_takes_beside_its_passes() -> None:
    rng = np.random.default_rng(8)
    model = LatencyModel.fit(grid(rng))
    for requests in (1, 8, 32):
        assert model.host_seconds(requests) == pytest.approx(4e-4 + 1e-5 * requests, rel=0.01)


def test_a_step_of_prefill_alone_counts_as_one_request() -> None:
    sample = replace(measured(np.random.default_rng(8), 1, 0), tokens_batched=256, prefill_tokens=256)
    assert host_features(sample).tolist() == [1.0, 1.0]
    assert host_features(replace(sample, tokens_batched=260)).tolist() == [1.0, 4.0]
    assert host_features(measured(np.random.default_rng(8), 3, 2)).tolist() == [1.0, 3.0]


def test_costs_that_a_profile_does_not_show_keep_their_initial_weight() -> None:
    model, initial = LatencyModel.fit(grid(np.random.default_rng(8))), LatencyModel()
    assert model.catch_up_token_seconds == initial.catch_up_token_seconds > 0.0
    unseen = np.array([700.0, 800.0])
    assert np.diff(pass_seconds(model, unseen)) == pytest.approx(np.diff(pass_seconds(initial, unseen)))


def test_the_first_measured_step_sets_the_scale() -> None:
    """The initial variances: the time of a pass is unknown by an order of magnitude, its slopes are alike."""
    model = LatencyModel()
    usual = measured(np.random.default_rng(8), 8, 0)
    model.learn(replace(usual, verify_seconds=0.08, step_seconds=0.085), 8)
    small, large = pass_seconds(model, np.array([8.0, 512.0]), 1600.0)
    assert small == pytest.approx(0.08, rel=0.1)
    assert large < 0.24
    assert model.host_seconds(8) == pytest.approx(0.005, rel=0.1)
    drafted = measured(np.random.default_rng(8), 8, 2)
    model.learn(replace(drafted, draft_seconds=0.02, step_seconds=0.1), 8)
    assert float(model.draft.predict(draft_features(drafted))) == pytest.approx(0.02, rel=0.1)
    assert model.draft_costs(0.0)[1] == pytest.approx(0.01, rel=0.2), "most of it is attributed to the passes"


def test_the_slope_may_change_at_every_doubling_of_tokens() -> None:
    """Target passes become compute-bound somewhere between 1 and 8,192 tokens."""
    assert VERIFY_KNOTS[:-1].tolist() == [2**power for power in range(14)]


def pass_of(tokens: int, seconds: float, **fields: object) -> StepOutcome:
    view = make_view(8)
    return make_outcome(view, 0, 0, tokens_batched=tokens, verify_seconds=seconds, step_seconds=seconds, **fields)


def test_passes_that_miss_their_graph_are_told_from_larger_ones() -> None:
    model, rng = LatencyModel(), np.random.default_rng(3)
    assert model.piecewise_seconds == 0.0, "unequal lengths are tried first"
    for _ in range(200):
        tokens, piecewise = 8 * int(rng.integers(1, 9)), bool(rng.random() < 0.3)
        model.learn(pass_of(tokens, 0.015 + 1e-5 * tokens + 0.003 * piecewise, piecewise=piecewise), 8)
    assert model.piecewise_seconds == pytest.approx(0.003, rel=0.1)
    assert pass_seconds(model, np.array([8.0, 64.0]), 800.0) == pytest.approx([0.01508, 0.01564], rel=0.03)


def test_prompts_that_take_longer_do_not_make_drafts_look_dear() -> None:
    model, rng = LatencyModel(), np.random.default_rng(4)
    for step in range(400):
        tokens = 64 * (2 if step % 40 else 3)
        prompt = int(rng.integers(200, 600)) * (step % 3 == 0)
        seconds = 0.02 + 5e-5 * tokens + 3e-4 * prompt + 0.005 * (prompt > 0)
        model.learn(pass_of(tokens + prompt, seconds, prefill_tokens=prompt), 64)
    curve = model.verify_curve(64, 128, 800.0, 64)
    assert curve[128] - curve[64] == pytest.approx(64 * 5e-5, rel=0.15)
    mixed = model.verify_curve(128 + 400, 0, 800.0, 64, 400)[0] - model.host_seconds(64)
    assert mixed == pytest.approx(0.02 + 128 * 5e-5 + 400 * 3e-4 + 0.005, rel=0.05)


COUNTS = st.sampled_from([0, 1, 2, 7, 64, 10**4, 10**9])
SECONDS = st.sampled_from([0.0, 5e-324, 1e-12, 1e-3, 2e-3, 1.0, 3600.0])
SAMPLES = st.builds(
    LatencySample,
    draft_rows=st.lists(COUNTS, max_size=4).map(tuple),
    draft_context_tokens=COUNTS.map(lambda count: count * 1000),
    catch_up_tokens=COUNTS,
    tokens_batched=COUNTS.map(lambda count: max(1, count)),
    prefill_tokens=COUNTS,
    context_tokens=COUNTS.map(lambda count: count * 1000),
    draft_seconds=SECONDS,
    verify_seconds=SECONDS,
    step_seconds=SECONDS.map(lambda seconds: max(5e-324, seconds)),
)
"""Whatever a profile may hold."""


@pytest.mark.filterwarnings("error")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(SAMPLES, min_size=1, max_size=6))
def test_any_profile_is_fitted_and_predicts_durations(samples: list[LatencySample]) -> None:
    model = LatencyModel.fit(samples)
    predicted = [model.predict_sample(sample) for sample in samples]
    predicted += [*model.verify_curve(1, 15, 1000.0, 4), model.host_seconds(64), *model.draft_costs(100.0)]
    assert np.isfinite(predicted).all()
    assert min(predicted) >= 0.0
    for part in (model.verify, model.draft, model.host):
        assert np.isfinite(part.covariance).all()
        assert (np.diag(part.covariance) >= 0.0).all()
    for sample in samples:
        model.learn(sample, 4)
    assert np.isfinite(model.verify.weights).all()
