"""A candidate to replace most mechanisms of `adaptive`: one cost model, one objective, one kind of experiment.

A prototype, for comparison by the ablation: `docs/notes/2026-11-24-one-decision.md` has its figures and what it lacks.

* **Cost**: one online regression of the whole step's time on what the step did. Where a host measures drafting by
  itself, the two parts are two observations of the same weights w. All weights drift together (clock, other tenants),
  and so do those of drafting, d: before each observation the covariance grows by w·wᵀ + d·dᵀ, times the squared drift.
* **Objective**: expected tokens − λ · seconds. λ is the best rate of the step's own requests, without the marginal time
  of the prompt tokens that steps contain on average, times a factor for requests that wait for their first token.
* **Experiments**: what was measured least is tried where that may change decisions. The value of a plan differs from
  that of the best plan by d tokens; an experiment moves the estimate of d by a standard deviation s (the knowledge
  gradient with correlated beliefs: Frazier, Powell, Dayanik, INFORMS Journal on Computing 21, 2009). It is made if
  `HORIZON` · (E[max(d + s·Z, 0)] − max(d, 0)) exceeds what it costs, and a budget covers that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray, Phase, StepOutcome, StepPlan, StepView
from turbospec.models.acceptance import AcceptanceModel, survival
from turbospec.models.latency import VERIFY_KNOTS, LatencyModel, _curve
from turbospec.models.logistic import CLASS_PRIOR_VARIANCE, LEVEL_PRIOR_VARIANCE, MAX_CLASSES, between_request_variance
from turbospec.models.online_regression import OnlineRegression, learn_online
from turbospec.planning.best_rate import best_rate
from turbospec.planning.exact import StepCosts, plan_draft_lengths
from turbospec.planning.problem import Batch, amortise_catch_up
from turbospec.policy.adaptive.settings import AdaptiveSettings
from turbospec.runtime.plans_in_flight import PlansInFlight

SEGMENTS = len(VERIFY_KNOTS) - 1
CONTEXT, REQUESTS, TOKENS = 1, 2, 3
PREFILL = TOKENS + SEGMENTS
PREFILL_TOKENS, PIECEWISE, DRAFT = PREFILL + 1, PREFILL + 2, PREFILL + 3
PASSES, ROWS, DRAFT_CONTEXT, CATCH_UP = DRAFT + 1, DRAFT + 2, DRAFT + 3, DRAFT + 4
SIZE = CATCH_UP + 1
"""Places of the features of a step; 0 is the constant."""

DRIFT = 0.002
"""Relative drift per step, a standard deviation, where errors have no common sign."""
PROFILE_ERROR, PROFILE_PART_ERROR, PROFILE_WEIGHT_ERROR = 0.3, 0.3, 0.1
"""Relative standard deviations by which a profile may be wrong: in all, in drafting alone, in each weight."""
PREFILL_WEIGHT = 0.05
"""Weight of the newest step in the running mean of prompt tokens per step."""
HORIZON = 100
"""Steps over which what an experiment shows is worth something."""
FIRST_BUDGET_STEPS = 5
"""Steps whose duration is the budget of experiments at the start, and its upper limit later."""
DEVIATIONS = 1.0
"""Standard deviations by which estimates are better in the plan that an experiment is made for."""
LEAST_COST = 0.2
"""Share of its mean that a drafting cost has at least in that plan."""
PEAK_STEPS = 150
"""Steps with decoding requests after which the most requests that decoded at once are forgotten."""
REQUEST_DEVIATIONS = 0.4
"""Standard deviations that are added to the log-odds of a request of which little is known: its first drafts also show
whether it is one of the requests that accept drafts."""
IDLE_STEPS = 100
"""Steps without drafts in which the uncertainty about the drafter grows by a factor e."""
IDLE_LEVEL_STEPS = 1000
"""Steps without drafts in which the estimated level of acceptance returns to its prior by a factor e."""
OUTCOME_VARIANCE = 0.2
"""p · (1 − p) of a typical draft token."""


class StepCostModel:
    """Seconds of a step, learnt from whole steps.

    Args:
        latency: a fitted model, from a profile; None to start from a guess.
    """

    def __init__(self, latency: LatencyModel | None) -> None:
        start, fitted = LatencyModel() if latency is None else latency, latency is not None
        weights, covariance = np.zeros(SIZE), np.zeros((SIZE, SIZE))
        target = [0, CONTEXT, *range(TOKENS, DRAFT)]
        weights[target] = start.verify.weights
        covariance[np.ix_(target, target)] = start.verify.covariance
        weights[0] += start.host.weights[0]
        weights[REQUESTS], covariance[REQUESTS, REQUESTS] = start.host.weights[1], start.host.covariance[1, 1]
        weights[DRAFT:], covariance[DRAFT:, DRAFT:] = start.draft.weights, start.draft.covariance
        if fitted:
            drafting = np.where(np.arange(SIZE) >= DRAFT, weights, 0.0)
            covariance += PROFILE_ERROR**2 * np.outer(weights, weights)
            covariance += PROFILE_PART_ERROR**2 * np.outer(drafting, drafting)
            covariance += np.diag((PROFILE_WEIGHT_ERROR * weights) ** 2)
        self.regression = OnlineRegression(weights, covariance)
        if fitted:
            self.regression.state.noise[0] = 0.1

    @property
    def weights(self) -> FloatArray:
        """(SIZE,) seconds per unit of each feature."""
        return self.regression.weights

    def learn(self, outcome: StepOutcome, requests: int) -> None:
        """Take in one step of so many requests, and the steps before it that reused a plan."""
        if outcome.step_seconds <= 0.0:
            return
        state = self.regression.state
        # Errors of one sign in a row: the whole machine has become slower or quicker.
        tracking = state.noise[1] ** 2 / max(state.noise[2], 1e-9) ** 2
        drift = DRIFT + tracking * abs(state.noise[1])
        drafted = np.where(np.arange(SIZE) >= DRAFT, state.weights, 0.0)
        state.covariance[:] += drift**2 * (np.outer(state.weights, state.weights) + np.outer(drafted, drafted))
        if steps := outcome.reused_plan_steps:
            row = _features(outcome.reused_plan_tokens / steps, outcome.context_tokens, requests)
            learn_online(state, row, max(outcome.reused_plan_seconds / steps, 1e-9))
        row = _features(outcome.tokens_batched, outcome.context_tokens, requests, outcome.prefill_tokens)
        row[PIECEWISE] = outcome.piecewise
        drafting = np.zeros(SIZE)
        if passes := len(outcome.draft_rows):
            rows = float(outcome.draft_rows.sum())
            drafting[DRAFT:] = 1.0, passes, rows, outcome.draft_context_tokens, outcome.catch_up_tokens
        if passes and outcome.draft_seconds > 0.0:
            learn_online(state, drafting, outcome.draft_seconds)
            learn_online(state, row, max(outcome.step_seconds - outcome.draft_seconds, 1e-9))
        else:
            learn_online(state, row + drafting, outcome.step_seconds)

    def costs(
        self, view: StepView, batch: Batch, prefill: float, weights: FloatArray, *, decode_only: bool = False
    ) -> StepCosts:
        """Costs of a step with so many prompt tokens; `decode_only` leaves out their marginal time."""
        tokens = max(batch.decoding + round(prefill), 1)
        most = max(batch.max_draft_tokens, view.size * max(view.graph_lengths, default=0))
        floor = weights[0] + weights[CONTEXT] * batch.context_tokens + weights[REQUESTS] * view.size
        floor += weights[PREFILL] * min(round(prefill), 1) + weights[PREFILL_TOKENS] * prefill
        verify = _curve(np.ascontiguousarray(weights[TOKENS:PREFILL]), float(floor), tokens, most)
        if decode_only and prefill >= 1.0:
            slope = weights[TOKENS + int(np.searchsorted(VERIFY_KNOTS[1:], tokens))] + weights[PREFILL_TOKENS]
            verify = np.maximum(verify - prefill * slope - weights[PREFILL], 0.2 * verify[0])
        start, each = float(weights[DRAFT]), float(weights[PASSES])
        row = float(weights[ROWS] + weights[DRAFT_CONTEXT] * batch.context_tokens / view.size)
        whole_batch = each + row * (view.size if view.batch_drafter else batch.decoding)
        if view.parallel_drafter:
            costs = StepCosts(verify, 0.0 if view.first_pass_every_step else start + whole_batch)
        elif view.batch_drafter:
            costs = StepCosts(verify, -whole_batch if view.first_pass_every_step else start, whole_batch)
        else:
            costs = StepCosts(verify, start, each, row)
        return costs.with_graphs(view.graph_lengths, float(weights[PIECEWISE]))

    def features(self, view: StepView, batch: Batch, lengths: IntArray, padded: int) -> FloatArray:
        """(SIZE,) what a step with these (n,) draft lengths does."""
        tokens = padded * view.size or int(lengths.sum())
        prefill = view.prefill_tokens
        row = _features(batch.decoding + prefill + tokens, batch.context_tokens, view.size, prefill)
        row[PIECEWISE] = bool(view.graph_lengths) and not padded and tokens > 0
        if tokens == 0 or (view.parallel_drafter and view.first_pass_every_step):
            return row
        passes = 1 if view.parallel_drafter else padded or int(lengths.max())
        rows = passes * view.size if view.batch_drafter else passes * batch.decoding
        if not view.batch_drafter and not view.parallel_drafter:
            rows = int(lengths.sum())
        started = not view.first_pass_every_step
        row[DRAFT:] = started, passes - (not started), rows, rows * batch.context_tokens / view.size, 0.0
        row[CATCH_UP] = float(view.drafter_lag_tokens[lengths > 0].sum())
        return row


@dataclass(slots=True)
class _Record:
    """A planned step until its outcome arrives."""

    step: int
    rows: IntArray
    class_ids: IntArray
    decoders: BoolArray
    prefill_tokens: int
    price: float = 0.0
    experiment_seconds: float = 0.0
    """What an experiment adds to the best plan's time."""
    experiment_gain: float = 0.0
    """Tokens that the best plan would have gained; with `experiment_seconds` 0 there was no experiment."""


