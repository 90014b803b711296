"""Acceptance by draft position: a[i,j], the probability that draft token j of request i is accepted, given that all
before it were.

Observations are censored. Of a draft of 5 with 2 accepted, positions 1 and 2 succeeded, 3 failed, 4 and 5 were not
observed. Where EOS, a stop string or max_tokens cut the acceptance short, no position failed. The server's acceptance
at each position, and the deviation of each service class and of each request from it, are terms of a `LogisticModel`.

S[i,j] = a[i,1]···a[i,j], the survival, is the probability that the first j draft tokens are all accepted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.logistic import (
    CLASS_PRIOR_VARIANCE,
    LEVEL_PRIOR_VARIANCE,
    MAX_CLASSES,
    LogisticModel,
    Terms,
    between_request_variance,
    learn,
    learn_between_request_variance,
    posterior,
)
from turbospec.runtime.kernels import compiled, unnamed
from turbospec.runtime.slots import RequestSlots

KAPPA_LEVELS = 24
"""Levels that MacKay's κ, in (0, 1], is rounded to, so that exponentials can be shared between requests."""
MAX_ACCEPTANCE = 0.995
"""Upper bound of every estimated acceptance probability."""


class Memory(NamedTuple):
    """How fast observations are discounted."""

    server: float
    """Observations that the server's and the classes' terms remember."""
    request: float
    """Observed positions that a request's term remembers."""
    idle_decay: float
    """Factor per step without a draft for what is known about a request, and about the server's level."""


class VerifiedDrafts(NamedTuple):
    """A step's verified drafts; all arrays have shape (n,)."""

    rows: IntArray
    """Rows of the per-request state."""
    class_ids: IntArray
    drafted: IntArray
    accepted: IntArray
    truncated: BoolArray
    dropped_acceptance: FloatArray
    """Where a gate dropped the token after the verified ones, the acceptance predicted by its confidence; else NaN."""


class AcceptanceModel:
    """Acceptance of each request's draft positions, learnt online.

    Args:
        max_draft: K, the deepest position modelled.
        prior: acceptance assumed before any observation.
        server_memory: observations that the server's and the classes' terms remember.
        request_memory: observed positions that a request's term remembers.
        idle_memory: steps without a draft after which what is known about a request, or the server, has decayed to 1/e,
            so that requests with a low estimate are tried again.
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
        self.slots = RequestSlots()
        self.model = LogisticModel(
            np.full(max_draft, prior), self.slots.capacity, memory=server_memory, request_memory=request_memory
        )
        self._memory = unnamed(Memory(server_memory, request_memory, float(np.exp(-1.0 / idle_memory))))

    def assign_rows(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of per-request state of these requests.

        Returns:
            rows: (n,) the row of each request.
            new: those of the rows that were assigned now; they have been reset.
        """
        rows, new = self.slots.lookup(request_ids)
        if len(new):
            self.model.reset(new, self.slots.capacity)
        return rows, new

    def conditional(self, rows: IntArray, class_ids: IntArray, limits: IntArray) -> FloatArray:
        """(n, K) a[i,j]: acceptance of each draft token given that all before it were accepted; 0 past a limit.

        Args:
            rows: (n,) rows of the per-request state.
            class_ids: (n,) service classes.
            limits: (n,) draft limits.
        """
        return _conditional(unnamed(self.model.terms), rows, class_ids, limits)

    def evidence(self, rows: IntArray) -> FloatArray:
        """(n,) Fisher information about each request's own term, in observations at acceptance 1/2 (1/4 each)."""
        return 4.0 * self.model.terms.requests[rows, 1]

    def observe(
        self,
        rows: IntArray,
        class_ids: IntArray,
        drafted: IntArray,
        accepted: IntArray,
        truncated: BoolArray,
        dropped_acceptance: FloatArray,
        idle_steps: int = 0,
    ) -> None:
        """Learn from a step's verified draft tokens.

        Args:
            rows: (n,) rows of the per-request state.
            class_ids: (n,) service classes.
            drafted, accepted, truncated: (n,) as in a `StepOutcome`.
            dropped_acceptance: (n,) where a gate dropped the token after the verified ones for its low confidence, the
                acceptance that this confidence predicted, else NaN. It counts as that fraction of a success: without it
                only tokens of high confidence would be observed, and the estimate would be too high.
            idle_steps: steps without any draft just before this one.
        """
        drafts = VerifiedDrafts(rows, class_ids, drafted, accepted, truncated, dropped_acceptance)
        _observe(unnamed(self.model.terms), unnamed(drafts), self._memory, idle_steps)


