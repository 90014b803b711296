"""`adaptive`: chooses K for each request of a step, from learnt acceptance, step times and price of time λ.

`AdaptivePolicy._decide` sets up the step's problem; `_drafts` calls a planner of `turbospec.planning.problem`, which
maximises the objective."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from turbospec.interface import IntArray, StepOutcome, StepPlan, StepView
from turbospec.models.drafter import DrafterModels
from turbospec.models.latency import LatencyModel
from turbospec.planning.problem import Batch, StepProblem, fixed_lengths, gated_start
from turbospec.planning.slo import TpotSlo
from turbospec.planning.step_costs import step_costs
from turbospec.policy.adaptive.attribution import PlanRecord
from turbospec.policy.adaptive.exploration import Exploration
from turbospec.policy.adaptive.pricing import delays_first_tokens, priced_problem
from turbospec.policy.adaptive.server_models import ServerModels
from turbospec.policy.adaptive.settings import AdaptiveSettings
from turbospec.runtime.plans_in_flight import PlansInFlight

DRAFTING_STEPS = 2
"""Steps that may run on a plan with drafts. In the simulator's scenarios, plans for 1, 2 and 4 steps give the same
throughput and TPOT within 0.4 %; with 4, more servers that start slowly draft too little afterwards."""
NO_DRAFT_STEPS = 8
"""Steps that may run on a plan without drafts."""


class AdaptivePolicy:
    """Maximises expected tokens − λ · predicted time, exactly, step by step (docs/architecture.md, "Mathematics").

    `plan` learns from the outcomes reported since the last plan, sets the step's price of time and asks a planner
    (`planning/problem.py`). Where no draft pays it plans K = 0 or a probe.

    Args:
        config: its settings.
        latency: a fitted model; None to learn one from the first steps.
    """

    def __init__(self, config: AdaptiveSettings, latency: LatencyModel | None = None) -> None:
        self.config = config
        self.models = ServerModels(latency or LatencyModel())
        self.exploration = Exploration(self.models.latency, config.probe_share)
        self.slo: TpotSlo | None = None
        self._records = PlansInFlight[PlanRecord]()
        self._waiting: list[tuple[PlanRecord, StepOutcome]] = []
        """Outcomes that the models learn from before the next decision."""

    def plan(self, view: StepView) -> StepPlan:
        limits = view.draft_limits
        if self.config.max_draft is not None:
            limits = np.minimum(limits, self.config.max_draft)
        batch = Batch.of(view, limits)
        if batch.max_draft_tokens == 0 and self.config.tpot_slo_ms is None:
            # Nothing can draft. Learning waits for the next decision: here it would only delay a first token.
            self._records.put(view.step, PlanRecord.of(view, np.zeros(view.size, np.int64)))
            return self._nothing_to_draft(view, batch)
        self._learn()
        drafter = self.models.drafter
        if drafter is None or view.max_draft > drafter.max_draft:
            drafter = self._start(view.max_draft)
        record = PlanRecord.of(view, self._rows(view, drafter))
        self._records.put(view.step, record)
        if batch.max_draft_tokens == 0:
            return self._nothing_to_draft(view, batch)
        if not self.models.latency.calibrated:
            return self.exploration.explore(view, limits)
        return self._decide(view, batch, limits, record, drafter)

    def observe(self, outcome: StepOutcome) -> None:
        self.exploration.earn(outcome.step_seconds + outcome.reused_plan_seconds)
        record = self._records.last(outcome.step)
        if record is not None and record.covers(outcome):
            self._waiting.append((record, outcome))
            if len(self._waiting) > DRAFTING_STEPS:
                self._learn()

    def _learn(self) -> None:
        waiting, self._waiting = self._waiting, []  # if learning raises, it is not retried
        for record, outcome in waiting:
            self.models.learn(record, outcome)
            self.exploration.learn(record, outcome)

    def _decide(
        self, view: StepView, batch: Batch, limits: IntArray, record: PlanRecord, drafter: DrafterModels
    ) -> StepPlan:
        """The plan of a step in which requests can draft and step times are known."""
        problem = priced_problem(self.models, self.config.first_token_weight, view, batch, record.rows, limits)
        max_seconds = self._max_seconds(view, problem)
        plan = self._drafts(view, problem, drafter, max_seconds)
        record.price = problem.price
        if plan is None:
            plan = self._probe(view, problem, record, drafter, max_seconds)
            if plan is not None:
                return plan
            plan = self._off(view, problem)
        elif (comparison := self.exploration.comparison(view, problem, plan)) is not None:
            record.plan = comparison
            return comparison
        record.plan = plan
        if batch.drafter_lag_tokens:
            record.drafter_lag_tokens = int(view.drafter_lag_tokens[plan.draft_lengths > 0].sum())
        plan.valid_steps = self._valid_steps(view, problem, plan)
        record.last_step = view.step + plan.valid_steps - 1
        return plan

    def _drafts(
        self, view: StepView, problem: StepProblem, drafter: DrafterModels, max_seconds: float
    ) -> StepPlan | None:
        """The best plan with drafts; None where none pays."""
        if self.config.use_confidence and drafter.calibrated and not view.parallel_drafter and math.isinf(max_seconds):
            assert self.models.stopping is not None
            plan = gated_start(problem, self.models.stopping, drafter.calibration)
        else:
            plan = fixed_lengths(problem, max_seconds)
        if plan is None or not self.models.bias.pays(plan, problem, prefilling=view.prefill_tokens > 0):
            return None
        return plan

    def _probe(
        self, view: StepView, problem: StepProblem, record: PlanRecord, drafter: DrafterModels, max_seconds: float
    ) -> StepPlan | None:
        """A probe, where one is due, delays no first token and keeps within the SLO."""
        if delays_first_tokens(view, problem.batch):
            return None
        probe = self.exploration.probe(problem, drafter)
        if probe is None or probe[0].predicted_seconds > max_seconds:
            return None
        plan, record.probe = probe
        return plan

    def _off(self, view: StepView, problem: StepProblem) -> StepPlan:
        return StepPlan(
            np.zeros(view.size, np.int64),
            problem.batch.decoding,
            problem.no_draft_seconds,
            f"no draft pays at a price of time of {problem.price:.0f} tok/s",
        )

    def _nothing_to_draft(self, view: StepView, batch: Batch) -> StepPlan:
        latency, seconds = self.models.latency, math.nan
        if latency.calibrated and view.size:
            seconds = float(step_costs(latency, view, batch).verify[0])
        # A request that waits for its first token may draft once that is emitted.
        reusable = not math.isnan(seconds) and not delays_first_tokens(view, batch)
        return StepPlan(
            np.zeros(view.size, np.int64),
            batch.decoding,
            seconds,
            "no request can draft",
            valid_steps=NO_DRAFT_STEPS if reusable else 1,
        )

    def _valid_steps(self, view: StepView, problem: StepProblem, plan: StepPlan) -> int:
        """For how many steps a plan may be reused; probes and comparison steps are not reused."""
        if self.slo is not None:
            return 1  # an SLO needs a plan per step
        if not np.count_nonzero(plan.draft_lengths):
            return 1 if _would_pay_later(problem) else NO_DRAFT_STEPS
        # The price of waiting first tokens and the catch-up cost apply to one step only.
        alike = (
            not delays_first_tokens(view, problem.batch)
            and problem.price == problem.decode_price
            and problem.total_deferred_catch_up(plan.draft_lengths) == 0.0
        )
        return DRAFTING_STEPS if alike else 1

    def _start(self, max_draft: int) -> DrafterModels:
        drafter = self.models.start(max(max_draft, 1))
        self._records = PlansInFlight[PlanRecord]()  # their rows are those of the models before
        if self.config.tpot_slo_ms is not None:
            self.slo = TpotSlo(self.config.tpot_slo_ms / 1e3, drafter.capacity)
        return drafter

    def _rows(self, view: StepView, drafter: DrafterModels) -> IntArray:
        """Rows of the per-request state of the view's requests; every model resets the rows of new requests."""
        rows, fresh = drafter.assign_rows(view.request_ids)
        if self.slo is not None:
            self.slo.reset(fresh, drafter.capacity)
            self.slo.record_first_tokens(view, rows)
        return rows

    def _max_seconds(self, view: StepView, problem: StepProblem) -> float:
        """Longest step that keeps to the TPOT SLO; infinite where no plan can break it."""
        if self.slo is None:
            return math.inf
        allowed = self.slo.max_seconds(view, problem.rows, problem.no_draft_seconds)
        return math.inf if allowed >= problem.full_draft_seconds else allowed


def _would_pay_later(problem: StepProblem) -> bool:
    """Whether drafting pays as soon as no first token waits for a step."""
    if problem.price <= problem.decode_price:
        return False
    return fixed_lengths(replace(problem, price=problem.decode_price), math.inf) is not None
