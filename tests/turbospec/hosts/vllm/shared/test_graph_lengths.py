"""The table that makes vLLM capture full CUDA graphs."""

from __future__ import annotations

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


@pytest.mark.parametrize(("requests", "captured"), [(1, "8"), (2, "0, 8"), (5, "0, 1, 2, 3, 8")])
def test_a_server_of_few_requests_lacks_graphs(requests: int, captured: str) -> None:
    lacking = lacking_graphs(8, requests)
    assert lacking is not None
    assert f"max_num_seqs is {requests}," in lacking
    assert f"draft lengths {captured} only; set it to 6 or more" in lacking
    assert lacking_graphs(8, 6) is None
