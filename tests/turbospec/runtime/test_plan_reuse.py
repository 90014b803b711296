"""When a plan is reused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.turbospec.factories import make_view
from turbospec.interface import IntArray, StepPlan
from turbospec.runtime.plan_reuse import RunningPlan, plan_again

PLANNED = make_view(4, step=5)


def a_plan(lengths: IntArray | None = None, *, steps: int = 4, **fields: object) -> StepPlan:
    drafts = np.full(4, 3, np.int64) if lengths is None else lengths
    return StepPlan(drafts, predicted_tokens=9.0, valid_steps=steps, **fields)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_plan_is_reused_for_its_steps_and_no_longer(steps: int) -> None:
    plan = a_plan(steps=steps)
    again = [plan_again(plan, PLANNED, make_view(4, step=5 + later)) is not None for later in range(6)]
    assert again == [0 < later < steps for later in range(6)], "the planned step itself is planned anew"


def test_a_reused_plan_is_valid_for_the_steps_that_are_left() -> None:
    plan = a_plan(np.zeros(4, np.int64), steps=8)
    again = plan_again(plan, PLANNED, make_view(4, step=11))
    assert again is not None
    assert again.valid_steps == 2
    running = RunningPlan(again, [0, 1, 2, 3])
    running.run(())
    assert running.valid
    running.run(())
    assert not running.valid


def test_drafts_stay_within_the_limits_of_the_new_step() -> None:
    limits = np.array([0, 2, 3, 9])
    again = plan_again(a_plan(), PLANNED, make_view(4, step=6, draft_limits=limits))
    assert again is not None
    assert again.draft_lengths.tolist() == [0, 2, 3, 3]
    assert again.predicted_tokens == 9.0


@pytest.mark.parametrize(
    "other",
    [
        make_view(3, step=6),
        make_view(4, step=6, request_ids=np.array([0, 1, 2, 9])),
        make_view(4, step=6, prefill_tokens=50),
        make_view(4, step=6, admitted_requests=1),
    ],
    ids=["fewer requests", "another request", "prefill", "admitted"],
)
def test_another_batch_or_pending_prefill_ends_reuse(other: object) -> None:
    assert plan_again(a_plan(), PLANNED, make_view(4, step=6)) is not None
    assert plan_again(a_plan(), PLANNED, other) is None  # pyright: ignore[reportArgumentType]


def test_a_padded_plan_needs_its_graph() -> None:
    padded = a_plan(padded_length=3)
    planned = make_view(4, step=5, graph_lengths=(0, 3))
    again = plan_again(padded, planned, make_view(4, step=6, graph_lengths=(0, 3)))
    assert again is not None
    assert again.padded_length == 3
    assert plan_again(padded, planned, make_view(4, step=6)) is None


def test_passes_need_their_graph() -> None:
    plan, planned = a_plan(passes=3), make_view(4, step=5, drafter_graph_lengths=(0, 3))
    assert plan_again(plan, planned, make_view(4, step=6, drafter_graph_lengths=(0, 3))) is not None
    assert plan_again(plan, planned, make_view(4, step=6)) is None


def test_a_plan_with_a_trim_is_not_reused() -> None:
    assert plan_again(a_plan(trim=object()), PLANNED, make_view(4, step=6)) is None


def test_a_plan_that_selects_after_drafting_is_not_reused() -> None:
    assert plan_again(a_plan(selection=object()), PLANNED, make_view(4, step=6)) is None


def test_a_plan_with_a_gate_is_not_reused() -> None:
    assert plan_again(a_plan(gate=object()), PLANNED, make_view(4, step=6)) is None


def running(lengths: list[int], steps: int = 3) -> RunningPlan[str]:
    plan = StepPlan(np.array(lengths, np.int64), valid_steps=steps)
    return RunningPlan(plan, [*"abcdefgh"[: len(lengths)]])


def test_steps_without_drafts_run_on_a_plan_as_often_as_it_says() -> None:
    plan = running([0, 0])
    covered = 0
    while plan.covers({"a", "b"}):
        plan.run("ab")
        covered += 1
    assert covered == 3
    assert not plan.valid
    assert not plan.admits({"a", "b"})


def test_a_plan_with_drafts_runs_its_own_step_alone() -> None:
    plan = running([0, 2])
    assert plan.drafts
    assert plan.valid
    plan.run("ab")
    assert not plan.valid


def test_a_quarter_of_the_requests_may_leave_and_a_quarter_may_join() -> None:
    plan = running([0, 0, 0, 0], steps=9)
    assert plan.covers({"a", "b", "c"})
    assert not plan.covers({"a", "b"}), "half of the batch has left"
    assert not plan.covers({"a", "b", "x"})
    assert plan.admits({"a", "b", "c", "x"})
    assert not plan.admits({"a", "b", "x"}), "a third of the batch is new"
    assert not plan.admits({"a", "b"})
    plan.run("abcx")
    assert plan.rows_of_new("xyab") == [1]
    assert plan.covers({"a", "b", "x"})
    assert not plan.admits({"a", "b", "c", "x", "y"}), "those that joined before count too"


def test_requests_that_joined_before_count_one_by_one() -> None:
    plan = running([0] * 8, steps=9)
    plan.run("abcdefgx")
    assert plan.admits({*"abcdefgxy"}), "two of nine are new"
    assert plan.admits({*"abcdefxy"})
    assert not plan.admits({*"abcdefxyz"})


def test_new_requests_draft_the_median() -> None:
    assert running([1, 3, 5]).lengths("cxa") == [5, 3, 1]
    assert running([]).lengths("x") == [0]
