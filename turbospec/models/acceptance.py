"""Acceptance by draft position: a[i,j], the probability that draft token j of request i is accepted, given that all
before it were.

Observations are censored. Of a draft of 5 with 2 accepted, positions 1 and 2 succeeded, 3 failed, 4 and 5 were not
observed. Where EOS, a stop string or max_tokens cut the acceptance short, no position failed. The server's acceptance
at each position, and the deviation of each service class and of each request from it, are terms of a hierarchical
logistic model (`turbospec.models.logistic`).

Where an engine reports the drafter's confidence in each token while it drafts, it is a covariate, z = −log(1 −
confidence).

Each source has a model of its own. That of a look-up has a term for each position and each order of magnitude of the
match's score, its bucket: a long match is right more often, and the longer a draft has been right, the more so.

S[i,j] = a[i,1]···a[i,j], the survival, is the probability that the first j draft tokens are all accepted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from turbospec.interface import MAX_DRAFT_LENGTH, BoolArray, FloatArray, IntArray
from turbospec.models.logistic import (
    MAX_CLASSES,
    PRIOR_VARIANCE,
    Terms,
    between_request_variance,
    covariate_variance,
    initial_terms,
    learn,
    learn_between_request_variance,
    learn_covariate,
    posterior,
)
from turbospec.runtime.kernels import compiled, inlined

PRIOR = 0.6
"""Acceptance assumed before any observation, of each source."""
LEVELS = 64
"""Resolution of numbers between 0 and 1. MacKay's κ is rounded to it, so that requests share exponentials; gains are
counted in as many bins. No token is drafted after one whose survival is below one level."""
SCORE_BUCKETS = 5
"""Buckets of a look-up's score: below 2, 4, 8, 16, and above."""
LOOKUP_POSITIONS = 4
"""Position terms of a look-up's model. Position 4 and all later ones share the last."""
LEAST_DOUBT = 0.001
"""Smallest 1 − confidence that is told from smaller ones. Sampling with top-p often leaves one token."""
NO_CONFIDENCE = np.zeros((0, 0))
"""The confidence of a source that reports none."""
ONE_BUCKET = np.zeros(0, np.int64)
"""The buckets of a source without scores."""


class Memory(NamedTuple):
    """How fast observations are discounted."""

    server: float
    """Observations that the server's and the classes' terms remember."""
    request: float
    """Observed positions that a request's term remembers."""
    idle_decay: float
    """Factor per step without drafts of the source for what is known about its acceptance; 1: nothing decays."""


class VerifiedDrafts(NamedTuple):
    """A step's verified drafts of one source; arrays have shape (n,) unless stated otherwise."""

    rows: IntArray
    """Rows of the per-request state."""
    class_ids: IntArray
    buckets: IntArray
    """Of the scores; empty for a source without scores."""
    drafted: IntArray
    accepted: IntArray
    truncated: BoolArray
    confidence: FloatArray
    """(n, longest draft or more) the drafter's confidence in each token; (0, 0) where it is not used."""


def initial_acceptance(max_draft: int) -> Any:
    """(1,) `SHARED_TERMS` of a drafter, before the first observation; `max_draft` is K, the deepest position."""
    return initial_terms(np.full(max_draft, PRIOR))


def initial_lookup_acceptance() -> Any:
    """(1,) `SHARED_TERMS` of a look-up, before the first observation."""
    return initial_terms(np.full(SCORE_BUCKETS * LOOKUP_POSITIONS, PRIOR))


@compiled
def score_buckets(scores: FloatArray) -> IntArray:
    """(m,) the bucket of each score."""
    buckets = np.zeros(len(scores), np.int64)
    for i in range(len(scores)):
        score = scores[i]
        while score >= 2.0 and buckets[i] < SCORE_BUCKETS - 1:
            score /= 2.0
            buckets[i] += 1
    return buckets


@compiled
def confidence_covariate(confidence: float) -> float:
    """z of a token: in this form, of those tried, one slope fits drafters of different kinds."""
    return -np.log(max(1.0 - confidence, LEAST_DOUBT))


@inlined
def request_terms(terms: Terms, class_id: int, row: int, between_variance: float) -> tuple[float, float]:
    """Mean and variance of the sum of the terms that all tokens of a request share."""
    class_mean, class_variance = posterior(terms.classes, class_id % MAX_CLASSES, PRIOR_VARIANCE)
    request_mean, request_variance = posterior(terms.requests, row, between_variance)
    return terms.level[0] + class_mean + request_mean, terms.level[1] + class_variance + request_variance


