"""The longest step under a target for time per output token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.turbospec.factories import make_view
from turbospec.interface import IntArray, Phase, StepView
from turbospec.planning.slo import TpotSlo, max_seconds

ROWS = np.arange(2)


def a_slo(first_token_at: float = 0.0) -> TpotSlo:
    """A target of 10 ms per token; the first tokens of both requests have been emitted."""
    slo = TpotSlo(0.010, capacity=2)
    slo.record_first_tokens(make_view(2, now=first_token_at, emitted_tokens=np.ones(2, np.int64)), ROWS)
    return slo


def longest(slo: TpotSlo, view: StepView, rows: IntArray, no_draft_seconds: float) -> float:
    return max_seconds(slo.slack(view, rows), no_draft_seconds)


def test_the_request_with_the_least_slack_limits_the_step() -> None:
    view = make_view(2, now=0.035, emitted_tokens=np.array([4, 5]))
    assert longest(a_slo(), view, ROWS, 0.004) == pytest.approx(0.005)


def test_a_request_that_misses_the_target_anyway_does_not_limit_the_others() -> None:
    view = make_view(2, now=0.035, emitted_tokens=np.array([2, 5]))
    assert longest(a_slo(), view, ROWS, 0.004) == pytest.approx(0.015)


def test_without_a_request_that_can_meet_the_target_there_is_no_limit() -> None:
    assert longest(a_slo(), make_view(2, now=5.0), ROWS, 0.004) == math.inf


def test_requests_in_prefill_have_no_target_yet() -> None:
    slo = TpotSlo(0.010, capacity=2)
    view = make_view(2, phase=np.full(2, Phase.PREFILL, np.int64), emitted_tokens=np.zeros(2, np.int64))
    slo.record_first_tokens(view, ROWS)
    assert longest(slo, view, ROWS, 0.004) == math.inf


def test_a_reassigned_row_starts_anew() -> None:
    slo = a_slo()
    slo.reset(np.array([0]), capacity=4)
    slo.record_first_tokens(make_view(2, now=1.0, emitted_tokens=np.ones(2, np.int64)), ROWS)
    view = make_view(1, now=1.0, emitted_tokens=np.ones(1, np.int64))
    assert longest(slo, view, np.array([0]), 0.004) == pytest.approx(0.010)


def test_without_a_target_there_is_no_limit() -> None:
    assert max_seconds(np.zeros(0), 0.004) == math.inf


def test_more_requests_than_before_keep_what_is_known() -> None:
    slo = a_slo()
    slo.reset(np.arange(2, 5), capacity=5)
    view = make_view(5, now=0.035, emitted_tokens=np.array([4, 5, 1, 1, 1]))
    slo.record_first_tokens(view, np.arange(5))
    assert slo.slack(view, np.arange(5)) == pytest.approx([0.005, 0.015, 0.010, 0.010, 0.010])


def test_a_request_seen_late_is_taken_to_have_met_the_target_until_then() -> None:
    slo = TpotSlo(0.010, capacity=1)
    view = make_view(1, now=5.0, emitted_tokens=np.array([50]))
    slo.record_first_tokens(view, np.array([0]))
    assert slo.slack(view, np.array([0])) == pytest.approx(0.010)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(1, 60)), min_size=1, max_size=6), st.floats(0.001, 0.02))
def test_a_step_of_the_limit_keeps_all_within_the_target_whom_a_step_without_drafts_keeps(
    requests: list[tuple[float, int]], no_draft_seconds: float
) -> None:
    slo, rows, now = TpotSlo(0.010, capacity=8), np.arange(len(requests)), 0.5
    first_tokens = np.array([at for at, _ in requests])
    for row in np.argsort(first_tokens):
        phase = np.where(first_tokens <= first_tokens[row], Phase.DECODE, Phase.PREFILL).astype(np.int64)
        emitted_once = np.ones(len(requests), np.int64)
        view = make_view(len(requests), now=float(first_tokens[row]), phase=phase, emitted_tokens=emitted_once)
        slo.record_first_tokens(view, rows)
    emitted = np.array([count for _, count in requests])
    slack = 0.010 * emitted - (now - first_tokens)
    assume((np.abs(slack - no_draft_seconds) > 1e-9).all())  # rounding decides there
    limit = longest(slo, make_view(len(requests), now=now, emitted_tokens=emitted), rows, no_draft_seconds)

    def met(seconds: float) -> np.ndarray:
        """Which requests meet the target after a step in which each emits one token."""
        return (now + seconds - first_tokens) / emitted <= 0.010 + 1e-12

    kept = met(no_draft_seconds)
    if math.isinf(limit):
        assert not (kept & met(no_draft_seconds + 1e-9)).any()
    else:
        assert limit >= no_draft_seconds
        assert (met(limit) >= kept).all()
        assert not (met(limit + 1e-6) >= kept).all()
