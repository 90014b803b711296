"""Step times as they are learnt online: changes of speed, outliers, drafting not tried for long, no profile."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turbospec.interface import MAX_REQUESTS, MAX_STEP_SECONDS, MIN_STEP_SECONDS, FloatArray
from turbospec.models.latency import LatencyModel
from turbospec.models.profile import LatencySample
from turbospec.models.step_cost import (
    CATCH_UP,
    CONTEXT,
    DRAFT,
    DRAFT_CONTEXT,
    PASSES,
    PIECEWISE,
    PREFILL,
    REQUESTS,
    ROWS,
    SIZE,
    TOKENS,
    forget_drafting,
    initial_cost,
    learn_step,
    target_features,
)
from turbospec.policy.adaptive.constants import Constants

DRIFT, SURPRISE_WEIGHT = Constants().drift, Constants().surprise_weight
CONTEXT_TOKENS = 200
"""Per request."""


def measured(rng: np.random.Generator, requests: int, draft: int, *, slow: float = 1.0) -> LatencySample:
    """A step of a synthetic machine: a floor of 6 ms, compute-bound beyond 64 tokens, 1.2 ms per drafter pass."""
    tokens, context = requests * (1 + draft), requests * CONTEXT_TOKENS
    verify = 6e-3 + 2e-5 * tokens + 6e-5 * max(0, tokens - 64) + 2e-8 * context
    drafting = 3e-4 + draft * (1.2e-3 + 1.5e-5 * requests) if draft else 0.0
    noise = rng.lognormal(0.0, 0.03, 2)
    verify, drafting = slow * verify * noise[0], slow * drafting * noise[1]
    return LatencySample(
        draft_rows=(requests,) * draft,
        draft_context_tokens=context * draft,
        catch_up_tokens=0,
        tokens_batched=tokens,
        prefill_tokens=0,
        context_tokens=context,
        draft_seconds=drafting,
        verify_seconds=verify,
        step_seconds=drafting + verify + slow * (4e-4 + 1e-5 * requests),
    )


@functools.cache
def profile() -> LatencyModel:
    rng = np.random.default_rng(0)
    grid = [measured(rng, n, k) for n in (1, 2, 4, 8, 16, 32) for k in (0, 1, 3, 5, 8, 15)]
    return LatencyModel.fit(grid * 2)


def features(sample: LatencySample, requests: int) -> FloatArray:
    x = np.zeros(SIZE)
    target_features(x, sample.tokens_batched, sample.context_tokens, requests, sample.prefill_tokens)
    if sample.draft_rows:
        x[DRAFT], x[PASSES], x[ROWS] = 1.0, len(sample.draft_rows), sum(sample.draft_rows)
        x[DRAFT_CONTEXT] = sample.draft_context_tokens
    return x


class Model:
    """A step cost, with or without a profile, whose drafting is measured by itself or not."""

    def __init__(self, fitted: LatencyModel | None = None, *, parts: bool = True) -> None:
        self.cost: Any = initial_cost(fitted)
        self.parts = parts

    @property
    def weights(self) -> FloatArray:
        return self.cost["weights"][0]

    @property
    def covariance(self) -> FloatArray:
        return self.cost["covariance"][0]

    def learn(self, sample: LatencySample, requests: int, *, drift: float = DRIFT) -> None:
        drafting = sample.draft_seconds if self.parts else 0.0
        learn_step(self.cost[0], features(sample, requests), sample.step_seconds, drafting, drift, SURPRISE_WEIGHT)

    def errors(self, samples: list[LatencySample], requests: int) -> float:
        """Mean relative error."""
        predicted = np.array([features(sample, requests) @ self.weights for sample in samples])
        return float(np.abs(predicted / [sample.step_seconds for sample in samples] - 1.0).mean())

    def draft_seconds(self, requests: int, draft: int) -> float:
        """Predicted seconds of drafting."""
        return float(features(measured(np.random.default_rng(0), requests, draft), requests) @ self.weights) - float(
            features(replace(measured(np.random.default_rng(0), requests, draft), draft_rows=()), requests)
            @ self.weights
        )


def test_the_state_before_the_first_step_predicts_as_the_profile_does() -> None:
    rng = np.random.default_rng(1)
    for requests, draft in ((1, 0), (8, 3), (32, 5)):
        sample = measured(rng, requests, draft)
        # Without drafts the fitted model counts one request per token.
        assert features(sample, requests) @ Model(profile()).weights == pytest.approx(profile().predict_sample(sample))


def test_features_count_what_a_step_did() -> None:
    x = np.full(SIZE, 7.0)
    target_features(x, 21.0, 900.0, 4.0, 11.0)
    assert (x[0], x[CONTEXT], x[REQUESTS], x[PREFILL], x[PREFILL + 1]) == (1.0, 900.0, 4.0, 1.0, 11.0)
    assert x[TOKENS:PREFILL].sum() == 20.0, "the first token is in the constant"
    assert x[TOKENS : TOKENS + 5].tolist() == [1.0, 2.0, 4.0, 8.0, 5.0]
    assert not x[PIECEWISE:].any()
    target_features(x, 1.0, 0.0, 1.0, 0.0)
    assert not x[TOKENS:PREFILL].any()
    assert x[PREFILL] == 0.0


@pytest.mark.parametrize("parts", [True, False], ids=["drafting measured", "whole steps"])
@pytest.mark.parametrize("slow", [1.6, 0.6])
def test_a_change_of_hardware_speed_is_followed(slow: float, parts: bool) -> None:
    rng = np.random.default_rng(4)
    model = Model(profile(), parts=parts)
    for step in range(200):
        model.learn(measured(rng, 8, step % 4, slow=slow), 8)
    assert model.errors([measured(rng, 8, draft, slow=slow) for draft in (0, 1, 2, 3)], 8) < 0.08


@pytest.mark.parametrize("slow", [3.0, 0.4])
def test_steps_without_drafts_tell_of_the_cost_of_drafting_too(slow: float) -> None:
    rng = np.random.default_rng(5)
    model = Model(profile())
    for step in range(100):
        model.learn(measured(rng, 8, step % 4), 8)
    before = model.draft_seconds(8, 3)
    for _ in range(300):
        model.learn(measured(rng, 8, 0, slow=slow), 8)
    ratio = model.draft_seconds(8, 3) / before
    assert min(1.0, slow) * 0.8 < ratio < max(1.0, slow) * 1.2
    assert abs(np.log(ratio)) > 0.5 * abs(np.log(slow))


def test_the_cost_of_drafting_becomes_uncertain_while_nothing_is_drafted() -> None:
    rng = np.random.default_rng(6)
    model, x = Model(profile()), features(measured(rng, 8, 3), 8)
    x[:DRAFT] = 0.0
    for step in range(200):
        model.learn(measured(rng, 8, step % 4), 8)
    deviations: list[float] = []
    for steps in (0, 200, 800):
        for _ in range(steps):
            model.learn(measured(rng, 8, 0), 8)
        deviations.append(float(np.sqrt(x @ model.covariance @ x) / (x @ model.weights)))
    assert deviations[0] < 0.05
    assert deviations[0] < deviations[1] < deviations[2]
    # 1,000 steps of a drift by 0.2 %: √1000 · 0.002.
    assert deviations[2] == pytest.approx(np.hypot(deviations[0], np.sqrt(1000) * DRIFT), rel=0.4)


@pytest.mark.parametrize("steps", [1, 100])
def test_a_cost_of_drafting_that_has_jumped_becomes_uncertain_while_nothing_is_drafted(steps: int) -> None:
    rng = np.random.default_rng(6)
    model, x = Model(profile()), features(measured(rng, 8, 3), 8)
    target, drafting = np.where(np.arange(SIZE) < DRAFT, x, 0.0), np.where(np.arange(SIZE) < DRAFT, 0.0, x)

    def deviations() -> tuple[float, float]:
        """Of the target's pass and of drafting, relative ones."""
        target_variance, variance = (each @ model.covariance @ each for each in (target, drafting))
        return np.sqrt(target_variance) / (target @ model.weights), np.sqrt(variance) / (drafting @ model.weights)

    assert model.cost["jump"][0] == 1.0
    before = deviations()
    for number in range(0, 200, steps):
        forget_drafting(model.cost[0], steps / 1000)
        assert deviations()[1] == pytest.approx(before[1] + (number + steps) / 1000, rel=0.1)
    assert deviations()[0] == before[0]
    forget_drafting(model.cost[0], 5.0)
    assert deviations()[1] == pytest.approx(1.0, rel=0.1)