@dataclass(slots=True, frozen=True)
class _Step:
    """One step's decision: its view, costs, price, and the best plan without experiments."""

    view: StepView
    batch: Batch
    rows: IntArray
    acceptance: FloatArray
    survival: FloatArray
    costs: StepCosts
    price: float
    lag_seconds: FloatArray
    """(n,) to catch up each request's drafter KV lag."""
    charged_seconds: FloatArray
    """(n,) the part of it that is charged to this step."""
    best: tuple[IntArray, int]

    def gain(self, lengths: IntArray) -> float:
        return float(np.where(np.arange(self.survival.shape[1]) < lengths[:, None], self.survival, 0.0).sum())

    def seconds(self, plan: tuple[IntArray, int], lag_seconds: FloatArray) -> float:
        return self.costs.seconds(*plan) + float(lag_seconds[plan[0] > 0].sum())

    def value(self, plan: tuple[IntArray, int]) -> float:
        """The objective, in tokens."""
        return self.gain(plan[0]) - self.price * self.seconds(plan, self.charged_seconds)


class OneDecisionPolicy:
    """Chooses draft lengths as the module says, in place of `AdaptivePolicy`; without SLO, gate and reuse of plans.

    Args:
        config: of `adaptive`.
        latency: a fitted model; None to learn one from the first steps.
    """

    def __init__(self, config: AdaptiveSettings, latency: LatencyModel | None = None) -> None:
        self.config = config
        self.cost_model = StepCostModel(latency)
        self.acceptance: AcceptanceModel | None = None
        self._peak_requests = 0
        """Most requests that decoded at once within `PEAK_STEPS`."""
        self._peak_age = 0
        """Steps since that peak."""
        self._records = PlansInFlight[_Record]()
        self._budget = 0.0
        """Seconds that experiments may lose."""
        self._most_budget: float | None = None
        self._prefill_tokens = 0.0
        """Mean prompt tokens of a step."""
        self._unforeseen_tokens = 0.0
        """Mean prompt tokens of requests that join a step after it was planned."""
        self._drafted_at = -1

    def plan(self, view: StepView) -> StepPlan:
        limits = view.draft_limits
        if self.config.max_draft is not None:
            limits = np.minimum(limits, self.config.max_draft)
        batch = Batch.of(view, limits)
        acceptance = self.acceptance
        if acceptance is None:
            acceptance = self.acceptance = AcceptanceModel(max(view.max_draft, 1), idle_memory=IDLE_STEPS)
        rows, _ = acceptance.assign_rows(view.request_ids)
        record = _Record(view.step, rows, view.class_ids, view.phase != Phase.PREFILL, view.prefill_tokens)
        self._records.put(view.step, record)
        if batch.max_draft_tokens == 0:
            return StepPlan(np.zeros(view.size, np.int64), batch.decoding, reason="no request can draft")
        step = self._best(view, batch, rows, limits, acceptance)
        chosen, reason = step.best, f"price of time {step.price:.0f} tok/s"
        record.price = step.price
        if not view.prefill_pending and self._budget > 0.0:
            experiment = self._plain(step)
            longer, worth = self._longer(step, acceptance)
            if longer is not None and worth > (0.0 if experiment is None else experiment[1]):
                experiment = longer, worth
            if experiment is not None:
                chosen, reason = experiment[0], "experiment"
                lag = step.lag_seconds
                record.experiment_seconds = step.seconds(chosen, lag) - step.seconds(step.best, lag)
                record.experiment_gain = step.gain(step.best[0])
        seconds = step.seconds(chosen, step.lag_seconds)
        tokens = batch.decoding + step.gain(chosen[0])
        probe = record.experiment_seconds != 0.0
        return StepPlan(chosen[0], tokens, seconds, reason, padded_length=chosen[1], probe=probe)

    def observe(self, outcome: StepOutcome) -> None:
        seconds = outcome.step_seconds + outcome.reused_plan_seconds
        if self._most_budget is None and outcome.prefill_tokens == 0:
            self._most_budget = self._budget = FIRST_BUDGET_STEPS * outcome.step_seconds
        self._budget = min(self._budget + self.config.probe_share * seconds, self._most_budget or math.inf)
        record = self._records.last(outcome.step)
        if record is None or record.step != outcome.step:
            return
        if record.experiment_seconds:
            lost = record.experiment_seconds - (int(outcome.accepted.sum()) - record.experiment_gain) / record.price
            self._budget -= max(lost, 0.1 * abs(record.experiment_seconds))
        self.cost_model.learn(outcome, len(record.rows))
        prefill, unforeseen = outcome.prefill_tokens, max(outcome.prefill_tokens - record.prefill_tokens, 0)
        self._prefill_tokens += PREFILL_WEIGHT * (prefill - self._prefill_tokens)
        self._unforeseen_tokens += PREFILL_WEIGHT * (unforeseen - self._unforeseen_tokens)
        if decoded := int(np.count_nonzero(outcome.emitted[record.decoders])):
            self._peak_age += 1
            if decoded >= self._peak_requests or self._peak_age > PEAK_STEPS:
                self._peak_requests, self._peak_age = decoded, 0
        self._learn_acceptance(record, outcome)

    def _learn_acceptance(self, record: _Record, outcome: StepOutcome) -> None:
        if self.acceptance is None:
            return
        level = self.acceptance.model.terms.level
        if not len(outcome.draft_rows) and not outcome.drafted.any():
            level[1] = min(level[1] * math.exp(1 / IDLE_STEPS), LEVEL_PRIOR_VARIANCE)
            return
        idle = max(outcome.step - self._drafted_at - 1, 0)
        level[0] *= math.exp(-idle / IDLE_LEVEL_STEPS)
        unknown = np.full(len(record.rows), math.nan)
        drafts = outcome.drafted, outcome.accepted, outcome.truncated
        self.acceptance.observe(record.rows, record.class_ids, *drafts, unknown, idle)
        self._drafted_at = outcome.step

    def _best(self, view: StepView, batch: Batch, rows: IntArray, limits: IntArray, model: AcceptanceModel) -> _Step:
        acceptance = model.conditional(rows, view.class_ids, limits)
        acceptance = _raised(acceptance, REQUEST_DEVIATIONS * np.sqrt(_request_variance(model, rows)))
        gains, weights = survival(acceptance), self.cost_model.weights
        decode = self.cost_model.costs(view, batch, self._prefill_tokens, weights, decode_only=True)
        costs = self.cost_model.costs(view, batch, view.prefill_tokens + self._unforeseen_tokens, weights)
        rate = best_rate(gains, decode, float(batch.decoding))
        price = rate * self._waiting_factor(view, batch, float(costs.verify[0]))
        lag = view.drafter_lag_tokens * weights[CATCH_UP]
        charged = amortise_catch_up(lag, view.tokens_left, acceptance[:, 0])
        best = plan_draft_lengths(gains, costs, price, request_seconds=charged)
        plan = best.draft_lengths, best.padded_length
        return _Step(view, batch, rows, acceptance, gains, costs, price, lag, charged, plan)

    def _waiting_factor(self, view: StepView, batch: Batch, no_draft_seconds: float) -> float:
        """How much more a second costs while requests wait for their first token or for a place in the batch."""
        waiting = batch.prefilling + view.admitted_requests + (batch.first_decode if view.draft_before_emit else 0)
        part = no_draft_seconds / (no_draft_seconds + view.waiting_seconds)
        most = max(self._peak_requests, batch.decoding)
        joining = min(batch.decoding + batch.prefilling + view.waiting_requests, most) - batch.decoding
        return 1.0 + (self.config.first_token_weight * part * waiting + max(joining, 0)) / batch.decoding

    def _plain(self, step: _Step) -> tuple[tuple[IntArray, int], float] | None:
        """A step without drafts in place of one with drafts, and what it is worth, in tokens."""
        if not step.best[0].any():
            return None
        plain = np.zeros(step.view.size, np.int64), 0
        difference = step.value(plain) - step.value(step.best)
        worth = HORIZON * _improvement(difference, self._shown(step, plain, plain)) + difference
        return (plain, worth) if worth > 0.0 and -difference / step.price <= self._budget else None

    def _longer(self, step: _Step, model: AcceptanceModel) -> tuple[tuple[IntArray, int] | None, float]:
        """Drafts for more requests, or one token longer, and what they are worth, in tokens."""
        view, weights, (best, _) = step.view, self.cost_model.weights, step.best
        level = float(model.model.terms.level[1])
        own = _request_variance(model, step.rows) + _class_variance(model, view.class_ids)
        deviation = np.sqrt(level + own / view.size)
        better = survival(_raised(step.acceptance, DEVIATIONS * deviation))
        better[:, int(best.max()) + 1 :] = 0.0
        low = weights.copy()
        spread = np.sqrt(np.maximum(np.diag(self.cost_model.regression.covariance)[DRAFT:], 0.0))
        low[DRAFT:] = np.maximum(weights[DRAFT:] - DEVIATIONS * spread, LEAST_COST * weights[DRAFT:])
        costs = self.cost_model.costs(view, step.batch, view.prefill_tokens + self._unforeseen_tokens, low)
        cheaper = step.charged_seconds * (low[CATCH_UP] / max(weights[CATCH_UP], 1e-12))
        hoped = plan_draft_lengths(better, costs, step.price, request_seconds=cheaper)
        target = hoped.draft_lengths, hoped.padded_length
        more = np.flatnonzero(target[0] > best)
        if not len(more):
            return None, 0.0
        more = more[np.argsort(step.lag_seconds[more], kind="stable")]
        difference = step.value(target) - step.value(step.best)
        columns = np.arange(better.shape[1])
        hidden = np.where(columns < target[0][:, None], np.maximum(better - step.survival, 0.0), 0.0).sum()
        potential, variance = float(hidden) / DEVIATIONS, float(np.mean(deviation**2))
        chosen, most = None, 0.0
        for size in _sizes(len(more)) if not target[1] else (len(more),):
            lengths = best.copy()
            lengths[more[:size]] = target[0][more[:size]]
            experiment = lengths, target[1] if size == len(more) else 0
            lost = self._lost_seconds(step, experiment)
            if lost > self._budget:
                break
            seen = OUTCOME_VARIANCE * variance * (size if best.any() else float(lengths.sum()))
            learnt = potential * math.sqrt(seen / (1.0 + seen))
            shown = math.hypot(self._shown(step, target, experiment), learnt)
            worth = HORIZON * _improvement(difference, shown) - lost * step.price
            if worth > most:
                chosen, most = experiment, worth
        return chosen, most

    def _lost_seconds(self, step: _Step, plan: tuple[IntArray, int]) -> float:
        deferred = step.lag_seconds - step.charged_seconds
        added = float(deferred[plan[0] > 0].sum()) - float(deferred[step.best[0] > 0].sum())
        return (step.value(step.best) - step.value(plan)) / step.price + added

    def _shown(self, step: _Step, target: tuple[IntArray, int], experiment: tuple[IntArray, int]) -> float:
        """Standard deviation, in tokens, of what the experiment's time tells about the target's value."""
        state, features = self.cost_model.regression.state, self.cost_model.features
        tried = features(step.view, step.batch, *experiment)
        difference = features(step.view, step.batch, *target) - features(step.view, step.batch, *step.best)
        moved = state.covariance @ tried
        noise = float(state.noise[0]) * step.seconds(experiment, step.lag_seconds)
        return step.price * abs(float(difference @ moved)) / math.sqrt(float(tried @ moved) + noise**2)


