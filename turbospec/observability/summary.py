"""Totals and distributions over steps: the figures of `turbospec trace` and of `turbospec generate`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospec.interface import MIN_STEP_SECONDS, FloatArray, IntArray, Phase, Source
from turbospec.observability.source_counts import source_counts
from turbospec.observability.trace import TraceStep

MAX_REASON = 200
"""Characters of a reason that count."""
MAX_REASONS = 1000
"""Kinds of reasons that are counted one by one; a policy gives a few."""
OTHER_REASONS = "(others)"
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")


@dataclass(slots=True)
class SourceCounts:
    """What one source drafted, in engines with two."""

    drafts: int = 0
    """Drafts verified."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def document(self) -> dict[str, Any]:
        """Its figures, for JSON."""
        return {
            "drafts": self.drafts,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_rate": _ratio(self.accepted_tokens, self.drafted_tokens),
            "accepted_length": 1 + _ratio(self.accepted_tokens, self.drafts),
        }


class Summary:
    """Statistics of the steps given to `add`."""

    def __init__(self) -> None:
        self.steps = 0
        """Steps that reuse a plan included, here and in all other figures."""
        self.reused_plan_steps = 0
        self.requests: set[tuple[int, int]] = set()
        """Number of the run, and id there: every run of an engine counts its requests from 0."""
        self.emitted_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.drafts = 0
        """Drafts verified: one per request and step with K above 0."""
        self.sources: dict[Source, SourceCounts] = {}
        """Empty where there is one source."""
        self.draft_lengths: Counter[int] = Counter()
        """Number of (decoding request, step) pairs by verified draft tokens."""
        self.seconds = dict.fromkeys(("draft", "verify", "controller", "step"), 0.0)
        self.probes = 0
        self.probe_step_seconds = 0.0
        self.fallbacks = 0
        self.reasons: Counter[str] = Counter()
        self._run, self._last_step = 0, -1
        self._tried: IntArray = np.zeros(0, np.int64)
        self._accepted: IntArray = np.zeros(0, np.int64)
        self._predictions: list[tuple[float, float]] = []

    def add(self, step: TraceStep) -> None:
        """Count one step, and the steps before it that reused a plan."""
        self.steps += 1 + step.reused_plan_steps
        self.reused_plan_steps += step.reused_plan_steps
        # The steps of a run are in order. Others follow where a file is of another engine, or of an earlier start.
        self._run += step.step <= self._last_step
        self._last_step = step.step
        self.requests.update((self._run, request) for request in step.request_ids)
        self.emitted_tokens += sum(step.emitted) + step.reused_plan_tokens
        self.drafted_tokens += sum(step.drafted)
        self.accepted_tokens += sum(step.accepted)
        self.drafts += sum(length > 0 for length in step.drafted)
        self.draft_lengths.update(
            drafted for drafted, phase in zip(step.drafted, step.phase, strict=True) if phase != Phase.PREFILL
        )
        if step.reused_plan_tokens:
            # A request emits one token in a step without drafts.
            self.draft_lengths[0] += step.reused_plan_tokens
        self.seconds["draft"] += step.draft_seconds
        self.seconds["verify"] += step.verify_seconds + step.reused_plan_seconds
        self.seconds["controller"] += step.decision_seconds
        self.seconds["step"] += step.step_seconds + step.reused_plan_seconds
        self.probes += step.probe
        self.probe_step_seconds += step.step_seconds * step.probe
        self.fallbacks += step.reason.startswith("guard:")
        self.reasons[self._kind(step.reason)] += 1
        self._count_positions(step)
        self._count_sources(step)
        if step.predicted_seconds is not None and step.step_seconds >= MIN_STEP_SECONDS:
            self._predictions.append((step.predicted_seconds, step.step_seconds))

    @property
    def mean_draft_length(self) -> float:
        """Verified draft tokens per decoding request and step."""
        return _ratio(self.drafted_tokens, self.draft_lengths.total())

    @property
    def accepted_length(self) -> float:
        """Mean tokens that a verified draft emits: the accepted ones and the target's own."""
        return 1 + _ratio(self.accepted_tokens, self.drafts)

    @property
    def acceptance_rate(self) -> float:
        """Accepted over verified draft tokens."""
        return _ratio(self.accepted_tokens, self.drafted_tokens)

    def acceptance(self) -> FloatArray:
        """(K,) acceptance rate of each position, given that all before it were accepted; NaN without observations.

        The positions after a draft's first rejection are not observed, nor those after the accepted tokens of a
        truncated draft.
        """
        with np.errstate(invalid="ignore"):
            return self._accepted / self._tried

    def prediction_errors(self) -> FloatArray:
        """(predicted steps,) predicted over measured step time, less 1."""
        pairs = np.array(self._predictions).reshape(-1, 2)
        return pairs[:, 0] / pairs[:, 1] - 1

    def document(self) -> dict[str, Any]:
        """All figures, for JSON."""
        errors = self.prediction_errors()
        return {
            "steps": self.steps,
            "reused_plan_steps": self.reused_plan_steps,
            "requests": len(self.requests),
            "emitted_tokens": self.emitted_tokens,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "mean_draft_length": self.mean_draft_length,
            "acceptance_rate": self.acceptance_rate,
            "accepted_length": self.accepted_length,
            "draft_lengths": {str(length): times for length, times in sorted(self.draft_lengths.items())},
            "acceptance": [None if np.isnan(rate) else float(rate) for rate in self.acceptance()],
            "observations": self._tried.tolist(),
            "seconds": dict(self.seconds),
            "predicted_steps": len(errors),
            "prediction_error_median": float(np.median(np.abs(errors))) if len(errors) else None,
            "prediction_bias": float(np.median(errors)) if len(errors) else None,
            "probe_steps": self.probes,
            "probe_time_share": _ratio(self.probe_step_seconds, self.seconds["step"]),
            "guard_fallbacks": self.fallbacks,
            "reasons": dict(self.reasons.most_common()),
        } | ({"sources": self._sources_document()} if self.sources else {})

    def _kind(self, reason: str) -> str:
        """A reason without its numbers."""
        kind = NUMBER.sub("#", reason[:MAX_REASON]) or "(none)"
        return kind if kind in self.reasons or len(self.reasons) < MAX_REASONS else OTHER_REASONS

    def _sources_document(self) -> dict[str, Any]:
        return {source.name.lower(): counts.document() for source, counts in self.sources.items()}

    def _count_sources(self, step: TraceStep) -> None:
        if step.sources is None:
            return
        of_step = source_counts(step.sources, step.drafted, step.accepted, step.appended).tolist()
        for source, (drafts, drafted, accepted) in zip(Source, of_step, strict=True):
            counts = self.sources.setdefault(source, SourceCounts())
            counts.drafts += drafts
            counts.drafted_tokens += drafted
            counts.accepted_tokens += accepted

    def _count_positions(self, step: TraceStep) -> None:
        deepest = max(step.drafted, default=0)
        if deepest > len(self._tried):
            grow = (0, deepest - len(self._tried))
            self._tried, self._accepted = np.pad(self._tried, grow), np.pad(self._accepted, grow)
        for drafted, accepted, truncated in zip(step.drafted, step.accepted, step.truncated, strict=True):
            self._accepted[:accepted] += 1
            self._tried[: accepted if truncated else min(accepted + 1, drafted)] += 1


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
