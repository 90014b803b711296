"""Tensor parallelism of two on a real vLLM: the same output, and the same drafter passes in both workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.vllm.script import V2
from tests.vllm.test_drafter_on_demand import ON_DEMAND
from tests.vllm.test_generate import ACCEPTED, DRAFT_MODEL, EAGLE3, MAX_DRAFT, generate, prompts, reference
from tests.vllm.tiny_models import drafter_that_splits

__all__ = ["prompts", "reference"]  # fixtures

SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]]}
ONE_CORE_EACH = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def eagle3(_: Path) -> dict[str, Any]:
    return EAGLE3


def draft_model(folder: Path) -> dict[str, Any]:
    return DRAFT_MODEL | {"model": str(drafter_that_splits(folder / "drafter"))}


@pytest.mark.parametrize(
    ("drafter", "variables", "scheduler"),
    [
        pytest.param(eagle3, {}, "RandomScheduler", id="EAGLE-3, V1, sync"),
        pytest.param(draft_model, {}, "RandomAsyncScheduler", id="draft model, V1, async"),
        pytest.param(eagle3, V2, "RandomAsyncScheduler", id="EAGLE-3, V2, async"),
    ],
)
def test_two_workers_give_the_text_of_one(
    drafter: Callable[[Path], dict[str, Any]],
    variables: dict[str, str],
    scheduler: str,
    prompts: list[list[int]],
    reference: list[list[int]],
    tmp_path: Path,
) -> None:
    done = generate(  # which sees to it that both workers ran the same passes
        prompts,
        drafter(tmp_path) | SCHEDULE,
        variables=ONE_CORE_EACH | variables,
        scheduler_cls=f"tests.vllm.random_lengths.{scheduler}",
        additional_config={"turbospec": "static-1"},
        engine={"tensor_parallel_size": 2},
        **{"async": "Async" in scheduler},
    )
    assert "world_size=2" in done.log
    assert ON_DEMAND in done.log
    assert "TurboSpec failed" not in done.log
    assert done.metrics[ACCEPTED] > len(prompts)
    assert done.tokens == reference
    assert [step for step in done.steps if step[0] and step[2] != step[0]] == []
    idle = [(several, passes) for longest, several, passes in done.steps if not longest]
    assert [step for step in idle if step[1] > step[0]] == []
    assert sum(not passes for _, passes in idle) > len(idle) / 4
