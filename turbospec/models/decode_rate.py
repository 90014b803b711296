"""What a second of the server's time is worth, in tokens.

In average-reward control a step is worth its tokens less λ times its duration, with λ the long-run rate of the best
policy. Four points fix what "long-run" must mean for a server:

* Prefill is work that is owed whatever is drafted, so λ is the rate of decoding: what steps would take without it.
* A half-empty batch cannot be filled by hurrying, so λ belongs to a load: it is kept for each power of two of decoding
  requests, as tokens a second for each request, which varies slowly within such a bucket.
* Who waits for a prompt to be computed will decode with the others, and waits for every second that is spent before:
  while a batch fills up, λ is that of the batch to come.
* Until a load has been seen, the step's own best rate stands in for it (`best_rate`, Dinkelbach's iteration), which is
  what λ converges to where all steps are alike.
"""

from __future__ import annotations

BUCKETS = 16


class DecodeRate:
    """Discounted decode rate by load.

    Args:
        memory: decode steps that a load's rate remembers.
    """

    MIN_STEPS = 8.0

    def __init__(self, memory: float = 150.0) -> None:
        self._keep = 1.0 - 1.0 / memory
        # Lists: single elements of an array are slow to reach.
        self._tokens = [0.0] * BUCKETS
        self._request_seconds = [0.0] * BUCKETS
        self._steps = [0.0] * BUCKETS
        self._memory = memory
        self._most = 0
        """Requests that decoded at once, at most, since it was last set anew."""
        self._most_age = 0
        """Steps since it was reached."""

    def add(self, requests: int, tokens: int, seconds: float, steps: int = 1) -> None:
        """Take in steps, in which `requests` requests emitted `tokens` tokens in all, prefill's time left out."""
        bucket = load_bucket(requests)
        keep = self._keep**steps
        self._most_age += steps
        if requests >= self._most or self._most_age > self._memory:
            self._most, self._most_age = requests, 0
        self._tokens[bucket] = self._tokens[bucket] * keep + tokens
        self._request_seconds[bucket] = self._request_seconds[bucket] * keep + requests * seconds
        self._steps[bucket] = self._steps[bucket] * keep + steps

    def rate(self, requests: int, coming: int = 0) -> float | None:
        """Tokens a second of this many decoding requests; None where that load was hardly seen.

        Args:
            coming: requests whose prompts are computed first. They wait for every second that is spent now, so that it
                is worth what they will make of it; but no more than have lately decoded at once.
        """
        load = max(requests, min(requests + coming, self._most))
        bucket = load_bucket(load)
        if self._steps[bucket] < self.MIN_STEPS:
            return None
        return load * self._tokens[bucket] / self._request_seconds[bucket]


def load_bucket(requests: int) -> int:
    """A load's number: the power of two of its requests, below `BUCKETS`."""
    return min(max(requests, 1).bit_length() - 1, BUCKETS - 1)
