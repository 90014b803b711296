"""A drafter that is left out and caught up drafts what one in every step drafts, on a real vLLM."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.vllm.test_generate import ACCEPTED, DRAFT_MODEL, DRAFTED, EAGLE3, MAX_DRAFT, generate, prompts

__all__ = ["prompts"]  # the fixture

ON_DEMAND = "TurboSpec runs the drafter only in steps that draft"


@pytest.mark.parametrize(
    ("speculative_config", "chunk_tokens"),
    [(DRAFT_MODEL, 0), (EAGLE3, 0), (EAGLE3, 16)],
    ids=["draft model", "EAGLE-3", "EAGLE-3, prompts in chunks"],
)
def test_a_drafter_on_demand_loses_no_acceptance(
    speculative_config: dict[str, Any], chunk_tokens: int, prompts: list[list[int]]
) -> None:
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]]}
    seen: list[tuple[list[list[int]], float, float]] = []
    for scheduler in ("RandomScheduler", "RandomSmallScheduler", "RandomConstantScheduler"):
        tokens, metrics, log, _ = generate(
            # Several prompts in chunks are not scheduled the same twice.
            prompts[: 1 if chunk_tokens else 8],
            speculative_config | schedule,
            scheduler_cls=f"tests.vllm.random_lengths.{scheduler}",
            additional_config={"turbospec": "static-1"},
            # Several at once come to the engine when they come, and its steps are then not the same twice.
            engine={"max_num_seqs": 1, "long_prefill_token_threshold": chunk_tokens},
        )
        assert ON_DEMAND in log
        seen.append((tokens, metrics[DRAFTED], metrics[ACCEPTED]))
    assert seen[0] == seen[1] == seen[2]