@compiled
def fill_survival(
    terms: Terms,
    rows: IntArray,
    class_ids: IntArray,
    buckets: IntArray,
    limits: IntArray,
    deviations: float,
    first: FloatArray,
    survival: FloatArray,
) -> None:
    """Fill in the survival of every draft token, with log-odds raised by standard deviations of what is not known.

    Args:
        terms: of the source's model.
        rows: (n,) rows of the per-request state.
        class_ids: (n,) service classes.
        buckets: (n,) of the scores; empty for a source without scores.
        limits: (n,) draft limits.
        deviations: standard deviations of the mean over the requests. The level's variance counts in full, that of
            classes and requests is divided by n: of level and class the sum alone is observed, so that their errors
            cancel where most requests are of one class.
        first: (n,) a[i,1].
        survival: (n, K) S[i,j], K at least 1; 0 past a limit, and after the first value below 1 / `LEVELS`.
    """
    n, depth, between_variance = len(rows), survival.shape[1], between_request_variance(terms)
    of_covariate = covariate_variance(terms)
    # With x the odds of a rejection, 1 / S[i,j] = (1 + x[i,1])···(1 + x[i,j]): products, which take less time than
    # divisions. x = exp(−κ·(position + rest)) factors into exp(−κ·position)·exp(−κ·rest). With κ rounded to a few
    # levels, the first factor is shared between requests, which leaves one exponential per request. V leaves out
    # the variance of the position's offset, which would make κ depend on the position.
    positions = len(terms.prior) // SCORE_BUCKETS if len(buckets) else len(terms.prior)
    tables = SCORE_BUCKETS if len(buckets) else 1
    position_odds, known = np.empty((tables, LEVELS + 1, depth)), np.zeros((tables, LEVELS + 1), np.bool_)
    for i in range(n):
        mean, variance = request_terms(terms, int(class_ids[i]), int(rows[i]), between_variance)
        kappa = int(LEVELS / np.sqrt(1.0 + np.pi / 8.0 * (variance + of_covariate)) + 0.5)
        bucket = buckets[i] if len(buckets) else 0
        odds_at = position_odds[bucket, kappa]
        if not known[bucket, kappa]:
            known[bucket, kappa] = True
            for j in range(depth):
                feature = bucket * positions + min(j, positions - 1)
                odds_at[j] = np.exp(-kappa / LEVELS * (terms.prior[feature] + terms.offsets[0, feature]))
        raised = 0.0
        if deviations > 0.0:
            raised = deviations * np.sqrt(terms.level[1] + (variance - terms.level[1]) / n)
        rest_odds, inverse, j = np.exp(-kappa / LEVELS * mean - raised), 1.0, 0
        while j < min(limits[i], depth) and inverse <= LEVELS:
            inverse *= 1.0 + odds_at[j] * rest_odds
            survival[i, j] = 1.0 / inverse
            j += 1
        while j < depth:
            survival[i, j] = 0.0
            j += 1
        first[i] = survival[i, 0]


@inlined
def forget_gradually(terms: Terms, rows: IntArray, memory: Memory, steps: int) -> None:
    """Discount what is known about the requests of these rows, for so many steps without a draft."""
    kept = memory.idle_decay**steps
    for row in rows:
        terms.requests[row, 0] *= kept
        terms.requests[row, 1] *= kept


@inlined
def observe(terms: Terms, drafts: VerifiedDrafts, memory: Memory) -> None:
    """Learn from a step's verified draft tokens.

    Args:
        terms: of the source's model, updated in place.
        drafts: the step's.
        memory: of the model.
    """
    between_variance, scored = between_request_variance(terms), len(drafts.buckets) > 0
    positions = len(terms.prior) // SCORE_BUCKETS if scored else len(terms.prior)
    # A drafter's model has no term for positions past its K; in a look-up's model later positions share the last term.
    depth = MAX_DRAFT_LENGTH if scored else positions
    accepted, drafted = drafts.accepted, drafts.drafted
    for i in range(len(drafts.rows)):
        row, class_id = drafts.rows[i], drafts.class_ids[i] % MAX_CLASSES
        if drafted[i] == 0:
            forget_gradually(terms, drafts.rows[i : i + 1], memory, 1)
            continue
        first = drafts.buckets[i] * positions if scored else 0
        successes = min(accepted[i], depth)
        observed = successes
        if accepted[i] < drafted[i] and not drafts.truncated[i] and accepted[i] < depth:
            observed += 1
        for j in range(observed):
            feature, deviation = first + min(j, positions - 1), 0.0
            if len(drafts.confidence):
                z = confidence_covariate(drafts.confidence[i, j])
                deviation = learn_covariate(terms, row, feature, z, memory.server, memory.request)
            success = 1.0 if j < successes else 0.0
            learn(terms, class_id, row, feature, success, deviation, between_variance, memory.server, memory.request)
        learn_between_request_variance(terms, row, between_variance, memory.server)
