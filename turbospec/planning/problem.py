"""A step's planning problem, and its two planners.

Without a gate the draft lengths are fixed before drafting (`fixed_lengths`). With a gate, which ends each draft by the
drafter's confidence, the plan only chooses which requests start to draft (`gated_start`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray, Phase, StepPlan, StepView
from turbospec.models.acceptance import survival
from turbospec.models.confidence import ConfidenceCalibration
from turbospec.planning.exact import StepCosts, plan_draft_lengths
from turbospec.planning.gate import GatePrices, SurvivalGate
from turbospec.planning.stopping import PassValueCache, StartPrices, choose_start
from turbospec.runtime.kernels import compiled, unnamed

CATCH_UP_HORIZON_TOKENS = 64
"""Most tokens over which the cost of catching up is amortised: all later drafts of the request benefit from it."""


class Batch(NamedTuple):
    """Sums over the requests of a step."""

    decoding: int
    """Requests past their prompt."""
    prefilling: int
    """Requests in prefill."""
    first_decode: int
    """Requests in `Phase.FIRST_DECODE`: their first token has just been emitted."""
    context_tokens: int
    drafter_lag_tokens: int
    max_draft_tokens: int
    """Σ of the draft limits."""

    @classmethod
    def of(cls, view: StepView, limits: IntArray) -> Batch:
        """Sum up a view's requests, with (n,) draft limits that may be lower than the view's."""
        return cls(*_sum_up(view.phase, view.context_tokens, view.drafter_lag_tokens, limits))


@compiled
def _sum_up(
    phase: IntArray, context_tokens: IntArray, drafter_lag_tokens: IntArray, limits: IntArray
) -> tuple[int, int, int, int, int, int]:
    prefilling, first_decode, context, lag, draft_tokens = 0, 0, 0, 0, 0
    for i in range(len(phase)):
        prefilling += phase[i] == Phase.PREFILL.value
        first_decode += phase[i] == Phase.FIRST_DECODE.value
        context += context_tokens[i]
        lag += drafter_lag_tokens[i]
        draft_tokens += limits[i]
    return len(phase) - prefilling, prefilling, first_decode, context, lag, draft_tokens


@dataclass(slots=True)
class StepProblem:
    """Acceptance, costs and the price of time for one step of n requests."""

    batch: Batch
    rows: IntArray
    """(n,) rows of the per-request state."""
    limits: IntArray
    """(n,) draft limits."""
    conditional: FloatArray
    """(n, K) a[i,j]: acceptance of each draft token given that all before it were accepted."""
    costs: StepCosts
    price: float
    """λ in tokens/s, raised by the first-token price."""
    decode_price: float
    """λ of decoding alone, without the first-token price."""
    catch_up_seconds: FloatArray | None
    """(n,) time that each request adds if it drafts, to catch up its drafter KV lag; None for none."""
    amortised_seconds: FloatArray | None
    """(n,) the part of `catch_up_seconds` that is charged to this step (`amortise_catch_up`). The rest is deferred to
    later steps, which benefit too."""
    drafter_prefill_seconds: float = 0.0
    """Time that the step's prompts add to the first drafter pass. `costs` contains only the extra cost of
    prefilling them now, while first tokens wait, instead of later."""

    @property
    def no_draft_seconds(self) -> float:
        """Duration of the step without drafts."""
        return float(self.costs.verify[0])

    @property
    def full_draft_seconds(self) -> float:
        """Duration of the step if every request drafts to its limit."""
        catch_up = 0.0 if self.catch_up_seconds is None else float(self.catch_up_seconds.sum())
        return self.costs.seconds(self.limits) + catch_up

    def total_deferred_catch_up(self, draft_lengths: IntArray) -> float:
        """Catch-up time of a plan that this step spends and later steps are charged for, seconds."""
        if self.catch_up_seconds is None or self.amortised_seconds is None:
            return 0.0
        return float((self.catch_up_seconds - self.amortised_seconds)[draft_lengths > 0].sum())

    def verify_costs(self) -> tuple[float, float]:
        """Seconds that draft tokens add to the target's pass: a fixed part, and per token (a linear fit)."""
        return _verify_costs(self.costs.verify, self.batch.decoding)


