"""A hierarchical logistic model that learns online: what both acceptance estimates are made of.

The log-odds of a success at feature f (a draft position, a bin of confidence), for request i of class c, are a sum

    x = prior[f] + level + offset[f] + class[c] + request[i]

whose terms are independent Gaussians, updated by an extended Kalman filter with diagonal covariance: with p = σ(x),
w = p(1 − p) and V the sum of the terms' variances, a term of variance P moves by P·(hit − p) / (1 + w·V) and its
variance falls by P²·w / (1 + w·V) (the update of Glicko ratings; Glickman, Applied Statistics 48, 1999). That the
terms are fitted jointly matters: at deep positions, and where a drafter is sure of itself, mostly requests that are
easy are seen, and it is the requests' own terms that get the credit, not the position's. What requests have in common
learns from each of them chiefly while little is known of it.

Old observations fade, so that the model follows a server whose text changes. How much requests differ, the variance of
their terms, is itself learnt (`between`). Predictions allow for what is not known of a request by MacKay's
approximation, E[σ(x)] ≈ σ(x / √(1 + πV/8)) (Neural Computation 4, 1992).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled

MAX_CLASSES = 16
LEVEL_VARIANCE = 2.0
OFFSET_VARIANCE = 0.5
CLASS_VARIANCE = 0.5
"""Variances of the terms before anything was seen, in squared log-odds."""
BETWEEN = (0.05, 9.0)
"""Least and largest variance of the requests' terms that is believed."""
SPREAD_FADE = 1.0 - 1.0 / 2000.0
FORGETTING = 0.05
"""What a change leaves of the weight of earlier observations."""


class Terms(NamedTuple):
    """The model's state, updated in place."""

    prior: FloatArray
    """(features,) log-odds assumed."""
    level: FloatArray
    """(2,) mean and variance."""
    offsets: FloatArray
    """(2, features) means and variances."""
    classes: FloatArray
    """(MAX_CLASSES, 2) natural parameters, beside the prior's: what was seen of a class adds up, and fades, here."""
    requests: FloatArray
    """(capacity, 2) the same for each request."""
    spread: FloatArray
    """(2,) weighted sum of the requests' squared terms, and of the weights."""


class LogisticModel:
    """State of the model for a number of features.

    Args:
        prior: (features,) probability of success assumed before anything was seen.
        capacity: rows of per-request state.
        memory: observations that the level, the offsets and the classes remember.
        request_memory: observations that a request's term remembers.
    """

    def __init__(self, prior: FloatArray, capacity: int, *, memory: float, request_memory: float) -> None:
        features = len(prior)
        self.memory = memory
        self.request_memory = request_memory
        self.terms = Terms(
            prior=np.log(prior / (1.0 - prior)),
            level=np.array([0.0, LEVEL_VARIANCE]),
            offsets=np.stack([np.zeros(features), np.full(features, OFFSET_VARIANCE)]),
            classes=np.zeros((MAX_CLASSES, 2)),
            requests=np.zeros((capacity, 2)),
            # As if ten requests had been seen that differ by one in log-odds.
            spread=np.array([10.0, 10.0]),
        )

    def reset(self, rows: IntArray, capacity: int) -> None:
        """Forget the requests of these rows; the state grows to `capacity` rows."""
        requests = self.terms.requests
        if len(requests) < capacity:
            grown = np.zeros((capacity, 2))
            grown[: len(requests)] = requests
            self.terms = self.terms._replace(requests=grown)
        self.terms.requests[rows] = 0.0

    def forget(self) -> None:
        """Keep only a hint of what was learnt: the text or the drafter has changed."""
        _fade(self.terms.level, LEVEL_VARIANCE)
        _fade(self.terms.offsets, OFFSET_VARIANCE)
        self.terms.classes[:] *= FORGETTING
        self.terms.requests[:] *= 0.5


def _fade(gaussian: FloatArray, prior_variance: float) -> None:
    """Weaken what was seen beside the prior, which draws the mean, (0, …), towards the prior's 0."""
    mean, variance = gaussian[0], gaussian[1]
    seen = FORGETTING * np.maximum(1.0 / variance - 1.0 / prior_variance, 0.0)
    gaussian[0] = FORGETTING * mean / variance / (1.0 / prior_variance + seen)
    gaussian[1] = 1.0 / (1.0 / prior_variance + seen)


@compiled
def between(terms: Terms) -> float:
    """Variance of the requests' terms: how much requests differ, in squared log-odds."""
    return min(max(terms.spread[0] / terms.spread[1], BETWEEN[0]), BETWEEN[1])


@compiled
def logistic(x: float) -> float:
    return 1.0 / (1.0 + np.exp(-min(max(x, -12.0), 12.0)))


@compiled
def effect(natural: FloatArray, row: int, variance: float) -> tuple[float, float]:
    """Mean and variance of a class's or a request's term, whose prior has this variance."""
    own = 1.0 / (1.0 / variance + natural[row, 1])
    return natural[row, 0] * own, own


@compiled
def learn(
    terms: Terms,
    class_id: int,
    row: int,
    feature: int,
    hit: float,
    spread: float,
    memory: float,
    request_memory: float,
) -> float:
    """Take in one observation; the probability of success that was expected.

    Args:
        hit: 1 for a success, 0 for a failure, in between where only a probability is known.
        spread: the model's `between`.
    """
    level, offsets, classes, requests = terms.level, terms.offsets, terms.classes, terms.requests
    of_class, class_variance = effect(classes, class_id, CLASS_VARIANCE)
    of_request, request_variance = effect(requests, row, spread)
    p = logistic(terms.prior[feature] + level[0] + offsets[0, feature] + of_class + of_request)
    w = p * (1.0 - p)
    variance = level[1] + offsets[1, feature] + class_variance + request_variance
    shrink = 1.0 / (1.0 + w * variance)
    step = (hit - p) * shrink

    # A request's n-th observation moves the shared terms by 1 / (1 + n·w·spread) only: the more is known of the request
    # itself, the less its next observation says of the others. Without this weight all requests would be estimated as
    # those that draft most. (The exact weight is the square, which follows a server of few long requests too slowly.)
    shared_term_weight = request_variance / spread
    level[0] += shared_term_weight * level[1] * step
    level[1] = min(
        (level[1] - shared_term_weight * level[1] * level[1] * w * shrink) * (1.0 + shared_term_weight / memory),
        LEVEL_VARIANCE,
    )
    own = offsets[1, feature]
    offsets[0, feature] += shared_term_weight * own * step
    offsets[1, feature] = min(
        (own - shared_term_weight * own * own * w * shrink) * (1.0 + shared_term_weight / memory), OFFSET_VARIANCE
    )
    for natural, row_of, mean, own, part, keep in (
        (classes, class_id, of_class, class_variance, shared_term_weight, memory),
        (requests, row, of_request, request_variance, 1.0, request_memory),
    ):
        gained = part * w / (1.0 + w * (variance - own))
        precision = 1.0 / own + gained
        natural[row_of, 0] = (mean + part * own * step) * precision * (1.0 - part / keep)
        natural[row_of, 1] = (natural[row_of, 1] + gained) * (1.0 - part / keep)
    return p


@compiled
def learn_spread(terms: Terms, row: int, spread: float) -> None:
    """Let a request's term count in `between` by how much is known of it (a step of expectation maximisation)."""
    mean, variance = effect(terms.requests, row, spread)
    known = 1.0 - variance / spread
    terms.spread[0] = terms.spread[0] * SPREAD_FADE + known * (mean * mean + variance)
    terms.spread[1] = terms.spread[1] * SPREAD_FADE + known
