"""Prometheus metrics of the controller.

Steps are added up in plain numbers, which become metrics when Prometheus collects them. Rates are left to the query:
predicted goodput is `rate(turbospec_predicted_tokens_total[1m]) / rate(turbospec_predicted_seconds_total[1m])`, the
survival of a position, the share of drafts accepted up to it, is accepted over drafted tokens there. Engines with a
look-up beside the drafter also count by source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turbospec.interface import IntArray, Source, StepOutcome, StepPlan, StepView
from turbospec.observability.source_counts import source_counts

if TYPE_CHECKING:  # summaries and traces need no compiled kernels, which the controller imports
    from turbospec.controller import ControllerStats


@dataclass(slots=True)
class HostSeconds:
    """Host time of TurboSpec, measured by an engine whose plans are reused over several steps. Seconds."""

    steps: float = 0.0
    """Duration of all steps, those that reuse a plan included."""
    ours: float = 0.0
    """TurboSpec's part of it, decisions included."""
    overlapped: float = 0.0
    """TurboSpec's work while the engine waited for its workers; not part of `ours`."""


class StepMetrics(Collector):
    """A controller's listener, and a collector to be registered with a Prometheus registry.

    Args:
        stats: of the same controller.
        host: TurboSpec's host time, where the engine measures it.
        max_draft: longest draft, so that its positions are counted from 0 on; 0 where it is not known yet.
    """

    def __init__(self, stats: ControllerStats, host: HostSeconds | None = None, *, max_draft: int = 0) -> None:
        self._stats = stats
        self._host = host
        self._last: tuple[StepView, StepOutcome] | None = None
        self._drafted_lengths = np.zeros(max_draft + 1, np.int64)
        """(K + 1,) drafts of all steps, by their length."""
        self._accepted_lengths = np.zeros(max_draft + 1, np.int64)
        """(K + 1,) the same, by their accepted length."""
        self._by_source: IntArray | None = None
        """(sources, 3) drafts, draft tokens and accepted tokens of each source; None where there is one."""
        self._emitted = self._steps = self._probe_steps = 0
        self._seconds = self._draft_seconds = self._probe_draft_seconds = 0.0
        self._predicted_tokens = self._predicted_seconds = 0.0
        self._predicted_step_tokens = 0
        """Tokens of requests past their prompt in the steps that have a prediction."""
        self._predicted_step_seconds = 0.0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        """Count one finished step. A server calls this in every step: array operations are few."""
        del decision_seconds  # the controller's statistics have it
        self._last = view, outcome
        if (missing := view.max_draft + 1 - len(self._drafted_lengths)) > 0:
            self._drafted_lengths = np.pad(self._drafted_lengths, (0, missing))
            self._accepted_lengths = np.pad(self._accepted_lengths, (0, missing))
        lengths = len(self._drafted_lengths)
        self._drafted_lengths += np.bincount(outcome.drafted, minlength=lengths)
        self._accepted_lengths += np.bincount(outcome.accepted, minlength=lengths)
        if outcome.sources is not None:
            counts = source_counts(outcome.sources, outcome.drafted, outcome.accepted, outcome.appended)
            self._by_source = counts if self._by_source is None else self._by_source + counts
        emitted = int(outcome.emitted.sum())
        self._steps += 1 + outcome.reused_plan_steps
        self._emitted += emitted + outcome.reused_plan_tokens
        self._seconds += outcome.step_seconds + outcome.reused_plan_seconds
        self._draft_seconds += outcome.draft_seconds
        if plan.probe:
            self._probe_steps += 1
            self._probe_draft_seconds += outcome.draft_seconds
        predicted = math.isfinite(plan.predicted_tokens) and math.isfinite(plan.predicted_seconds)
        if predicted and outcome.step_seconds > 0.0:
            self._predicted_tokens += plan.predicted_tokens
            self._predicted_seconds += plan.predicted_seconds
            self._predicted_step_tokens += int(outcome.emitted[view.decoding].sum())
            self._predicted_step_seconds += outcome.step_seconds

    def collect(self) -> Iterator[Metric]:
        """All metrics, at their present values."""
        stats = self._stats
        draft_length, longest = (0.0, 0.0) if self._last is None else _draft_lengths(*self._last)
        gauges = {
            "turbospec_draft_length": ("Mean K over the last step's decoding requests.", draft_length),
            "turbospec_longest_draft": ("Longest draft verified in the last step.", longest),
            "turbospec_active": (
                "1 while TurboSpec plans; 0 if it could not start or repeated faults turned it off.",
                stats.active,
            ),
        }
        counters = {
            "turbospec_steps": (
                "Finished steps; those that reuse a plan are added with the next outcome.",
                self._steps,
            ),
            "turbospec_emitted_tokens": (
                "Tokens emitted by the requests of planned steps, and in steps that reuse a plan.",
                self._emitted,
            ),
            "turbospec_step_seconds": ("Duration of the finished steps.", self._seconds),
            "turbospec_draft_seconds": ("Time in drafter passes, where the engine measures it.", self._draft_seconds),
            "turbospec_predicted_tokens": ("Predicted tokens of all predicted steps.", self._predicted_tokens),
            "turbospec_predicted_seconds": ("Predicted duration of all predicted steps.", self._predicted_seconds),
            "turbospec_predicted_step_tokens": (
                "Tokens that predicted steps emitted, without first tokens.",
                self._predicted_step_tokens,
            ),
            "turbospec_predicted_step_seconds": ("Measured duration of predicted steps.", self._predicted_step_seconds),
            "turbospec_probe_steps": (
                "Experiments: steps that run another plan than the best one, to learn.",
                self._probe_steps,
            ),
            "turbospec_probe_seconds": ("Time in all drafter passes of experiments.", self._probe_draft_seconds),
            "turbospec_decision_seconds": ("Time spent planning and updating models.", stats.decision_seconds),
            "turbospec_guard_trips": ("Policy faults; each falls back to K = 0 or the guard's K.", stats.guard_trips),
            "turbospec_host_faults": (
                "Errors of TurboSpec's part of the scheduler, and views and outcomes that break the contract.",
                stats.host_faults,
            ),
        }
        if self._host is not None:
            counters |= {
                "turbospec_engine_seconds": ("Duration of all steps, reused plans included.", self._host.steps),
                "turbospec_host_seconds": ("Host time of TurboSpec within steps, decisions included.", self._host.ours),
                "turbospec_overlapped_seconds": (
                    "Host time of TurboSpec while the engine waits for its workers, which delays no step.",
                    self._host.overlapped,
                ),
            }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=float(value))
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value=value)
        for name, text, values in (
            ("turbospec_drafted_per_position", "Draft tokens verified, by position (from 0).", self._drafted_lengths),
            ("turbospec_accepted_per_position", "Draft tokens accepted, by position (from 0).", self._accepted_lengths),
        ):
            family = CounterMetricFamily(name, text, labels=["position"])
            for position, value in enumerate(_reaching(values).tolist()):
                family.add_metric([str(position)], value)
            yield family
        if self._by_source is not None:
            yield from _by_source(self._by_source)


def _by_source(counts: IntArray) -> Iterator[Metric]:
    """Counters with the label `source`, which only servers with two sources have."""
    texts = {
        "turbospec_drafts_by_source": "Drafts verified, by what drafted them.",
        "turbospec_drafted_by_source": "Draft tokens verified, by what drafted them.",
        "turbospec_accepted_by_source": "Draft tokens accepted, by what drafted them.",
    }
    for (name, text), values in zip(texts.items(), counts.T.tolist(), strict=True):
        family = CounterMetricFamily(name, text, labels=["source"])
        for source, value in zip(Source, values, strict=True):
            family.add_metric([source.name.lower()], value)
        yield family


def _draft_lengths(view: StepView, outcome: StepOutcome) -> tuple[float, float]:
    """Mean draft over the decoding requests of a step, and the longest. Not as planned: a gate ends drafts early."""
    longest = float(outcome.drafted.max(initial=0))
    return float(outcome.drafted[view.decoding].mean()) if longest else 0.0, longest


def _reaching(counts: IntArray) -> IntArray:
    """(K,) how many drafts reach each position, of (K + 1,) drafts by their length."""
    return counts[::-1].cumsum()[::-1][1:]
