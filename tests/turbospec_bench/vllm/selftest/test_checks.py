from __future__ import annotations

import pytest

from turbospec_bench.vllm.selftest.checks import Difference, count_passes, differences

EXPECTED = [[5, 6, 7], [5, 6, 7]]
LOGPROBS = [[{"5": -0.1, "9": -0.2, "8": -3.0}, {"6": -0.1, "9": -0.4}, {"7": -0.1}]] * 2


@pytest.mark.parametrize(
    ("got", "difference", "tie"),
    [
        ([5, 6, 7], None, False),
        ([9, 1, 1], Difference(1, 0, 5, 9, pytest.approx(0.1)), True),  # pyright: ignore[reportArgumentType]
        ([5, 9, 1], Difference(1, 1, 6, 9, pytest.approx(0.3)), False),  # pyright: ignore[reportArgumentType]
        ([8, 6, 7], Difference(1, 0, 5, 8, pytest.approx(2.9)), False),  # pyright: ignore[reportArgumentType]
        ([5, 6, 3], Difference(1, 2, 7, 3, None), False),
        ([5, 6], Difference(1, 2, 7, None, None), False),
        ([5, 6, 7, 8], Difference(1, 3, None, 8, None), False),
    ],
)
def test_the_first_difference_of_an_output_is_found(got: list[int], difference: Difference | None, tie: bool) -> None:
    found = differences(EXPECTED, [EXPECTED[0], got], LOGPROBS)
    assert found == ([] if difference is None else [difference])
    assert all(each.near_tie == tie for each in found)


def test_an_output_that_is_missing_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        differences(EXPECTED, EXPECTED[:1], LOGPROBS)


def test_k_passes_for_k_tokens_and_none_without_reason() -> None:
    counted = count_passes([[0, 0, 0], [0, 1, 1], [0, 1, 0], [3, 0, 3], [3, 1, 3]], one_pass=False)
    assert counted.wrong == 0
    assert counted.total == 5
    assert counted.by_length == {0: {0: 2, 1: 1}, 3: {3: 2}}
    for step in ([0, 0, 1], [0, 1, 2], [3, 0, 4], [3, 0, 2]):
        assert count_passes([step], one_pass=False).wrong == 1


def test_one_pass_for_a_block() -> None:
    assert count_passes([[3, 0, 1], [5, 1, 1], [0, 0, 0]], one_pass=True).wrong == 0
    assert count_passes([[3, 0, 3]], one_pass=True).wrong == 1