def test_a_jump_is_what_exceeds_the_noise_and_is_forgotten_while_drafts_are_as_predicted() -> None:
    rng = np.random.default_rng(6)
    model = Model(profile())
    for step in range(100):
        model.learn(measured(rng, 8, step % 4), 8)
    assert model.cost["jump"][0] < 1e-3
    slow = measured(rng, 8, 3)
    model.learn(replace(slow, draft_seconds=10 * slow.draft_seconds), 8)
    assert model.cost["jump"][0] > 0.6
    for _ in range(20):
        model.learn(measured(rng, 8, 0), 8)
    assert model.cost["jump"][0] > 0.6, "steps without drafts say nothing"


@pytest.mark.parametrize("parts", [True, False], ids=["drafting measured", "whole steps"])
def test_no_profile_is_needed(parts: bool) -> None:
    rng = np.random.default_rng(2)
    model = Model(parts=parts)
    for draft in (0, 2, 0, 5, 1, 0, 3, 4, 0, 2) * 3:
        model.learn(measured(rng, 8, draft), 8)
    assert model.errors([measured(rng, 8, k) for k in (0, 1, 2, 4, 6)], 8) < 0.1


def test_the_first_measured_step_sets_the_scale() -> None:
    """The initial variances: the time of a pass is unknown by an order of magnitude, its slopes are alike."""
    model, rng = Model(), np.random.default_rng(8)
    plain = measured(rng, 8, 0)
    model.learn(replace(plain, step_seconds=0.085), 8)
    assert features(plain, 8) @ model.weights == pytest.approx(0.085, rel=0.1)
    large = replace(plain, tokens_batched=512, context_tokens=0)
    assert features(large, 8) @ model.weights < 0.25
    drafted = measured(rng, 8, 2)
    model.learn(replace(drafted, draft_seconds=0.02, step_seconds=0.105), 8)
    assert model.draft_seconds(8, 2) == pytest.approx(0.02, rel=0.15)
    assert model.weights[PASSES] == pytest.approx(0.01, rel=0.2), "most of it is attributed to the passes"


