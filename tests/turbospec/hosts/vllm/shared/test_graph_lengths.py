"""The table that makes vLLM capture full CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from turbospec.hosts.vllm.shared.graph_lengths import graph_lengths, graph_schedule, lacking_graphs


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [(1, {0, 1}), (3, {0, 1, 2, 3}), (8, {0, 1, 2, 3, 5, 8}), (15, {0, 1, 2, 3, 5, 8, 15})],
)
def test_every_length_has_graphs_for_nearly_all_batches(longest: int, lengths: set[int]) -> None:
    assert set(graph_lengths(longest)) == lengths
    for largest in (16, 256, 1024):
        widest = {length: batch for _, batch, length in graph_schedule(longest) if batch <= largest}
        assert widest.keys() == lengths
        assert min(widest.values()) > largest - len(lengths)


def test_the_table_is_one_that_vllm_takes() -> None:
    table = graph_schedule(8)
    assert table[0] == (1, 1, 8), "a server with one request has graphs for the longest draft"
    assert all(first == last for first, last, _ in table)
    assert [first for first, _, _ in table] == [*range(1, len(table) + 1)]


BOTH = "FULL_AND_PIECEWISE"
DEFAULT_SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""vLLM's, besides those of whole batches."""


def lacking(requests: int, mode: str = BOTH, sizes: Sequence[int] = DEFAULT_SIZES, tokens: int = 8192) -> str | None:
    """Of a server with drafts of up to 8 tokens."""
    named = {length for first, _, length in graph_schedule(8) if first <= requests}
    return lacking_graphs(mode, graph_lengths(8), named, requests, tokens, sizes)


@pytest.mark.parametrize(("requests", "captured"), [(1, "8"), (2, "0, 8"), (5, "0, 1, 2, 3, 8")])
def test_a_server_of_few_requests_lacks_graphs(requests: int, captured: str) -> None:
    line = lacking(requests)
    assert line is not None
    assert f"max_num_seqs is {requests}," in line
    assert f"draft lengths {captured} only; set it to 6 or more" in line
    assert lacking(6) is None


def test_a_server_of_many_requests_lacks_graphs_for_long_drafts() -> None:
    line = lacking(256)
    assert line is not None
    assert "is 512 tokens" in line
    assert "drafts of 2 up to 166, 3 up to 128, 5 up to 83, 8 up to 56 of 256 requests" in line
    assert "raise the size to 2304," in line
    assert lacking(256, sizes=[*DEFAULT_SIZES, *range(528, 2305, 16)]) is None
    assert lacking(56) is None


def test_no_graph_is_missed_that_no_step_has_room_for() -> None:
    line = lacking(256, tokens=1024)
    assert line is not None
    assert "raise the size to 1024," in line
    assert lacking(256, tokens=512) is None


def test_sizes_of_the_user_that_are_too_small_are_named() -> None:
    line = lacking(64, sizes=[1, 2, 4])
    assert line is not None
    assert "drafts of 0 up to 4, 1 up to 2, 2 up to 1, 3 up to 1, 5 up to 0, 8 up to 0 of 64 requests" in line


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL_DECODE_ONLY"])
def test_a_mode_without_the_graphs_is_named_with_one_that_has_them(mode: str) -> None:
    line = lacking(64, mode)
    assert line is not None
    assert line.startswith(f"cudagraph_mode is {mode}, so that ")
    assert "set it to FULL_AND_PIECEWISE" in line
    assert lacking(64, "FULL") is None
