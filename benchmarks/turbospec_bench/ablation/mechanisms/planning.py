"""Mechanisms of planning: objective, costs, prediction bias, reuse of plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models import decode_rate
from turbospec.models.decode_rate import DecodeRate
from turbospec.planning import prediction_bias, problem
from turbospec.planning.exact import DraftPlan, StepCosts
from turbospec.planning.prediction_bias import PredictionBias
from turbospec.policy.adaptive import config, policy, pricing
from turbospec.policy.adaptive.server_models import ServerModels
from turbospec_bench.ablation.mechanisms.mechanism import Mechanism
from turbospec_bench.ablation.one_decision import OneDecisionPolicy
from turbospec_bench.ablation.substitution import Change, with_defaults, with_globals


def returns(value: Any) -> Callable[..., Any]:
    """A function that ignores its arguments."""
    return lambda *_, **__: value


def _rate_without(self: DecodeRate, requests: int, joining: int = 0) -> float | None:
    return _RATE(self, requests)


_RATE = DecodeRate.rate


def _rate_without_drafts(gains: FloatArray, costs: StepCosts, base_tokens: float, iterations: int = 4) -> float:
    return base_tokens / float(costs.verify[0])


def _uniform_plan(
    gains: FloatArray,
    costs: StepCosts,
    price: float,
    *,
    request_seconds: FloatArray | None = None,
    max_seconds: float = math.inf,
) -> DraftPlan:
    """The best plan in which every request drafts the same length, or its limit if that is less."""
    limits = np.count_nonzero(gains, axis=1)
    fixed = np.zeros(len(gains)) if request_seconds is None else request_seconds
    best = DraftPlan(np.zeros(len(gains), np.int64), 0.0, float(costs.verify[0]))
    for length in range(1, gains.shape[1] + 1):
        lengths = np.minimum(limits, length)
        if not lengths.any() or int(lengths.sum()) >= len(costs.verify):
            break
        padded = length if length in costs.graph_lengths and length * len(gains) < len(costs.verify) else 0
        seconds = costs.seconds(lengths, padded) + float(fixed[lengths > 0].sum())
        plan = DraftPlan(lengths, float(gains[:, :length].sum()), seconds, padded)
        if seconds <= max_seconds and plan.value(price) > best.value(price):
            best = plan
    return best


def _all_at_once(catch_up_seconds: FloatArray, tokens_left: IntArray, acceptance: FloatArray) -> FloatArray:
    return catch_up_seconds


def _free(catch_up_seconds: FloatArray, tokens_left: IntArray, acceptance: FloatArray) -> FloatArray:
    return np.zeros_like(catch_up_seconds)


_PRICED = pricing.priced_problem
_PRICING, _BIAS, _POLICY = "policy/adaptive/pricing.py", "planning/prediction_bias.py", "policy/adaptive/policy.py"

PLANNING = (
    Mechanism(
        "load-to-come",
        _PRICING,
        "–",
        "λ is that of the load with requests in prefill and in the queue; off: of the decoding requests",
        lambda: (Change(DecodeRate, "rate", _rate_without),),
    ),
    Mechanism(
        "urgency",
        _PRICING,
        "first_token_weight 8",
        "λ rises while first tokens wait; off: it does not",
        lambda: (Change(pricing, "_urgency", returns(1.0)),),
    ),
    Mechanism(
        "best-rate",
        "planning/best_rate.py",
        "iterations 4",
        "λ of a load not seen before is the step's best rate; off: its rate without drafts",
        lambda: (Change(policy, "priced_problem", with_globals(_PRICED, best_rate=_rate_without_drafts)),),
    ),
    Mechanism(
        "rate-by-load",
        "models/decode_rate.py",
        "LOAD_BUCKETS 16",
        "λ is learnt for each power of two of decoding requests; off: one rate per request for all loads",
        lambda: (Change(decode_rate, "load_bucket", returns(0)),),
    ),
    Mechanism(
        "rate-memory",
        "models/decode_rate.py",
        "memory 150",
        "λ remembers 150 steps; off: ten times as many",
        lambda: (Change(DecodeRate, "__init__", with_defaults(DecodeRate.__init__, memory=1500.0)),),
    ),
    Mechanism(
        "rate-min-steps",
        "models/decode_rate.py",
        "MIN_STEPS 8",
        "a load has a λ of its own from 8 steps on; off: from the first",
        lambda: (Change(DecodeRate, "MIN_STEPS", 0.5),),
    ),
    Mechanism(
        "rate-without-prefill",
        "policy/adaptive/server_models.py",
        "–",
        "the time that prefill adds does not count for λ; off: it does",
        lambda: (Change(ServerModels, "_decode_seconds", lambda self, outcome, requests: outcome.step_seconds),),
    ),
    Mechanism(
        "bias",
        _BIAS,
        "memory 300",
        "a plan must pay after measured errors of prediction are subtracted; off: it is taken as predicted",
        lambda: (Change(PredictionBias, "pays", returns(True)),),
    ),
    Mechanism(
        "bias-tokens",
        _BIAS,
        "prior_requests 150",
        "of these, the shortfall of accepted tokens",
        lambda: (Change(PredictionBias, "token_shortfall", returns(0.0)),),
    ),
    Mechanism(
        "bias-slow-down",
        _BIAS,
        "prior_pairs 6, TIME_RATIO_WEIGHT 0.1",
        "of these, the slow-down of steps with drafts beside steps without",
        lambda: (Change(PredictionBias, "slow_down", returns(0.0)),),
    ),
    Mechanism(
        "bias-stalls",
        _BIAS,
        "STALL_RATIO 2",
        "steps of twice the predicted duration are not compared; off: they are",
        lambda: (Change(prediction_bias, "STALL_RATIO", math.inf),),
    ),
    Mechanism(
        "catch-up-amortised",
        "planning/problem.py",
        "CATCH_UP_HORIZON_TOKENS 64",
        "the time to catch up is charged over 64 tokens; off: all of it to the first step",
        lambda: (Change(pricing, "amortise_catch_up", _all_at_once),),
    ),
    Mechanism(
        "catch-up-charged",
        "planning/problem.py",
        "–",
        "the time to catch up is charged at all; off: it is free",
        lambda: (Change(pricing, "amortise_catch_up", _free),),
    ),
    Mechanism(
        "graphs",
        "planning/exact.py",
        "–",
        "plans of one padded length are compared with unequal ones, by the CUDA graphs' times; off: graphs are unknown",
        lambda: (Change(StepCosts, "with_graphs", lambda self, lengths, piecewise: self),),
    ),
    Mechanism(
        "unequal-lengths",
        "planning/exact.py",
        "–",
        "each request has a length of its own; off: the best common one",
        lambda: (Change(problem, "plan_draft_lengths", _uniform_plan),),
    ),
    Mechanism(
        "plan-reuse",
        _POLICY,
        "DRAFTING_STEPS 2",
        "a plan with drafts may serve two steps; off: one",
        lambda: (Change(policy, "DRAFTING_STEPS", 1),),
    ),
    Mechanism(
        "plan-reuse-without-drafts",
        _POLICY,
        "NO_DRAFT_STEPS 8",
        "a plan without drafts may serve eight steps; off: one",
        lambda: (Change(policy, "NO_DRAFT_STEPS", 1),),
    ),
    Mechanism(
        "would-pay-later",
        _POLICY,
        "–",
        "a plan without drafts serves one step if drafting pays once no first token waits; off: eight as others",
        lambda: (Change(policy, "_would_pay_later", returns(False)),),
    ),
    Mechanism(
        "one-decision",
        "policy/adaptive/",
        "see `turbospec_bench/ablation/one_decision.py`",
        "all of `adaptive`; off: a prototype with one cost model, one objective and one kind of experiment",
        lambda: (Change(config, "AdaptivePolicy", OneDecisionPolicy),),
    ),
)
