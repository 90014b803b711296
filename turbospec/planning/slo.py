"""The longest step that keeps every request within its target for time per output token (TPOT)."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray, IntArray, StepView
from turbospec.runtime.kernels import compiled


class TpotSlo:
    """Tracks when each request's first token was emitted, and limits step times accordingly.

    Args:
        seconds: target TPOT: mean seconds per output token after the first.
        capacity: rows of per-request state.
    """

    def __init__(self, seconds: float, capacity: int) -> None:
        self.seconds = seconds
        self._first_token_at: FloatArray = np.full(capacity, math.nan)

    def reset(self, rows: IntArray, capacity: int) -> None:
        """Forget the requests of these rows; the state grows to `capacity` rows."""
        if len(self._first_token_at) < capacity:
            self._first_token_at = np.resize(self._first_token_at, capacity)
        self._first_token_at[rows] = math.nan

    def record_first_tokens(self, view: StepView, rows: IntArray) -> None:
        """Record whose first token has been emitted; to be called every step.

        A request that had emitted tokens before it was first seen is taken to have met the target until then.

        Args:
            view: the step.
            rows: (n,) rows of the view's requests.
        """
        new = view.decoding & np.isnan(self._first_token_at[rows])
        self._first_token_at[rows[new]] = view.now - self.seconds * (view.emitted_tokens[new] - 1)

    def slack(self, view: StepView, rows: IntArray) -> FloatArray:
        """Longest step after which each request meets the target, even if no draft token is accepted.

        Args:
            view: the step.
            rows: (n,) rows of the view's requests.

        Returns:
            (n,) seconds, also below 0; infinite for requests in prefill.
        """
        # After the step at least `emitted_tokens` tokens have followed the first one.
        slack = self.seconds * view.emitted_tokens - (view.now - self._first_token_at[rows])
        return np.where(view.decoding, slack, math.inf)


@compiled
def max_seconds(slack: FloatArray, no_draft_seconds: float) -> float:
    """Longest step that breaks no request's target.

    A request that would miss the target even after a step without drafts is ignored: no plan helps it, and the other
    requests should not lose their drafts to it.

    Args:
        slack: (n,) of `TpotSlo.slack`; empty where there is no target.
        no_draft_seconds: predicted duration of the step without drafts.

    Returns:
        Seconds; infinite where no request limits the step.
    """
    least = math.inf
    for seconds in slack:
        if no_draft_seconds <= seconds < least:
            least = seconds
    return least
