"""A hierarchical logistic model that learns online. The acceptance model is built on it.

The log-odds of a success at feature f (a draft position), for request i of class c, are a sum

    x = prior[f] + level + offset[f] + class[c] + request[i] + slope · (z − z̄[f,i])

where z is a covariate of the observation and z̄ its usual value: its mean at the feature, and the request's mean
deviation from such means. How requests differ is thus left to the requests' own terms, which are known before z is.
Without a covariate the last term is 0. The terms are independent Gaussians, updated by an extended Kalman filter with
diagonal covariance: with p = σ(x), w = p(1 − p) and V the sum of the terms' variances, the mean of a term of variance P
moves by P·(success − p) / (1 + w·V) and its variance falls by P²·w / (1 + w·V) (the update of Glicko ratings; Glickman,
Applied Statistics 48, 1999). The terms are fitted jointly for a reason: deep positions are mostly observed on easy
requests. The joint fit attributes their successes to the requests' own terms and not to the position. An observation
moves the shared terms the less, the more is known about its request.

Old observations are discounted, so that the model follows changing traffic. The between-request variance (the prior
variance of the requests' terms) is learnt too. Predictions account for the uncertainty V of x by MacKay's
approximation, E[σ(x)] ≈ σ(κ·x) with κ = 1 / √(1 + πV/8) (MacKay, Neural Computation 4, 1992). There V leaves
out the variance of the offset, so that all positions of a request share κ. Where the covariate is not known yet, V
includes E[slope²] times its variance.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from turbospec.interface import MAX_DRAFT_LENGTH, FloatArray
from turbospec.runtime.kernels import compiled, inlined

MAX_CLASSES = 16
"""Service classes that the models keep apart; class ids are taken modulo this."""
PRIOR_VARIANCE = 1.0
"""Prior variance of every term, squared log-odds; for requests, before their own is learnt. Also the upper bound of the
variances of the level, the offsets and the slope."""
LEAST_BETWEEN_VARIANCE = 0.05
"""Least between-request variance. With less, requests that begin to differ after a long time alike would all be taken
for the average one, for thousands of steps."""

REQUEST_COLUMNS = 3
"""Numbers kept for each request."""


class Terms(NamedTuple):
    """The model's state; the arrays are updated in place."""

    prior: FloatArray
    """(features,) assumed log-odds."""
    level: FloatArray
    """(2,) mean and variance."""
    offsets: FloatArray
    """(2, features) means and variances."""
    classes: FloatArray
    """(MAX_CLASSES, 2) evidence on each class's term in natural parameters, the prior left out: mean times precision,
    and precision. In this form evidence adds up and is discounted by a factor."""
    requests: FloatArray
    """(capacity, 3) the same for each request; then the running mean, from 0 on, of how far its covariates deviate from
    the features' means."""
    between_request: FloatArray
    """(2,) weighted sum of the requests' squared terms, and the sum of the weights. Their ratio is the between-request
    variance."""
    slope: FloatArray
    """(2,) mean and variance, log-odds per unit of the covariate."""
    covariate: FloatArray
    """(2, features) running mean of the covariate at each feature, and the observations that it was taken from."""
    covariate_spread: FloatArray
    """(2,) running mean of (z − z̄)² over all features, and the observations that it was taken from."""


class SharedTerms(Protocol):
    """All terms but those of requests, one record of `SHARED_TERMS`; as in `Terms`, with room for the most features."""

    features: int
    level: FloatArray
    between_request: FloatArray
    slope: FloatArray
    covariate_spread: FloatArray
    prior: FloatArray
    offsets: FloatArray
    covariate: FloatArray
    classes: FloatArray


SHARED_TERMS = np.dtype(
    [
        ("features", np.int64),
        ("level", np.float64, (2,)),
        ("between_request", np.float64, (2,)),
        ("slope", np.float64, (2,)),
        ("covariate_spread", np.float64, (2,)),
        ("prior", np.float64, (MAX_DRAFT_LENGTH,)),
        ("offsets", np.float64, (2, MAX_DRAFT_LENGTH)),
        ("covariate", np.float64, (2, MAX_DRAFT_LENGTH)),
        ("classes", np.float64, (MAX_CLASSES, 2)),
    ]
)


