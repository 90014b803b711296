"""What a step is worth, in tokens: the objective that draft lengths k are chosen by.

    value(k) = Σ_i w_i Σ_{j≤k_i} S[i,j]  −  λ · (T(k) + Σ_{i: k_i>0} c_i)

S[i,j] is the survival of a draft token of the source that drafts for request i, w_i the weight of the request's tokens
(`turbospec.planning.token_weights`), T the duration of the step. The prices are:

* **The price of time**, λ = r · (1 + f · ρ · waiting / n), in tokens/s. r is the best rate that the step's own requests
  can reach in the long run, max (n + gain) / T, without the time in proportion to prompt tokens: prompts have to be
  computed whatever is drafted. What they take once in a step counts in part (`long_run_costs`). `waiting` requests get
  their first token only after this step; each counts as f requests that decode (`first_token_weight`). The
  share that a step without drafts, of T₀ seconds, has in their whole wait is ρ = T₀ / (T₀ + τ). All are taken to have
  waited τ, the queueing time of the oldest queued request. Where prefill limits the throughput, λ is higher
  (`prefill_factor`).
* **The price of catching up**, c_i = κ · lag_i · (1 + a[i,1]) / min(tokens left, H): κ seconds per token of drafter KV
  lag, of which a step is charged its share of the tokens that benefit. 0 for a draft of a look-up.
* **The price of the drafter's memory**, D · (1 / r − t) for each step in which the drafter drafts. Where a server lacks
  KV blocks, D requests would run in place of the drafter's KV cache, emit a token each, and make the step D · t seconds
  longer (`drafter_memory`). The predicted duration is without this price.
* **The price of the drafter's prefill**, κ · (1 − p · r / λ) for each prompt token that the first pass of a step that
  drafts computes. p is the share of steps that drafted lately: if drafting goes on, a later pass would compute these
  tokens, at the price r if nobody waits then.

T is linear in the weights of `turbospec.models.step_cost`. Where requests join a step after its plan was made, T is the
mean over steps with and without them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import PREFILL as PREFILL_PHASE
from turbospec.interface import FloatArray, IntArray, Phase
from turbospec.models.latency import VERIFY_KNOTS
from turbospec.models.step_cost import (
    CATCH_UP,
    CONTEXT,
    DRAFT,
    DRAFT_CONTEXT,
    PASSES,
    PIECEWISE,
    PREFILL,
    PREFILL_TOKENS,
    REQUESTS,
    ROWS,
    TOKENS,
    UNGRAPHED,
    graph_features,
    target_features,
)
from turbospec.planning.gain_histogram import (
    NO_LIMIT,
    LinearCosts,
    curve_seconds,
    drafter_work,
    passes_run,
    segment_of,
    verify_seconds,
)
from turbospec.runtime.kernels import compiled, inlined

FIRST_DECODE_PHASE = Phase.FIRST_DECODE.value


class StepShape(NamedTuple):
    """A step, summed over its requests, and the way its engine drafts; as in a `StepView`."""

    requests: int
    decoding: int
    """Requests past their prompt."""
    without_token: int
    """Requests in prefill that have emitted nothing yet. A preempted request has."""
    first_decode: int
    context_tokens: int
    prefill_tokens: int
    parallel_drafter: bool
    batch_drafter: bool
    first_pass_every_step: bool
    has_graphs: bool
    """Whether some draft lengths have full CUDA graphs."""
    has_no_draft_graph: bool
    """Whether steps without drafts do."""
    largest_graph: int
    pass_graphs: int
    """As in `LinearCosts`."""


@inlined
def sum_up(
    phase: IntArray,
    emitted_tokens: IntArray,
    context_tokens: IntArray,
    prefill_tokens: int,
    parallel_drafter: bool,
    batch_drafter: bool,
    first_pass_every_step: bool,
    graph_lengths: IntArray,
    largest_graph: int,
    pass_graphs: int,
) -> StepShape:
    """The shape of a step; `phase`, `emitted_tokens` and `context_tokens` have shape (n,)."""
    prefilling, without_token, first_decode, context = 0, 0, 0, 0
    for i in range(len(phase)):
        prefilling += phase[i] == PREFILL_PHASE
        without_token += phase[i] == PREFILL_PHASE and emitted_tokens[i] == 0
        first_decode += phase[i] == FIRST_DECODE_PHASE
        context += context_tokens[i]
    no_draft_graph = False
    for length in graph_lengths:
        no_draft_graph |= length == 0
    return StepShape(
        len(phase),
        len(phase) - prefilling,
        without_token,
        first_decode,
        context,
        prefill_tokens,
        parallel_drafter,
        batch_drafter,
        first_pass_every_step,
        len(graph_lengths) > 0,
        no_draft_graph,
        largest_graph,
        pass_graphs,
    )


@inlined
def drafting_costs(weights: FloatArray, shape: StepShape) -> tuple[float, float, float]:
    """The costs of drafting: `draft_start`, `draft_pass` and `draft_token` of a `LinearCosts`."""
    start, each = weights[DRAFT], weights[PASSES]
    row = weights[ROWS] + weights[DRAFT_CONTEXT] * shape.context_tokens / shape.requests
    # In a pass over the whole batch a row costs the same whether or not the request drafts.
    whole_batch = each + row * shape.requests
    if shape.parallel_drafter and shape.first_pass_every_step:
        start, each, row = 0.0, 0.0, 0.0
    elif shape.parallel_drafter and shape.batch_drafter:
        start, each, row = start + whole_batch, 0.0, 0.0
    elif shape.parallel_drafter:
        # The pass reads the context of a request once, however long its draft. All requests are charged for it.
        start += each + weights[DRAFT_CONTEXT] * shape.context_tokens
        each, row = 0.0, weights[ROWS]
    elif shape.batch_drafter:
        start, each, row = -whole_batch if shape.first_pass_every_step else start, whole_batch, 0.0
    elif shape.first_pass_every_step:
        # The pass is part of every step. Its rows are too, but a cost that is linear in the tokens charges them.
        start = -each
    return start, each, row


@compiled
def step_costs(weights: FloatArray, shape: StepShape, prefill_tokens: float) -> LinearCosts:
    """The costs of a step with so many prompt tokens."""
    floor = weights[0] + weights[CONTEXT] * shape.context_tokens + weights[REQUESTS] * shape.requests
    floor += weights[PREFILL] * min(prefill_tokens, 1.0) + weights[PREFILL_TOKENS] * prefill_tokens
    start, each, row = drafting_costs(weights, shape)
    return LinearCosts(
        weights[TOKENS:PREFILL],
        floor,
        max(shape.decoding + round(prefill_tokens), 1),
        weights[PIECEWISE] if shape.has_graphs and not shape.has_no_draft_graph else 0.0,
        weights[PIECEWISE] if shape.has_graphs else 0.0,
        start,
        each,
        row,
        shape.largest_graph if shape.largest_graph else NO_LIMIT,
        weights[UNGRAPHED],
        shape.pass_graphs,
    )


@compiled
def slope_at(costs: LinearCosts) -> float:
    """Seconds of one more token in the target's pass, from the base tokens on."""
    return costs.slopes[segment_of(costs.base_tokens, len(costs.slopes))]


