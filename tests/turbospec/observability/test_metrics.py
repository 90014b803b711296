from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.turbospec.factories import make_outcome, make_view
from turbospec.controller import ControllerStats
from turbospec.interface import Phase, StepPlan
from turbospec.observability.metrics import HostSeconds, StepMetrics
from turbospec.observability.source_counts import source_counts


def counted() -> StepMetrics:
    """Two steps: K 3 and 1, of which 2 and 1 are accepted, and a probe without a prediction."""
    metrics = StepMetrics(
        ControllerStats(decision_seconds=0.5, guard_trips=2, host_faults=3),
        HostSeconds(steps=2.0, ours=0.02, overlapped=0.5),
    )
    view = make_view(2, max_draft=4)
    plan = StepPlan(np.array([3, 1]), predicted_tokens=4.5, predicted_seconds=0.02)
    metrics.on_step(view, plan, make_outcome(view, [3, 1], [2, 1]), 0.1)
    view = make_view(2, step=1, max_draft=4)
    metrics.on_step(view, StepPlan(np.array([1, 0]), probe=True), make_outcome(view, [1, 0], [0, 0]), 0.1)
    return metrics


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def registered(metrics: StepMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("turbospec_steps_total", 2),
        ("turbospec_emitted_tokens_total", 7),
        ("turbospec_step_seconds_total", 0.02),
        ("turbospec_draft_seconds_total", 0.004),
        ("turbospec_active", 1),
        ("turbospec_draft_length", 0.5),
        ("turbospec_longest_draft", 1),
        ("turbospec_predicted_tokens_total", 4.5),
        ("turbospec_predicted_seconds_total", 0.02),
        ("turbospec_predicted_step_tokens_total", 5),
        ("turbospec_predicted_step_seconds_total", 0.01),
        ("turbospec_probe_steps_total", 1),
        ("turbospec_probe_seconds_total", 0.002),
        ("turbospec_decision_seconds_total", 0.5),
        ("turbospec_guard_trips_total", 2),
        ("turbospec_host_faults_total", 3),
        ("turbospec_engine_seconds_total", 2.0),
        ("turbospec_host_seconds_total", 0.02),
        ("turbospec_overlapped_seconds_total", 0.5),
    ],
)
def test_steps_are_counted(name: str, expected: float) -> None:
    assert value(registered(counted()), name) == pytest.approx(expected)


def test_positions_are_added_when_the_engines_limit_rises() -> None:
    metrics = counted()
    for limit in (6, 5):
        view = make_view(1, max_draft=limit)
        metrics.on_step(view, StepPlan(np.array([5])), make_outcome(view, 5, 1), 0.0)
    registry = registered(metrics)
    drafted = [value(registry, "turbospec_drafted_per_position_total", position=str(j)) for j in range(6)]
    assert drafted == [5, 3, 3, 2, 2, 0]


@pytest.mark.parametrize("prediction", [(4.0, np.nan), (np.nan, 0.02)])
def test_half_a_prediction_is_none(prediction: tuple[float, float]) -> None:
    metrics, view = counted(), make_view(1)
    metrics.on_step(view, StepPlan(np.array([3]), *prediction), make_outcome(view, 3, 1), 0.0)
    assert value(registered(metrics), "turbospec_predicted_tokens_total") == 4.5
    assert value(registered(metrics), "turbospec_predicted_step_tokens_total") == 5


def test_a_step_that_was_not_measured_counts_no_prediction() -> None:
    metrics, view = counted(), make_view(1)
    outcome = make_outcome(view, 3, 1, draft_seconds=0.0, verify_seconds=0.0, step_seconds=0.0)
    metrics.on_step(view, StepPlan(np.array([3]), predicted_tokens=4.0, predicted_seconds=0.02), outcome, 0.0)
    assert value(registered(metrics), "turbospec_predicted_tokens_total") == 4.5


def test_before_the_first_step_draft_lengths_are_0() -> None:
    registry = registered(StepMetrics(ControllerStats()))
    assert [value(registry, f"turbospec_{name}") for name in ("draft_length", "longest_draft")] == [0, 0]


@pytest.mark.filterwarnings("error")
def test_a_step_of_prompts_alone_has_draft_length_0() -> None:
    metrics, phase = StepMetrics(ControllerStats()), np.full(2, Phase.PREFILL, np.int64)
    view = make_view(2, phase=phase, draft_limits=np.zeros(2, np.int64))
    metrics.on_step(view, StepPlan(np.zeros(2, np.int64)), make_outcome(view, 0, 0), 0.0)
    assert value(registered(metrics), "turbospec_draft_length") == 0.0


