"""The price of time λ, in tokens/s: the long-run decode rate of the server, by load.

In average-reward control a step is worth its tokens minus λ times its duration, where λ is the long-run reward rate of
the best policy. For a server, "long-run" needs three decisions:

* Prefill work has to be done whatever is drafted, so λ is the rate of decoding alone, without the time that prefill
  adds to a step.
* A half-empty batch does not fill up sooner if its steps are faster, so λ depends on the load. It is kept for each
  power of two of decoding requests, as tokens/s per request, which varies slowly within such a bucket.
* For a load not seen before, the step's own best rate is used (`turbospec_sim.best_rate.best_rate`). λ converges
  to it where all steps are alike.
"""

from __future__ import annotations

LOAD_BUCKETS = 16


class DecodeRate:
    """Discounted decode rate by load."""

    MEMORY_STEPS = 150.0
    """Decode steps that a load's rate remembers."""
    MIN_STEPS = 8.0
    """Discounted decode steps below which a load has no rate."""

    def __init__(self) -> None:
        # Lists: access to single elements of a numpy array is slow.
        self._tokens = [0.0] * LOAD_BUCKETS
        self._request_seconds = [0.0] * LOAD_BUCKETS
        self._steps = [0.0] * LOAD_BUCKETS

    def add(self, requests: int, tokens: int, seconds: float) -> None:
        """Take in a decode step.

        Args:
            requests: decoding requests, n.
            tokens: total emitted.
            seconds: duration, without the time that prefill added.
        """
        bucket, decay = load_bucket(requests), 1.0 - 1.0 / self.MEMORY_STEPS
        self._tokens[bucket] = self._tokens[bucket] * decay + tokens
        self._request_seconds[bucket] = self._request_seconds[bucket] * decay + requests * seconds
        self._steps[bucket] = self._steps[bucket] * decay + 1.0

    def rate(self, requests: int) -> float | None:
        """λ in tokens/s for so many decoding requests; None where that load has been seen in fewer than `MIN_STEPS`
        steps, or emitted nothing."""
        bucket = load_bucket(requests)
        if self._steps[bucket] < self.MIN_STEPS or not (self._tokens[bucket] > 0.0 < self._request_seconds[bucket]):
            return None
        return requests * self._tokens[bucket] / self._request_seconds[bucket]


def load_bucket(requests: int) -> int:
    """Bucket of a load: ⌊log2 requests⌋, at most `LOAD_BUCKETS` - 1."""
    return min(max(requests, 1).bit_length() - 1, LOAD_BUCKETS - 1)
