"""The longest step under targets for time per output token (TPOT) and time to first token (TTFT)."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray, IntArray, Phase, StepOutcome, StepView
from turbospec.runtime.kernels import compiled

MISSES = 0.01
"""Share of first tokens that may be late: the target is one for P99."""


class _Slo:
    """A target, and one moment of each request that it is judged by.

    Args:
        seconds: the target.
        capacity: rows of per-request state.
    """

    def __init__(self, seconds: float, capacity: int) -> None:
        self.seconds = seconds
        self.moments: FloatArray = np.full(capacity, math.nan)
        """(capacity,)"""

    def reset(self, rows: IntArray, capacity: int) -> None:
        """Forget the requests of these rows; the state grows to `capacity` rows."""
        if len(self.moments) < capacity:
            self.moments = np.resize(self.moments, capacity)
        self.moments[rows] = math.nan


class TpotSlo(_Slo):
    """Tracks when each request's first token was emitted, and limits step times accordingly.

    The target is the mean seconds per output token after the first.
    """

    def record_first_tokens(self, view: StepView, rows: IntArray) -> None:
        """Record whose first token has been emitted; to be called every step.

        A request that had emitted tokens before it was first seen is taken to have met the target until then.

        Args:
            view: the step.
            rows: (n,) rows of the view's requests.
        """
        new = view.decoding & np.isnan(self.moments[rows])
        self.moments[rows[new]] = view.now - self.seconds * (view.emitted_tokens[new] - 1)

    def slack(self, view: StepView, rows: IntArray) -> FloatArray:
        """Longest step after which each request meets the target, even if no draft token is accepted.

        Args:
            view: the step.
            rows: (n,) rows of the view's requests.

        Returns:
            (n,) seconds, also below 0; infinite for requests in prefill.
        """
        # After the step at least `emitted_tokens` tokens have followed the first one.
        slack = self.seconds * view.emitted_tokens - (view.now - self.moments[rows])
        return np.where(view.decoding, slack, math.inf)


class TtftSlo(_Slo):
    """Learns how much longer drafts may make a step, so that P99 TTFT meets a target.

    `added_seconds` halves with each first token that is late, and doubles while 99 are in time: in the long run one in
    a hundred is late, where shorter steps help. It starts at the target, and stays between 1 % and 100 % of it. A
    request that found others waiting for longer than a step counts as in time: it waited for throughput, which drafts
    raise.

    A view does not say when a request arrived that was not queued in the view before. The moment is drawn, evenly
    between those at which the last two steps were scheduled.
    """

    def __init__(self, seconds: float, capacity: int) -> None:
        super().__init__(seconds, capacity)
        self.added_seconds = seconds
        """Most seconds that drafts may add to a step."""
        self._step_seconds = self._since_scheduled = 0.0
        self._scheduled = self._view_now = self._queued_since = 0.0
        self._random = np.random.default_rng(0)

    def record_arrivals(self, view: StepView, rows: IntArray, new: IntArray) -> None:
        """Estimate when new requests arrived; to be called for every view.

        Args:
            view: the step.
            rows: (n,) rows of the view's requests.
            new: those of the rows that were assigned now.
        """
        scheduled, queued_seconds = view.now - self._since_scheduled, self._view_now - self._queued_since
        for row in new:
            if queued_seconds > self._step_seconds:
                self.moments[row] = math.inf
            elif queued_seconds > 0.0:
                self.moments[row] = self._queued_since
            elif len(new) == len(rows):
                self.moments[row] = scheduled  # nothing ran before
            else:
                self.moments[row] = scheduled - self._random.random() * max(scheduled - self._scheduled, 0.0)
        self._scheduled, self._view_now, self._queued_since = scheduled, view.now, view.now - view.waiting_seconds

    def learn(self, view: StepView, rows: IntArray, outcome: StepOutcome) -> None:
        """Judge the first tokens of a step.

        Args:
            view: that the step was planned for; the step itself or an earlier one.
            rows: (n,) rows of its requests.
            outcome: of the step.
        """
        self._step_seconds = outcome.step_seconds
        self._scheduled += outcome.reused_plan_seconds
        if outcome.step != view.step:  # it reused the plan
            self._scheduled += outcome.step_seconds
        if view.draft_before_emit:
            emitted, seconds = view.phase == Phase.FIRST_DECODE, outcome.draft_seconds
            self._since_scheduled = outcome.step_seconds - outcome.draft_seconds
        else:
            emitted, seconds = (view.phase == Phase.PREFILL) & (outcome.emitted > 0), outcome.step_seconds
        for row in rows[emitted]:
            if math.isnan(self.moments[row]):
                continue  # judged before the request was preempted
            late = view.now + seconds - self.moments[row] > self.seconds
            self.added_seconds *= 0.5 if late else 2.0 ** (MISSES / (1.0 - MISSES))
            self.moments[row] = math.nan
        self.added_seconds = min(max(self.added_seconds, MISSES * self.seconds), self.seconds)


@compiled
def longest_step(
    slack: FloatArray,
    tokens_left: IntArray,
    accepted: FloatArray,
    no_draft_seconds: float,
    token_seconds: float,
    reserve: float,
) -> float:
    """Longest step that a target for TPOT allows.

    A plan may make a step longer by what every request is ahead of the target, less a reserve, and by what the tokens
    that it is expected to have accepted gain that request: the target's seconds each. A request that would miss the
    target even if none of its steps had drafts is ignored: the other requests should not lose their drafts to it.

    Args:
        slack: (n,) of `TpotSlo.slack`.
        tokens_left: (n,) of the view.
        accepted: (n,) draft tokens that the plan is expected to have accepted.
        no_draft_seconds: predicted duration of the step without drafts.
        token_seconds: the target.
        reserve: seconds.

    Returns:
        Seconds; infinite where no request limits the step.
    """
    least = math.inf
    for i in range(len(slack)):
        ahead = slack[i] - no_draft_seconds
        if ahead + tokens_left[i] * (token_seconds - no_draft_seconds) >= 0.0:
            least = min(least, max(ahead - reserve, 0.0) + token_seconds * accepted[i])
    return no_draft_seconds + least