def test_there_is_a_count_for_each_position_up_to_the_engines_limit() -> None:
    metrics, view = StepMetrics(ControllerStats()), make_view(1, max_draft=3)
    metrics.on_step(view, StepPlan(np.array([1])), make_outcome(view, 1, 1), 0.0)
    registry = registered(metrics)
    drafted = [value(registry, "turbospec_drafted_per_position_total", position=str(j)) for j in range(4)]
    assert drafted == [1, 0, 0, None]


def test_a_step_without_drafts_has_draft_length_0() -> None:
    metrics, view = counted(), make_view(2)
    metrics.on_step(view, StepPlan(np.zeros(2, np.int64)), make_outcome(view, 0, 0), 0.0)
    registry = registered(metrics)
    assert [value(registry, f"turbospec_{name}") for name in ("draft_length", "longest_draft")] == [0, 0]


def test_the_mean_draft_length_leaves_out_requests_in_prefill() -> None:
    metrics = StepMetrics(ControllerStats())
    view = make_view(3, phase=np.array([Phase.PREFILL, Phase.FIRST_DECODE, Phase.DECODE]))
    metrics.on_step(view, StepPlan(np.array([0, 1, 4])), make_outcome(view, [0, 1, 4], 0), 0.0)
    assert value(registered(metrics), "turbospec_draft_length") == 2.5


def test_an_engine_without_host_seconds_has_none() -> None:
    names = {family.name for family in StepMetrics(ControllerStats()).collect()}
    assert "turbospec_steps" in names
    assert not names & {"turbospec_engine_seconds", "turbospec_host_seconds", "turbospec_overlapped_seconds"}


def test_acceptance_is_counted_by_position() -> None:
    registry = registered(counted())
    drafted = [value(registry, "turbospec_drafted_per_position_total", position=str(j)) for j in range(4)]
    accepted = [value(registry, "turbospec_accepted_per_position_total", position=str(j)) for j in range(4)]
    assert drafted == [3, 1, 1, 0]
    assert accepted == [2, 1, 0, 0]


def test_steps_that_reuse_a_plan_are_counted_with_the_next_plan() -> None:
    metrics, view = counted(), make_view(2)
    outcome = make_outcome(view, 0, 0, reused_plan_steps=5, reused_plan_tokens=10, reused_plan_seconds=0.05)
    metrics.on_step(view, StepPlan(np.zeros(2, np.int64)), outcome, 0.0)
    registry = registered(metrics)
    assert value(registry, "turbospec_steps_total") == 2 + 6
    assert value(registry, "turbospec_emitted_tokens_total") == 7 + 12
    assert value(registry, "turbospec_step_seconds_total") == pytest.approx(0.08)


def test_the_dashboard_queries_metrics_that_exist() -> None:
    dashboard = json.loads((Path(__file__).parents[3] / "dashboards" / "grafana-vllm.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions.append(dashboard["templating"]["list"][1]["query"]["query"])
    asked = set(re.findall(r"turbospec_\w+", " ".join(expressions)))
    server = StepMetrics(ControllerStats(), HostSeconds())
    offered = {
        sample.name for metrics in (counted(), server) for family in metrics.collect() for sample in family.samples
    }
    assert asked
    assert asked <= offered


def test_drafts_are_counted_by_source_where_there_is_a_look_up() -> None:
    metrics = counted()
    registry = registered(metrics)
    assert value(registry, "turbospec_drafts_by_source_total", source="drafter") is None
    view = make_view(4, max_draft=9)
    for drafted in ([3, 9, 0, 2], [0, 4, 0, 0]):
        outcome = make_outcome(view, drafted, [1, 4, 0, 2] if drafted[0] else 0, sources=np.array([0, 1, 0, 0]))
        metrics.on_step(view, StepPlan(np.array(drafted), sources=np.array([0, 1, 0, 0])), outcome, 0.0)
    found = {
        name: [value(registry, f"turbospec_{name}_by_source_total", source=source) for source in ("drafter", "lookup")]
        for name in ("drafts", "drafted", "accepted")
    }
    assert found == {"drafts": [2, 2], "drafted": [5, 13], "accepted": [3, 4]}


def test_what_a_look_up_appends_counts_as_its_own_draft() -> None:
    counts = source_counts([0, 1, 0, 0], [5, 4, 2, 3], [4, 2, 1, 0], [3, 0, 1, 0])
    assert counts.tolist() == [[3, 6, 3], [3, 8, 4]]
