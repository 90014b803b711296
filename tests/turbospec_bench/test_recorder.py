from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from turbospec import Phase, StepOutcome, StepPlan, StepView
from turbospec_bench.recorder import MAX_POINTS, StepTotals, Timeline


def step(number: int, drafted: list[int], accepted: list[int]) -> tuple[StepView, StepPlan, StepOutcome]:
    count = len(drafted)
    zeros = np.zeros(count, np.int64)
    view = StepView(
        step=number,
        now=10.0 + number,
        request_ids=np.arange(count),
        phase=np.full(count, Phase.DECODE),
        context_tokens=zeros,
        emitted_tokens=zeros,
        tokens_left=zeros,
        drafter_lag_tokens=zeros,
        class_ids=zeros,
        draft_limits=zeros,
        max_draft=15,
    )
    outcome = StepOutcome(
        step=number,
        request_ids=view.request_ids,
        drafted=np.array(drafted),
        accepted=np.array(accepted),
        emitted=np.array(accepted) + 1,
        truncated=zeros > 0,
        proposed=np.array(drafted),
        draft_seconds=0.25,
        step_seconds=1.0,
    )
    return view, StepPlan(np.array(drafted), predicted_seconds=0.5), outcome


def test_totals_follow_vllm_in_accepted_length_and_count_every_decoding_request_in_draft_length() -> None:
    totals = StepTotals()
    totals.on_step(*step(0, [4, 0], [2, 0]), 0.01)
    totals.on_step(*step(1, [2, 2], [1, 0]), 0.03)

    figures = totals.figures()

    assert figures["mean_accepted_length"] == pytest.approx(1 + 3 / 3)
    assert figures["mean_draft_length"] == pytest.approx(8 / 4)
    assert figures["acceptance_rate"] == pytest.approx(3 / 8)
    assert figures["draft_time_share"] == pytest.approx(0.25)
    assert figures["controller_time_share"] == pytest.approx(0.02)


def test_what_a_look_up_appends_counts_for_the_look_up() -> None:
    totals = StepTotals()
    view, plan, outcome = step(0, [5, 2], [4, 2])
    totals.on_step(view, plan, replace(outcome, sources=np.array([0, 1]), appended=np.array([3, 0])), 0.0)

    figures = totals.figures()

    assert (figures["drafter_draft_length"], figures["lookup_draft_length"]) == (2 / 2, 5 / 2)
    assert (figures["drafter_accepted_length"], figures["lookup_accepted_length"]) == (1 + 2 / 1, 1 + 4 / 2)


def test_requests_in_prefill_are_not_decoding() -> None:
    totals = StepTotals()
    view, plan, outcome = step(0, [3, 0], [3, 0])
    totals.on_step(replace(view, phase=np.array([Phase.DECODE, Phase.PREFILL])), plan, outcome, 0.0)

    assert totals.figures()["mean_draft_length"] == pytest.approx(3)


def test_reset_forgets() -> None:
    totals, timeline = StepTotals(), Timeline()
    for recorder in (totals, timeline):
        recorder.on_step(*step(0, [4], [4]), 0.1)
        recorder.reset()

    assert totals == StepTotals()
    assert timeline.document() == {"timeline": {}, "step_times": {}}


def test_timeline_is_thinned_and_starts_at_zero() -> None:
    timeline = Timeline()
    for number in range(1000):
        timeline.on_step(*step(number, [4, 2], [2, 1]), 0.0)

    document = timeline.document()

    assert document["timeline"]["seconds"][0] == 0.0
    assert len(document["timeline"]["seconds"]) == len(document["step_times"]["predicted_ms"]) == MAX_POINTS
    assert set(document["timeline"]["draft_length"]) == {3.0}
    assert set(document["timeline"]["acceptance"]) == {0.5}
    assert set(document["step_times"]["predicted_ms"]) == {500.0}


def test_nothing_drafted_has_no_acceptance() -> None:
    timeline = Timeline()
    timeline.on_step(*step(0, [0], [0]), 0.0)

    assert timeline.document()["timeline"]["acceptance"] == [None]


def test_totals_by_source_where_a_look_up_drafts_beside_the_drafter() -> None:
    totals = StepTotals()
    totals.on_step(*step(0, [4, 0], [2, 0]), 0.01)
    assert not any(name.startswith(("drafter_", "lookup_")) for name in totals.figures())
    totals.reset()
    for number, drafted in enumerate(([4, 9], [2, 0])):
        view, plan, outcome = step(number, drafted, [2, drafted[1] // 2])
        totals.on_step(view, plan, replace(outcome, sources=np.array([0, 1])), 0.01)
    figures = totals.figures()
    assert (figures["drafter_draft_length"], figures["lookup_draft_length"]) == (6 / 4, 9 / 4)
    assert (figures["drafter_accepted_length"], figures["lookup_accepted_length"]) == (3.0, 5.0)
    assert figures["mean_draft_length"] == 15 / 4
    totals.reset()
    assert "lookup_draft_length" not in totals.figures()
