"""The oracle: a policy that knows acceptance and step times, possible in simulation only."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec.models.acceptance import survival
from turbospec.models.decode_rate import DecodeRate
from turbospec.planning.best_rate import best_rate
from turbospec.planning.exact import StepCosts
from turbospec.planning.problem import Batch, StepProblem, fixed_lengths
from turbospec.runtime.kernels import compiled
from turbospec_sim.acceptance import AcceptanceTables, draft_acceptance
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.records import Records
from turbospec_sim.state import EngineState
from turbospec_sim.step_time import padded, pass_seconds


class OraclePolicy:
    """Plans each step exactly under the true acceptance of every draft token and the true cost of the step.

    It knows the probability that a token is accepted, not the result (with acceptance recorded as 0 and 1, these are
    the same), and nothing about future requests. Its price of time λ is the decode rate; waiting first tokens do not
    raise it, because the oracle is the yardstick of throughput.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._price = DecodeRate()
        self._decoding: dict[int, int] = {}

    def plan(self, view: StepView) -> StepPlan:
        batch = Batch.of(view, view.draft_limits)
        self._decoding[view.step] = batch.decoding
        nothing = StepPlan(np.zeros(view.size, np.int64), reason="no draft pays")
        if batch.max_draft_tokens == 0:
            return nothing
        state = self._state
        conditional = _conditional(state.view_slots, view.draft_limits, view.max_draft, *state.arrays)
        costs = self._costs(view, batch)
        catch_up: FloatArray | None = None
        charges: FloatArray | None = None
        if batch.drafter_lag_tokens:
            catch_up = view.drafter_lag_tokens.astype(np.float64) * state.times.catch_up_token
            # The cost of catching up, spread over all tokens that the request can still emit.
            charges = catch_up * (1.0 + conditional[:, 0]) / np.maximum(view.tokens_left, 1)
        rate = self._price.rate(batch.decoding)
        if rate is None:
            rate = best_rate(survival(conditional), costs, float(batch.decoding))
        rows = state.view_slots
        problem = StepProblem(batch, rows, view.draft_limits, conditional, costs, rate, rate, catch_up, charges)
        return fixed_lengths(problem, math.inf) or nothing

    def observe(self, outcome: StepOutcome) -> None:
        decoding = self._decoding.pop(outcome.step, 0)
        if not decoding:
            return
        # Prefill does not depend on drafting. Its part of the step is known here and does not count as decoding.
        curve, without = self._state.times.curve, outcome.padded_tokens - outcome.prefill_tokens
        prompts = pass_seconds(curve, outcome.padded_tokens) - pass_seconds(curve, without)
        self._price.add(decoding, int(outcome.emitted.sum()), outcome.step_seconds - prompts)

    def _costs(self, view: StepView, batch: Batch) -> StepCosts:
        piecewise = self._state.times.piecewise + self._state.times.piecewise_request * view.size
        return self._full_graphs(view, batch).with_graphs(view.graph_lengths, piecewise)

    def _full_graphs(self, view: StepView, batch: Batch) -> StepCosts:
        times, size, decoding = self._state.times, view.size, batch.decoding
        context = batch.context_tokens
        tokens = decoding + view.prefill_tokens
        most = max(batch.max_draft_tokens, size * max(view.graph_lengths, default=0))
        verify = _verify_table(tokens, most, context, size, *self._state.arrays)
        mean_context = context / size
        row = times.draft_row + times.draft_kv_token * mean_context
        if view.parallel_drafter:
            if view.first_pass_every_step:
                return StepCosts(verify)
            start = times.draft_start + times.draft_pass + times.draft_kv_token * context
            if view.batch_drafter:
                return StepCosts(verify, start, draft_pass=times.draft_row * size)
            return StepCosts(verify, start, draft_token=times.draft_row)
        if view.batch_drafter:
            whole_batch = times.draft_pass + row * size
            return StepCosts(verify, -whole_batch if view.first_pass_every_step else times.draft_start, whole_batch)
        return StepCosts(verify, times.draft_start, times.draft_pass, row)


@compiled
def _conditional(slots: IntArray, limits: IntArray, depth: int, *loose: Records) -> FloatArray:
    """(n, K) acceptance of each draft token given that those before it were accepted; 0 beyond a request's limit."""
    arrays = EngineArrays(*loose)
    tables = AcceptanceTables(arrays.classes, arrays.rates, arrays.lines, arrays.values)
    out = np.zeros((len(slots), depth))
    for i in range(len(slots)):
        draft_acceptance(arrays.engine, arrays.requests[slots[i]], tables, limits[i], out[i])
    return out


@compiled
def _verify_table(tokens: int, room: int, context: int, size: int, *loose: Records) -> FloatArray:
    """(room + 1,) host and target seconds with 0 … room draft tokens in the pass."""
    arrays = EngineArrays(*loose)
    cost, curve, padding = arrays.engine[0].times, arrays.curve, arrays.padding
    seconds = np.empty(room + 1)
    fixed = cost.host + cost.host_request * size + cost.decision + cost.kv_token * (context + tokens)
    for m in range(room + 1):
        seconds[m] = fixed + pass_seconds(curve, padded(tokens + m, padding)) + cost.kv_token * m
    return seconds
