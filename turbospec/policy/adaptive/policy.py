"""`adaptive`: chooses K for each request of a step, from learnt acceptance, learnt step times and a price of time λ.

What a plan is worth is in `turbospec.planning.objective`, what an experiment is worth in
`turbospec.exploration.knowledge_gradient`; `decision` has the call that decides, `learning` the one that learns.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from turbospec.interface import IntArray, Source, StepOutcome, StepPlan, StepView
from turbospec.models.acceptance import NO_CONFIDENCE
from turbospec.models.latency import LatencyModel
from turbospec.planning.gain_histogram import BINS, graph_bits
from turbospec.planning.slo import TpotSlo, TtftSlo
from turbospec.policy.adaptive.confidence_gate import PricedGate
from turbospec.policy.adaptive.constants import Constants
from turbospec.policy.adaptive.decision import APPEND_LIMITS, GATE_LIMITS, LENGTHS, SOURCES, decide
from turbospec.policy.adaptive.draft_trim import PricedTrim, Scratch
from turbospec.policy.adaptive.learning import learn
from turbospec.policy.adaptive.settings import AdaptiveSettings
from turbospec.policy.adaptive.state import AdaptiveState
from turbospec.runtime.plans_in_flight import PlansInFlight

LOOKUP = Source.LOOKUP.value
NO_TARGET = NO_SCORES = np.zeros(0)
NO_LENGTHS = ONE_SOURCE = NONE_APPENDED = np.zeros(0, np.int64)


class _Record(NamedTuple):
    """A planned step until its outcome arrives."""

    view: StepView
    rows: IntArray
    """(n,) of the requests' state."""
    last_step: int
    """That may reuse the plan."""
    price: float
    """λ, tokens/s."""
    experiment: bool
    extra_seconds: float
    """That the experiment adds to the best plan."""
    best_accepted: float
    """Draft tokens that the best plan is expected to have accepted."""
    reserved: float
    """Seconds of the budget reserved for the experiment."""
    allowed: int
    """Tokens that the look-up may append."""