def initial_terms(prior: FloatArray) -> Any:
    """(1,) `SHARED_TERMS`, an array of one `SharedTerms`, before the first observation.

    Args:
        prior: (features,) probability of success assumed for each; at most `MAX_DRAFT_LENGTH`.
    """
    terms, features = np.zeros(1, SHARED_TERMS), len(prior)
    terms["features"] = features
    terms["prior"][0, :features] = np.log(prior / (1.0 - prior))
    for name in ("level", "slope"):
        terms[name][0, 1] = PRIOR_VARIANCE
    terms["offsets"][0, 1] = PRIOR_VARIANCE
    # With the weight of ten well-known requests.
    terms["between_request"] = 10.0 * PRIOR_VARIANCE, 10.0
    return terms


@inlined
def terms_of(shared: SharedTerms, requests: FloatArray) -> Terms:
    """The state of a model.

    Args:
        shared: by all requests.
        requests: (capacity, `REQUEST_COLUMNS`) of each.
    """
    features = shared.features
    # Slices throughout: numba has a type of its own for an array in a record.
    return Terms(
        shared.prior[:features],
        shared.level[:],
        shared.offsets[:, :features],
        shared.classes[:, :],
        requests,
        shared.between_request[:],
        shared.slope[:],
        shared.covariate[:, :features],
        shared.covariate_spread[:],
    )


@inlined
def between_request_variance(terms: Terms) -> float:
    """Variance of the requests' terms, squared log-odds: how much requests differ in acceptance."""
    return max(terms.between_request[0] / terms.between_request[1], LEAST_BETWEEN_VARIANCE)


@compiled
def logistic(x: float) -> float:
    """σ(x), with x limited to ±12."""
    return 1.0 / (1.0 + np.exp(-min(max(x, -12.0), 12.0)))


@inlined
def posterior(natural: FloatArray, row: int, prior_variance: float) -> tuple[float, float]:
    """Mean and variance of a class's or a request's term.

    Args:
        natural: `Terms.classes` or `Terms.requests`.
        row: of the class or the request.
        prior_variance: of the term; the prior mean is 0.
    """
    variance = 1.0 / (1.0 / prior_variance + natural[row, 1])
    return natural[row, 0] * variance, variance


@compiled
def mackay(x: float, variance: float) -> float:
    """E[σ(x)] for a Gaussian of this mean and variance, approximately."""
    return logistic(x / np.sqrt(1.0 + np.pi / 8.0 * variance))


@inlined
def usual_covariate(terms: Terms, row: int, feature: int) -> float:
    """z̄ of a request at a feature."""
    return terms.covariate[0, feature] + terms.requests[row, 2]


@inlined
def learn_covariate(terms: Terms, row: int, feature: int, value: float, memory: float, request_memory: float) -> float:
    """Take an observed covariate into the means.

    Args:
        terms: the state, updated in place.
        row, feature: of the observation.
        value: z.
        memory: observations that the features' means and the spread remember.
        request_memory: observations that a request's mean remembers.

    Returns:
        z − z̄.
    """
    means, counts = terms.covariate
    spread, requests = terms.covariate_spread, terms.requests
    counts[feature] = min(counts[feature] + 1.0, memory)
    means[feature] += (value - means[feature]) / counts[feature]
    requests[row, 2] += (value - means[feature] - requests[row, 2]) / request_memory
    deviation = value - usual_covariate(terms, row, feature)
    spread[1] = min(spread[1] + 1.0, memory)
    spread[0] += (deviation * deviation - spread[0]) / spread[1]
    return deviation


@inlined
def covariate_variance(terms: Terms) -> float:
    """Variance of the log-odds while the covariate is not known, squared log-odds."""
    return (terms.slope[0] * terms.slope[0] + terms.slope[1]) * terms.covariate_spread[0]