@inlined
def _changed(costs: LinearCosts, slopes: FloatArray, floor: float, share: float, start: float) -> LinearCosts:
    """The costs with another curve and floor, a share of what missing graphs take, and so many seconds more in steps
    that draft."""
    return LinearCosts(
        slopes,
        floor,
        costs.base_tokens,
        share * costs.no_draft_piecewise,
        share * costs.piecewise,
        costs.draft_start + start,
        costs.draft_pass,
        costs.draft_token,
        costs.graph_tokens,
        share * costs.ungraphed,
        costs.pass_graphs,
    )


@inlined
def with_start(costs: LinearCosts, seconds: float) -> LinearCosts:
    """The costs with so many seconds more in every step that drafts."""
    return _changed(costs, costs.slopes, costs.floor, 1.0, seconds)


@inlined
def _beside_prompts(costs: LinearCosts, tokens: int, prompt_tokens: int) -> float:
    """Mean seconds of a target's pass over so many tokens and the prompts beside them, its floor not included.

    Prompts have so many tokens on average. Whether the pass is too large for CUDA graphs depends on their number, which
    is taken to be exponential.
    """
    seconds, room = curve_seconds(costs.slopes, tokens + prompt_tokens), float(costs.graph_tokens - tokens)
    return seconds + costs.ungraphed * math.exp(-max(room, 0.0) / max(prompt_tokens, 1))


