"""What the drafter is worth: the probability that each draft token is accepted, given that those before it were.

Observations are censored. Of a draft of 5 with 2 accepted, positions 1 and 2 succeeded, 3 failed, 4 and 5 show
nothing; where EOS, a stop string or max_tokens cut the acceptance short, no position failed.

The estimate has three levels, each a discounted Beta posterior:

* the server's acceptance at each position,
* each service class's, shrunk towards the server's,
* and each request's: pooled over positions, because one request shows too little of each, as an odds ratio between
  what it accepted and what its class would have accepted at the very positions it was observed at.

    odds a[i, j] = odds a_class[j] · ratio_i,      ratio_i = odds((κ·ē + s) / (κ + n)) / odds(ē),   ē = e / n

with s successes among n observed positions, e expected of the class, κ the prior's strength, itself learnt from how
much requests differ (`RequestSpread`). Pooled acceptance by
position is biased upward at depth, as only easy requests survive there; the request's ratio, which is pooled over all
positions, keeps hard requests from inheriting it.
"""

from __future__ import annotations

import numpy as np

from turbospec.compiled import compiled
from turbospec.requests import RequestSlots
from turbospec.types import BoolArray, FloatArray, IntArray

MAX_CLASSES = 16
MAX_RATIO = 64.0
SPREAD_FADE = 1.0 - 1.0 / 1000.0
LIMIT = 0.995
"""No acceptance probability is believed beyond this, nor below 1 - LIMIT."""


