"""Mechanisms of the models: step times and acceptance."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from turbospec.interface import FloatArray
from turbospec.models import acceptance, latency, logistic, online_regression
from turbospec.models.acceptance import AcceptanceModel
from turbospec.models.latency import LatencyModel
from turbospec.models.online_regression import OnlineRegression
from turbospec.runtime.kernels import compiled
from turbospec_bench.ablation.mechanisms.mechanism import Mechanism
from turbospec_bench.ablation.substitution import Change, with_defaults, with_globals

_REGRESSION, _LATENCY = "models/online_regression.py", "models/latency.py"
_ACCEPTANCE, _LOGISTIC = "models/acceptance.py", "models/logistic.py"
TINY = 1e-9
"""A variance that is nearly 0, because it is divided by."""
_LEARN, _CURVE, _FEATURES = LatencyModel.learn, LatencyModel.verify_curve, latency.step_features


def _step(**constants: Any) -> tuple[Change, ...]:
    """The compiled update of step times, with other constants of the regression."""
    learn = with_globals(online_regression.learn_online, **constants)
    changed = with_globals(latency._learn_step, learn_online=learn)
    return (Change(latency, "_learn_step", changed), Change(online_regression, "learn_online", learn))


def _hierarchy(names: dict[str, Any], *further: Change) -> tuple[Change, ...]:
    """The compiled parts of the acceptance model, with other constants of the logistic model."""

    def used_by(function: Any) -> dict[str, Any]:
        return {name: value for name, value in names.items() if name in function.py_func.__code__.co_names}

    variance = with_globals(logistic.between_request_variance, **used_by(logistic.between_request_variance))
    shared = {"between_request_variance": variance}
    learn = with_globals(logistic.learn, **used_by(logistic.learn))
    observe, conditional = acceptance._observe, acceptance._conditional
    return (
        Change(acceptance, "_observe", with_globals(observe, learn=learn, **shared, **used_by(observe))),
        Change(acceptance, "_conditional", with_globals(conditional, **shared, **used_by(conditional))),
        *further,
    )


@compiled
def _learns_nothing(terms: Any, row: int, between_variance: float) -> None:
    pass


def _fixed_between_request_variance() -> tuple[Change, ...]:
    observe = with_globals(acceptance._observe, learn_between_request_variance=_learns_nothing)
    return (Change(acceptance, "_observe", observe),)


@compiled
def _without_prefill(tokens: float, context_tokens: float, prefill_tokens: float, piecewise: float) -> FloatArray:
    return _FEATURES(tokens, context_tokens, 0.0, piecewise)


@compiled
def _without_context(tokens: float, context_tokens: float, prefill_tokens: float, piecewise: float) -> FloatArray:
    return _FEATURES(tokens, 0.0, prefill_tokens, piecewise)


def _curve_without_context(
    self: LatencyModel,
    base_tokens: int,
    extra_tokens: int,
    context_tokens: float,
    requests: int,
    prefill_tokens: int = 0,
) -> FloatArray:
    return _CURVE(self, base_tokens, extra_tokens, 0.0, requests, prefill_tokens)


def _features(made: Any) -> tuple[Change, ...]:
    """Other features of the target's pass."""
    changed = with_globals(latency._learn_step, step_features=made)
    return (Change(latency, "step_features", made), Change(latency, "_learn_step", changed))


def _one_slope() -> tuple[Change, ...]:
    knots = np.array([1.0, np.inf])
    features = with_globals(latency.step_features, VERIFY_KNOTS=knots)
    step = with_globals(latency._learn_step, step_features=features)
    return (
        Change(latency, "VERIFY_KNOTS", knots),
        Change(latency, "step_features", features),
        Change(latency, "_learn_step", step),
        Change(latency, "_curve", with_globals(latency._curve, VERIFY_KNOTS=knots)),
    )


def _nothing_fixed() -> tuple[Change, ...]:
    @compiled
    def no_condition(
        weights: FloatArray, covariance: FloatArray, gain: FloatArray, scaled: FloatArray, error: float
    ) -> None:
        pass

    return _step(_fix_at_zero=no_condition)


def _learns_only_at_first(self: LatencyModel, step: Any, requests: int) -> None:
    if not self.calibrated:
        _LEARN(self, step, requests)


def _certain() -> tuple[Change, ...]:
    """The compiled prediction of acceptance in which the variance counts for nothing: κ = 1."""
    numpy = ModuleType("numpy_without_pi")
    vars(numpy).update(zeros=np.zeros, sqrt=np.sqrt, exp=np.exp, pi=0.0)
    return (Change(acceptance, "_conditional", with_globals(acceptance._conditional, np=numpy)),)


