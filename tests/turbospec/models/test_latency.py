"""The latency model: the fit to a profile, and the guess without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.models.latency import VERIFY_KNOTS, LatencyModel, host_features, verify_features
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


GRID = grid(np.random.default_rng(1))


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


def test_host_time_is_what_a_step_takes_beside_its_passes() -> None:
    rng = np.random.default_rng(8)
    model = LatencyModel.fit(grid(rng))
    for requests in (1, 8, 32):
        assert model.host.weights @ [1.0, requests] == pytest.approx(4e-4 + 1e-5 * requests, rel=0.01)


def test_more_tokens_never_take_less_time() -> None:
    noisy = [replace(sample, verify_seconds=sample.verify_seconds * (1 + sample.tokens_batched % 3)) for sample in GRID]
    assert (np.diff(pass_seconds(LatencyModel.fit(noisy), np.arange(1.0, 600.0))) >= 0.0).all()


def test_without_samples_there_is_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="no samples"):
        LatencyModel.fit([])


def test_a_step_of_prefill_alone_counts_as_one_request() -> None:
    sample = replace(measured(np.random.default_rng(8), 1, 0), tokens_batched=256, prefill_tokens=256)
    assert host_features(sample).tolist() == [1.0, 1.0]
    assert host_features(replace(sample, tokens_batched=260)).tolist() == [1.0, 4.0]
    assert host_features(measured(np.random.default_rng(8), 3, 2)).tolist() == [1.0, 3.0]


def test_costs_that_a_profile_does_not_show_keep_their_initial_weight() -> None:
    model, initial = LatencyModel.fit(grid(np.random.default_rng(8))), LatencyModel()
    assert model.draft.weights[-1] == initial.draft.weights[-1] > 0.0, "no tokens were caught up"
    unseen = np.array([700.0, 800.0])
    assert np.diff(pass_seconds(model, unseen)) == pytest.approx(np.diff(pass_seconds(initial, unseen)))


def test_the_slope_may_change_at_every_doubling_of_tokens() -> None:
    """Target passes become compute-bound somewhere between 1 and 8,192 tokens."""
    assert VERIFY_KNOTS[:-1].tolist() == [2**power for power in range(14)]


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
    predicted += pass_seconds(model, np.arange(1.0, 16.0), 1000.0).tolist()
    assert np.isfinite(predicted).all()
    assert min(predicted) >= 0.0
    for part in (model.verify, model.draft, model.host):
        assert np.isfinite(part.covariance).all()
        assert (np.diag(part.covariance) >= 0.0).all()
        assert (part.weights >= 0.0).all()
