"""Predicts the acceptance of each draft position from the drafter's confidence, and calibrates itself.

Source: vLLM 0.32, vllm/v1/worker/gpu/spec_decode/acceptance_estimator.py, `OnlineAcceptanceEstimator`. Its kernels
`_predict_kernel`, `_accumulate_kernel` and `_refit_kernel` are the methods below.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray

MAX_LOG_ODDS = 40.0
INITIAL_SLOPE = 0.5
INITIAL_INTERCEPT = -0.2
REFIT_INTERVAL = 100
"""Steps between two refits."""
DAMPING_OBSERVATIONS = 50.0
"""Observations with which a coefficient makes half of a Newton step."""
L2 = 1e-3


class AcceptanceEstimator:
    """p = σ(ω·f + βₖ), f the log-odds of the confidence at position k: one slope ω, one intercept βₖ per position.

    Every `REFIT_INTERVAL` steps one damped Newton step on the log-loss of the observations since the last one.

    Args:
        max_draft: draft positions, K.
    """

    def __init__(self, max_draft: int) -> None:
        self.slope = INITIAL_SLOPE
        self.intercepts: FloatArray = np.full(max_draft, INITIAL_INTERCEPT)
        self._steps = 0
        # Sums over the observations since the last refit: scalars, and one entry for each position.
        self._a = self._g0 = 0.0
        self._b: FloatArray = np.zeros(max_draft)
        self._c: FloatArray = np.zeros(max_draft)
        self._g1: FloatArray = np.zeros(max_draft)
        self._counts: FloatArray = np.zeros(max_draft)

    def predict(self, confidence: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict from confidence.

        Args:
            confidence: (n, K) largest probability of each draft distribution; NaN where there is none.

        Returns:
            features: (n, K) clipped log-odds of the confidence.
            acceptance: (n, K) predicted acceptance, given that all positions before were accepted. Both NaN as above.
        """
        confidence = np.minimum(confidence, 1.0)  # rounding may bring it above
        with np.errstate(divide="ignore"):
            features = np.clip(np.log(confidence) - np.log1p(-confidence), -MAX_LOG_ODDS, MAX_LOG_ODDS)
        return features, 1.0 / (1.0 + np.exp(-(self.slope * features + self.intercepts)))

    def observe(
        self, features: FloatArray, predicted: FloatArray, verified: IntArray, accepted: IntArray, truncated: BoolArray
    ) -> None:
        """Learn from a step's verified drafts: the accepted ones and the first rejected one of each request.

        Args:
            features, predicted: (n, K) as `predict` returned them for these drafts.
            verified: (n,) draft tokens verified.
            accepted: (n,) of these, accepted.
            truncated: (n,) whether the end of the output cut the acceptance short; the position after the accepted
                ones is then not used. The source grades it, because its sampler does not know the end of a text.
        """
        position: IntArray = np.arange(len(self.intercepts))
        labels: BoolArray = position < accepted[:, None]
        rejected: BoolArray = (accepted < verified) & ~truncated
        observed: BoolArray = labels | ((position == accepted[:, None]) & rejected[:, None])
        observed &= ~np.isnan(features)
        feature: FloatArray = np.where(observed, features, 0.0)
        p: FloatArray = np.where(observed, predicted, 0.0)
        weight: FloatArray = p * (1.0 - p)
        residual: FloatArray = labels * observed - p
        self._a += float((weight * feature * feature).sum())
        self._b += (weight * feature).sum(axis=0)
        self._c += weight.sum(axis=0)
        self._g0 += float((residual * feature).sum())
        self._g1 += residual.sum(axis=0)
        self._counts += observed.sum(axis=0)

    def end_step(self) -> None:
        """Count a step, with or without drafts; refit if it is due."""
        self._steps += 1
        if self._steps == REFIT_INTERVAL:
            self._steps = 0
            self._refit()

    def _refit(self) -> None:
        """Solve the arrowhead system (XᵀWX + L2·I) Δ = Xᵀ(y - p) for Δω, then for each Δβₖ, both damped."""
        c, total = self._c + L2, float(self._counts.sum())
        step = (self._g0 - float((self._b * self._g1 / c).sum())) / (self._a + L2 - float((self._b**2 / c).sum()))
        step *= total / (total + DAMPING_OBSERVATIONS)
        if np.isnan(step) or self.slope + step < 0.0:
            step = 0.0
        self.slope += step
        self.intercepts += (self._g1 - self._b * step) / c * self._counts / (self._counts + DAMPING_OBSERVATIONS)
        self._a = self._g0 = 0.0
        for sums in (self._b, self._c, self._g1, self._counts):
            sums[:] = 0.0