class AdaptivePolicy:
    """Maximises expected tokens − λ · predicted time, step by step (docs/mathematics.md).

    Args:
        config: its settings.
        latency: a fitted model; None to learn one from the first steps.
    """

    constants = Constants()

    def __init__(self, config: AdaptiveSettings, latency: LatencyModel | None = None) -> None:
        self.config = config
        self.state = AdaptiveState(self.constants, latency)
        self.tpot_slo: TpotSlo | None = None
        self.ttft_slo: TtftSlo | None = None
        self._graph_lengths: tuple[int, ...] = ()
        self._graph_array = np.zeros(0, np.int64)
        self._drafter_graph_lengths: tuple[int, ...] = ()
        self._pass_graphs = 0
        self._make_scratch(1)

    def plan(self, view: StepView) -> StepPlan:
        if view.max_draft > self.state.max_draft:
            self.state.start(view.max_draft)
            self._make_scratch(view.max_draft)
        replaced = self._records.pop(view.step)
        if replaced is not None:  # its experiment does not run
            self.state.shared["server"]["budget"] += replaced.reserved
        n = view.size
        if n == 0:
            return StepPlan(np.zeros(0, np.int64), 0.0, reason="no request")
        limits = view.draft_limits
        if self.config.max_draft is not None:
            limits = np.minimum(limits, self.config.max_draft)
        state = self.state
        rows, new = state.rows(view.request_ids)
        if self.tpot_slo is not None:
            self.tpot_slo.reset(new, state.slots.capacity)
            self.tpot_slo.record_first_tokens(view, rows)
        if self.ttft_slo is not None:
            self.ttft_slo.reset(new, state.slots.capacity)
            self.ttft_slo.record_arrivals(view, rows, new)
        found, scores, longest_appended = NO_LENGTHS, NO_SCORES, 0
        if view.lookup is not None:
            found, scores = view.lookup.lengths, view.lookup.scores
            if view.lookup.appends:
                longest_appended = view.max_draft
            if self.config.max_draft is not None:
                found = np.minimum(found, self.config.max_draft)
                longest_appended = min(longest_appended, self.config.max_draft)
        scratch = self._scratch
        if n + len(found) > scratch.work.shape[1]:
            scratch = scratch._replace(work=np.zeros((4, 2 * (n + len(found)), scratch.work.shape[2])))
            self._scratch = scratch
        if view.graph_lengths is not self._graph_lengths:
            self._graph_lengths, self._graph_array = view.graph_lengths, np.array(view.graph_lengths, np.int64)
        if view.drafter_graph_lengths != self._drafter_graph_lengths:
            self._drafter_graph_lengths = view.drafter_graph_lengths
            self._pass_graphs = graph_bits(view.drafter_graph_lengths)
        context, left, lag = view.context_tokens, view.tokens_left, view.drafter_lag_tokens
        facts: Any = (
            view.step,
            view.prefill_tokens,
            0 if view.drafter_always_prefills else view.drafter_prefill_tokens,
            view.admitted_requests,
            view.waiting_seconds,
            view.draft_before_emit,
            view.parallel_drafter,
            view.batch_drafter,
            view.first_pass_every_step,
            _has_gate(view),
            longest_appended,
            view.largest_graph,
            self._pass_graphs,
        )
        columns = (rows, view.phase, view.emitted_tokens, context, left, lag, view.class_ids, limits, found)
        decided = decide(
            state.shared,
            state.requests,
            scratch.work,
            scratch.counts,
            scratch.sums,
            columns,
            scores,
            facts,
            self._graph_array,
            NO_TARGET if self.tpot_slo is None else self.tpot_slo.slack(view, rows),
            math.inf if self.tpot_slo is None else self.tpot_slo.seconds,
            math.inf if self.ttft_slo is None else self.ttft_slo.added_seconds,
            self.config.first_token_weight,
        )
        (
            planned, padded, passes, valid_steps, tokens, seconds,
            price, decoding, drafting, experiment, extra, best, reserved, allowed, gated,
        ) = decided  # fmt: skip
        last_step = view.step + valid_steps - 1
        self._records.put(view.step, _Record(view, rows, last_step, price, experiment, extra, best, reserved, allowed))
        lengths, gate, trim = planned[LENGTHS], None, None
        if gated:
            copied = 0 if view.lookup is None else int(lengths[planned[SOURCES] == LOOKUP].sum())
            lengths, passes = planned[GATE_LIMITS], 0  # a graph of passes does not end early
            gate = PricedGate(state, rows, view, lengths, decoding + view.prefill_tokens + copied, price)
        elif view.calls_trim and drafting and not experiment and self.constants.trims:
            trim = PricedTrim(state, scratch, columns, scores, lengths, planned[SOURCES], view.largest_graph, price)
        reason = (
            f"{'experiment: ' if experiment else ''}drafts for {drafting} of {decoding} requests at {int(price)} tok/s"
        )
        sources = None if view.lookup is None else planned[SOURCES]
        added = planned[APPEND_LIMITS] if allowed else None
        # Keyword arguments would take twice as long.
        return StepPlan(
            lengths, tokens, seconds, reason, gate, padded, experiment, None, valid_steps, sources, added, passes, trim
        )

    def observe(self, outcome: StepOutcome) -> None:
        record = self._records.last(outcome.step)
        if record is None:
            return
        view, rows, last_step, price, experiment, extra_seconds, best_accepted, reserved, allowed = record
        if outcome.step > last_step or len(outcome.drafted) != len(rows):
            return  # the step was planned again for another batch
        if self.ttft_slo is not None:
            self.ttft_slo.learn(view, rows, outcome)
        confidence = NO_CONFIDENCE
        if outcome.confidence is not None and _has_gate(view):
            confidence = outcome.confidence
        measured: Any = (
            view.size,
            outcome.tokens_batched,
            outcome.context_tokens,
            outcome.prefill_tokens,
            view.prefill_tokens,
            view.prefill_limited,
            view.drafter_kv_share,
            outcome.piecewise,
            bool(view.graph_lengths) and 0 not in view.graph_lengths,
            view.largest_graph,
            view.first_pass_every_step,
            outcome.draft_context_tokens,
            outcome.catch_up_tokens,
            outcome.draft_seconds,
            outcome.step_seconds,
            outcome.reused_plan_steps,
            outcome.reused_plan_tokens,
            outcome.reused_plan_prefill_tokens,
            outcome.reused_plan_seconds,
            price,
            experiment,
            extra_seconds,
            best_accepted,
            reserved,
            view.lookup is not None and view.lookup.appends,
            0 if outcome.appended is None else allowed,
        )
        learn(
            self.state.shared,
            self.state.requests,
            rows,
            view.class_ids,
            NO_SCORES if view.lookup is None else view.lookup.scores,
            outcome.drafted,
            outcome.accepted,
            outcome.truncated,
            confidence,
            ONE_SOURCE if outcome.sources is None else outcome.sources,
            NONE_APPENDED if outcome.appended is None else outcome.appended,
            outcome.draft_rows,
            measured,
            self.config.probe_share,
        )

    def _make_scratch(self, max_draft: int) -> None:
        """Make scratch space for drafts of up to `max_draft` tokens, and what belongs to the requests of the state."""
        work, counts = np.zeros((4, 64, max_draft + 1)), np.zeros((max_draft + 1, BINS), np.int64)
        self._scratch = Scratch(work, counts, np.zeros(counts.shape))
        self._records = PlansInFlight[_Record]()  # their rows are those of the models before
        if self.config.tpot_slo_ms is not None:
            self.tpot_slo = TpotSlo(self.config.tpot_slo_ms / 1e3, self.state.slots.capacity)
        if self.config.ttft_slo_ms is not None:
            self.ttft_slo = TtftSlo(self.config.ttft_slo_ms / 1e3, self.state.slots.capacity)


def _has_gate(view: StepView) -> bool:
    """Whether drafts may end on the drafter's confidence. Where the look-up appends, a gate earned nothing."""
    return view.calls_gate and (view.lookup is None or not view.lookup.appends)
