"""Steps that `adaptive` runs to measure: exploration at the start, probes while drafting is off, and while it is on,
steps without drafts and with longer ones for comparison."""

from __future__ import annotations

import numpy as np

from turbospec.exploration.comparison_steps import ComparisonSteps
from turbospec.exploration.probing import ProbeBudget, probe_loss_seconds
from turbospec.interface import IntArray, StepOutcome, StepPlan, StepView
from turbospec.models.acceptance import survival
from turbospec.models.drafter import DrafterModels
from turbospec.models.latency import LatencyModel
from turbospec.planning.problem import StepProblem
from turbospec.policy.adaptive.attribution import PlanRecord, ProbeRecord
from turbospec.policy.adaptive.server_models import has_drafts

PROBE_DRAFT_LENGTH = 1
EXPLORATION = (0, 2, 0, 5, 1, 0, 3, 4, 0, 2)
"""Draft lengths of the steps that learn draft costs: the first steps without a profile, and after the costs changed."""
HARDWARE_CHANGED = 0.8
"""A step-time ratio below this is treated as a change of hardware speed."""


class Exploration:
    """Chooses the steps to learn from, within a share of step time.

    Args:
        latency: the model that exploration teaches.
        share: share of step time that probes may lose, and each of the two kinds of comparison steps.
    """

    def __init__(self, latency: LatencyModel, share: float) -> None:
        self._latency = latency
        self._probes = ProbeBudget(share)
        self._comparison_steps = ComparisonSteps(share)
        self._longer_drafts = ComparisonSteps(share)
        self._explored = 0

    def earn(self, seconds: float) -> None:
        """Add the budget that this much step time earns."""
        self._probes.earn(seconds)
        self._comparison_steps.earn(seconds)
        self._longer_drafts.earn(seconds)

    def explore(self, view: StepView, limits: IntArray) -> StepPlan:
        """The next draft length of the exploration, the same for all requests within their (n,) limits."""
        length = EXPLORATION[self._explored % len(EXPLORATION)]
        self._explored += 1
        plan = StepPlan.same_length(view, length, f"exploring the cost of drafting {length}")
        plan.draft_lengths, plan.probe = np.minimum(limits, length), True
        return plan

    def comparison(self, view: StepView, problem: StepProblem, plan: StepPlan) -> StepPlan | None:
        """A step without drafts, or with longer ones, in place of a plan that drafts; None where none is due."""
        if view.prefill_tokens:
            return None
        return self._without_drafts(view, problem, plan) or self._longer(view, problem, plan)

    def _without_drafts(self, view: StepView, problem: StepProblem, plan: StepPlan) -> StepPlan | None:
        decoding = problem.batch.decoding
        drafting_seconds = plan.predicted_seconds - problem.no_draft_seconds
        worth = (plan.predicted_tokens - decoding) / problem.price - drafting_seconds
        if not self._comparison_steps.is_due(decoding, view.step, worth):
            return None
        return StepPlan(
            np.zeros(view.size, np.int64), decoding, problem.no_draft_seconds, "no drafts, to compare with drafting"
        )

    def _longer(self, view: StepView, problem: StepProblem, plan: StepPlan) -> StepPlan | None:
        """The plan with every draft one token longer, or padded to the next length.

        Without such steps nothing would show that longer drafts pay: a plan in which every request drafts K tokens
        measures neither acceptance at position K + 1 nor the time of a larger pass.
        """
        if plan.gate is not None:
            return None
        padded_length, lengths = 0, plan.draft_lengths + (plan.draft_lengths > 0)
        if plan.padded_length:
            padded_length = min((each for each in view.graph_lengths if each > plan.padded_length), default=0)
            lengths = np.full(view.size, padded_length)
        lengths = np.minimum(lengths, problem.limits)
        added = int(lengths.sum() - plan.draft_lengths.sum())
        if added <= 0:
            return None
        columns = np.arange(problem.conditional.shape[1], dtype=np.int64)
        gained = np.where(columns < lengths[:, None], survival(problem.conditional), 0.0)
        tokens = problem.batch.decoding + float(gained.sum())
        seconds = problem.costs.seconds(lengths, padded_length)
        seconds += plan.predicted_seconds - problem.costs.seconds(plan.draft_lengths, plan.padded_length)
        loss = (seconds - plan.predicted_seconds) - (tokens - plan.predicted_tokens) / problem.price
        if not self._longer_drafts.is_due(problem.batch.decoding, view.step, loss):
            return None
        return StepPlan(lengths, tokens, seconds, "longer drafts, to compare with", padded_length=padded_length)

    def probe(self, problem: StepProblem, drafter: DrafterModels) -> tuple[StepPlan, ProbeRecord] | None:
        """One draft token, for the requests with the most information per second lost; None where no probe is due."""
        costs, acceptance = problem.costs, problem.conditional[:, 0]
        jump, each = problem.verify_costs()
        # While nothing is drafted, the drafter's prefill of this step is caused by the probe alone.
        shared = costs.draft_start + costs.draft_pass + costs.piecewise + jump + problem.drafter_prefill_seconds
        of_row = np.full(len(acceptance), costs.draft_token + each)
        if problem.catch_up_seconds is not None:
            of_row += problem.catch_up_seconds
        # Draft costs are not measured while nothing drafts, so they may be out of date.
        costs_outdated = self._latency.no_draft_time_ratio < HARDWARE_CHANGED
        chosen = self._probes.choose(
            problem.limits > 0,
            shared,
            of_row,
            acceptance,
            problem.price,
            drafter.acceptance.evidence(problem.rows),
            costs_outdated=costs_outdated,
        )
        if chosen is None:
            return None
        seconds = problem.no_draft_seconds + shared + float(of_row[chosen].sum())
        lengths = np.zeros(len(acceptance), np.int64)
        lengths[chosen] = PROBE_DRAFT_LENGTH
        plan = StepPlan(
            lengths,
            problem.batch.decoding + float(acceptance[chosen].sum()),
            seconds,
            "probe while drafting does not pay",
            probe=True,
        )
        return plan, ProbeRecord(seconds, jump + each * len(chosen))

    def learn(self, record: PlanRecord, outcome: StepOutcome) -> None:
        """Learn from a probe's outcome, or record a step without drafts."""
        decoding = int(np.count_nonzero(record.decoders))
        if not has_drafts(outcome) and outcome.prefill_tokens == 0 and decoding > 0:
            self._comparison_steps.learn(decoding, outcome.step)
        if record.probe is not None:
            self._close_probe(record.probe, record.price, outcome)

    def _close_probe(self, probe: ProbeRecord, price: float, outcome: StepOutcome) -> None:
        gain = int(outcome.accepted.sum()) / price
        self._probes.spend(probe_loss_seconds(outcome.draft_seconds + probe.verify_seconds, gain))
        if outcome.drafted.any():
            self._probes.back_off()
            if outcome.step_seconds < HARDWARE_CHANGED * probe.step_seconds:
                # A probe has one pass of few rows. Only longer drafts show which of the costs has fallen.
                self._latency.forget_draft_costs()
                self._explored = 0
