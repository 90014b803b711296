"""What a step may take under a promised time per output token."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.turbospec.factories import make_view
from turbospec.interface import Phase
from turbospec.planning.slo import TpotSlo

ROWS = np.arange(2)


def a_slo(first_token_at: float = 0.0) -> TpotSlo:
    """10 ms a token; both requests' first tokens have left."""
    slo = TpotSlo(0.010, capacity=2)
    slo.record_first_tokens(make_view(2, now=first_token_at, emitted_tokens=np.ones(2, np.int64)), ROWS)
    return slo


def test_leaves_what_the_request_in_most_haste_has_left() -> None:
    view = make_view(2, now=0.035, emitted_tokens=np.array([4, 5]))
    assert a_slo().max_seconds(view, ROWS, no_draft_seconds=0.004) == pytest.approx(0.005)


def test_a_request_past_saving_does_not_hold_the_others_up() -> None:
    view = make_view(2, now=0.035, emitted_tokens=np.array([2, 5]))
    assert a_slo().max_seconds(view, ROWS, no_draft_seconds=0.004) == pytest.approx(0.015)


def test_where_nobody_can_be_kept_within_it_nothing_is_forbidden() -> None:
    assert a_slo().max_seconds(make_view(2, now=5.0), ROWS, no_draft_seconds=0.004) == math.inf


def test_requests_in_prefill_promise_nothing_yet() -> None:
    slo = TpotSlo(0.010, capacity=2)
    view = make_view(2, phase=np.full(2, Phase.PREFILL, np.int64), emitted_tokens=np.zeros(2, np.int64))
    slo.record_first_tokens(view, ROWS)
    assert slo.max_seconds(view, ROWS, no_draft_seconds=0.004) == math.inf


def test_a_row_given_to_another_request_starts_afresh() -> None:
    slo = a_slo()
    slo.reset(np.array([0]), capacity=4)
    slo.record_first_tokens(make_view(2, now=1.0, emitted_tokens=np.ones(2, np.int64)), ROWS)
    view = make_view(1, now=1.0, emitted_tokens=np.ones(1, np.int64))
    assert slo.max_seconds(view, np.array([0]), no_draft_seconds=0.004) == pytest.approx(0.010)