@pytest.mark.parametrize("seed", range(4))
def test_a_quicker_machine_is_not_taken_for_dear_draft_tokens(seed: int) -> None:
    """Most steps had two tokens, so that their sum is known better than either token's share of it."""
    rng, model = np.random.default_rng(seed), Model()
    for step, seconds in enumerate([0.02] * 25 + [0.008] * 10):
        target_features(x := np.zeros(SIZE), 2.0 if step < 25 and step % 5 else 1.0, 120.0, 1.0, 0.0)
        learn_step(model.cost[0], x, seconds * rng.lognormal(0.0, 0.05), 0.0, DRIFT, SURPRISE_WEIGHT)
    times: list[float] = []
    for tokens in (1.0, 2.0):
        target_features(x, tokens, 120.0, 1.0, 0.0)
        times.append(float(x @ model.weights))
    assert times[0] == pytest.approx(0.008, rel=0.1)
    assert times[1] < 1.4 * times[0]


def test_one_large_step_does_not_spoil_predictions_for_small_ones() -> None:
    """As when a hundred requests are admitted at once, and the model has seen only short steps."""
    rng = np.random.default_rng(9)
    model = Model()
    for step in range(150):
        model.learn(measured(rng, 100, (0, 1, 1, 1)[step % 4]), 100)
    usual = [measured(rng, 100, k) for k in (0, 1)] * 8
    before = model.errors(usual, 100)
    for tokens in (246, 968, 340):
        # Compute-bound at half the tokens, and with a steeper slope, than anything that the model has seen.
        model.learn(replace(usual[0], tokens_batched=tokens, step_seconds=7e-3 + 1.2e-4 * tokens), 100)
    assert model.errors(usual, 100) < before + 0.05


@pytest.mark.parametrize("parts", [True, False], ids=["drafting measured", "whole steps"])
def test_a_stall_hardly_moves_the_model(parts: bool) -> None:
    rng = np.random.default_rng(5)
    model = Model(profile(), parts=parts)
    for _ in range(100):
        model.learn(measured(rng, 8, 3), 8)
    usual = features(measured(rng, 8, 3), 8)
    before = float(usual @ model.weights)
    model.learn(measured(rng, 8, 3, slow=50.0), 8)
    assert usual @ model.weights == pytest.approx(before, rel=0.05)


def test_a_stall_does_not_erase_what_is_known_of_its_step() -> None:
    rng = np.random.default_rng(5)
    model = Model(profile(), parts=False)
    for _ in range(100):
        model.learn(measured(rng, 8, 3), 8)
    usual = features(measured(rng, 8, 3), 8)
    before = float(usual @ model.covariance @ usual)
    model.learn(measured(rng, 8, 3, slow=1e5), 8)
    assert usual @ model.covariance @ usual < 2.0 * before


def test_a_repeated_step_does_not_erase_the_others() -> None:
    rng = np.random.default_rng(6)
    model = Model(profile())
    rare = [(measured(rng, 32, 8), 32), (measured(rng, 1, 15), 1), (measured(rng, 16, 1), 16)]
    before = sum(model.errors([sample], requests) for sample, requests in rare)
    for _ in range(3000):
        model.learn(measured(rng, 8, 0), 8)
    assert sum(model.errors([sample], requests) for sample, requests in rare) < before + 0.3