@compiled
def expected_costs(without: LinearCosts, with_prompts: LinearCosts, share: float) -> LinearCosts:
    """The mean of the costs of two steps, of which the second, with prompts, has this share.

    It is exact at the knots of the first.
    """
    rest, added = 1.0 - share, with_prompts.base_tokens - without.base_tokens
    slopes, before = np.empty(len(without.slopes)), _beside_prompts(with_prompts, int(VERIFY_KNOTS[0]), added)
    floor = rest * without.floor + share * (with_prompts.floor + before)
    for segment in range(len(slopes)):
        slope = with_prompts.slopes[segment]
        if segment < len(slopes) - 1:
            after = _beside_prompts(with_prompts, int(VERIFY_KNOTS[segment + 1]), added)
            slope = (after - before) / (VERIFY_KNOTS[segment + 1] - VERIFY_KNOTS[segment])
            before = after
        slopes[segment] = rest * without.slopes[segment] + share * slope
    return _changed(without, slopes, floor, rest, 0.0)


@compiled
def long_run_costs(without: LinearCosts, with_prompts: LinearCosts, token_seconds: float, share: float) -> LinearCosts:
    """The costs of a step in the long run, by which r is found.

    Each request brings its prompt, whatever is drafted: time in proportion to prompt tokens is a price of tokens, not
    of steps, and is left out. What prompts take once in a step is shared by all that join it, and the more tokens a
    step emits, the more join the next. Were joins a Poisson process, of which a share π of steps sees one or more, a
    step would be charged this time with the probability of two or more, π + (1 − π) · log(1 − π): the share π less the
    part of it that rises with the tokens.

    Args:
        without: without prompts.
        with_prompts: with as many prompt tokens as steps with prompts have on average.
        token_seconds: of one prompt token, beside those of the verify curve.
        share: π, of steps with prompts.
    """
    mixed, prompt_tokens = expected_costs(without, with_prompts, share), with_prompts.base_tokens - without.base_tokens
    added = with_prompts.floor + _beside_prompts(with_prompts, without.base_tokens, prompt_tokens)
    added -= without.floor + verify_seconds(without, without.base_tokens)
    once = max(added - (token_seconds + slope_at(with_prompts)) * prompt_tokens, 0.0)
    several = share + (1.0 - share) * math.log(1.0 - share) if share < 1.0 else 1.0
    return _changed(mixed, mixed.slopes, mixed.floor - share * added + several * once, 1.0, 0.0)


@compiled
def waiting_factor(
    shape: StepShape,
    first_token_weight: float,
    no_draft_seconds: float,
    waiting: int,
    waiting_seconds: float,
) -> float:
    """λ / r: how much more a second is worth than to the requests that decode.

    Args:
        shape: of the step.
        first_token_weight: f.
        no_draft_seconds: T₀.
        waiting: requests whose first token waits for this step.
        waiting_seconds: τ, as in a view.
    """
    part = no_draft_seconds / (no_draft_seconds + waiting_seconds)
    return 1.0 + first_token_weight * part * waiting / shape.decoding


@compiled
def prefill_factor(limited_share: float, requests: int, least: float) -> float:
    """By how much prefill as the bottleneck raises the price of time.

    In a closed loop of N requests let prefill be a queue with utilisation u, in which a prompt spends
    W = (1/μ) / (1 − u), and let a request decode for D. A smaller D raises the throughput N / (D + W) by only the share
    1 / (1 + u² / (N · (1 − u)²)) of what it would at constant W, because more prompts wait for one another. Draft
    tokens are worth this share, or time is dearer by its inverse. A prompt finds another one waiting with probability
    u² (M/M/1; Kleinrock, Queueing Systems I, 1975), which the share of steps with `StepView.prefill_limited` measures.

    Args:
        limited_share: u².
        requests: that decode, in place of N.
        least: lower bound of 1 − u.
    """
    room = max(1.0 - math.sqrt(limited_share), least)
    return 1.0 + limited_share / (requests * room * room)


class DrafterMemory(NamedTuple):
    """Requests that would fit into the memory of the drafter's KV cache, where a server lacks KV blocks."""

    waiting: float
    """That the drafter keeps waiting."""
    running: float
    """That run because it has not drafted lately, and would wait if it went on drafting."""
    request_seconds: float
    """By which one of them makes a step without drafts longer."""


