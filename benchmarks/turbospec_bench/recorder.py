"""Listeners of the controller that record a run: sums over its steps, its timeline, and the steps themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turbospec.interface import IntArray, Phase, Source, StepOutcome, StepPlan, StepView
from turbospec.observability.source_counts import source_counts

MAX_POINTS = 40
"""Points of a timeline; also the number of steps whose predicted and measured times are kept."""

Step = tuple[StepView, StepPlan, StepOutcome, float]
"""What a listener receives: view, plan, outcome, and the seconds that the controller took."""


@dataclass(slots=True)
class StepTotals:
    """Sums over the steps of a run; times in seconds."""

    decode_rows: int = 0
    """Decoding requests, summed over steps."""
    drafts: int = 0
    """Those with at least one draft token."""
    drafted: int = 0
    accepted: int = 0
    by_source: IntArray | None = None
    """(sources, 3) drafts, draft tokens and accepted tokens of each source; None where there is one."""
    draft_seconds: float = 0.0
    step_seconds: float = 0.0
    decision_seconds: float = 0.0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.decode_rows += int((view.phase != Phase.PREFILL).sum())
        self.drafts += int((outcome.drafted > 0).sum())
        self.drafted += int(outcome.drafted.sum())
        self.accepted += int(outcome.accepted.sum())
        if outcome.sources is not None:
            counts = source_counts(outcome.sources, outcome.drafted, outcome.accepted, outcome.appended)
            self.by_source = counts if self.by_source is None else self.by_source + counts
        self.draft_seconds += outcome.draft_seconds
        self.step_seconds += outcome.step_seconds
        self.decision_seconds += decision_seconds

    def reset(self) -> None:
        self.decode_rows = self.drafts = self.drafted = self.accepted = 0
        self.by_source = None
        self.draft_seconds = self.step_seconds = self.decision_seconds = 0.0

    def figures(self) -> dict[str, float]:
        """Accepted length as vLLM counts it, 1 + accepted tokens per draft; draft length over all decoding requests.

        Where a look-up drafts beside the drafter, also those of each: its share of the draft length, and the accepted
        length of its drafts.
        """
        by_source: dict[str, float] = {}
        if self.by_source is not None:
            for source, (drafts, drafted, accepted) in zip(Source, self.by_source.tolist(), strict=True):
                name = source.name.lower()
                by_source[f"{name}_accepted_length"] = 1.0 + accepted / drafts if drafts else math.nan
                by_source[f"{name}_draft_length"] = drafted / max(1, self.decode_rows)
        return {
            "mean_accepted_length": 1.0 + self.accepted / max(1, self.drafts),
            "mean_draft_length": self.drafted / max(1, self.decode_rows),
            "acceptance_rate": self.accepted / self.drafted if self.drafted else math.nan,
            "draft_time_share": self.draft_seconds / max(self.step_seconds, 1e-9),
            "controller_time_share": self.decision_seconds / max(self.step_seconds, 1e-9),
        } | by_source


@dataclass(slots=True)
class Timeline:
    """Draft length, acceptance and step time over a run, thinned so that files stay small."""

    _steps: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        decoding = int((view.phase != Phase.PREFILL).sum())
        self._steps.append(
            (
                view.now,
                decoding,
                int(outcome.drafted.sum()),
                int(outcome.accepted.sum()),
                plan.predicted_seconds,
                outcome.step_seconds,
                outcome.prefill_tokens,
            )
        )

    def reset(self) -> None:
        self._steps.clear()

    def document(self) -> dict[str, Any]:
        """Lists for JSON: `timeline` holds means over intervals of equally many steps, `step_times` single steps.

        Times are seconds from the run's first step, and milliseconds per step; null where nothing was drafted or the
        policy does not predict.
        """
        if not self._steps:
            return {"timeline": {}, "step_times": {}}
        steps = np.asarray(self._steps)
        intervals = np.array_split(steps, min(MAX_POINTS, len(steps)))
        sums = np.stack([interval.sum(axis=0) for interval in intervals])
        decoding, drafted, accepted = sums[:, 1], sums[:, 2], sums[:, 3]
        timeline = {
            "seconds": _rounded([interval[0, 0] - steps[0, 0] for interval in intervals], 4),
            "decoding_requests": _rounded([interval[:, 1].mean() for interval in intervals], 2),
            "draft_length": _rounded(drafted / np.maximum(1, decoding), 3),
            "acceptance": _rounded(np.where(drafted > 0, accepted / np.maximum(1, drafted), np.nan), 4),
        }
        predicted = steps[np.isfinite(steps[:, 4])]
        picked = predicted[np.linspace(0, len(predicted) - 1, min(MAX_POINTS, len(predicted))).astype(int)]
        step_times = {
            "predicted_ms": _rounded(picked[:, 4] * 1e3, 4),
            "measured_ms": _rounded(picked[:, 5] * 1e3, 4),
            "prefill_tokens": [int(tokens) for tokens in picked[:, 6]],
        }
        return {"timeline": timeline, "step_times": step_times}


@dataclass(slots=True)
class StepLog:
    """Every step of a run. They are written when the run is over, because writing takes time."""

    steps: list[Step] = field(default_factory=list[Step])

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.steps.append((view, plan, outcome, decision_seconds))

    def reset(self) -> None:
        self.steps = []


def _rounded(values: Any, digits: int) -> list[float | None]:
    return [round(float(value), digits) if np.isfinite(value) else None for value in values]
