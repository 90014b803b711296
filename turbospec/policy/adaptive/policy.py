"""The closed loop: exact plans from what acceptance and latency were learnt to be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from turbospec.exploration.no_draft_steps import NoDraftSteps
from turbospec.exploration.probing import ProbeBudget, probe_loss_seconds
from turbospec.interface import BoolArray, FloatArray, IntArray, Phase, StepOutcome, StepPlan, StepView
from turbospec.models.acceptance import survival
from turbospec.models.decode_rate import DecodeRate
from turbospec.models.drafter import DrafterModels
from turbospec.models.latency import LatencyModel
from turbospec.planning.exact import StepCosts
from turbospec.planning.held_plan import MAX_STEPS, HeldPlan, steps_without_drafts
from turbospec.planning.objective import best_rate
from turbospec.planning.prediction_bias import PredictionBias
from turbospec.planning.problem import Batch, StepProblem, amortise_catch_up, fixed_lengths, gated_start
from turbospec.planning.slo import TpotSlo
from turbospec.planning.stopping import PassValueCache
from turbospec.policy.adaptive.settings import AdaptiveSettings
from turbospec.runtime.plans_in_flight import PlansInFlight

PROBE_DRAFT_LENGTH = 1
FEW = 8
"""Requests that may all be harder than those before them."""
OWN_RATE_MARGIN = 1.1
"""Times their rate without drafts that several of them must be able to reach for a plan at their own rate."""
EXPLORATION = (0, 2, 0, 5, 1, 0, 3, 4, 0, 2)
"""Draft lengths of steps that learn what drafting costs: the first without a profile, and after it has changed."""
QUICKER = 0.8
"""Times what it took, or should have taken, by which a step shows that the machine has become another."""


@dataclass(slots=True)
class _Probe:
    expected: FloatArray
    """Acceptance expected of each row probed."""
    step_seconds: float
    """What the step was expected to take."""
    verify_seconds: float
    """What the probed tokens were expected to add to the target's pass."""


@dataclass(slots=True)
class _Open:
    """What `observe` needs of the plan it closes."""

    rows: IntArray
    class_ids: IntArray
    decoders: BoolArray
    """(n,) the requests that were past their prompts."""
    prefilling: bool
    drafter_always_prefills: bool
    """Whether the drafter reads prompts, drafts or not."""
    plan: StepPlan | None = None
    """What was promised; None where nothing was, or the step is there to learn from."""
    drafter_lag_tokens: int = 0
    """That the drafter was to catch up."""
    price: float = 0.0
    """Tokens that a second was worth."""
    probe: _Probe | None = None

    @classmethod
    def of(cls, view: StepView, rows: IntArray) -> _Open:
        decoders = view.phase != Phase.PREFILL
        return cls(rows, view.class_ids, decoders, view.prefill_tokens > 0, view.drafter_always_prefills)


