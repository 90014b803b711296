import numpy as np
import pytest

from tests.turbospec.factories import make_view
from turbospec.policy.batch_table import BatchTableConfig
from turbospec.policy.static import OffConfig, StaticConfig

TABLE = [
    {"first": 1, "last": 4, "draft_length": 5},
    {"first": 8, "last": 16, "draft_length": 2},
    {"first": 17, "last": 32, "draft_length": 0},
]


def test_off_drafts_nothing():
    plan = OffConfig(version=1, policy="off").build(None, 0).plan(make_view(3))
    assert plan.draft_lengths.tolist() == [0, 0, 0]
    assert plan.valid_steps > 1


def test_static_plans_every_step_in_which_it_drafts():
    assert StaticConfig(version=1, policy="static", draft_length=3).build(None, 0).plan(make_view(3)).valid_steps == 1


def test_static_drafts_its_length_within_each_requests_limit():
    policy = StaticConfig(version=1, policy="static", draft_length=3).build(None, 0)
    plan = policy.plan(make_view(3, draft_limits=np.array([0, 2, 9])))
    assert plan.draft_lengths.tolist() == [0, 2, 3]


def test_a_length_above_the_engines_maximum_is_padded_as_the_maximum_is():
    view = make_view(2, max_draft=4, draft_limits=np.array([4, 1]), graph_lengths=(0, 4))
    plan = StaticConfig(version=1, policy="static", draft_length=15).build(None, 0).plan(view)
    assert plan.draft_lengths.tolist() == [4, 1]
    assert plan.padded_length == 4


@pytest.mark.parametrize(
    ("batch_size", "draft_length"),
    [(1, 5), (4, 5), (5, 5), (7, 5), (8, 2), (16, 2), (17, 0), (32, 0), (33, 0), (500, 0)],
)
def test_batch_table_covers_its_entries_both_ends_and_gaps_keep_the_entry_before(batch_size, draft_length):
    policy = BatchTableConfig(version=1, policy="batch_table", table=TABLE).build(None, 0)
    assert set(policy.plan(make_view(batch_size)).draft_lengths.tolist()) == {draft_length}


def test_batch_table_is_clamped_to_the_engines_maximum():
    policy = BatchTableConfig(version=1, policy="batch_table", table=TABLE).build(None, 0)
    assert policy.plan(make_view(2, max_draft=4)).draft_lengths.tolist() == [4, 4]


def test_batch_table_of_an_empty_step():
    policy = BatchTableConfig(version=1, policy="batch_table", table=TABLE).build(None, 0)
    assert policy.plan(make_view(0)).draft_lengths.tolist() == []


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(2, 4, 1)], "the first entry must start at batch size 1, not 2"),
        ([(1, 4, 1), (9, 6, 1)], "an entry goes from 9 down to 6; swap them"),
        ([(1, 4, 1), (4, 6, 1)], "batch size 4 is in two entries"),
    ],
)
def test_batch_table_refuses_what_has_no_one_meaning(entries, message):
    table = [{"first": first, "last": last, "draft_length": length} for first, last, length in entries]
    with pytest.raises(ValueError, match=message):
        BatchTableConfig(version=1, policy="batch_table", table=table)
