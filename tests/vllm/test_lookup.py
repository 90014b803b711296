"""A look-up beside the drafter in a real vLLM: the same output for any mixture of sources, and its tokens accepted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.vllm.script import REPOSITORY, V2
from tests.vllm.test_generate import (
    ACCEPTED,
    DRAFT_MODEL,
    EAGLE3,
    MAX_DRAFT,
    MODELS,
    PEAGLE,
    PROMPTS,
    Generated,
    generate,
)

NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS = -(-PROMPTS // 2), 140, 64
DFLASH = EAGLE3 | {"method": "dflash", "model": str(MODELS / "dflash")}
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]]}
ENGINES = [
    pytest.param({}, False, id="V1, sync"),
    pytest.param({}, True, id="V1, async"),
    pytest.param(V2, False, id="V2, sync"),
    pytest.param(V2, True, id="V2, async"),
]
ASYNC = [engine for engine in ENGINES if engine.values[1]]
"""vLLM's default."""
RANDOM_SOURCES = [
    *(pytest.param(DRAFT_MODEL, *engine.values, id=f"draft model, {engine.id}") for engine in ENGINES),
    *(pytest.param(EAGLE3, *engine.values, id=f"EAGLE-3, {engine.id}") for engine in ASYNC),
    pytest.param(PEAGLE, {}, True, id="P-EAGLE, V1, async"),
    pytest.param(DFLASH, {}, False, id="DFlash, V1, sync"),
    pytest.param(DFLASH, V2, True, id="DFlash, V2, async"),
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Texts that repeat themselves, and a few that do not."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    texts = [
        json.loads(line)["text"]
        for kind in ("records", "edit", "code")
        for line in (REPOSITORY / "workloads" / f"{kind}.jsonl").read_text().splitlines()[: -(-NUM_PROMPTS // 3)]
    ]
    return [ids[:PROMPT_TOKENS] for ids in tokenizer(texts)["input_ids"]][:NUM_PROMPTS]


@pytest.fixture(scope="module")
def reference(prompts: list[list[int]]) -> list[list[int]]:
    """Without speculation, and without TurboSpec."""
    return generate(prompts, None, max_tokens=NEW_TOKENS).tokens


def offered(prompts: list[list[int]], drafter: dict[str, Any], policy: str, **job: Any) -> Generated:
    """Generate with a look-up beside the drafter."""
    done = generate(
        prompts, drafter, additional_config={"turbospec": {"policy": policy, "lookup": "ngram"} | job.pop("also", {})},
        max_tokens=NEW_TOKENS, **job,
    )  # fmt: skip
    assert "TurboSpec failed" not in done.log
    return done


@pytest.mark.parametrize(("drafter", "variables", "asynchronous"), RANDOM_SOURCES)
def test_random_sources_leave_the_output_as_it_is(
    drafter: dict[str, Any],
    variables: dict[str, str],
    asynchronous: bool,
    prompts: list[list[int]],
    reference: list[list[int]],
) -> None:
    done = offered(
        prompts,
        drafter | SCHEDULE,
        "static-1",
        variables=variables,
        scheduler_cls=f"tests.vllm.random_sources.RandomSources{'Async' if asynchronous else ''}Scheduler",
        **{"async": asynchronous},
    )
    assert done.metrics[ACCEPTED] > len(prompts)
    assert done.tokens == reference


@pytest.mark.parametrize(("variables", "asynchronous"), ENGINES)
def test_tokens_of_both_sources_are_accepted(
    variables: dict[str, str],
    asynchronous: bool,
    prompts: list[list[int]],
    reference: list[list[int]],
    tmp_path: Path,
) -> None:
    """`lookup-first` drafts from the look-up where four tokens match, and else three tokens of the drafter."""
    trace = tmp_path / "trace.jsonl"
    done = offered(
        prompts, DRAFT_MODEL, "lookup-first", also={"trace": str(trace)}, variables=variables,
        **{"async": asynchronous},
    )  # fmt: skip
    assert done.tokens == reference
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for line in trace.read_text().splitlines():
        step = json.loads(line)
        sources = step["sources"] or [0] * len(step["drafted"])
        for source, proposed, kept in zip(sources, step["drafted"], step["accepted"], strict=True):
            drafted[source] += proposed
            accepted[source] += kept
    print("drafted", drafted, "accepted", accepted)
    assert accepted[0] > len(prompts)
    assert accepted[1] > len(prompts)
    assert accepted[1] > 0.4 * drafted[1]


@pytest.mark.parametrize(("variables", "asynchronous"), ASYNC)
def test_a_full_cache_and_the_longest_texts_change_nothing(
    variables: dict[str, str], asynchronous: bool, prompts: list[list[int]], tmp_path: Path
) -> None:
    """`adaptive`, with room for three of eight requests, each up to the model's length, by the environment alone."""
    trace = tmp_path / "trace.jsonl"
    # A prompt of one block of 128 tokens: with the second the cache is full.
    prompts = [ids[:120] for ids in prompts[:8]]
    longest = 256 - 120
    settings = {"TURBOSPEC_POLICY": "adaptive", "TURBOSPEC_LOOKUP": "ngram", "TURBOSPEC_TRACE": str(trace)}
    done = generate(
        prompts,
        DRAFT_MODEL,
        variables=variables | settings,
        max_tokens=longest,
        engine={"num_gpu_blocks_override": 5},
        **{"async": asynchronous},
    )
    assert "TurboSpec failed" not in done.log
    assert done.metrics["vllm:num_preemptions"] > 0
    assert any(1 in (json.loads(line)["sources"] or ()) for line in trace.read_text().splitlines())
    assert done.tokens == generate(prompts, None, max_tokens=longest).tokens
