"""A step's decision in the terms of its planners, and the two ways to solve it.

Without a gate the draft lengths are fixed before drafting (`fixed_lengths`). With one, which ends each draft by the
drafter's confidence, it is only chosen which requests start (`gated_start`).
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
from turbospec.planning.gate import SurvivalGate
from turbospec.planning.stopping import Start, StoppingValues, choose_start
from turbospec.runtime.kernels import compiled

CATCH_UP_HORIZON = 64
"""Most tokens over which a request's catching up is spread in the plan: what it buys is not spent in one step."""


class Batch(NamedTuple):
    """What plans need of a batch as a whole."""

    decoding: int
    """Requests past their prompt."""
    prefilling: int
    starting: int
    """Requests whose first token was the last thing that happened to them."""
    context_tokens: int
    drafter_lag_tokens: int
    draft_room: int
    """Σ of the draft limits."""

    @classmethod
    def of(cls, view: StepView, limits: IntArray) -> Batch:
        return cls(*_summarise(view.phase, view.context_tokens, view.drafter_lag_tokens, limits))


@compiled
def _summarise(
    phase: IntArray, context_tokens: IntArray, drafter_lag_tokens: IntArray, limits: IntArray
) -> tuple[int, int, int, int, int, int]:
    prefilling, starting, context, stale, room = 0, 0, 0, 0, 0
    for i in range(len(phase)):
        prefilling += phase[i] == Phase.PREFILL.value
        starting += phase[i] == Phase.FIRST_DECODE.value
        context += context_tokens[i]
        stale += drafter_lag_tokens[i]
        room += limits[i]
    return len(phase) - prefilling, prefilling, starting, context, stale, room


@dataclass(slots=True)
class StepProblem:
    """Acceptance, costs and the price of time for one step of n requests."""

    batch: Batch
    rows: IntArray
    """(n,) rows of the requests' state."""
    limits: IntArray
    """(n,) draft lengths that are not exceeded."""
    conditional: FloatArray
    """(n, K) acceptance of each draft token given that all before it were accepted."""
    costs: StepCosts
    price: float
    """Tokens that a second is worth."""
    decode_price: float
    """The same without what it is worth to those that have no token yet."""
    catch_up: FloatArray | None
    """(n,) seconds that each request adds if it drafts, for what its drafter's cache has missed; None for none."""
    charges: FloatArray | None
    """(n,) the part of `catch_up` that this step has to earn."""
    reading_seconds: float = 0.0
    """What the step's prompts add to the first drafter pass; only what their reading now delays is in `costs`."""

    @property
    def plain_seconds(self) -> float:
        """Duration of the step without any draft."""
        return float(self.costs.verify[0])

    @property
    def longest_seconds(self) -> float:
        """Duration of the step if every request drafts to its limit."""
        return self.costs.seconds(self.limits) + (0.0 if self.catch_up is None else float(self.catch_up.sum()))

    def invested_seconds(self, draft_lengths: IntArray) -> float:
        """What of a plan's catching up is left for later steps to earn."""
        if self.catch_up is None or self.charges is None:
            return 0.0
        return float((self.catch_up - self.charges)[draft_lengths > 0].sum())

    def charged_seconds(self, draft_lengths: IntArray) -> float:
        """What of a plan's catching up this step has to earn."""
        return 0.0 if self.charges is None else float(self.charges[draft_lengths > 0].sum())

    def verify_costs(self) -> tuple[float, float]:
        """Seconds that draft tokens add to the target's pass once, and those that each of them adds."""
        return _verify_costs(self.costs.verify, self.batch.decoding)


def catch_up_charges(catch_up: FloatArray, tokens_left: IntArray, acceptance: FloatArray) -> FloatArray:
    """(n,) the part of each request's catching up that one step has to earn: its share of the steps still to come.

    Args:
        catch_up: (n,) seconds.
        tokens_left: (n,) tokens that each request may still emit.
        acceptance: (n,) of the next draft token; a drafting step emits about one more than that.
    """
    return catch_up * (1.0 + acceptance) / np.clip(tokens_left, 1, CATCH_UP_HORIZON)


@compiled
def _verify_costs(verify: FloatArray, decoding: int) -> tuple[float, float]:
    """A line through two and four tokens a request.

    A pass over two tokens for each request may cost much more than one over a single token each, and one over three
    hardly more than that.
    """
    room = len(verify) - 1
    few, many = min(decoding, room), min(3 * decoding, room)
    if many == few:
        return 0.0, (verify[few] - verify[0]) / few
    each = (verify[many] - verify[few]) / (many - few)
    jump = verify[few] - verify[0] - each * few
    if jump < 0.0:
        return 0.0, (verify[many] - verify[0]) / many
    return jump, each


def fixed_lengths(problem: StepProblem, max_seconds: float) -> StepPlan | None:
    """The best draft lengths, fixed before drafting; None where nothing pays."""
    costs, decoding = problem.costs, problem.batch.decoding
    # A limit on this step's time counts the whole of the catching up, whoever is to earn it.
    charges = problem.charges if math.isinf(max_seconds) else problem.catch_up
    solution = plan_draft_lengths(
        survival(problem.conditional), costs, problem.price, charges=charges, max_seconds=max_seconds
    )
    lengths = solution.draft_lengths
    total = int(lengths.sum())
    if total == 0:
        return None
    catch_up = 0.0 if problem.catch_up is None else float(problem.catch_up[lengths > 0].sum())
    return StepPlan(
        lengths,
        predicted_tokens=decoding + solution.gain,
        predicted_seconds=costs.seconds(lengths) + catch_up,
        reason=f"{total} draft tokens: expect {solution.gain:.2f} more from {decoding} requests "
        f"at {problem.price:.0f} tok/s",
    )


def gated_start(problem: StepProblem, values: StoppingValues, calibration: ConfidenceCalibration) -> StepPlan | None:
    """The requests for which starting pays, with a gate that ends each draft; None where nothing pays."""
    costs, price, limits = problem.costs, problem.price, problem.limits
    jump, each = problem.verify_costs()
    pass_price, row_price, verify_price = price * costs.draft_pass, price * costs.draft_token, price * each
    table, mean, gain, net = values.at(row_price, verify_price)
    charges = np.zeros(len(limits)) if problem.charges is None else price * problem.charges
    start_price = price * (costs.draft_start + jump)
    start = Start(*choose_start(mean, gain, net, problem.conditional, charges, limits, pass_price, start_price))
    if start.requests == 0:
        return None
    seconds = problem.plain_seconds + (start.gain - start.surplus) / price
    return StepPlan(
        start.draft_lengths,
        predicted_tokens=problem.batch.decoding + start.gain,
        predicted_seconds=seconds + problem.invested_seconds(start.draft_lengths),
        reason=f"drafting for {start.requests} of {problem.batch.decoding} requests while confident: "
        f"expect {start.gain:.2f} more at {price:.0f} tok/s",
        gate=SurvivalGate(
            table,
            calibration.odds_ratios(problem.rows),
            problem.conditional,
            limits,
            np.array([pass_price, row_price + verify_price, verify_price]),
        ),
    )
