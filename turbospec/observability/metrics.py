"""What the controller does, counted for Prometheus.

Counters are added up in plain numbers while steps run and turned into metrics when they are asked for. What changes
with time is left to the query: expected goodput is `rate(turbospec_predicted_tokens_total[1m]) /
rate(turbospec_predicted_seconds_total[1m])`, acceptance at a position is accepted over drafted there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turbospec.controller import ControllerStats
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView


@dataclass(slots=True)
class HostSeconds:
    """Kept by an engine that plans for more than one step at a time."""

    steps: float = 0.0
    """All that its steps have taken."""
    ours: float = 0.0
    """What TurboSpec has taken of that, decisions included."""
    overlapped: float = 0.0
    """What it has worked besides, while the engine waited for a step's workers."""


class StepMetrics(Collector):
    """A controller's listener, and a collector to be registered with a Prometheus registry.

    Args:
        stats: of the controller that is listened to.
        host: of an engine that measures it.
    """

    def __init__(self, stats: ControllerStats, host: HostSeconds | None = None) -> None:
        self._stats = stats
        self._host = host
        self._draft_length = self._longest = 0.0
        self._drafted = np.zeros(0, np.int64)
        """Draft tokens verified, by position."""
        self._accepted = np.zeros(0, np.int64)
        self._emitted = self._steps = self._probe_steps = 0
        self._seconds = self._draft_seconds = self._probe_seconds = 0.0
        self._predicted_tokens = self._predicted_seconds = 0.0
        self._predicted_step_tokens = 0
        """Tokens emitted in the steps that were predicted."""
        self._predicted_step_seconds = 0.0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        """Count one finished step."""
        del decision_seconds  # the controller's statistics have it
        self._longest = float(plan.draft_lengths.max(initial=0))
        self._draft_length = 0.0
        if self._longest:
            self._draft_length = float(plan.draft_lengths[view.phase != Phase.PREFILL].mean())
        positions = max(len(self._drafted), view.max_draft)
        if positions > len(self._drafted):
            grow = (0, positions - len(self._drafted))
            self._drafted, self._accepted = np.pad(self._drafted, grow), np.pad(self._accepted, grow)
        if outcome.drafted.any():
            self._drafted += _at_least(outcome.drafted, positions)
            self._accepted += _at_least(outcome.accepted, positions)
        emitted = int(outcome.emitted.sum())
        self._steps += 1 + outcome.reused_plan_steps
        self._emitted += emitted + outcome.reused_plan_tokens
        self._seconds += outcome.step_seconds + outcome.reused_plan_seconds
        self._draft_seconds += outcome.draft_seconds
        if plan.probe:
            self._probe_steps += 1
            self._probe_seconds += outcome.draft_seconds
        if np.isfinite(plan.predicted_tokens) and np.isfinite(plan.predicted_seconds):
            self._predicted_tokens += plan.predicted_tokens
            self._predicted_seconds += plan.predicted_seconds
            self._predicted_step_tokens += emitted
            self._predicted_step_seconds += outcome.step_seconds

    def collect(self) -> Iterator[Metric]:
        """The metrics as they stand."""
        gauges = {
            "turbospec_draft_length": ("Mean draft length of the last step's decoding requests.", self._draft_length),
            "turbospec_longest_draft": ("Longest draft planned in the last step.", self._longest),
        }
        counters = {
            "turbospec_steps": ("Steps finished, those on an old plan with the next one planned.", self._steps),
            "turbospec_emitted_tokens": ("Tokens emitted in them.", self._emitted),
            "turbospec_step_seconds": ("Their duration.", self._seconds),
            "turbospec_draft_seconds": ("Time spent drafting.", self._draft_seconds),
            "turbospec_predicted_tokens": ("Tokens expected, in the steps for which any were.", self._predicted_tokens),
            "turbospec_predicted_seconds": ("Duration expected of those steps.", self._predicted_seconds),
            "turbospec_predicted_step_tokens": ("Tokens that those steps emitted.", self._predicted_step_tokens),
            "turbospec_predicted_step_seconds": ("Duration that those steps had.", self._predicted_step_seconds),
            "turbospec_probe_steps": ("Steps with drafts made to learn from, not because they pay.", self._probe_steps),
            "turbospec_probe_seconds": ("Time spent drafting in them.", self._probe_seconds),
            "turbospec_decision_seconds": ("Time spent planning and learning.", self._stats.decision_seconds),
            "turbospec_guard_trips": ("Faults of the policy that cost it its plan.", self._stats.guard_trips),
        }
        if self._host is not None:
            text = "Duration of all of the engine's steps, on old plans too."
            counters["turbospec_engine_seconds"] = text, self._host.steps
            text = "Time that TurboSpec has taken of them, decisions included."
            counters["turbospec_host_seconds"] = text, self._host.ours
            text = "Time that TurboSpec has worked besides, while the engine waited for a step's workers."
            counters["turbospec_overlapped_seconds"] = text, self._host.overlapped
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value=value)
        for name, text, values in (
            ("turbospec_drafted_per_position", "Draft tokens verified, by position from 0.", self._drafted),
            ("turbospec_accepted_per_position", "Draft tokens accepted, by position from 0.", self._accepted),
        ):
            family = CounterMetricFamily(name, text, labels=["position"])
            for position, value in enumerate(values.tolist()):
                family.add_metric([str(position)], value)
            yield family


def _at_least(lengths: np.ndarray, positions: int) -> np.ndarray:
    """(positions,) how many of the lengths reach each position."""
    return np.bincount(np.minimum(lengths, positions), minlength=positions + 1)[::-1].cumsum()[::-1][1:]