def test_passes_that_miss_their_graph_are_told_from_larger_ones() -> None:
    model, rng = Model(), np.random.default_rng(3)
    assert model.weights[PIECEWISE] == 0.0, "unequal lengths are tried first"
    x = np.zeros(SIZE)
    for _ in range(200):
        tokens, piecewise = 8 * int(rng.integers(1, 9)), float(rng.random() < 0.3)
        target_features(x, tokens, 800.0, 8.0, 0.0)
        x[PIECEWISE] = piecewise
        learn_step(model.cost[0], x, 0.015 + 1e-5 * tokens + 0.003 * piecewise, 0.0, DRIFT, SURPRISE_WEIGHT)
    assert model.weights[PIECEWISE] == pytest.approx(0.003, rel=0.1)
    target_features(x, 64.0, 800.0, 8.0, 0.0)
    assert x @ model.weights == pytest.approx(0.01564, rel=0.03)


def test_prompts_that_take_longer_do_not_make_drafts_look_dear() -> None:
    model, rng, x = Model(), np.random.default_rng(4), np.zeros(SIZE)
    for step in range(400):
        tokens = 64 * (2 if step % 40 else 3)
        prompt = int(rng.integers(200, 600)) * (step % 3 == 0)
        target_features(x, tokens + prompt, 800.0, 64.0, prompt)
        seconds_taken = 0.02 + 5e-5 * tokens + 3e-4 * prompt + 0.005 * (prompt > 0)
        learn_step(model.cost[0], x, seconds_taken, 0.0, DRIFT, SURPRISE_WEIGHT)
    seconds: list[float] = []
    for tokens, prompt in ((128, 0), (192, 0), (528, 400)):
        target_features(x, tokens, 800.0, 64.0, prompt)
        seconds.append(float(x @ model.weights))
    assert seconds[1] - seconds[0] == pytest.approx(64 * 5e-5, rel=0.2)
    assert seconds[2] == pytest.approx(0.02 + 128 * 5e-5 + 400 * 3e-4 + 0.005, rel=0.05)


COUNTS = st.sampled_from([0, 1, 2, 7, 64, 10**4, 10**9])
DRAFTS = st.sampled_from([(0, 0), (1, 0), (1, 1), (2, 3), (15, 960), (1, MAX_REQUESTS), (129, 129 * MAX_REQUESTS)])
"""Passes and rows, within the contract."""
SECONDS = st.sampled_from([MIN_STEP_SECONDS, 1e-6, 1e-3, 2e-3, 1.0, MAX_STEP_SECONDS])
TWO_WEIGHTS_DETERMINE_EACH_OTHER = [
    (0, 10**4, (1, 1), 1, 5e-324, 1.0),
    (0, 0, (1, 1), 0, 5e-324, 1.0),
    (0, 0, (2, 10**9), 10**9, 0.001, 0.3),
    (0, 0, (1, 0), 0, 0.002, 0.3),
]
AN_HOUR_OF_STALL = [
    (0, 0, (1, 10**9), 0, 5e-324, 0.0),
    (0, 64, (1, 0), 64, 0.002, 0.3),
    (64, 64, (10**4, 0), 0, 5e-324, 0.0),
    (0, 0, (2, 0), 64, 3600.0, 1.0),
    (0, 0, (1, 0), 0, 0.001, 0.3),
]


@settings(max_examples=100, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(COUNTS, COUNTS, DRAFTS, COUNTS, SECONDS, st.sampled_from([0.0, 0.3, 1.0])), max_size=30),
)
@example(True, TWO_WEIGHTS_DETERMINE_EACH_OTHER)
@example(False, AN_HOUR_OF_STALL)
def test_weights_are_never_negative_and_no_step_breaks_the_model(
    fitted: bool, made: list[tuple[int, int, tuple[int, int], int, float, float]]
) -> None:
    model, x = Model(profile() if fitted else None), np.zeros(SIZE)
    for tokens, prompt, (passes, rows), caught_up, seconds, share in made:
        target_features(x, tokens + prompt, 100.0 * tokens, 4.0, prompt)
        if passes:
            x[DRAFT], x[PASSES], x[ROWS], x[CATCH_UP] = 1.0, passes, rows, caught_up
        learn_step(model.cost[0], x, seconds, share * seconds, DRIFT, SURPRISE_WEIGHT)
        assert np.isfinite(model.weights).all()
        assert (model.weights >= 0.0).all()
        assert np.isfinite(model.covariance).all()
        deviations = np.sqrt(np.maximum(np.diag(model.covariance), 0.0))
        assert (np.diag(model.covariance) >= -1e-9 * deviations.max() ** 2).all()