class AcceptanceModel:
    """Acceptance of each request's draft positions, learnt online.

    Args:
        max_draft: K, the deepest position kept.
        prior: acceptance assumed before anything was seen.
        server_memory: observations of a position that the server's estimate remembers.
        class_strength: observations of a class's own that weigh as much as the server's estimate.
        request_memory: observed positions that a request's estimate remembers.
        idle_memory: steps without a draft after which a request's own evidence has faded to 1/e, so that requests
            judged hopeless are tried again.
    """

    def __init__(
        self,
        max_draft: int,
        *,
        prior: float = 0.6,
        server_memory: float = 400.0,
        class_strength: float = 16.0,
        request_memory: float = 48.0,
        idle_memory: float = 100.0,
    ) -> None:
        self.max_draft = max_draft
        self.server_memory = server_memory
        self.class_strength = class_strength
        self.request_memory = request_memory
        self.idle_factor = float(np.exp(-1.0 / idle_memory))
        self.slots = RequestSlots()
        # Per position: successes and trials. The prior weighs two observations.
        self.server = np.stack([np.full(max_draft, 2.0 * prior), np.full(max_draft, 2.0)])
        self.classes = np.zeros((MAX_CLASSES, 2, max_draft))
        # Per request: successes, trials, and successes expected of its class.
        self.requests = np.zeros((self.slots.capacity, 3))
        self.spread = RequestSpread()
        self.change = ChangeDetector()
        self._mean = np.empty((MAX_CLASSES, max_draft))
        self._refresh()

    def rows(self, request_ids: IntArray) -> IntArray:
        """(n,) rows of `requests` for these ids."""
        return self.rows_and_fresh(request_ids)[0]

    def rows_and_fresh(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of these ids, and those of them whose requests were not known and start afresh."""
        slots, fresh = self.slots.lookup(request_ids)
        if len(fresh):
            if len(self.requests) < self.slots.capacity:
                grown = np.zeros((self.slots.capacity, 3))
                grown[: len(self.requests)] = self.requests
                self.requests = grown
            self.requests[fresh] = 0.0
        return slots, fresh

    def class_mean(self, class_id: int) -> FloatArray:
        """(K,) conditional acceptance by position of a request of this class of which nothing is known."""
        return self._mean[class_id % MAX_CLASSES]

    def survival(self, rows: IntArray, class_ids: IntArray, limits: IntArray) -> tuple[FloatArray, FloatArray]:
        """Conditional acceptance a[i, j] and survival S[i, j] = a[i, 1] ··· a[i, j], both (n, K).

        S is 0 beyond a request's limit.
        """
        return _survival(self._mean, self.requests, rows, class_ids, limits, self.spread.strength)

    def evidence(self, rows: IntArray) -> FloatArray:
        """(n,) observed positions, discounted, that each request's own estimate rests on."""
        return self.requests[rows, 1]

    def observe(
        self,
        rows: IntArray,
        class_ids: IntArray,
        drafted: IntArray,
        accepted: IntArray,
        truncated: BoolArray,
        dropped: FloatArray,
    ) -> None:
        """Learn from a step's (n,) draft tokens verified and accepted.

        `dropped` is, where a gate dropped the token after the verified ones for its low confidence, the acceptance
        that the confidence promised, else NaN. It counts as a fraction of a success: were it left out, only tokens
        the drafter was sure of would be seen, and the estimate would be too high.
        """
        surprise, variance = _observe(
            self._mean, self.server, self.classes, self.requests, rows, class_ids, drafted, accepted, truncated,
            dropped, self.server_memory, self.spread.strength, self.request_memory, self.idle_factor, self.spread.sums,
        )  # fmt: skip
        if variance > 0.0:
            if self.change.add(surprise, variance):
                self.forget()
            self._refresh()

    def forget(self) -> None:
        """Keep only a hint of what was learnt: the text or the drafter has changed."""
        self.server *= np.minimum(1.0, 8.0 / self.server[1])
        self.classes *= 0.1
        self.requests *= 0.5

    def _refresh(self) -> None:
        _class_means(self.server, self.classes, self.class_strength, self._mean)


class RequestSpread:
    """How much requests differ in acceptance, and so how fast one may be believed to be unlike its class.

    The residuals (successes less expected) of two steps of one request are correlated by what the request has of its
    own: their mean product is the variance τ² between requests. For a Beta population of that variance around a mean
    with v = a·(1 − a), the prior weighs κ = v / τ² − 1 observations.
    """

    WEAKEST, STRONGEST = 1.0, 40.0

    def __init__(self) -> None:
        # Σ of residual products, of the pairs in them, of a·(1 − a), and of the observations in that. As if some
        # requests had been seen that differ as much as κ = 3 says.
        self.sums = np.array([0.05 * 300.0, 300.0, 0.2 * 100.0, 100.0])

    @property
    def strength(self) -> float:
        """κ, observed positions of a request's own that weigh as much as its class's estimate."""
        product, pairs, variance, observations = self.sums.tolist()
        between = max(product / pairs, 1e-4)
        return min(max(variance / observations / between - 1.0, self.WEAKEST), self.STRONGEST)


class ChangeDetector:
    """Two-sided Page-Hinkley test on the standardised surprise of the acceptance estimate.

    Page, "Continuous inspection schemes", Biometrika 41, 1954. `drift` is the shift, in standard deviations a step,
    that is tolerated; `threshold` the accumulated excess that raises the alarm.
    """

    def __init__(self, drift: float = 0.35, threshold: float = 16.0) -> None:
        self.drift = drift
        self.threshold = threshold
        self.alarms = 0
        self._up = self._down = 0.0

    def add(self, surprise: float, variance: float) -> bool:
        """Take in a step's successes less those expected, and that difference's variance; True on a change."""
        # One freak step of a large batch must not raise the alarm by itself.
        z = min(max(surprise / max(variance, 0.05) ** 0.5, -4.0), 4.0)
        self._up = max(0.0, self._up + z - self.drift)
        self._down = max(0.0, self._down - z - self.drift)
        if max(self._up, self._down) < self.threshold:
            return False
        self._up = self._down = 0.0
        self.alarms += 1
        return True


@compiled
def _class_means(server: FloatArray, classes: FloatArray, strength: float, mean: FloatArray) -> None:
    for c in range(mean.shape[0]):
        for j in range(mean.shape[1]):
            prior = server[0, j] / server[1, j]
            own = (classes[c, 0, j] + strength * prior) / (classes[c, 1, j] + strength)
            mean[c, j] = min(max(own, 1.0 - LIMIT), LIMIT)


@compiled
def odds_ratio(successes: float, trials: float, expected: float, strength: float) -> float:
    """Odds of a request's acceptance against those expected at the positions it was observed at, shrunk towards 1."""
    if trials <= 0.0:
        return 1.0
    mean = min(max(expected / trials, 1.0 - LIMIT), LIMIT)
    own = (strength * mean + successes) / (strength + trials)
    own = min(max(own, 1.0 - LIMIT), LIMIT)
    ratio = own / (1.0 - own) * (1.0 - mean) / mean
    return min(max(ratio, 1.0 / MAX_RATIO), MAX_RATIO)


@compiled
def learn_spread(spread: FloatArray, residual: float, seen: float, request: FloatArray, mean: float) -> None:
    """Add the product of this residual and the request's earlier ones to the sums of a `RequestSpread`."""
    spread[:2] *= SPREAD_FADE
    spread[0] += residual * (request[0] - request[2])
    spread[1] += seen * request[1]
    spread[2:] *= SPREAD_FADE
    spread[2] += seen * mean * (1.0 - mean)
    spread[3] += seen


@compiled
def _survival(
    mean: FloatArray,
    requests: FloatArray,
    rows: IntArray,
    class_ids: IntArray,
    limits: IntArray,
    strength: float,
) -> tuple[FloatArray, FloatArray]:
    n, depth = len(rows), mean.shape[1]
    acceptance, survival = np.zeros((n, depth)), np.zeros((n, depth))
    for i in range(n):
        row = rows[i]
        ratio = odds_ratio(requests[row, 0], requests[row, 1], requests[row, 2], strength)
        alive = 1.0
        of_class = mean[class_ids[i] % MAX_CLASSES]
        for j in range(min(limits[i], depth)):
            odds = of_class[j] / (1.0 - of_class[j]) * ratio
            p = min(odds / (1.0 + odds), LIMIT)
            alive *= p
            acceptance[i, j] = p
            survival[i, j] = alive
    return acceptance, survival


@compiled
def _observe(
    mean: FloatArray,
    server: FloatArray,
    classes: FloatArray,
    requests: FloatArray,
    rows: IntArray,
    class_ids: IntArray,
    drafted: IntArray,
    accepted: IntArray,
    truncated: BoolArray,
    dropped: FloatArray,
    server_memory: float,
    strength: float,
    request_memory: float,
    idle_factor: float,
    spread: FloatArray,
) -> tuple[float, float]:
    """Update all three levels; the surprise, successes less those expected, and its variance."""
    depth = mean.shape[1]
    surprise, variance = 0.0, 0.0
    trials_at, successes_at = np.zeros(depth), np.zeros(depth)
    for i in range(len(rows)):
        row, c = rows[i], class_ids[i] % MAX_CLASSES
        imputed = not np.isnan(dropped[i]) and accepted[i] == drafted[i] and drafted[i] < depth
        if drafted[i] == 0 and not imputed:
            for level in range(3):
                requests[row, level] *= idle_factor
            continue
        good = min(accepted[i], depth)
        failed = accepted[i] < drafted[i] and not truncated[i] and accepted[i] < depth
        seen = good + 1 if failed or imputed else good
        successes = good + dropped[i] if imputed else float(good)
        ratio = odds_ratio(requests[row, 0], requests[row, 1], requests[row, 2], strength)
        expected = 0.0
        for j in range(seen):
            a = mean[c, j]
            expected += a
            odds = a / (1.0 - a) * ratio
            p = odds / (1.0 + odds)
            hit = 1.0 if j < good else successes - good
            if j < good or failed:
                surprise += hit - p
                variance += p * (1.0 - p)
            trials_at[j] += 1.0
            successes_at[j] += hit
            fade = 1.0 - 1.0 / server_memory
            classes[c, 0, j] = classes[c, 0, j] * fade + hit
            classes[c, 1, j] = classes[c, 1, j] * fade + 1.0
        if seen > 0:
            learn_spread(spread, successes - expected, float(seen), requests[row], mean[c, 0])
        fade = (1.0 - 1.0 / request_memory) ** seen
        requests[row, 0] = requests[row, 0] * fade + successes
        requests[row, 1] = requests[row, 1] * fade + seen
        requests[row, 2] = requests[row, 2] * fade + expected
    for j in range(depth):
        if trials_at[j] > 0.0:
            fade = np.exp(-trials_at[j] / server_memory)
            server[0, j] = server[0, j] * fade + successes_at[j]
            server[1, j] = server[1, j] * fade + trials_at[j]
    return surprise, variance
