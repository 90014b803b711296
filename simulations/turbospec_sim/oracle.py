"""The oracle: a policy that knows acceptance and step times, possible in simulation only."""

from __future__ import annotations

from functools import partial

import numpy as np

from turbospec.interface import FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec.planning.exact import StepCosts, plan_draft_lengths
from turbospec.runtime.kernels import compiled
from turbospec_sim.acceptance import AcceptanceTables, draft_acceptance
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.best_rate import best_rate
from turbospec_sim.decode_rate import DecodeRate
from turbospec_sim.drafting import DRAFTER
from turbospec_sim.records import Records
from turbospec_sim.repeats import LOOKUP, lookup_acceptance
from turbospec_sim.source_planning import plan_sources
from turbospec_sim.state import EngineState
from turbospec_sim.step_time import padded_pass_seconds

MEMORY = 0.2
"""Weight of a request's last step in its tokens per step."""


class OraclePolicy:
    """Plans each step exactly under the true acceptance of every draft token and the true cost of the step.

    It knows the probability that a token is accepted, not the result (with acceptance recorded as 0 and 1, these are
    the same), and nothing about future requests. Its price of time λ is the decode rate; waiting first tokens do not
    raise it, because the oracle is the yardstick of throughput.

    Where prompts join the step that verifies, in vLLM's order, it chooses the verified lengths again, under that step's
    true cost.

    Where outputs repeat, a request's tokens per step change all the time, and a token is not worth the same everywhere:
    it saves its request 1/a of a step, where a is the number of tokens that it emits per step at present. Tokens are
    therefore weighted with 1/a, and the price of time is in steps of a request, not tokens, per second.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._price = DecodeRate()
        self._tokens_per_step = np.full(len(state.requests), 2.0)
        """Of the request in each batch slot."""
        self._planned: dict[int, tuple[int, float]] = {}
        """Of a planned step: decoding requests, and the seconds that prompts had added to steps before it."""

    def plan(self, view: StepView) -> StepPlan:
        decoding = int(np.count_nonzero(view.decoding))
        self._planned[view.step] = decoding, self._prefill_seconds
        nothing = StepPlan(np.zeros(view.size, np.int64), reason="no draft pays")
        found = None if view.lookup is None else view.lookup.lengths
        limits = view.draft_limits if found is None else np.maximum(view.draft_limits, found)
        if not limits.any():
            return nothing
        state = self._state
        conditional = self._conditional(view.draft_limits, DRAFTER)
        gains: FloatArray = np.cumprod(conditional, axis=1, dtype=np.float64)
        costs = self._costs(view, limits, decoding)
        catch_up = view.drafter_lag_tokens * state.times.catch_up_token
        # The cost of catching up, spread over all tokens that the request can still emit.
        charged = catch_up * (1.0 + conditional[:, 0]) / np.maximum(view.tokens_left, 1)
        if found is None:
            rate = self._price.rate(decoding)
            if rate is None:
                rate = best_rate(partial(plan_draft_lengths, gains, costs), float(costs.verify[0]), float(decoding))
            best, sources = plan_draft_lengths(gains, costs, rate, request_seconds=charged), None
            gain, worth = best.gain, gains
        else:
            looked_up: FloatArray = np.cumprod(self._conditional(found, LOOKUP), axis=1, dtype=np.float64)
            rate = self._price.rate(decoding) or decoding / float(costs.verify[0])
            weights = 1.0 / self._tokens_per_step[state.view_slots, None]
            best, sources = plan_sources(weights * gains, weights * looked_up, costs, rate, charged)
            taken = _by_source(gains, looked_up, sources)
            gain = float(taken[np.arange(taken.shape[1]) < best.draft_lengths[:, None]].sum())
            worth = weights * taken
        lengths = best.draft_lengths
        if not lengths.any():
            return nothing
        lagging = lengths > 0 if sources is None else (lengths > 0) & (sources == DRAFTER)
        return StepPlan(
            lengths,
            decoding + gain,
            best.seconds + float((catch_up - charged)[lagging].sum()),
            f"{int(lengths.sum())} draft tokens at {rate:.0f} {'tokens' if found is None else 'request-steps'}/s",
            padded_length=best.padded_length,
            sources=sources,
            trim=_Trim(worth, rate, self._state) if view.calls_trim else None,
        )

    def observe(self, outcome: StepOutcome) -> None:
        decoding, before = self._planned.pop(outcome.step, (0, 0.0))
        if not decoding:
            return
        # Prefill does not depend on drafting. Its part of the step is known here and does not count as decoding.
        prompts = max(self._prefill_seconds - before, 0.0)
        emitted = int(outcome.emitted.sum())
        if self._state.offers_lookup:
            moved = outcome.emitted > 0
            slots = self._state.view_slots[moved]
            self._tokens_per_step[slots] += MEMORY * (outcome.emitted[moved] - self._tokens_per_step[slots])
            emitted = decoding
        self._price.add(decoding, emitted, outcome.step_seconds - prompts)

    @property
    def _prefill_seconds(self) -> float:
        """What prompts have added to the target's passes so far."""
        return float(self._state.totals["prefill_seconds"][0])

    def _conditional(self, limits: IntArray, source: int) -> FloatArray:
        """(n, longest) acceptance of each token that a source drafts, given that those before it were accepted; 0
        beyond a request's limit."""
        return _conditional(self._state.view_slots, limits, max(int(limits.max()), 1), source, *self._state.arrays)

    def _costs(self, view: StepView, limits: IntArray, decoding: int) -> StepCosts:
        piecewise = self._state.times.piecewise + self._state.times.piecewise_request * view.size
        return self._full_graphs(view, limits, decoding).with_graphs(view.graph_lengths, piecewise)

    def _full_graphs(self, view: StepView, limits: IntArray, decoding: int) -> StepCosts:
        times, size, context = self._state.times, view.size, int(view.context_tokens.sum())
        block = int(self._state.engine["max_draft"][0])
        most = max(int(limits.sum()), size * max(view.graph_lengths, default=0))
        verify = _verify_table(decoding, view.prefill_tokens, most, context, size, *self._state.arrays)
        if view.first_pass_every_step:
            requests = size if view.draft_before_emit else decoding
            rows = requests * (block if view.parallel_drafter else 1)
            verify += times.draft_pass + times.draft_row * rows + times.draft_kv_token * context
        mean_context = context / size
        row = times.draft_row + times.draft_kv_token * mean_context
        start = times.draft_start + times.catch_up_token * view.drafter_prefill_tokens
        if view.drafter_prefill_tokens:
            start += times.catch_up
        if view.parallel_drafter:
            if view.first_pass_every_step:
                return StepCosts(verify)
            start += times.draft_pass + times.draft_kv_token * context
            if view.batch_drafter:
                return StepCosts(verify, start + times.draft_row * size * block)
            return StepCosts(verify, start, draft_token=times.draft_row)
        if view.batch_drafter:
            whole_batch = times.draft_pass + row * size
            return StepCosts(verify, -whole_batch if view.first_pass_every_step else start, whole_batch)
        start = -times.draft_pass if view.first_pass_every_step else times.draft_start
        return StepCosts(verify, start, times.draft_pass, row)