@compiled
def survival(conditional: FloatArray) -> FloatArray:
    """(n, K) S[i,j] = a[i,1]···a[i,j]: probability that a draft token and all before it are accepted.

    Args:
        conditional: (n, K) a[i,j].
    """
    out = np.empty_like(conditional)
    for i in range(conditional.shape[0]):
        product = 1.0
        for j in range(conditional.shape[1]):
            product *= conditional[i, j]
            out[i, j] = product
    return out


@compiled
def _conditional(terms: Terms, rows: IntArray, class_ids: IntArray, limits: IntArray) -> FloatArray:
    terms = Terms(*terms)
    n, depth, between_variance = len(rows), len(terms.prior), between_request_variance(terms)
    acceptance = np.zeros((n, depth))
    # The odds exp(κ·(position + rest)) factor into exp(κ·position)·exp(κ·rest). With κ rounded to a few levels, the
    # first factor is shared between requests, which leaves one exponential per request instead of one per draft token.
    position_odds = np.zeros((KAPPA_LEVELS + 1, depth))
    for i in range(n):
        class_mean, class_variance = posterior(terms.classes, class_ids[i] % MAX_CLASSES, CLASS_PRIOR_VARIANCE)
        request_mean, request_variance = posterior(terms.requests, rows[i], between_variance)
        variance = terms.level[1] + class_variance + request_variance
        kappa = int(KAPPA_LEVELS / np.sqrt(1.0 + np.pi / 8.0 * variance) + 0.5)
        if position_odds[kappa, 0] == 0.0:
            for j in range(depth):
                position_odds[kappa, j] = np.exp(kappa / KAPPA_LEVELS * (terms.prior[j] + terms.offsets[0, j]))
        rest_odds = np.exp(kappa / KAPPA_LEVELS * (terms.level[0] + class_mean + request_mean))
        row, position = acceptance[i], position_odds[kappa]
        for j in range(min(limits[i], depth)):
            odds = position[j] * rest_odds
            row[j] = min(odds / (1.0 + odds), MAX_ACCEPTANCE)
    return acceptance


@compiled
def _observe(terms: Terms, drafts: VerifiedDrafts, memory: Memory, idle_steps: int) -> None:
    terms, drafts, memory = Terms(*terms), VerifiedDrafts(*drafts), Memory(*memory)
    depth, between_variance = len(terms.prior), between_request_variance(terms)
    accepted, drafted = drafts.accepted, drafts.drafted
    idle_factor = memory.idle_decay**idle_steps
    terms.level[1] = min(terms.level[1] / idle_factor, LEVEL_PRIOR_VARIANCE)
    for i in range(len(drafts.rows)):
        row, class_id = drafts.rows[i], drafts.class_ids[i] % MAX_CLASSES
        terms.requests[row, 0] *= idle_factor
        terms.requests[row, 1] *= idle_factor
        imputed = not np.isnan(drafts.dropped_acceptance[i]) and accepted[i] == drafted[i] and drafted[i] < depth
        if drafted[i] == 0 and not imputed:
            terms.requests[row, 0] *= memory.idle_decay
            terms.requests[row, 1] *= memory.idle_decay
            continue
        successes = min(accepted[i], depth)
        failed = accepted[i] < drafted[i] and not drafts.truncated[i] and accepted[i] < depth
        for j in range(successes):
            learn(terms, class_id, row, j, 1.0, between_variance, memory.server, memory.request)
        if failed:
            learn(terms, class_id, row, successes, 0.0, between_variance, memory.server, memory.request)
        elif imputed:
            learn(
                terms,
                class_id,
                row,
                successes,
                drafts.dropped_acceptance[i],
                between_variance,
                memory.server,
                memory.request,
            )
        learn_between_request_variance(terms, row, between_variance)
