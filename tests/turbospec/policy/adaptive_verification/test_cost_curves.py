"""Worked examples of vLLM 0.32's `build_cost_tables_from_curves` and `set_initial_cost_curves`."""

import numpy as np
import pytest

from turbospec.models.profile import LatencySample
from turbospec.policy.adaptive_verification.cost_curves import CostCurves

DRAFT = np.array([[1.0, 4.0], [2.0, 5.0]])
VERIFY = np.array([[2.0, 4.0, 8.0, 16.0, 32.0], [10.0, 11.0, 13.0, 40.0, 72.0]])


def sample(tokens, verify_seconds, draft_rows=(), draft_seconds=0.0):
    return LatencySample(draft_rows, 0, 0, tokens, 0, 0, draft_seconds, verify_seconds, verify_seconds + draft_seconds)


def test_a_staircase_up_to_the_largest_graph_and_lines_beyond_it():
    costs = CostCurves(DRAFT, VERIFY, graph_limit=8)
    # Up to 8 tokens a pass costs what the next profiled size does: 1 and 2 -> 10; 3 and 4 -> 11; 5 to 8 -> 13.
    assert costs.verify_seconds(np.arange(1, 9)).tolist() == [10, 10, 11, 11, 13, 13, 13, 13]
    # From 9 tokens on, only 16 and 32 are interpolated: below 16 -> 40; 20 -> 40 + 4 * (72 - 40) / 16 = 48.
    assert costs.verify_seconds(np.array([9, 16, 20, 32])).tolist() == [40, 40, 48, 72]
    # Past 32 the last slope goes on: 72 + 8 * 2 = 88.
    assert costs.verify_seconds(np.array([40])).tolist() == [88]


def test_without_graphs_all_is_interpolated():
    costs = CostCurves(DRAFT, VERIFY)
    # 3: 10 + 1 * (11 - 10) / 2; 6: 11 + 2 * (13 - 11) / 4.
    assert costs.verify_seconds(np.array([1, 3, 6])).tolist() == [10.0, 10.5, 12.0]


def test_drafting_costs_what_the_next_profiled_number_of_requests_does():
    costs = CostCurves(DRAFT, VERIFY, graph_limit=8)
    # 2 to 4 requests -> 5; past 4 the slope (5 - 2) / 3 = 1 goes on: 6 requests -> 5 + 2 * 1.
    assert [costs.draft_seconds(requests) for requests in (1, 2, 4, 6)] == [2, 5, 5, 7]


def test_medians_by_size_that_never_fall():
    samples = [sample(2, seconds, (2, 2), 1.0) for seconds in (4.0, 5.0, 9.0)]
    samples += [sample(4, seconds, (4, 4), 1.5) for seconds in (4.0, 4.5, 3.0)]
    costs = CostCurves.fit(samples)
    assert costs is not None
    # Medians 5 and 4; a larger pass is not taken to be cheaper.
    assert costs.verify_seconds(np.array([2, 4])).tolist() == [5.0, 5.0]
    assert costs.draft_seconds(4) == 1.5


def test_only_whole_blocks_in_cuda_graphs_show_what_drafting_costs():
    samples = [
        sample(6, 1.0, (2, 2), 3.0),  # the whole block, in a graph
        sample(6, 1.0, (2,), 0.5),  # fewer passes
        sample(6, 1.0, (3, 2), 0.7),  # unequal lengths
        sample(16, 1.0, (2, 2), 9.0),  # beyond the largest graph
    ]
    costs = CostCurves.fit(samples, graph_limit=8)
    assert costs is not None
    assert costs.draft_seconds(2) == 3.0


def test_a_profile_without_drafts_has_no_curve():
    assert CostCurves.fit([sample(4, 1.0)]) is None


def test_costs_are_never_zero():
    costs = CostCurves(np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]]))
    assert costs.verify_seconds(np.array([1]))[0] == pytest.approx(1e-9)