class _Trim:
    """Chooses how much of each draft is verified, once all tokens of the pass are known. Drafting is paid for.

    Args:
        worth: (n, longest) what each draft token gains.
        price: of time, in the unit of `worth`.
        state: whose costs they are.
    """

    def __init__(self, worth: FloatArray, price: float, state: EngineState) -> None:
        self._worth, self._price, self._state = worth, price, state

    def trim(self, drafts: IntArray, tokens_batched: int) -> IntArray:
        made = np.where(np.arange(self._worth.shape[1]) < drafts[:, None], self._worth, 0.0)
        room = int(drafts.sum())
        # What the drafts do not change is left out.
        verify = _verify_table(0, tokens_batched - room, room, 0, len(drafts), *self._state.arrays)
        return plan_draft_lengths(made, StepCosts(verify), self._price).draft_lengths


def _by_source(drafter: FloatArray, lookup: FloatArray, sources: IntArray | None) -> FloatArray:
    """(n, longest) the look-up's rows where it is the source, else the drafter's."""
    rows = np.zeros((len(drafter), max(drafter.shape[1], lookup.shape[1])))
    rows[:, : drafter.shape[1]] = drafter
    if sources is not None:
        rows[sources == LOOKUP] = 0.0
        rows[sources == LOOKUP, : lookup.shape[1]] = lookup[sources == LOOKUP]
    return rows


@compiled
def _conditional(slots: IntArray, limits: IntArray, depth: int, source: int, *loose: Records) -> FloatArray:
    arrays = EngineArrays(*loose)
    tables = AcceptanceTables(arrays.classes, arrays.rates, arrays.lines, arrays.values)
    out = np.zeros((len(slots), depth))
    for i in range(len(slots)):
        request = arrays.requests[slots[i]]
        if source == LOOKUP:
            lookup_acceptance(request, arrays.classes[request.class_id], limits[i], out[i])
        else:
            draft_acceptance(arrays.engine, request, tables, limits[i], out[i])
    return out


@compiled
def _verify_table(
    decoding: int, prefill_tokens: int, room: int, context: int, size: int, *loose: Records
) -> FloatArray:
    """(room + 1,) host and target seconds with 0 … room draft tokens in the pass, without the attention of prompts."""
    arrays = EngineArrays(*loose)
    cost, curve, padding = arrays.engine[0].times, arrays.curve, arrays.padding
    seconds, tokens = np.empty(room + 1), decoding + prefill_tokens
    fixed = cost.host + cost.host_request * size + cost.decision + cost.kv_token * (context + tokens)
    if prefill_tokens > 0:
        fixed += cost.prompt
    for m in range(room + 1):
        seconds[m] = fixed + padded_pass_seconds(cost, curve, padding, tokens + m) + cost.kv_token * m
        seconds[m] += cost.sampled_token * (decoding + m)
    return seconds
