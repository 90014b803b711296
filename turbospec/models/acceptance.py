"""What the drafter is worth: the probability that each draft token is accepted, given that those before it were.

Observations are censored. Of a draft of 5 with 2 accepted, positions 1 and 2 succeeded, 3 failed, 4 and 5 show
nothing; where EOS, a stop string or max_tokens cut the acceptance short, no position failed. The server's acceptance
at each position, each service class's and each request's own difference from it are terms of a `LogisticModel`.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.logistic import (
    CLASS_VARIANCE,
    LEVEL_VARIANCE,
    MAX_CLASSES,
    LogisticModel,
    Terms,
    between,
    effect,
    learn,
    learn_spread,
)
from turbospec.runtime.kernels import compiled
from turbospec.runtime.slots import RequestSlots

KNOWN_VALUES = 24
"""Steps in which predictions are drawn towards even chances for what is not known."""
LIMIT = 0.995
"""No acceptance probability is believed beyond this."""


class AcceptanceModel:
    """Acceptance of each request's draft positions, learnt online.

    Args:
        max_draft: K, the deepest position kept.
        prior: acceptance assumed before anything was seen.
        server_memory: observations that the server's and the classes' terms remember.
        request_memory: observed positions that a request's term remembers.
        idle_memory: steps without a draft after which what is known of a request, or of the server, has faded to 1/e,
            so that those judged hopeless are tried again.
    """

    def __init__(
        self,
        max_draft: int,
        *,
        prior: float = 0.6,
        server_memory: float = 400.0,
        request_memory: float = 48.0,
        idle_memory: float = 100.0,
    ) -> None:
        self.max_draft = max_draft
        self.idle_factor = float(np.exp(-1.0 / idle_memory))
        self.slots = RequestSlots()
        self.model = LogisticModel(
            np.full(max_draft, prior), self.slots.capacity, memory=server_memory, request_memory=request_memory
        )
        self.change = ChangeDetector()

    def rows_and_fresh(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of these ids, and those of them whose requests were not known and start afresh."""
        slots, fresh = self.slots.lookup(request_ids)
        if len(fresh):
            self.model.reset(fresh, self.slots.capacity)
        return slots, fresh

    def conditional(self, rows: IntArray, class_ids: IntArray, limits: IntArray) -> FloatArray:
        """(n, K) acceptance of each draft token given that all before it were accepted; 0 beyond a request's limit."""
        return _conditional(self.model.terms, rows, class_ids, limits)

    def evidence(self, rows: IntArray) -> FloatArray:
        """(n,) information that each request's own estimate rests on, in observations of an even chance."""
        return 4.0 * self.model.terms.requests[rows, 1]

    def observe(
        self,
        rows: IntArray,
        class_ids: IntArray,
        drafted: IntArray,
        accepted: IntArray,
        truncated: BoolArray,
        dropped: FloatArray,
        idle_steps: int = 0,
    ) -> None:
        """Learn from a step's (n,) draft tokens verified and accepted, the first after `idle_steps` without any.

        `dropped` is, where a gate dropped the token after the verified ones for its low confidence, the acceptance
        that the confidence promised, else NaN. It counts as a fraction of a success: were it left out, only tokens
        the drafter was sure of would be seen, and the estimate would be too high.
        """
        surprise, variance = _observe(
            self.model.terms, rows, class_ids, drafted, accepted, truncated, dropped, self.max_draft,
            self.model.memory, self.model.request_memory, self.idle_factor, idle_steps,
        )  # fmt: skip
        if variance > 0.0 and self.change.add(surprise, variance):
            self.model.forget()


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
def survival(conditional: FloatArray) -> FloatArray:
    """(n, K) chance that a draft token and all before it are accepted: running products along the rows."""
    out = np.empty_like(conditional)
    for i in range(conditional.shape[0]):
        alive = 1.0
        for j in range(conditional.shape[1]):
            alive *= conditional[i, j]
            out[i, j] = alive
    return out


@compiled
def _conditional(terms: Terms, rows: IntArray, class_ids: IntArray, limits: IntArray) -> FloatArray:
    n, depth, spread = len(rows), len(terms.prior), between(terms)
    acceptance = np.zeros((n, depth))
    # σ(s·(f + r)) needs exp(s·f) and exp(s·r); with s, what is known of a request, rounded to a few values, that is one
    # exponential a request and not one a position.
    of_position = np.zeros((KNOWN_VALUES + 1, depth))
    for i in range(n):
        of_class, class_variance = effect(terms.classes, class_ids[i] % MAX_CLASSES, CLASS_VARIANCE)
        of_request, request_variance = effect(terms.requests, rows[i], spread)
        variance = terms.level[1] + class_variance + request_variance
        level = int(KNOWN_VALUES / np.sqrt(1.0 + np.pi / 8.0 * variance) + 0.5)
        if of_position[level, 0] == 0.0:
            for j in range(depth):
                of_position[level, j] = np.exp(level / KNOWN_VALUES * (terms.prior[j] + terms.offsets[0, j]))
        rest = np.exp(level / KNOWN_VALUES * (terms.level[0] + of_class + of_request))
        row, position = acceptance[i], of_position[level]
        for j in range(min(limits[i], depth)):
            odds = position[j] * rest
            row[j] = min(odds / (1.0 + odds), LIMIT)
    return acceptance


@compiled
def _observe(
    terms: Terms,
    rows: IntArray,
    class_ids: IntArray,
    drafted: IntArray,
    accepted: IntArray,
    truncated: BoolArray,
    dropped: FloatArray,
    depth: int,
    memory: float,
    request_memory: float,
    idle_factor: float,
    idle_steps: int,
) -> tuple[float, float]:
    """Update the model; the surprise, successes less those expected, and its variance."""
    surprise, variance, spread = 0.0, 0.0, between(terms)
    faded = idle_factor**idle_steps
    terms.level[1] = min(terms.level[1] / faded, LEVEL_VARIANCE)
    for i in range(len(rows)):
        row, class_id = rows[i], class_ids[i] % MAX_CLASSES
        terms.requests[row, 0] *= faded
        terms.requests[row, 1] *= faded
        imputed = not np.isnan(dropped[i]) and accepted[i] == drafted[i] and drafted[i] < depth
        if drafted[i] == 0 and not imputed:
            terms.requests[row, 0] *= idle_factor
            terms.requests[row, 1] *= idle_factor
            continue
        good = min(accepted[i], depth)
        failed = accepted[i] < drafted[i] and not truncated[i] and accepted[i] < depth
        for j in range(good):
            p = learn(terms, class_id, row, j, 1.0, spread, memory, request_memory)
            surprise += 1.0 - p
            variance += p * (1.0 - p)
        if failed:
            p = learn(terms, class_id, row, good, 0.0, spread, memory, request_memory)
            surprise -= p
            variance += p * (1.0 - p)
        elif imputed:
            learn(terms, class_id, row, good, dropped[i], spread, memory, request_memory)
        learn_spread(terms, row, spread)
    return surprise, variance
