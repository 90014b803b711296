"""The policy that knows what others must learn; possible in simulation only."""

from __future__ import annotations

import math

import numpy as np

from turbospec.acceptance import survival
from turbospec.compiled import compiled
from turbospec.planner import StepCosts
from turbospec.policy.adaptive import AdaptiveConfig
from turbospec.price import TimePrice, best_rate
from turbospec.step_problem import Batch, StepProblem, catch_up_charges, fixed_lengths
from turbospec.types import FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec_sim.records import Records
from turbospec_sim.state import EngineState
from turbospec_sim.step_time import padded, pass_seconds
from turbospec_sim.text import acceptance

FIRST_TOKEN_WEIGHT = float(AdaptiveConfig.model_fields["first_token_weight"].default)


class OraclePolicy:
    """Plans each step exactly under the true acceptance of every draft token and the true cost of the step.

    It does not know which tokens will be accepted, only how probable that is (where acceptance is recorded as 0 and 1,
    these are the same), and nothing of requests to come. The price of time is learnt as `adaptive` learns it.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._times = state.times.record
        self._price = TimePrice()
        self._decoding: dict[int, int] = {}

    def plan(self, view: StepView) -> StepPlan:
        batch = Batch.of(view, view.draft_limits)
        self._decoding[view.step] = batch.decoding
        nothing = StepPlan(np.zeros(view.size, np.int64), reason="no draft pays")
        if batch.draft_room == 0:
            return nothing
        state = self._state
        conditional = _conditional(
            state.requests, state.texts.classes, state.texts.rates, state.texts.lines, state.texts.values,
            state.view_slots, view.draft_limits, view.max_draft,
        )  # fmt: skip
        costs = self._costs(view, batch)
        catch_up = charges = None
        if batch.stale_tokens:
            catch_up = view.stale_tokens * state.times.catch_up_token
            charges = catch_up_charges(catch_up, view.tokens_left, conditional[:, 0])
        rate = self._price.rate(batch.decoding)
        if rate is None:
            rate = best_rate(survival(conditional), costs, float(batch.decoding))
        delayed = batch.prefilling + (batch.starting if view.draft_before_emit else 0)
        price = rate * (1.0 + FIRST_TOKEN_WEIGHT * delayed / batch.decoding)
        rows = state.view_slots
        problem = StepProblem(batch, rows, view.draft_limits, conditional, costs, price, catch_up, charges)
        return fixed_lengths(problem, math.inf) or nothing

    def observe(self, outcome: StepOutcome) -> None:
        decoding = self._decoding.pop(outcome.step, 0)
        if decoding and outcome.prefill_tokens == 0:
            self._price.add(decoding, int(outcome.emitted.sum()), outcome.step_seconds)

    def _costs(self, view: StepView, batch: Batch) -> StepCosts:
        times, size, decoding = self._state.times, view.size, batch.decoding
        context = batch.context_tokens
        verify = _verify_table(
            self._times, times.curve, times.padding, decoding + view.prefill_tokens, batch.draft_room, context, size
        )
        mean_context = context / size
        row = times.draft_row + times.draft_kv_token * mean_context
        if view.parallel_drafter:
            if view.constant_first_pass:
                return StepCosts(verify)
            start = times.draft_start + times.draft_pass + times.draft_kv_token * context
            if view.batch_drafter:
                return StepCosts(verify, start, draft_pass=times.draft_row * size)
            return StepCosts(verify, start, draft_token=times.draft_row)
        if view.batch_drafter:
            whole_batch = times.draft_pass + row * size
            return StepCosts(verify, -whole_batch if view.constant_first_pass else times.draft_start, whole_batch)
        return StepCosts(verify, times.draft_start, times.draft_pass, row)


@compiled
def _conditional(
    requests: Records,
    classes: Records,
    rates: FloatArray,
    lines: IntArray,
    values: FloatArray,
    slots: IntArray,
    limits: IntArray,
    depth: int,
) -> FloatArray:
    """(n, K) acceptance of each draft token given that those before it were accepted; 0 beyond a request's limit."""
    out = np.zeros((len(slots), depth))
    for i in range(len(slots)):
        request = requests[slots[i]]
        acceptance(request, classes[request.class_id], rates, lines, values, limits[i], out[i])
    return out


@compiled
def _verify_table(
    times: Records, curve: FloatArray, padding: IntArray, tokens: int, room: int, context: int, size: int
) -> FloatArray:
    """(room + 1,) host and target seconds with 0 … room draft tokens in the pass."""
    cost = times[0]
    seconds = np.empty(room + 1)
    fixed = cost.host + cost.host_request * size + cost.decision + cost.kv_token * (context + tokens)
    for m in range(room + 1):
        seconds[m] = fixed + pass_seconds(curve, padded(tokens + m, padding)) + cost.kv_token * m
    return seconds
