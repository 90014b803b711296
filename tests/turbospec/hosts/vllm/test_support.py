from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from turbospec.hosts.vllm.support import SetUp, unsupported

SUPPORTED = SetUp((0, 32, 0), "draft_model")


@pytest.mark.parametrize("version", [(0, 29, 0), (0, 32, 0), (0, 30, "1rc0")])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram"])
def test_known_versions_and_methods_are_supported(version: tuple[int | str, ...], method: str) -> None:
    assert unsupported(SetUp(version, method)) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": None}, "--speculative-config"),
        ({"version": (0, 28, 1)}, "vLLM 0.28"),
        ({"version": (1, 0, 0)}, "vLLM 1.0"),
        ({"method": "suffix"}, "'suffix'"),
        ({"parallel_drafting": True}, "parallel_drafting"),
        ({"data_parallel_size": 2}, "data parallelism"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"second_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
)
def test_what_cannot_be_told_a_length_is_said_why(change: dict[str, Any], says: str) -> None:
    reason = unsupported(replace(SUPPORTED, **change))
    assert reason is not None
    assert says in reason