class AdaptivePolicy:
    """Plans each step exactly under learnt acceptance, learnt latency and a learnt price of time.

    Args:
        config: its settings.
        latency: a fitted model; None to learn one from the first steps.
    """

    def __init__(self, config: AdaptiveSettings, latency: LatencyModel | None = None) -> None:
        self.config = config
        self.latency = latency or LatencyModel()
        self.price = DecodeRate()
        self.bias = PredictionBias()
        self.probes = ProbeBudget(config.probe_share)
        self.plain_steps = NoDraftSteps(config.probe_share)
        self.models: DrafterModels | None = None
        """None until the first view says how long drafts can be."""
        self.stopping: PassValueCache | None = None
        """Values of starting a gated draft; None as long as `models` is."""
        self.slo: TpotSlo | None = None
        self._open = PlansInFlight[_Open]()
        self._explored = 0
        self._waiting: list[tuple[_Open, StepOutcome]] = []
        """Outcomes not yet learnt from: that is done when the next decision is due."""
        self._held: tuple[HeldPlan, _Open] | None = None
        self._off_in_a_row = 0
        """Plans of no drafts since the last one that drafted because it pays."""
        self._drafted_at = -1
        """The last step whose drafts were learnt from."""

    def plan(self, view: StepView) -> StepPlan:
        if self._held is not None:
            held, opened = self._held
            plan = held.again(view)
            if plan is not None:
                self._open.put(view.step, opened)
                return plan
        self._held = None
        limits = view.draft_limits
        if self.config.max_draft is not None:
            limits = np.minimum(limits, self.config.max_draft)
        batch = Batch.of(view, limits)
        if batch.max_draft_tokens == 0 and self.config.tpot_slo_ms is None:
            # Nothing to decide: learning waits until there is, and a first token does not wait for it.
            nobody = np.zeros(view.size, np.int64)
            self._open.put(view.step, _Open.of(view, nobody))
            return self._nothing_to_draft(view, batch)
        self._learn()
        models = self.models or self._start(view.max_draft)
        rows = self._rows(view, models)
        opened = _Open.of(view, rows)
        self._open.put(view.step, opened)
        if batch.max_draft_tokens == 0:
            return self._nothing_to_draft(view, batch)
        if not self.latency.calibrated:
            return self._explore(limits)

        problem = self._problem(view, models, batch, rows, limits)
        max_seconds = self._max_seconds(view, problem)
        plan = self._drafts(view, problem, models, max_seconds)
        if plan is None and (slower := self._at_own_rate(problem)) is not None:
            problem = slower
            plan = self._drafts(view, problem, models, max_seconds)
        opened.price = problem.price
        if plan is None:
            plan = self._off(view, problem, models, opened, max_seconds)
        elif self._plain_step_is_due(view, problem, plan):
            opened.plan = StepPlan(
                limits * 0, batch.decoding, problem.no_draft_seconds, "a plain step, to compare with"
            )
            return opened.plan
        if plan.probe:
            return plan
        opened.plan = plan
        opened.drafter_lag_tokens = int(view.drafter_lag_tokens[plan.draft_lengths > 0].sum())
        delays_first_tokens = self._delays_first_tokens(view, batch)
        if plan.draft_lengths.any():
            self._off_in_a_row = 0
        elif not delays_first_tokens:
            self._off_in_a_row += 1
        # A promised time per token is kept step by step. First tokens and those who wait have a price, and catching up
        # a cost, of this step alone.
        alike = self.slo is None and not delays_first_tokens and problem.price == problem.decode_price
        if alike and problem.total_deferred_catch_up(plan.draft_lengths) == 0.0:
            held = HeldPlan.of(plan, view)
            self._held = None if held is None else (held, opened)
        return plan

    def _drafts(
        self, view: StepView, problem: StepProblem, models: DrafterModels, max_seconds: float
    ) -> StepPlan | None:
        """The best plan with drafts; None where none pays."""
        if self.config.use_confidence and models.calibrated and not view.parallel_drafter and math.isinf(max_seconds):
            assert self.stopping is not None
            plan = gated_start(problem, self.stopping, models.calibration)
        else:
            plan = fixed_lengths(problem, max_seconds)
        if plan is None or not self.bias.pays(plan, problem, prefilling=view.prefill_tokens > 0):
            return None
        return plan

    @staticmethod
    def _at_own_rate(problem: StepProblem) -> StepProblem | None:
        """The problem at the best rate of its own requests, where that is less than the price; None where it is not, or
        drafts hardly add to it.

        The price is what requests of this load have made of a second, easy ones among them. But a request's tokens
        are owed, whatever others made of theirs: it is done soonest at the best rate it can have. In a large batch the
        two hardly differ, but by the models' errors.
        """
        if problem.batch.decoding > FEW:
            return None
        own = best_rate(survival(problem.conditional), problem.costs, float(problem.batch.decoding))
        margin = 1.0 if problem.batch.decoding == 1 else OWN_RATE_MARGIN
        if not margin * problem.batch.decoding / problem.no_draft_seconds < own < problem.decode_price:
            return None
        return replace(problem, price=problem.price * own / problem.decode_price, decode_price=own)

    def observe(self, outcome: StepOutcome) -> None:
        seconds = outcome.step_seconds + outcome.reused_plan_seconds
        self.probes.earn(seconds)
        self.plain_steps.earn(seconds)
        opened = self._open.pop(outcome.step)
        if opened is not None:
            self._waiting.append((opened, outcome))
            if len(self._waiting) > MAX_STEPS:
                self._learn()

    def _learn(self) -> None:
        waiting, self._waiting = self._waiting, []  # an outcome that raises is not met again
        for opened, outcome in waiting:
            self._learn_step(opened, outcome)

    def _learn_step(self, opened: _Open, outcome: StepOutcome) -> None:
        if outcome.reused_plan_steps:
            requests = round(outcome.reused_plan_tokens / outcome.reused_plan_steps)
            self.price.add(requests, outcome.reused_plan_tokens, outcome.reused_plan_seconds, outcome.reused_plan_steps)
        self.latency.learn(outcome, len(opened.rows))
        # Some may have ended between the plan and the step that verified its drafts.
        decoding = int(np.count_nonzero(opened.decoders))
        decoded = int(np.count_nonzero(outcome.emitted[opened.decoders]))
        decoding_alone = outcome.prefill_tokens == 0 and decoding > 0
        # Prompts in either model's pass that joined after the plan was made are not in what it promised.
        unforeseen = max(outcome.catch_up_tokens - opened.drafter_lag_tokens, 0) if len(outcome.draft_rows) else 0
        joined = opened.prefilling != (outcome.prefill_tokens > 0) or unforeseen > 0
        if opened.plan is not None and len(outcome.draft_rows) and not opened.drafter_always_prefills:
            seconds = unforeseen * self.latency.catch_up_token_seconds
            self.bias.learn_drafter_prefill(decoding, opened.prefilling, seconds)
        if opened.plan is not None and not joined:
            self.bias.learn(opened.plan, decoding, decoded, opened.prefilling, outcome)
        if len(outcome.draft_rows) or outcome.drafted.any():
            assert self.models is not None
            idle_steps = max(outcome.step - self._drafted_at - 1, 0)
            self.models.learn(opened.rows, opened.class_ids, outcome, idle_steps)
            self._drafted_at = outcome.step
        elif decoding_alone:
            self.plain_steps.learn(decoding, outcome.step)
        if opened.probe is not None:
            self._close_probe(opened.probe, opened.price, outcome)
        elif decoded > 0 and (seconds := self._decode_seconds(outcome, len(opened.rows))) > 0.0:
            self.price.add(decoded, int(outcome.emitted.sum()), seconds)

    def _decode_seconds(self, outcome: StepOutcome, requests: int) -> float:
        """What a step would have taken without the prompts in it; 0 where that is not known.

        On a busy server nearly every step has some.
        """
        if outcome.prefill_tokens == 0:
            return outcome.step_seconds
        if not self.latency.calibrated:
            return 0.0
        alone, whole = (
            float(self.latency.verify_curve(tokens, 0, outcome.context_tokens, requests)[0])
            for tokens in (outcome.tokens_batched - outcome.prefill_tokens, outcome.tokens_batched)
        )
        return outcome.draft_seconds + (outcome.step_seconds - outcome.draft_seconds) * alone / whole

    def _start(self, max_draft: int) -> DrafterModels:
        self.models = DrafterModels(max(max_draft, 1))
        self.stopping = PassValueCache(self.models.calibration)
        if self.config.tpot_slo_ms is not None:
            self.slo = TpotSlo(self.config.tpot_slo_ms / 1e3, self.models.capacity)
        return self.models

    def _rows(self, view: StepView, models: DrafterModels) -> IntArray:
        """State rows of the view's requests, fresh ones cleared in every model."""
        rows, fresh = models.assign_rows(view.request_ids)
        if self.slo is not None:
            self.slo.reset(fresh, models.capacity)
            self.slo.record_first_tokens(view, rows)
        return rows

    def _problem(
        self, view: StepView, models: DrafterModels, batch: Batch, rows: IntArray, limits: IntArray
    ) -> StepProblem:
        conditional = models.acceptance.conditional(rows, view.class_ids, limits)
        costs = self._costs(view, batch)
        catch_up: FloatArray | None = None
        charges: FloatArray | None = None
        if batch.drafter_lag_tokens:
            catch_up = view.drafter_lag_tokens.astype(np.float64) * self.latency.catch_up_token_seconds
            charges = amortise_catch_up(catch_up, view.tokens_left, conditional[:, 0])
        rate = self.price.rate(batch.decoding)
        if rate is None:
            rate = best_rate(survival(conditional), costs, float(batch.decoding))
        soon = self.price.rate(batch.decoding, batch.prefilling + view.waiting_requests) or rate
        price = soon * self._urgency(view, batch, float(costs.verify[0]))
        # Whatever is drafted, somebody waits while the drafter reads the step's prompts, which it could do later.
        reading = view.drafter_prefill_tokens * self.latency.catch_up_token_seconds
        costs.draft_start += reading * max(1.0 - rate / price, 0.0)
        return StepProblem(batch, rows, limits, conditional, costs, price, rate, catch_up, charges, reading)

    def _costs(self, view: StepView, batch: Batch) -> StepCosts:
        verify = self.latency.verify_curve(
            batch.decoding + view.prefill_tokens, batch.max_draft_tokens, batch.context_tokens, view.size
        )
        start, each_pass, row = self.latency.draft_costs(batch.context_tokens / view.size)
        if view.parallel_drafter and view.first_pass_every_step:
            return StepCosts(verify)
        # In a pass over the whole batch a row costs the same drafted for or not.
        rows = view.size if view.batch_drafter else batch.decoding
        if view.parallel_drafter:
            return StepCosts(verify, draft_start=start + each_pass + row * rows)
        if view.batch_drafter:
            whole_batch = each_pass + row * rows
            return StepCosts(verify, -whole_batch if view.first_pass_every_step else start, whole_batch)
        return StepCosts(verify, start, each_pass, row)

    def _urgency(self, view: StepView, batch: Batch, plain_seconds: float) -> float:
        """Times the decoding requests' rate that a second is worth: more than once where a first token waits for it."""
        # Others that are queued gain by throughput, and are in the rate.
        delayed = batch.prefilling + view.admitted_requests + (batch.first_decode if view.draft_before_emit else 0)
        # Where requests have queued for long, a step more or less is nothing to a first token.
        part = plain_seconds / (plain_seconds + view.waiting_seconds)
        return 1.0 + self.config.first_token_weight * part * delayed / batch.decoding

    @staticmethod
    def _delays_first_tokens(view: StepView, batch: Batch) -> bool:
        """Whether first tokens wait for a step: of prompts that are left or to come and, where tokens leave after the
        drafting, of the requests whose first token is ready."""
        return view.prefill_pending or (view.draft_before_emit and batch.first_decode > 0)

    def _max_seconds(self, view: StepView, problem: StepProblem) -> float:
        """Longest step that keeps to the promised time per token; infinite where no plan can break it."""
        if self.slo is None:
            return math.inf
        allowed = self.slo.max_seconds(view, problem.rows, problem.no_draft_seconds)
        return math.inf if allowed >= problem.full_draft_seconds else allowed

    def _plain_step_is_due(self, view: StepView, problem: StepProblem, plan: StepPlan) -> bool:
        """Whether to run a step without drafts in place of this plan, to compare drafting with."""
        if view.prefill_tokens:
            return False
        drafting_seconds = plan.predicted_seconds - problem.no_draft_seconds
        worth = (plan.predicted_tokens - problem.batch.decoding) / problem.price - drafting_seconds
        return self.plain_steps.is_due(problem.batch.decoding, view.step, worth)

    def _off(
        self, view: StepView, problem: StepProblem, models: DrafterModels, opened: _Open, max_seconds: float
    ) -> StepPlan:
        """Nothing pays: draft nothing, or a probe where one is due, delays no first token and breaks no promise."""
        if not self._delays_first_tokens(view, problem.batch):
            plan = self._probe(problem, models, opened)
            if plan is not None and plan.predicted_seconds <= max_seconds:
                return plan
            opened.probe = None
        return StepPlan(
            np.zeros(view.size, np.int64),
            problem.batch.decoding,
            problem.no_draft_seconds,
            f"no draft pays at {problem.price:.0f} tok/s",
            steps=1
            if self._would_pay_later(problem)
            else steps_without_drafts(problem.no_draft_seconds, self._off_in_a_row),
        )

    @staticmethod
    def _would_pay_later(problem: StepProblem) -> bool:
        """Whether drafting pays as soon as nobody waits for a step."""
        if problem.price <= problem.decode_price:
            return False
        return fixed_lengths(replace(problem, price=problem.decode_price), math.inf) is not None

    def _probe(self, problem: StepProblem, models: DrafterModels, opened: _Open) -> StepPlan | None:
        """A draft of one token for those worth asking about; None where none is due."""
        costs, expected = problem.costs, problem.conditional[:, 0]
        jump, each = problem.verify_costs()
        # While nothing is drafted the drafter reads the step's prompts for the probe alone.
        shared = costs.draft_start + costs.draft_pass + jump + problem.drafter_prefill_seconds
        of_row = np.full(len(expected), costs.draft_token + each)
        if problem.catch_up_seconds is not None:
            of_row += problem.catch_up_seconds
        evidence = models.acceptance.evidence(problem.rows)
        # Where nothing drafts, what a draft takes is not measured: it may be what it took while the server started.
        costs_are_old = self.latency.no_draft_time_ratio < QUICKER
        chosen = self.probes.choose(
            problem.limits > 0, shared, of_row, expected, problem.price, evidence, costs_outdated=costs_are_old
        )
        if chosen is None:
            return None
        seconds = problem.no_draft_seconds + shared + float(of_row[chosen].sum())
        opened.probe = _Probe(expected[chosen], seconds, jump + each * len(chosen))
        lengths = np.zeros(len(expected), np.int64)
        lengths[chosen] = PROBE_DRAFT_LENGTH
        return StepPlan(
            lengths,
            problem.batch.decoding + float(expected[chosen].sum()),
            seconds,
            "probe while drafting does not pay",
            probe=True,
        )

    def _close_probe(self, probe: _Probe, price: float, outcome: StepOutcome) -> None:
        gain = int(outcome.accepted.sum()) / price
        self.probes.spend(probe_loss_seconds(outcome.draft_seconds + probe.verify_seconds, gain))
        if outcome.drafted.any():
            self.probes.learn(int((outcome.accepted > 0).sum()), probe.expected)
            if outcome.step_seconds < QUICKER * probe.step_seconds:
                # A probe has one pass of few rows: which of the costs has fallen, only longer drafts show.
                self.latency.forget_draft_costs()
                self._explored = 0

    def _nothing_to_draft(self, view: StepView, batch: Batch) -> StepPlan:
        seconds = float(self._costs(view, batch).verify[0]) if self.latency.calibrated and view.size else math.nan
        # Who has no first token yet may draft after it.
        steps = 1 if self._delays_first_tokens(view, batch) else steps_without_drafts(seconds, self._off_in_a_row)
        return StepPlan(np.zeros(view.size, np.int64), batch.decoding, seconds, "no request can draft", steps=steps)

    def _explore(self, limits: IntArray) -> StepPlan:
        length = EXPLORATION[self._explored % len(EXPLORATION)]
        self._explored += 1
        return StepPlan(np.minimum(limits, length), reason=f"learning what a draft of {length} costs", probe=True)
