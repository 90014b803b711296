"""The longest step under targets for time per output token and time to first token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.factories import make_outcome, make_view
from turbospec.interface import FloatArray, IntArray, Phase, StepView
from turbospec.planning.slo import TpotSlo, TtftSlo, longest_step

ROWS = np.arange(2)


def a_slo(first_token_at: float = 0.0) -> TpotSlo:
    """A target of 10 ms per token; the first tokens of both requests have been emitted."""
    slo = TpotSlo(0.010, capacity=2)
    slo.record_first_tokens(make_view(2, now=first_token_at, emitted_tokens=np.ones(2, np.int64)), ROWS)
    return slo


def longest(
    slo: TpotSlo,
    view: StepView,
    rows: IntArray,
    no_draft_seconds: float,
    accepted: tuple[float, ...] = (0.0, 0.0),
    reserve: float = 0.0,
) -> float:
    slack, expected = slo.slack(view, rows), np.array(accepted)
    return longest_step(slack, view.tokens_left, expected, no_draft_seconds, slo.seconds, reserve)


def test_the_request_with_the_least_slack_limits_the_step() -> None:
    view = make_view(2, now=0.035, emitted_tokens=np.array([4, 5]))
    assert longest(a_slo(), view, ROWS, 0.004) == pytest.approx(0.005)


def test_each_expected_token_gains_a_request_the_seconds_of_the_target() -> None:
    view = make_view(2, now=0.035, emitted_tokens=np.array([4, 5]))
    assert longest(a_slo(), view, ROWS, 0.004, accepted=(0.5, 0.0)) == pytest.approx(0.010)
    assert longest(a_slo(), view, ROWS, 0.004, accepted=(2.0, 0.0)) == pytest.approx(0.015)


def test_the_reserve_is_not_spent() -> None:
    view = make_view(2, now=0.0, emitted_tokens=np.array([4, 5]))
    assert longest(a_slo(), view, ROWS, 0.004, reserve=0.030) == pytest.approx(0.010)
    assert longest(a_slo(), view, ROWS, 0.004, reserve=0.050) == pytest.approx(0.004)


def test_a_request_that_is_behind_allows_what_its_own_tokens_make_up_for() -> None:
    view = make_view(2, now=0.035, emitted_tokens=np.array([2, 5]))
    assert longest(a_slo(), view, ROWS, 0.004) == pytest.approx(0.004)
    assert longest(a_slo(), view, ROWS, 0.004, accepted=(0.3, 0.0)) == pytest.approx(0.007)


def test_a_request_that_misses_the_target_anyway_does_not_limit_the_others() -> None:
    left = np.array([2, 20])
    view = make_view(2, now=0.035, emitted_tokens=np.array([2, 5]), tokens_left=left)
    assert longest(a_slo(), view, ROWS, 0.004) == pytest.approx(0.015)


def test_without_a_request_that_can_meet_the_target_there_is_no_limit() -> None:
    assert longest(a_slo(), make_view(2, now=5.0), ROWS, 0.004) == math.inf
    assert longest(a_slo(), make_view(2, now=0.0), ROWS, 0.011, accepted=(0.5, 0.5)) == math.inf


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
@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(1, 60)), min_size=1, max_size=6),
    st.lists(st.floats(0.0, 3.0), min_size=6, max_size=6),
    st.floats(0.001, 0.0099),
)
def test_after_a_step_of_the_limit_no_request_is_late_that_would_not_be_without_drafts(
    requests: list[tuple[float, int]], tokens: list[float], no_draft_seconds: float
) -> None:
    slo, rows, now = TpotSlo(0.010, capacity=8), np.arange(len(requests)), 0.5
    first_tokens, accepted = np.array([at for at, _ in requests]), np.array(tokens[: len(requests)])
    for row in np.argsort(first_tokens):
        phase = np.where(first_tokens <= first_tokens[row], Phase.DECODE, Phase.PREFILL).astype(np.int64)
        emitted_once = np.ones(len(requests), np.int64)
        view = make_view(len(requests), now=float(first_tokens[row]), phase=phase, emitted_tokens=emitted_once)
        slo.record_first_tokens(view, rows)
    emitted = np.array([count for _, count in requests])
    left = np.full(len(requests), 10**6)
    view = make_view(len(requests), now=now, emitted_tokens=emitted, tokens_left=left)
    limit = longest(slo, view, rows, no_draft_seconds, tuple(accepted))

    def late(seconds: float, accepted: FloatArray) -> FloatArray:
        """Seconds by which each request is late after a step in which it emits one token and those accepted."""
        return (now + seconds - first_tokens) - 0.010 * (emitted + accepted)

    without = late(no_draft_seconds, np.zeros(len(requests)))
    assert (late(limit, accepted) <= np.maximum(without, 0.0) + 1e-9).all()
    assert (late(limit + 1e-6, accepted) > np.maximum(without, 0.0)).any()


PREFILL, FIRST_DECODE = np.array([Phase.PREFILL]), np.array([Phase.FIRST_DECODE])
ROW, NO_ROWS = np.array([0]), np.zeros(0, np.int64)


def first_token(slo: TtftSlo, view: StepView, seconds: float, **outcome: float) -> bool:
    """Whether the first token of the view's request, new in it, is in time if the step takes so many seconds."""
    slo.added_seconds = before = min(slo.added_seconds, 0.9 * slo.seconds)
    slo.record_arrivals(view, ROW, ROW)
    slo.learn(view, ROW, make_outcome(view, 0, 0, step_seconds=seconds, **outcome))
    return slo.added_seconds > before


