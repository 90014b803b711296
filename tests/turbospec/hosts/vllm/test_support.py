from __future__ import annotations

import pytest

from turbospec.hosts.vllm.support import unsupported


@pytest.mark.parametrize("version", [(0, 29, 0), (0, 32, 0), (0, 30, "1rc0")])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram"])
def test_what_was_tested_is_supported(version: tuple[int | str, ...], method: str) -> None:
    assert unsupported(version, method, 1) is None


@pytest.mark.parametrize(
    ("version", "method", "data_parallel_size", "says"),
    [
        ((0, 32, 0), None, 1, "--speculative-config"),
        ((0, 28, 1), "ngram", 1, "vLLM 0.28"),
        ((1, 0, 0), "ngram", 1, "vLLM 1.0"),
        ((0, 32, 0), "suffix", 1, "'suffix'"),
        ((0, 32, 0), "eagle3", 2, "data parallelism"),
    ],
)
def test_what_cannot_be_told_a_length_is_said_why(
    version: tuple[int | str, ...], method: str | None, data_parallel_size: int, says: str
) -> None:
    reason = unsupported(version, method, data_parallel_size)
    assert reason is not None
    assert says in reason