@inlined
def drafter_memory(
    weights: FloatArray, shape: StepShape, costs: LinearCosts, kv_share: float, drafting_share: float
) -> DrafterMemory:
    """Requests of mean length in place of the drafter's KV cache.

    With s = `kv_share`, n requests with the drafter and n · (1 + s) without it take the same memory.

    Args:
        weights: of the step's cost.
        shape, costs: of the step.
        kv_share: mean `StepView.drafter_kv_share`.
        drafting_share: of the last steps.
    """
    idle_share = 1.0 - drafting_share
    number = shape.requests * kv_share / (1.0 + kv_share * idle_share)
    longer = weights[REQUESTS] + weights[CONTEXT] * shape.context_tokens / shape.requests + slope_at(costs)
    return DrafterMemory(number * drafting_share, number * idle_share, longer)


@inlined
def rate_without_drafter(memory: DrafterMemory, decoding: float, no_draft_seconds: float) -> float:
    """Tokens/s of steps without drafts, once the requests that the drafter keeps waiting run."""
    return (decoding + memory.waiting) / (no_draft_seconds + memory.waiting * memory.request_seconds)


@inlined
def memory_price(requests: float, memory: DrafterMemory, rate: float) -> float:
    """The price of so many requests that do not run, in seconds, at a rate of r tokens/s."""
    return requests * max(1.0 / rate - memory.request_seconds, 0.0)


@inlined
def charge_catch_up(
    lag_tokens: IntArray,
    tokens_left: IntArray,
    first: FloatArray,
    token_seconds: float,
    horizon_tokens: float,
    charged: FloatArray,
) -> None:
    """Fill (n,) `charged` with c_i, seconds; `first` is a[i,1], `token_seconds` κ, `horizon_tokens` H."""
    for i in range(len(lag_tokens)):
        share = (1.0 + first[i]) / min(float(max(tokens_left[i], 1)), horizon_tokens)
        charged[i] = lag_tokens[i] * token_seconds * share


@compiled
def plan_features(x: FloatArray, shape: StepShape, lag_tokens: IntArray, lengths: IntArray, padded_length: int) -> None:
    """Fill (SIZE,) `x` with what a step with these (offers,) draft lengths does, in the terms of the cost model.

    The first n offers are the drafter's (`turbospec.planning.offers`); `lag_tokens` has shape (n,).
    """
    drafted, depth = drafter_work(lengths, shape.requests)
    tokens, drafts, caught_up = 0, 0, 0
    for i in range(len(lengths)):
        tokens += lengths[i]
    for i in range(shape.requests):
        if lengths[i]:
            drafts += 1
            caught_up += lag_tokens[i]
    if padded_length and tokens:
        tokens = padded_length * shape.requests
        if drafted:
            depth = padded_length
    batched = shape.decoding + shape.prefill_tokens + tokens
    target_features(x, float(batched), float(shape.context_tokens), float(shape.requests), float(shape.prefill_tokens))
    has_graph = padded_length > 0 if tokens else shape.has_no_draft_graph
    graph_features(x, shape.has_graphs and not has_graph, float(batched), shape.largest_graph)
    if drafted == 0 or (shape.parallel_drafter and shape.first_pass_every_step):
        return
    passes = 1 if shape.parallel_drafter else passes_run(depth, shape.pass_graphs)
    passes -= shape.first_pass_every_step
    rows = drafted - drafts * shape.first_pass_every_step
    if shape.batch_drafter:
        rows = passes * shape.requests
    x[DRAFT] = 0.0 if shape.first_pass_every_step else 1.0
    x[PASSES] = passes
    x[ROWS] = rows
    context_rows = shape.requests if shape.parallel_drafter else rows
    x[DRAFT_CONTEXT] = context_rows * shape.context_tokens / shape.requests
    x[CATCH_UP] = caught_up


@compiled
def sum_of_drafts(values: FloatArray, lengths: IntArray) -> float:
    """Σ of (offers,) `values` over the offers that draft."""
    total = 0.0
    for i in range(len(lengths)):
        if lengths[i]:
            total += values[i]
    return total


@compiled
def expected_gain(survival: FloatArray, lengths: IntArray) -> float:
    """Σ_i Σ_{j≤k_i} of (offers, K) survival, weighted or not."""
    gain = 0.0
    for i in range(len(lengths)):
        for j in range(min(lengths[i], survival.shape[1])):
            gain += survival[i, j]
    return gain
