from typing import Any

import numpy as np
import pytest

from tests.turbospec.factories import make_view
from turbospec.controller import Controller
from turbospec.interface import LookupView, StepView
from turbospec.policy.lookup_first import LookupFirstConfig, LookupFirstPolicy


def build(**settings: Any) -> LookupFirstPolicy:
    return LookupFirstConfig(version=1, policy="lookup_first", **settings).build(None, 0)


def a_view(scores: Any, lengths: Any, **change: Any) -> StepView:
    found = LookupView(np.array(lengths), np.array(scores, np.float64))
    return make_view(len(lengths), max_draft=15, draft_limits=np.full(len(lengths), 6), lookup=found, **change)


def test_the_score_decides_on_the_source_and_the_look_up_on_the_length():
    controller = Controller(build())
    plan = controller.plan(a_view([0, 3.9, 4, 32, 32], [0, 12, 12, 15, 0]))
    assert controller.stats.guard_trips == 0
    assert plan.sources is not None
    assert plan.sources.tolist() == [0, 0, 1, 1, 0]
    assert plan.draft_lengths.tolist() == [3, 3, 12, 15, 3]
    assert plan.reason == "lookup_first: K = 3 from the drafter, 2 drafts from the look-up"


def test_no_source_is_named_where_the_drafter_makes_all_drafts():
    plan = build().plan(a_view([3, 0], [5, 0]))
    assert plan.sources is None
    assert plan.draft_lengths.tolist() == [3, 3]


def test_arctics_rule_takes_what_is_expected_to_be_accepted_as_often_as_the_drafter_drafts():
    policy = build(min_score=5, draft_length=5)
    plan = policy.plan(a_view([4.99, 5], [15, 15]))
    assert plan.draft_lengths.tolist() == [5, 15]


@pytest.mark.parametrize(("longest", "expected"), [(4, [4, 2]), (0, [3, 3])])
def test_the_look_ups_drafts_may_be_bounded(longest: int, expected: list[int]):
    assert build(lookup_length=longest).plan(a_view([9, 9], [15, 2])).draft_lengths.tolist() == expected


def test_without_a_look_up_it_is_static():
    plan = build(draft_length=5).plan(make_view(3, graph_lengths=(0, 5)))
    assert plan.draft_lengths.tolist() == [5, 5, 5]
    assert plan.padded_length == 5


def test_drafts_of_two_sources_are_not_padded_to_a_graph():
    controller = Controller(build(draft_length=5))
    plan = controller.plan(a_view([9, 0], [12, 0], graph_lengths=(0, 5)))
    assert controller.stats.guard_trips == 0
    assert plan.padded_length == 0
