"""The oracle: a policy that knows acceptance and step times, possible in simulation only."""

from __future__ import annotations

import numpy as np

from turbospec.interface import FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec.planning.exact import StepCosts, plan_draft_lengths
from turbospec.runtime.kernels import compiled
from turbospec_sim.acceptance import AcceptanceTables, draft_acceptance
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.best_rate import best_rate
from turbospec_sim.decode_rate import DecodeRate
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
        decoding = int(np.count_nonzero(view.decoding))
        self._decoding[view.step] = decoding
        nothing = StepPlan(np.zeros(view.size, np.int64), reason="no draft pays")
        if not view.draft_limits.any():
            return nothing
        state = self._state
        conditional = _conditional(state.view_slots, view.draft_limits, view.max_draft, *state.arrays)
        gains: FloatArray = np.cumprod(conditional, axis=1, dtype=np.float64)
        costs = self._costs(view, decoding)
        catch_up = view.drafter_lag_tokens * state.times.catch_up_token
        # The cost of catching up, spread over all tokens that the request can still emit.
        charged = catch_up * (1.0 + conditional[:, 0]) / np.maximum(view.tokens_left, 1)
        rate = self._price.rate(decoding)
        if rate is None:
            rate = best_rate(gains, costs, float(decoding))
        best = plan_draft_lengths(gains, costs, rate, request_seconds=charged)
        lengths = best.draft_lengths
        if not lengths.any():
            return nothing
        seconds = costs.seconds(lengths, best.padded_length) + float(catch_up[lengths > 0].sum())
        return StepPlan(
            lengths,
            decoding + best.gain,
            seconds,
            f"{int(lengths.sum())} draft tokens at {rate:.0f} tok/s",
            padded_length=best.padded_length,
        )

    def observe(self, outcome: StepOutcome) -> None:
        decoding = self._decoding.pop(outcome.step, 0)
        if not decoding:
            return
        # Prefill does not depend on drafting. Its part of the step is known here and does not count as decoding.
        curve, without = self._state.times.curve, outcome.padded_tokens - outcome.prefill_tokens
        prompts = pass_seconds(curve, outcome.padded_tokens) - pass_seconds(curve, without)
        self._price.add(decoding, int(outcome.emitted.sum()), outcome.step_seconds - prompts)

    def _costs(self, view: StepView, decoding: int) -> StepCosts:
        piecewise = self._state.times.piecewise + self._state.times.piecewise_request * view.size
        return self._full_graphs(view, decoding).with_graphs(view.graph_lengths, piecewise)

    def _full_graphs(self, view: StepView, decoding: int) -> StepCosts:
        times, size, context = self._state.times, view.size, int(view.context_tokens.sum())
        tokens = decoding + view.prefill_tokens
        most = max(int(view.draft_limits.sum()), size * max(view.graph_lengths, default=0))
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