def _forgets_nothing() -> tuple[Change, ...]:
    return (Change(OnlineRegression, "__init__", with_defaults(OnlineRegression.__init__, forgetting=1.0)),)


def _model(**defaults: float) -> tuple[Change, ...]:
    return (Change(AcceptanceModel, "__init__", with_defaults(AcceptanceModel.__init__, **defaults)),)


MODELS = (
    Mechanism(
        "online-costs",
        _LATENCY,
        "–",
        "step times are corrected after each step; off: those of the profile, or of the first exploration, stay",
        lambda: (Change(LatencyModel, "learn", _learns_only_at_first),),
    ),
    Mechanism(
        "cost-forgetting",
        _REGRESSION,
        "forgetting 0.995",
        "old step times are forgotten in the direction of new ones; off: never",
        _forgets_nothing,
    ),
    Mechanism(
        "adaptive-forgetting",
        _REGRESSION,
        "MAX_FORGETTING_FACTOR 10, ERROR_MEAN_WEIGHT 0.05",
        "faster where errors have the same sign; off: always at the same rate",
        lambda: _step(MAX_FORGETTING_FACTOR=1.0),
    ),
    Mechanism(
        "outliers",
        _REGRESSION,
        "OUTLIER_SIGMAS 4",
        "errors are limited to four standard deviations; off: not limited",
        lambda: _step(OUTLIER_SIGMAS=1e6),
    ),
    Mechanism(
        "non-negative-gain",
        _REGRESSION,
        "–",
        "where a weight reaches 0 the others' gain is conditioned on it; off: weights are only clipped at 0",
        _nothing_fixed,
    ),
    Mechanism(
        "verify-segments",
        _LATENCY,
        "VERIFY_KNOTS: 14 segments",
        "the target's pass has a slope for each power of two of tokens; off: one slope",
        _one_slope,
    ),
    Mechanism(
        "prefill-terms",
        _LATENCY,
        "–",
        "passes with prefill have a constant and a slope of their own; off: not",
        lambda: _features(_without_prefill),
    ),
    Mechanism(
        "context-term",
        _LATENCY,
        "–",
        "the target's pass has a term for the KV tokens read; off: none",
        lambda: (*_features(_without_context), Change(LatencyModel, "verify_curve", _curve_without_context)),
    ),
    Mechanism(
        "request-level",
        _LOGISTIC,
        "BETWEEN_REQUEST_VARIANCE_BOUNDS (0.05, 9)",
        "acceptance has a term for each request; off: none",
        lambda: _hierarchy({"BETWEEN_REQUEST_VARIANCE_BOUNDS": (TINY, TINY)}),
    ),
    Mechanism(
        "request-variance",
        _LOGISTIC,
        "BETWEEN_REQUEST_DECAY 1 - 1/2000, bounds (0.05, 9)",
        "the variance between requests is learnt; off: 1",
        _fixed_between_request_variance,
    ),
    Mechanism(
        "class-level",
        _LOGISTIC,
        "CLASS_PRIOR_VARIANCE 0.5, MAX_CLASSES 16",
        "acceptance has a term for each service class; off: none",
        lambda: _hierarchy({"CLASS_PRIOR_VARIANCE": TINY}),
    ),
    Mechanism(
        "position-level",
        _LOGISTIC,
        "OFFSET_PRIOR_VARIANCE 0.5",
        "acceptance has a term for each draft position; off: none",
        lambda: _hierarchy({"OFFSET_PRIOR_VARIANCE": TINY}, Change(logistic, "OFFSET_PRIOR_VARIANCE", TINY)),
    ),
    Mechanism(
        "acceptance-memory",
        _ACCEPTANCE,
        "server_memory 400",
        "the server's acceptance is remembered for 400 observations; off: 20,000",
        lambda: _model(server_memory=20_000.0),
    ),
    Mechanism(
        "request-memory",
        _ACCEPTANCE,
        "request_memory 48",
        "a request's acceptance is remembered for 48 positions; off: 2,000",
        lambda: _model(request_memory=2000.0),
    ),
    Mechanism(
        "idle-decay",
        _ACCEPTANCE,
        "idle_memory 100",
        "what is known of a request fades while it drafts nothing; off: it does not",
        lambda: _model(idle_memory=1e9),
    ),
    Mechanism(
        "uncertainty",
        _ACCEPTANCE,
        "KAPPA_LEVELS 24",
        "uncertain acceptance is drawn towards 1/2 (MacKay); off: the mean log-odds are taken as they are",
        _certain,
    ),
)
