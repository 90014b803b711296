from __future__ import annotations

from turbospec_bench.vllm.tuning import tune


def test_every_concurrency_has_the_best_length_of_its_runs() -> None:
    measured = {
        32: {0: [100, 110], 1: [90, 80], 15: [20, 10]},
        1: {0: [10, 10], 1: [12, 13], 15: [14, 15]},
        8: {0: [50, 50], 1: [100, 26], 15: [40, 40]},
    }

    # Batch sizes between two concurrencies belong to the one that is nearer by ratio.
    assert tune(measured) == [(1, 2, 15), (3, 16, 1), (17, 32, 0)]


def test_neighbouring_concurrencies_leave_no_range_empty() -> None:
    speeds = {0: [1.0], 1: [2.0]}

    assert tune({1: speeds, 2: speeds}) == [(1, 1, 1), (2, 2, 1)]
    assert tune({8: speeds}) == [(1, 8, 1)]