def a_ttft_slo(waiting_seconds: float = 0.0, step_seconds: float = 0.040, **view: bool) -> TtftSlo:
    """A target of 100 ms, after one step that began at 0; a request waited for so long then."""
    slo, before = TtftSlo(0.100, capacity=2), make_view(1, waiting_seconds=waiting_seconds, **view)
    slo.record_arrivals(before, np.array([1]), NO_ROWS)
    slo.learn(before, np.array([1]), make_outcome(before, 0, 0, step_seconds=step_seconds, draft_seconds=0.010))
    return slo


def test_a_request_waits_from_its_arrival_in_the_queue() -> None:
    view = make_view(1, now=0.040, phase=PREFILL)
    assert first_token(a_ttft_slo(0.030), view, 0.029)
    assert not first_token(a_ttft_slo(0.030), view, 0.031)


def test_a_request_that_was_not_queued_arrived_during_the_step_before() -> None:
    view = make_view(2, now=0.040, phase=np.array([Phase.PREFILL, Phase.DECODE]))
    slo = a_ttft_slo()
    waited = []
    for _ in range(1000):
        slo.record_arrivals(view, ROWS, ROW)
        waited.append(view.now - slo.moments[0])
        slo.record_arrivals(make_view(1, now=0.0), np.array([1]), NO_ROWS)
    assert np.sort(waited) == pytest.approx(np.linspace(0.0, 0.040, 1000), abs=0.004)


def test_a_request_that_found_nothing_running_did_not_wait() -> None:
    view = make_view(1, now=5.0, phase=PREFILL)
    assert first_token(a_ttft_slo(), view, 0.099)
    assert not first_token(a_ttft_slo(), view, 0.101)


def test_where_drafts_precede_emission_they_delay_the_first_token() -> None:
    view = make_view(1, now=0.045, phase=FIRST_DECODE, draft_before_emit=True)
    for drafting, in_time in ((0.019, True), (0.021, False)):
        slo = a_ttft_slo(0.036, draft_before_emit=True)
        assert first_token(slo, view, 0.5, draft_seconds=drafting) == in_time


def test_a_request_that_queued_for_longer_than_a_step_waited_for_throughput() -> None:
    view = make_view(1, now=0.040, phase=PREFILL)
    assert first_token(a_ttft_slo(0.050), view, 0.5)


def test_each_first_token_is_judged_once() -> None:
    slo, view = a_ttft_slo(), make_view(1, now=5.0, phase=PREFILL)
    assert not first_token(slo, view, 0.2)
    added = slo.added_seconds
    slo.learn(view, ROW, make_outcome(view, 0, 0, emitted=np.ones(1, np.int64), step_seconds=0.2))
    slo.learn(view, ROW, make_outcome(view, 0, 0, emitted=np.ones(1, np.int64), step_seconds=0.01))
    assert slo.added_seconds == added


def test_a_chunk_of_a_prompt_emits_nothing() -> None:
    slo, view = a_ttft_slo(), make_view(1, now=5.0, phase=PREFILL)
    slo.record_arrivals(view, ROW, ROW)
    added = slo.added_seconds
    slo.learn(view, ROW, make_outcome(view, 0, 0, emitted=np.zeros(1, np.int64), step_seconds=0.2))
    assert slo.added_seconds == added


def test_the_seconds_that_drafts_may_add_have_bounds() -> None:
    slo, view = TtftSlo(0.100, capacity=1), make_view(1, now=5.0, phase=PREFILL)
    for _ in range(20):
        first_token(slo, view, 0.2)
    assert slo.added_seconds == pytest.approx(0.001)
    for _ in range(1000):
        slo.record_arrivals(view, ROW, ROW)
        slo.learn(view, ROW, make_outcome(view, 0, 0, step_seconds=0.01))
    assert slo.added_seconds == 0.100


def test_each_late_first_token_of_a_step_halves_them() -> None:
    slo, view = TtftSlo(0.100, capacity=2), make_view(2, now=5.0, phase=np.zeros(2, np.int64))
    slo.record_arrivals(view, ROWS, ROWS)
    slo.learn(view, ROWS, make_outcome(view, 0, 0, step_seconds=0.2))
    assert slo.added_seconds == 0.025


def test_one_first_token_in_a_hundred_is_late() -> None:
    """Requests arrive during steps of 20 ms and what drafts add; the next step computes their prompts, and drafts."""
    slo, rng, late, number, now = TtftSlo(0.060, capacity=1), np.random.default_rng(1), [], 20_000, 0.0
    phase, before = np.array([Phase.PREFILL, Phase.DECODE]), np.array([1])
    for _ in range(number):
        seconds = 0.020 + slo.added_seconds
        view = make_view(1, now=now)
        slo.record_arrivals(view, before, NO_ROWS)
        slo.learn(view, before, make_outcome(view, 0, 0, step_seconds=seconds))
        waited = rng.random() * seconds
        view = make_view(2, now=now + seconds, phase=phase)
        slo.reset(ROW, 2)
        slo.record_arrivals(view, ROWS, ROW)
        late.append(waited + seconds > 0.060)
        slo.learn(view, ROWS, make_outcome(view, 0, 0, step_seconds=seconds))
        now += 2.0 * seconds
    assert np.mean(late[number // 10 :]) == pytest.approx(0.01, abs=0.003)
