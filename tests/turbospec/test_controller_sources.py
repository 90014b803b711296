"""The guard on steps with two sources: what a look-up found, plans that name a source, outcomes that report it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.controller import Controller
from turbospec.interface import LookupView, Phase, Source, StepOutcome, StepPlan, StepView


@dataclass
class Scripted:
    """A policy whose plan a test chooses."""

    make_plan: Callable[[StepView], StepPlan]
    observed: int = 0

    def plan(self, view: StepView) -> StepPlan:
        return self.make_plan(view)

    def observe(self, outcome: StepOutcome) -> None:
        self.observed += 1


def lookup_of(lengths: Any, scores: Any = None) -> LookupView:
    found = np.array(lengths)
    return LookupView(found, np.full(len(found), 4.0) if scores is None else np.array(scores), appends=True)


def a_view(**change: Any) -> StepView:
    """Three requests; the drafter may draft 2, 2 and 0 tokens, the look-up found 0, 8 and 5."""
    view = make_view(3, max_draft=8, draft_limits=np.array([2, 2, 0]), lookup=lookup_of([0, 8, 5]))
    return replace(view, **change)


def mixed(lengths: Any, sources: Any) -> Callable[[StepView], StepPlan]:
    return lambda view: StepPlan(np.array(lengths), sources=np.array(sources))


def test_drafts_of_the_look_up_are_bounded_by_what_it_found() -> None:
    controller = Controller(Scripted(mixed([2, 8, 5], [Source.DRAFTER, Source.LOOKUP, Source.LOOKUP])))
    view = a_view()
    plan = controller.plan(view)
    assert controller.stats.guard_trips == 0
    assert plan.draft_lengths.tolist() == [2, 8, 5]
    assert plan.sources is not None
    assert plan.sources.tolist() == [0, 1, 1]
    assert view.draft_limits.tolist() == [2, 2, 0]


@pytest.mark.parametrize(
    ("lengths", "sources", "fault"),
    [
        ([2, 8, 6], [0, 1, 1], "look-up's lengths"),
        ([2, 3, 5], [0, 0, 1], "draft_limits"),
        ([1, 0, 0], [1, 0, 0], "look-up's lengths"),
        ([2, 8, 5], [0, 1, 2], "no Source"),
        ([2, 8, 5], [0, 1, -1], "no Source"),
        ([2, 8, 5], [0, 1], "sources has another length"),
        ([2, 8, 5], [0.0, 1.0, 1.0], "sources is float64"),
    ],
)
def test_a_plan_beyond_its_sources_is_replaced_by_the_fallback(lengths: Any, sources: Any, fault: str) -> None:
    controller = Controller(Scripted(mixed(lengths, sources)))
    plan = controller.plan(a_view())
    assert plan.draft_lengths.tolist() == [0, 0, 0]
    assert plan.sources is not None
    assert plan.sources.tolist() == [0, 0, 0]
    assert controller.stats.guard_trips == 1
    assert fault in controller.stats.last_fault


def test_a_plan_has_sources_only_where_there_is_a_look_up() -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([2, 2, 0]))))
    assert controller.plan(a_view(lookup=None)).sources is None
    sources = controller.plan(a_view(step=1)).sources
    assert sources is not None
    assert sources.tolist() == [0, 0, 0]


def test_a_plan_cannot_name_sources_where_there_is_no_look_up() -> None:
    controller = Controller(Scripted(mixed([2, 2, 0], [0, 0, 0])))
    controller.plan(a_view(lookup=None))
    assert "no lookup" in controller.stats.last_fault


@pytest.mark.parametrize(
    ("lookup", "fault"),
    [
        (lookup_of([0, 9, 5]), "lookup.lengths"),
        (lookup_of([0, -1, 5]), "lookup.lengths"),
        (lookup_of([0, 8]), "another length"),
        (lookup_of([0, 8, 5], [0.0, 1.0, np.nan]), "lookup.scores"),
        (lookup_of([0, 8, 5], [0.0, 1.0, -1.0]), "lookup.scores"),
        (LookupView([0, 8, 5], np.zeros(3)), "lookup"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_look_up_that_breaks_the_contract_is_a_fault_of_the_host(lookup: LookupView, fault: str) -> None:
    controller = Controller(Scripted(mixed([0, 0, 0], [0, 0, 0])))
    plan = controller.plan(a_view(lookup=lookup))
    assert not plan.draft_lengths.any()
    assert controller.stats.host_faults == 1
    assert controller.stats.guard_trips == 0
    assert fault in controller.stats.last_fault


def test_a_look_up_finds_nothing_in_prefill() -> None:
    controller = Controller(Scripted(mixed([0, 0, 0], [0, 0, 0])))
    phase = np.array([Phase.DECODE, Phase.PREFILL, Phase.DECODE], np.int64)
    controller.plan(a_view(phase=phase, draft_limits=np.zeros(3, np.int64)))
    assert "prefill" in controller.stats.last_fault


def test_other_number_types_of_a_look_up_are_converted() -> None:
    controller = Controller(Scripted(mixed([0, 8, 5], [0, 1, 1])))
    found = LookupView(np.array([0, 8, 5], np.int32), np.zeros(3, np.float32))  # pyright: ignore[reportArgumentType]
    assert controller.plan(a_view(lookup=found)).draft_lengths.tolist() == [0, 8, 5]
    assert controller.stats.host_faults == 0


@pytest.mark.parametrize(("sources", "taught"), [([0, 1, 1], 1), (None, 1), ([0, 1], 0), ([0, 1, 2], 0)])
def test_an_outcome_names_the_source_of_each_draft(sources: list[int] | None, taught: int) -> None:
    policy = Scripted(mixed([2, 8, 5], [0, 1, 1]))
    controller, view = Controller(policy), a_view()
    plan = controller.plan(view)
    reported = None if sources is None else np.array(sources)
    controller.observe(make_outcome(view, plan.draft_lengths, 0, sources=reported))
    assert policy.observed == taught
    assert controller.stats.host_faults == 1 - taught


def test_a_plan_is_not_reused_where_the_look_up_found_something() -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.zeros(3, np.int64), reason="planned", valid_steps=4)))
    nothing = lookup_of([0, 0, 0])
    assert controller.plan(a_view(lookup=nothing)).reason == "planned"
    assert controller.plan(a_view(step=1, lookup=nothing)).reason == "plan reused"
    assert controller.plan(a_view(step=2)).reason == "planned"


@pytest.mark.parametrize(("lengths", "reused"), [([2, 8, 0], False), ([2, 0, 0], True)])
def test_a_plan_that_drafts_from_the_look_up_is_not_reused(lengths: list[int], reused: bool) -> None:
    sources = np.array([0, 1, 1])
    controller = Controller(Scripted(lambda view: StepPlan(np.array(lengths), sources=sources, valid_steps=4)))
    controller.plan(a_view())
    controller.policy = Scripted(lambda view: StepPlan(np.zeros(3, np.int64)))
    plan = controller.plan(a_view(step=1, lookup=lookup_of([0, 0, 0])))
    assert (plan.reason == "plan reused") == reused
    assert plan.draft_lengths.tolist() == ([2, 0, 0] if reused else [0, 0, 0])
    assert controller.stats.guard_trips == 0


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ([3, 8], "append_limits has another length"),
        ([3, 8, -1], "append_limits has another length than the view, or a value"),
        ([3, 9, 0], "append_limits has another length than the view, or a value"),
        ([1.5, 0.0, 0.0], "append_limits is float64"),
    ],
)
def test_limits_of_appended_tokens_are_checked(limits: Any, fault: str) -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([2, 1, 0]), append_limits=np.array(limits))))
    assert controller.plan(a_view()).append_limits is None
    assert fault in str(controller.stats.last_fault)


def test_tokens_are_appended_by_a_look_up_alone() -> None:
    controller = Controller(Scripted(lambda view: StepPlan(view.draft_limits * 0, append_limits=np.array([1, 1, 1]))))
    given = controller.plan(a_view()).append_limits
    assert given is not None
    assert given.tolist() == [1, 1, 1]
    assert controller.plan(a_view(step=1, lookup=None)).append_limits is None
    controller = Controller(Scripted(lambda view: StepPlan(view.draft_limits * 0, append_limits=np.array([1, 1, 1]))))
    assert controller.plan(a_view(lookup=replace(lookup_of([0, 0, 0]), appends=False))).append_limits is None
    assert "appends nothing" in controller.stats.last_fault
    assert controller.stats.guard_trips == 1


def test_draft_and_appended_tokens_are_at_most_the_longest_draft() -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([2, 1, 0]), append_limits=np.array([8, 3, 8]))))
    given = controller.plan(a_view()).append_limits
    assert given is not None
    assert given.tolist() == [6, 3, 8]


@pytest.mark.parametrize(
    ("appended", "taught"),
    [([1, 0, 0], 1), ([3, 0, 0], 0), ([-1, 0, 0], 0), ([1, 0], 0), ([0, 1, 0], 0), ([2, 0, 0], 0)],
)
def test_an_outcome_says_what_was_appended(appended: list[int], taught: int) -> None:
    controller = Controller(policy := Scripted(mixed([2, 8, 5], [0, 1, 1])))
    view = a_view()
    plan = controller.plan(view)
    sources = np.array([0, 1, 1])
    controller.observe(make_outcome(view, plan.draft_lengths, 0, sources=sources, appended=np.array(appended)))
    assert policy.observed == taught
    assert controller.stats.host_faults == 1 - taught