def amortise_catch_up(catch_up_seconds: FloatArray, tokens_left: IntArray, acceptance: FloatArray) -> FloatArray:
    """(n,) part of each request's catch-up time that is charged to one step: its share of the tokens still to come.

    Args:
        catch_up_seconds: (n,)
        tokens_left: (n,) tokens that each request may still emit.
        acceptance: (n,) a[i,1]: a step with drafts emits about 1 + a[i,1] tokens.
    """
    return catch_up_seconds * (1.0 + acceptance) / np.clip(tokens_left, 1, CATCH_UP_HORIZON_TOKENS)


@compiled
def _verify_costs(verify: FloatArray, decoding: int) -> tuple[float, float]:
    """A line through two and four tokens per request.

    Not through one token per request: a request's second token may cost much more than its third.
    """
    room = len(verify) - 1
    few, many = min(decoding, room), min(3 * decoding, room)
    if many == few:
        return 0.0, (verify[few] - verify[0]) / few
    per_token = (verify[many] - verify[few]) / (many - few)
    fixed = verify[few] - verify[0] - per_token * few
    if fixed < 0.0:
        return 0.0, (verify[many] - verify[0]) / many
    return fixed, per_token


def fixed_lengths(problem: StepProblem, max_seconds: float) -> StepPlan | None:
    """The best draft lengths, fixed before drafting; None where no draft pays.

    Args:
        problem: the step.
        max_seconds: longest step allowed; infinite for no limit.
    """
    costs, decoding = problem.costs, problem.batch.decoding
    # A limit on this step's duration applies to the whole catch-up time, also to the part charged to later steps.
    request_seconds = problem.amortised_seconds if math.isinf(max_seconds) else problem.catch_up_seconds
    solution = plan_draft_lengths(
        survival(problem.conditional), costs, problem.price, request_seconds=request_seconds, max_seconds=max_seconds
    )
    lengths = solution.draft_lengths
    total = int(lengths.sum())
    if total == 0:
        return None
    catch_up = 0.0 if problem.catch_up_seconds is None else float(problem.catch_up_seconds[lengths > 0].sum())
    return StepPlan(
        lengths,
        predicted_tokens=decoding + solution.gain,
        predicted_seconds=costs.seconds(lengths, solution.padded_length) + catch_up,
        padded_length=solution.padded_length,
        reason=f"{total} draft tokens for {decoding} requests: {solution.gain:.2f} predicted to be accepted, "
        f"at a price of time of {problem.price:.0f} tok/s",
    )


def gated_start(problem: StepProblem, values: PassValueCache, calibration: ConfidenceCalibration) -> StepPlan | None:
    """The requests for which it pays to start, with a gate that ends each draft; None where no draft pays.

    Args:
        problem: the step.
        values: expected gain per drafter pass, for the prices of the step.
        calibration: acceptance by confidence.
    """
    costs, price, limits = problem.costs, problem.price, problem.limits
    fixed, per_token = problem.verify_costs()
    prices = StartPrices(
        drafter_pass=price * costs.draft_pass,
        start=price * (costs.draft_start + fixed),
    )
    row_price, verify_price = price * costs.draft_token, price * per_token
    pass_values = values.at(row_price, verify_price)
    amortised = problem.amortised_seconds
    request_prices = np.zeros(len(limits)) if amortised is None else price * amortised
    start = choose_start(unnamed(pass_values), problem.conditional, request_prices, limits, unnamed(prices))
    if start.requests == 0:
        return None
    seconds = problem.no_draft_seconds + (start.gain - start.surplus) / price
    return StepPlan(
        start.draft_lengths,
        predicted_tokens=problem.batch.decoding + start.gain,
        predicted_seconds=seconds + problem.total_deferred_catch_up(start.draft_lengths),
        reason=f"gated drafts for {start.requests} of {problem.batch.decoding} requests: {start.gain:.2f} tokens "
        f"predicted to be accepted, at a price of time of {price:.0f} tok/s",
        gate=SurvivalGate(
            pass_values.table,
            calibration.odds_ratios(problem.rows),
            problem.conditional,
            limits,
            GatePrices(prices.drafter_pass, row_price + verify_price, verify_price),
        ),
    )
