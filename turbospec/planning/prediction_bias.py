"""What plans promised against what came of them: corrects the models' standing errors.

A planner chooses what looks best, and best looks what the models err in favour of: a step that drafts takes a little
longer, or brings a little less, than was expected when it was chosen. Where drafting hardly pays, an error of a few
percent decides. It is therefore measured for each load, and a plan must pay with it taken off.

Tokens are compared with their promise. Durations are compared with their promise too, but between neighbours: a step
with drafts and one without that follow one another. A machine that slows down or recovers does so for both.

Where the drafter's pass runs over the target's whole batch, it also reads the prompts of requests that come after the
plan was made. One step's drafts do not bring them; drafting on and on does, and has to pay for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbospec.interface import StepOutcome, StepPlan
from turbospec.models.decode_rate import BUCKETS, load_bucket
from turbospec.planning.problem import StepProblem

STALL = 2.0
"""Times what was promised from which a step is a stall and no lesson."""
PACE = 0.1
"""Weight of the newest step in what the last steps of its kind took."""


@dataclass(slots=True)
class _Load:
    """What is known of steps under one load."""

    missing_tokens: float = 0.0
    """Accepted draft tokens that were promised and did not come."""
    requests: float = 0.0
    """Decoding requests, one for each step with drafts that they were in."""
    slower: float = 0.0
    """Sum over pairs of neighbours: by what part of its promise the step with drafts took longer than the other."""
    pairs: float = 0.0
    pace: float = 1.0
    """Duration over promise of the last steps, all of one kind."""
    drafting: bool | None = None
    """Which kind; None before the first step."""
    promised: float = 0.0
    """Duration of the last step without drafts, as it was promised."""
    reading: float = 0.0
    """Seconds that the drafter took for prompts of requests that no plan knew."""
    reading_steps: float = 0.0
    """Steps with drafts."""


class PlanBias:
    """Corrects what a plan is worth by how plans have turned out, for each load with and without prefill in the step.

    Args:
        memory: steps that are remembered.
        doubt_requests: requests, one for each step that they were in, after which missing tokens are half believed. A
            lone request's are never believed by more than two thirds: they are a matter of chance.
        doubt_pairs: pairs of neighbours after which their difference is half believed.
        doubt_steps: steps with drafts after which the time for newcomers' prompts is half believed.
    """

    def __init__(
        self,
        memory: float = 300.0,
        doubt_requests: float = 150.0,
        doubt_pairs: float = 6.0,
        doubt_steps: float = 10.0,
    ) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._doubt_requests = doubt_requests
        self._doubt_pairs = doubt_pairs
        self._doubt_steps = doubt_steps
        self._loads = [_Load() for _ in range(2 * BUCKETS)]

    def pays(self, plan: StepPlan, problem: StepProblem, *, prefilling: bool) -> bool:
        """Whether a plan brings more than its time is worth, once it is seen how plans like it have turned out."""
        decoding = problem.batch.decoding
        tokens = plan.predicted_tokens - decoding - self.missing_tokens(decoding, prefilling)
        longer = plan.predicted_seconds - problem.invested_seconds(plan.draft_lengths) - problem.plain_seconds
        longer += self.slowness(decoding, prefilling) * plan.predicted_seconds
        # While nothing is drafted everybody's prompt is to be caught up, and the plan has to earn that already.
        longer += max(self.reading_seconds(decoding, prefilling) - problem.charged_seconds(plan.draft_lengths), 0.0)
        return tokens > problem.price * longer

    def learn(self, plan: StepPlan, decoding: int, decoded: int, prefilling: bool, outcome: StepOutcome) -> None:
        """Take in what came of a plan for so many decoding requests, with or without prompts in the step.

        `decoded` of them were still there: what the others' drafts would have brought was not promised in vain.
        """
        if not 0.0 < outcome.step_seconds < STALL * plan.predicted_seconds:
            return
        ratio, drafting = outcome.step_seconds / plan.predicted_seconds, bool(plan.draft_lengths.any())
        load = self._loads[_number(decoding, prefilling)]
        # While nothing is drafted only the sums fade: what was held against drafting is forgiven in time.
        faded = self._keep ** (1 + outcome.reused_plan_steps)
        load.missing_tokens *= faded
        load.slower *= faded
        if not drafting:
            load.reading *= faded
        if drafting:
            load.requests = load.requests * self._keep + decoded
            load.pairs *= self._keep
            promised = (plan.predicted_tokens / decoding - 1.0) * decoded
            load.missing_tokens += promised - int(outcome.accepted.sum())
        steps = outcome.reused_plan_steps
        same_load = steps and load_bucket(outcome.reused_plan_tokens // steps) == load_bucket(decoding)
        if same_load and load.drafting is False:
            # Steps that reuse a plan are quicker than those that were planned for.
            reused = min(outcome.reused_plan_seconds / (steps * load.promised), STALL)
            load.pace += (1.0 - (1.0 - PACE) ** steps) * (reused - load.pace)
        if not drafting:
            load.promised = plan.predicted_seconds
        if load.drafting == drafting:
            load.pace += PACE * (ratio - load.pace)
            return
        if load.drafting is not None:
            load.slower += ratio - load.pace if drafting else load.pace - ratio
            load.pairs += 1.0
        load.drafting, load.pace = drafting, ratio

    def learn_reading(self, decoding: int, prefilling: bool, seconds: float) -> None:
        """Take in how long the drafter took, in a step with drafts, for prompts that its plan did not know of."""
        load = self._loads[_number(decoding, prefilling)]
        load.reading = load.reading * self._keep + seconds
        load.reading_steps = load.reading_steps * self._keep + 1.0

    def missing_tokens(self, requests: int, prefilling: bool) -> float:
        """Accepted draft tokens by which a step of so many decoding requests will fall short of its plan."""
        load = self._loads[_number(requests, prefilling)]
        return requests * load.missing_tokens / (load.requests + self._doubt_requests)

    def slowness(self, requests: int, prefilling: bool) -> float:
        """Part of its promised duration by which a step with drafts will be later than one without would be."""
        load = self._loads[_number(requests, prefilling)]
        return load.slower / (load.pairs + self._doubt_pairs)

    def reading_seconds(self, requests: int, prefilling: bool) -> float:
        """What newcomers' prompts take of a step with drafts, on average."""
        load = self._loads[_number(requests, prefilling)]
        return load.reading / (load.reading_steps + self._doubt_steps)


def _number(requests: int, prefilling: bool) -> int:
    return load_bucket(requests) + BUCKETS * prefilling
