"""Systematic errors of the plans: predicted against measured tokens and step times, by load.

A planner chooses the plan with the best prediction, and so prefers plans whose predictions are too good (the
optimiser's curse): a step with drafts takes a little longer, or accepts fewer tokens, than was predicted when it
was chosen. Where drafting barely pays, an error of a few percent decides. The errors are therefore measured for each
load, and a plan must pay after they are subtracted.

Accepted tokens are compared with predicted ones. Durations are compared with predicted ones too, but as a difference
between neighbouring steps with and without drafts, because a change of the hardware speed affects both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbospec.interface import StepOutcome, StepPlan
from turbospec.models.decode_rate import LOAD_BUCKETS, load_bucket
from turbospec.planning.problem import StepProblem

STALL_RATIO = 2.0
"""Measured over predicted duration from which a step is a stall and is not learnt from."""
TIME_RATIO_WEIGHT = 0.1
"""Weight of the newest step in the running mean of measured over predicted duration."""


@dataclass(slots=True)
class _LoadStatistics:
    """Discounted sums over the steps of one load."""

    token_shortfall: float = 0.0
    """Accepted tokens, predicted minus measured."""
    requests: float = 0.0
    """Decoding requests, counted once for each step with drafts."""
    slow_down: float = 0.0
    """Summed over pairs of neighbouring steps: measured over predicted duration, with drafts minus without."""
    pairs: float = 0.0
    """Number of such pairs."""
    time_ratio: float = 1.0
    """Running mean of measured over predicted duration, over the latest steps, all with or all without drafts."""
    drafted: bool | None = None
    """Whether the latest step had drafts. None before the first step."""
    no_draft_seconds: float = 0.0
    """Predicted duration of the last step without drafts."""


class PredictionBias:
    """Systematic prediction errors for each load, with and without prefill in the step.

    An estimate from little data is shrunk towards 0, by pseudo-observations without any error: a sum over n
    observations is divided by n + n0.

    Args:
        memory: number of steps over which the sums decay.
        prior_requests: n0 of the token shortfall, in requests times steps. A single request's shortfall never counts by
            more than memory / (memory + n0), two thirds by default, as it is mostly chance.
        prior_pairs: n0 of the slow-down, in pairs of neighbouring steps.
    """

    def __init__(self, memory: float = 300.0, prior_requests: float = 150.0, prior_pairs: float = 6.0) -> None:
        self._decay = 1.0 - 1.0 / memory
        self._prior_requests = prior_requests
        self._prior_pairs = prior_pairs
        self._loads = [_LoadStatistics() for _ in range(2 * LOAD_BUCKETS)]

    def pays(self, plan: StepPlan, problem: StepProblem, *, prefilling: bool) -> bool:
        """Whether a plan's corrected gain in tokens exceeds λ times its corrected extra time.

        Args:
            plan: with drafts.
            problem: that it solves.
            prefilling: whether the step computes prompt tokens.
        """
        decoding = problem.batch.decoding
        gain = plan.predicted_tokens - decoding - self.token_shortfall(decoding, prefilling)
        seconds = plan.predicted_seconds
        seconds = seconds - problem.total_deferred_catch_up(plan.draft_lengths) - problem.no_draft_seconds
        seconds += self.slow_down(decoding, prefilling) * plan.predicted_seconds
        return gain > problem.price * seconds

    def learn(self, plan: StepPlan, decoding: int, decoded: int, prefilling: bool, outcome: StepOutcome) -> None:
        """Compare a plan with its outcome.

        Args:
            plan: with its predictions.
            decoding: requests that the plan expected to decode.
            decoded: those of them that did; the others ended before their drafts were verified, and their predicted
                tokens are not counted.
            prefilling: whether the step computed prompt tokens.
            outcome: of the plan.
        """
        if not 0.0 < outcome.step_seconds < STALL_RATIO * plan.predicted_seconds:
            return
        ratio, drafted = outcome.step_seconds / plan.predicted_seconds, bool(np.count_nonzero(plan.draft_lengths))
        load = self._loads[_index(decoding, prefilling)]
        # In steps without drafts only the sums decay, not the counts, so that the estimated errors fall towards 0.
        decay = self._decay ** (1 + outcome.reused_plan_steps)
        load.token_shortfall *= decay
        load.slow_down *= decay
        if drafted:
            load.requests = load.requests * self._decay + decoded
            load.pairs *= self._decay
            predicted = (plan.predicted_tokens / decoding - 1.0) * decoded
            load.token_shortfall += predicted - int(outcome.accepted.sum())
        steps = outcome.reused_plan_steps
        same_load = steps and load_bucket(outcome.reused_plan_tokens // steps) == load_bucket(decoding)
        if same_load and load.drafted is False:
            # Steps that reuse a plan are shorter than planned steps, by the decision time.
            reused = min(outcome.reused_plan_seconds / (steps * load.no_draft_seconds), STALL_RATIO)
            load.time_ratio += (1.0 - (1.0 - TIME_RATIO_WEIGHT) ** steps) * (reused - load.time_ratio)
        if not drafted:
            load.no_draft_seconds = plan.predicted_seconds
        if load.drafted == drafted:
            load.time_ratio += TIME_RATIO_WEIGHT * (ratio - load.time_ratio)
            return
        if load.drafted is not None:
            load.slow_down += ratio - load.time_ratio if drafted else load.time_ratio - ratio
            load.pairs += 1.0
        load.drafted, load.time_ratio = drafted, ratio

    def token_shortfall(self, decoding: int, prefilling: bool) -> float:
        """Accepted tokens of a step with drafts, predicted minus measured, for this number of decoding requests."""
        load = self._loads[_index(decoding, prefilling)]
        return decoding * load.token_shortfall / (load.requests + self._prior_requests)

    def slow_down(self, decoding: int, prefilling: bool) -> float:
        """Relative slow-down of steps with drafts: share of the predicted duration that they take longer, measured
        against neighbouring steps without drafts."""
        load = self._loads[_index(decoding, prefilling)]
        return load.slow_down / (load.pairs + self._prior_pairs)


def _index(decoding: int, prefilling: bool) -> int:
    return load_bucket(decoding) + LOAD_BUCKETS * prefilling
