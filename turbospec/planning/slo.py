"""How long a step may take without pushing a request beyond its promised time per output token."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray, IntArray, Phase, StepView


class TpotSlo:
    """Keeps when each request's first token left, and what a step may take.

    Args:
        seconds: time per output token after the first that is promised.
        capacity: rows of per-request state.
    """

    def __init__(self, seconds: float, capacity: int) -> None:
        self.seconds = seconds
        self._first_token_at: FloatArray = np.full(capacity, math.nan)

    def reset(self, rows: IntArray, capacity: int) -> None:
        """Forget these rows' requests; the state grows to `capacity` rows."""
        if len(self._first_token_at) < capacity:
            self._first_token_at = np.resize(self._first_token_at, capacity)
        self._first_token_at[rows] = math.nan

    def see(self, view: StepView, rows: IntArray) -> None:
        """Note whose first token has left. Call it for every step, with the (n,) rows of the view's requests."""
        decoding = rows[view.phase != Phase.PREFILL]
        self._first_token_at[decoding[np.isnan(self._first_token_at[decoding])]] = view.now

    def max_seconds(self, view: StepView, rows: IntArray, plain_seconds: float) -> float:
        """Longest step after which each decoding request is within the promise, whatever is accepted.

        A request that would be beyond it even after a step without drafts, of `plain_seconds`, does not count: no plan
        keeps it within, and the others must not go without drafts because of it.
        """
        decoding = view.phase != Phase.PREFILL
        # After the step at least `emitted_tokens` tokens have followed the first.
        slack = (self.seconds * view.emitted_tokens - (view.now - self._first_token_at[rows]))[decoding]
        return float(slack[slack >= plain_seconds].min(initial=math.inf))
