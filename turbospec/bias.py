"""What plans promised against what came of them: integral action on the models' standing errors.

A planner chooses what looks best, and best looks what the models err in favour of: a step that drafts takes a little
longer, or brings a little less, than was expected when it was chosen. Where drafting hardly pays, an error of a few
percent decides. It is therefore measured for each load, and a plan must pay with it taken off. Tokens and seconds are
weighed together, by the price of time: a gate that lets drafts run deeper than foreseen errs in both.
"""

from __future__ import annotations

from turbospec.price import BUCKETS, load_bucket
from turbospec.step_problem import StepProblem
from turbospec.types import StepOutcome, StepPlan

MAX_RATIO = 2.0
"""Times what was promised that a step is believed to have taken: a stall says nothing of the next step."""


class PlanBias:
    """Corrects what a plan is worth by how plans have turned out, for each load with and without prefill in the step.

    Args:
        memory: steps that are remembered.
        doubt_requests: requests, one for each step that they were in, after which their shortfall is half believed.
        doubt_steps: steps without drafts after which their durations weigh as much as the latency model.
    """

    def __init__(self, memory: float = 300.0, doubt_requests: float = 150.0, doubt_steps: float = 6.0) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._doubt_requests = doubt_requests
        self._doubt_steps = doubt_steps
        self._shortfall = [0.0] * (2 * BUCKETS)
        self._requests = [0.0] * (2 * BUCKETS)
        self._plain_promised = [0.0] * (2 * BUCKETS)
        self._plain_real = [0.0] * (2 * BUCKETS)

    def pays(self, plan: StepPlan, problem: StepProblem, *, prefilling: bool) -> bool:
        """Whether a plan brings more than its time is worth, once it is seen how plans like it have turned out."""
        decoding = problem.batch.decoding
        plain_seconds = self.plain_seconds(decoding, prefilling, problem.plain_seconds)
        longer = plan.predicted_seconds - problem.invested_seconds(plan.draft_lengths) - plain_seconds
        surplus = plan.predicted_tokens - decoding - problem.price * longer
        return surplus > self.shortfall(decoding, prefilling)

    def learn(self, plan: StepPlan, decoding: int, price: float, outcome: StepOutcome) -> None:
        """Take in what came of a plan for so many decoding requests, made when a second was worth `price` tokens."""
        prefilling, promised = outcome.prefill_tokens > 0, plan.predicted_seconds
        if plan.draft_lengths.any():
            missing = plan.predicted_tokens - decoding - int(outcome.accepted.sum())
            self.learn_drafting(
                decoding,
                prefilling,
                missing_tokens=missing,
                promised=promised,
                seconds=outcome.step_seconds,
                price=price,
            )
        else:
            self.learn_plain(decoding, prefilling, promised=promised, seconds=outcome.step_seconds)

    def learn_drafting(
        self, requests: int, prefilling: bool, *, missing_tokens: float, promised: float, seconds: float, price: float
    ) -> None:
        """Take in a step with drafts.

        Args:
            requests: decoding requests.
            prefilling: whether prompts were in the step.
            missing_tokens: accepted draft tokens that were promised and did not come.
            promised: seconds that were promised.
            seconds: seconds that it took.
            price: tokens that a second was worth.
        """
        load = self._fade(requests, prefilling)
        self._shortfall[load] += missing_tokens + price * (min(seconds, MAX_RATIO * promised) - promised)
        self._requests[load] += requests

    def learn_plain(self, requests: int, prefilling: bool, *, promised: float, seconds: float) -> None:
        """Take in a step without drafts and the duration that was promised of it."""
        load = self._fade(requests, prefilling)
        self._plain_promised[load] += promised
        self._plain_real[load] += min(seconds, MAX_RATIO * promised)

    def shortfall(self, requests: int, prefilling: bool) -> float:
        """Tokens that a step of so many decoding requests will fall short of its plan's surplus."""
        load = _load(requests, prefilling)
        return requests * self._shortfall[load] / (self._requests[load] + self._doubt_requests)

    def plain_seconds(self, requests: int, prefilling: bool, promised: float) -> float:
        """What a step without drafts will take of which this is promised."""
        load, doubt = _load(requests, prefilling), self._doubt_steps * promised
        return promised * (self._plain_real[load] + doubt) / (self._plain_promised[load] + doubt)

    def _fade(self, requests: int, prefilling: bool) -> int:
        load = _load(requests, prefilling)
        for amounts in (self._shortfall, self._requests, self._plain_promised, self._plain_real):
            amounts[load] *= self._keep
        return load


def _load(requests: int, prefilling: bool) -> int:
    return load_bucket(requests) + BUCKETS * prefilling