@inlined
def learn(
    terms: Terms,
    class_id: int,
    row: int,
    feature: int,
    success: float,
    deviation: float,
    between_variance: float,
    memory: float,
    request_memory: float,
) -> None:
    """Update all terms by one observation.

    Args:
        terms: the state, updated in place.
        class_id, row, feature: whose observation it is, and of what.
        success: 1 or 0.
        deviation: z − z̄, as `learn_covariate` returns it; 0 without a covariate.
        between_variance: the model's `between_request_variance`.
        memory: observations that the level, the offsets and the classes remember.
        request_memory: observations that a request's term remembers.
    """
    level, offsets, classes, requests, slope = terms.level, terms.offsets, terms.classes, terms.requests, terms.slope
    class_mean, class_variance = posterior(classes, class_id, PRIOR_VARIANCE)
    request_mean, request_variance = posterior(requests, row, between_variance)
    of_covariate = slope[0] * deviation
    p = logistic(terms.prior[feature] + level[0] + offsets[0, feature] + class_mean + request_mean + of_covariate)
    w = p * (1.0 - p)
    variance = level[1] + offsets[1, feature] + class_variance + request_variance + deviation * deviation * slope[1]
    shrink = 1.0 / (1.0 + w * variance)
    innovation = (success - p) * shrink

    # The n-th observation of a request moves the shared terms with weight 1 / (1 + n·w·between_variance): the more is
    # known about the request, the less its next observation says about the others. Without this weight the estimate
    # for all requests would be that of the requests that draft most. (The exact weight is the square, which follows a
    # server of few long requests too slowly.)
    shared_term_weight = request_variance / between_variance
    level[0] += shared_term_weight * level[1] * innovation
    level[1] = min(
        (level[1] - shared_term_weight * level[1] * level[1] * w * shrink) * (1.0 + shared_term_weight / memory),
        PRIOR_VARIANCE,
    )
    offset_variance = offsets[1, feature]
    offsets[0, feature] += shared_term_weight * offset_variance * innovation
    offsets[1, feature] = min(
        (offset_variance - shared_term_weight * offset_variance * offset_variance * w * shrink)
        * (1.0 + shared_term_weight / memory),
        PRIOR_VARIANCE,
    )
    if deviation != 0.0:
        slope_variance = slope[1]
        slope[0] += shared_term_weight * slope_variance * deviation * innovation
        gained = shared_term_weight * slope_variance * slope_variance * deviation * deviation * w * shrink
        slope[1] = min((slope_variance - gained) * (1.0 + shared_term_weight / memory), PRIOR_VARIANCE)
    _learn_term(classes[class_id], class_mean, class_variance, w, variance, innovation, shared_term_weight, memory)
    _learn_term(requests[row], request_mean, request_variance, w, variance, innovation, 1.0, request_memory)


@inlined
def _learn_term(
    natural: FloatArray,
    mean: float,
    own_variance: float,
    w: float,
    variance: float,
    innovation: float,
    weight: float,
    memory: float,
) -> None:
    """Update the term of a class or a request by one observation.

    Args:
        natural: (2 or more,) the term's natural parameters, updated in place.
        mean, own_variance: of the term.
        w, variance: p · (1 − p) and V of the observation.
        innovation: (success − p) / (1 + w · V).
        weight: of the observation.
        memory: observations that the term remembers.
    """
    gained = weight * w / (1.0 + w * (variance - own_variance))
    kept = 1.0 - weight / memory
    natural[0] = (mean + weight * own_variance * innovation) * (1.0 / own_variance + gained) * kept
    natural[1] = (natural[1] + gained) * kept


@inlined
def learn_between_request_variance(terms: Terms, row: int, between_variance: float, memory: float) -> None:
    """Update the between-request variance by one request (a step of expectation maximisation).

    The request's weight is 1 − posterior variance / prior variance, 0 for a request without observations. `memory` is
    the number of updates that are remembered.
    """
    mean, variance = posterior(terms.requests, row, between_variance)
    weight = 1.0 - variance / between_variance
    sums, kept = terms.between_request, 1.0 - 1.0 / memory
    sums[0] = sums[0] * kept + weight * (mean * mean + variance)
    sums[1] = sums[1] * kept + weight


@compiled
def discount_shared(terms: Terms, factor: float) -> None:
    """Multiply the weight of the evidence about the level, the offsets and the classes by `factor`."""
    _discount(terms.level[:1], terms.level[1:], PRIOR_VARIANCE, factor)
    _discount(terms.offsets[0], terms.offsets[1], PRIOR_VARIANCE, factor)
    for row in range(len(terms.classes)):
        terms.classes[row, 0] *= factor
        terms.classes[row, 1] *= factor


@compiled
def discount_offsets(terms: Terms, first: int, factor: float) -> None:
    """Multiply the weight of the evidence about the offsets from the feature `first` on by `factor`."""
    _discount(terms.offsets[0, first:], terms.offsets[1, first:], PRIOR_VARIANCE, factor)


@compiled
def _discount(mean: FloatArray, variance: FloatArray, prior_variance: float, factor: float) -> None:
    for i in range(len(mean)):
        precision = 1.0 / prior_variance + factor * max(1.0 / variance[i] - 1.0 / prior_variance, 0.0)
        mean[i] *= factor / (variance[i] * precision)
        variance[i] = 1.0 / precision