def _features(tokens: float, context_tokens: float, requests: int, prefill_tokens: int = 0) -> FloatArray:
    row = np.zeros(SIZE)
    row[0], row[CONTEXT], row[REQUESTS] = 1.0, context_tokens, requests
    row[TOKENS:PREFILL] = np.clip(tokens - VERIFY_KNOTS[:-1], 0.0, VERIFY_KNOTS[1:] - VERIFY_KNOTS[:-1])
    row[PREFILL], row[PREFILL_TOKENS] = min(prefill_tokens, 1), prefill_tokens
    return row


def _sizes(most: int) -> Sequence[int]:
    """Numbers of requests to try: powers of 4, and all."""
    return sorted({min(most, 4**power) for power in range(most.bit_length() // 2 + 2)})


def _improvement(difference: float, deviation: float) -> float:
    """E[max(d + s·Z, 0)] − max(d, 0) for a standard normal Z."""
    if deviation <= 0.0:
        return 0.0
    z = difference / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return deviation * (density + z * 0.5 * math.erfc(-z / math.sqrt(2))) - max(difference, 0.0)


def _raised(acceptance: FloatArray, deviation: FloatArray) -> FloatArray:
    """(n, K) acceptance with its log-odds raised by the (n,) deviations; 0 stays 0."""
    odds = acceptance / (1.0 - np.minimum(acceptance, 0.995)) * np.exp(deviation)[:, None]
    return np.where(acceptance > 0.0, np.minimum(odds / (1.0 + odds), 0.995), 0.0)


def _request_variance(model: AcceptanceModel, rows: IntArray) -> FloatArray:
    terms = model.model.terms
    return 1.0 / (1.0 / between_request_variance(terms) + terms.requests[rows, 1])


def _class_variance(model: AcceptanceModel, class_ids: IntArray) -> FloatArray:
    return 1.0 / (1.0 / CLASS_PRIOR_VARIANCE + model.model.terms.classes[class_ids % MAX_CLASSES, 1])
