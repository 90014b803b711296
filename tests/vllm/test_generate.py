"""A real vLLM with the repository's pair: the same output whatever is drafted, and the loop at work.

`TURBOSPEC_LOSSLESS_PROMPTS` sets how many prompts are compared; 200 are the claim in docs/benchmarks.md.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("vllm")

from tests.vllm.script import REPOSITORY, generate_in_script

MODELS = REPOSITORY / "models"
PROMPTS = int(os.environ.get("TURBOSPEC_LOSSLESS_PROMPTS", "24"))
PROMPT_TOKENS, NEW_TOKENS, MAX_DRAFT = 96, 48, 6
DRAFT_MODEL = {"method": "draft_model", "model": str(MODELS / "drafter"), "num_speculative_tokens": MAX_DRAFT}
NGRAM = {"method": "ngram", "num_speculative_tokens": MAX_DRAFT, "prompt_lookup_max": 4}
EAGLE3 = {"method": "eagle3", "model": str(MODELS / "eagle3"), "num_speculative_tokens": MAX_DRAFT}
PEAGLE = EAGLE3 | {"model": str(MODELS / "peagle"), "parallel_drafting": True}
DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    texts = [
        json.loads(line)["text"]
        for kind in ("code", "prose")
        for line in (REPOSITORY / "workloads" / f"{kind}.jsonl").read_text().splitlines()[: -(-PROMPTS // 2)]
    ]
    return [ids[:PROMPT_TOKENS] for ids in tokenizer(texts)["input_ids"]][:PROMPTS]


class Generated(NamedTuple):
    tokens: list[list[int]]
    """For each prompt."""
    metrics: dict[str, float]
    """vLLM's."""
    log: str
    steps: list[list[int]]
    """Of each step of a worker: as in `tests.vllm.passes`."""


def generate(
    prompts: list[list[int]],
    speculative_config: dict[str, Any] | None,
    *,
    variables: dict[str, str] | None = None,
    **job: Any,
) -> Generated:
    """Generate with a vLLM of its own; `variables` are of its environment."""
    variables = variables or {}
    ours = {name: value for name, value in variables.items() if name.startswith("TURBOSPEC_")}
    fields = {
        "speculative_config": speculative_config,
        "additional_config": {},
        "scheduler_cls": None,
        "async": False,
        "prompts": prompts,
        "max_tokens": NEW_TOKENS,
        "extra_args": None,
        "engine": {},
        "variables": ours,
    }
    others = {name: value for name, value in variables.items() if name not in ours}
    result, log = generate_in_script(fields | job, others)
    assert all(steps == result["steps"][0] for steps in result["steps"])  # workers act alike
    return Generated(result["tokens"], result["metrics"], log, result["steps"][0])


@pytest.fixture(scope="module")
def reference(prompts: list[list[int]]) -> list[list[int]]:
    """Without speculation, and without TurboSpec; once for all modules."""
    return _undrafted(tuple(map(tuple, prompts)))


@functools.cache
def _undrafted(prompts: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    return generate([list(ids) for ids in prompts], None).tokens


@pytest.mark.parametrize(
    ("speculative_config", "scheduler", "asynchronous"),
    [
        pytest.param(DRAFT_MODEL, "RandomScheduler", False, id="draft model, sync"),
        pytest.param(DRAFT_MODEL, "RandomAsyncScheduler", True, id="draft model, async"),
        pytest.param(EAGLE3, "RandomAsyncScheduler", True, id="EAGLE-3, async"),
        pytest.param(PEAGLE, "RandomAsyncScheduler", True, id="P-EAGLE, async"),
        pytest.param(NGRAM, "RandomScheduler", False, id="n-gram, sync"),
    ],
)
def test_random_lengths_leave_the_output_as_it_is(
    speculative_config: dict[str, Any],
    scheduler: str,
    asynchronous: bool,
    prompts: list[list[int]],
    reference: list[list[int]],
) -> None:
    # The plugin leaves a --scheduler-cls alone; the schedule that it would set is then for the user to set.
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]]}
    tokens, metrics, log, _ = generate(
        prompts,
        speculative_config | schedule,
        scheduler_cls=f"tests.vllm.random_lengths.{scheduler}",
        additional_config={"turbospec": "static-1"},
        **{"async": asynchronous},
    )
    assert "TurboSpec failed" not in log
    assert metrics[ACCEPTED] > len(prompts)
    assert metrics[DRAFTED] < PROMPTS * NEW_TOKENS * MAX_DRAFT / 2
    assert tokens == reference


@pytest.mark.parametrize(
    ("asynchronous", "scheduler"), [(False, "TurboSpecScheduler"), (True, "TurboSpecAsyncScheduler")]
)
def test_one_variable_makes_a_server_adaptive(
    asynchronous: bool, scheduler: str, prompts: list[list[int]], reference: list[list[int]], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    variables = {"TURBOSPEC_POLICY": "adaptive", "TURBOSPEC_TRACE": str(trace)}
    # Of three requests one wants no drafts, and one a draft token at most.
    wishes = [{"turbospec_max_draft": i % 3} if i % 3 < 2 else None for i in range(PROMPTS)]
    tokens, metrics, log, _ = generate(
        prompts, DRAFT_MODEL, variables=variables, extra_args=wishes, **{"async": asynchronous}
    )
    assert "TurboSpec chooses draft lengths by policy adaptive" in log
    assert f"hosts.vllm.scheduler.schedulers.{scheduler}" in log
    assert tokens == reference
    steps = [json.loads(line) for line in trace.read_text().splitlines()]
    # The loop sees what vLLM counts, but for first drafts on a plan made ahead, and what is past a request's end.
    drafted = sum(sum(step["drafted"]) for step in steps)
    assert drafted == metrics[DRAFTED] if asynchronous else 0.9 * metrics[DRAFTED] < drafted <= metrics[DRAFTED]
    assert 0.9 * metrics[ACCEPTED] < sum(sum(step["accepted"]) for step in steps) <= metrics[ACCEPTED]
    # How long drafts become within these few steps, without a profile, depends on the machine's step times.
    assert len({max(step["planned"]) for step in steps}) > 1
    longest = dict.fromkeys(range(PROMPTS), 0)  # some may have run on plans of no drafts alone, and are in no step
    for step in steps:
        for number, length in zip(step["request_ids"], step["drafted"], strict=True):
            longest[number] = max(longest[number], length)
    assert not any(longest[number] for number in range(0, PROMPTS, 3))
    assert max(longest[number] for number in range(1, PROMPTS, 3)) <= 1
    assert max(longest.values()) > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_cache_changes_nothing(asynchronous: bool, prompts: list[list[int]], reference: list[list[int]]) -> None:
    """Room for three of the eight requests: the others wait, and are preempted."""
    tokens, metrics, log, _ = generate(
        prompts,
        DRAFT_MODEL,
        additional_config={"turbospec": "adaptive"},
        engine={"num_gpu_blocks_override": 5},
        **{"async": asynchronous},
    )
    assert "TurboSpec failed" not in log
    assert metrics["vllm:num_preemptions"] > 0
    assert tokens == reference


def test_nothing_changes_where_nobody_asks(prompts: list[list[int]], reference: list[list[int]]) -> None:
    tokens, metrics, log, _ = generate(prompts[:8], DRAFT_MODEL)
    assert "TurboSpec" not in log
    assert tokens == reference[:8]
    assert metrics[DRAFTED] > 0
