"""vLLM's model runner V2, on a CPU under Triton's interpreter: the same output, and no drafter pass too many.

`TURBOSPEC_LOSSLESS_PROMPTS` sets how many prompts are compared, as in `test_generate`.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.vllm.random_lengths import GRAPHS
from tests.vllm.script import V2
from tests.vllm.test_drafter_on_demand import ON_DEMAND
from tests.vllm.test_generate import (
    ACCEPTED,
    DRAFT_MODEL,
    DRAFTED,
    EAGLE3,
    MAX_DRAFT,
    NEW_TOKENS,
    NGRAM,
    PROMPTS,
    generate,
    prompts,
    reference,
)

__all__ = ["prompts", "reference"]  # fixtures; the reference is of V1

SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]]}
RANDOM = "tests.vllm.random_lengths.Random"


@pytest.mark.parametrize(
    ("speculative_config", "scheduler", "asynchronous"),
    [
        pytest.param(DRAFT_MODEL, "AsyncScheduler", True, id="draft model, async"),
        pytest.param(EAGLE3, "GraphsScheduler", False, id="EAGLE-3, sync"),
        pytest.param(EAGLE3, "GraphsAsyncScheduler", True, id="EAGLE-3, async"),
        pytest.param(NGRAM, "Scheduler", False, id="n-gram, sync"),
    ],
)
def test_random_lengths_leave_the_output_as_it_is(
    speculative_config: dict[str, Any],
    scheduler: str,
    asynchronous: bool,
    prompts: list[list[int]],
    reference: list[list[int]],
) -> None:
    done = generate(
        prompts,
        speculative_config | SCHEDULE,
        variables=V2,
        scheduler_cls=RANDOM + scheduler,
        additional_config={"turbospec": "static-1"},
        **{"async": asynchronous},
    )
    assert "Using V2 Model Runner" in done.log
    assert ON_DEMAND in done.log
    assert "TurboSpec failed" not in done.log
    assert done.metrics[ACCEPTED] > len(prompts)
    assert done.metrics[DRAFTED] < PROMPTS * NEW_TOKENS * MAX_DRAFT / 2
    assert done.tokens == reference
    if speculative_config is NGRAM:
        return
    # K passes for K tokens. At K = 0 none, but for one after drafts or a prompt: the drafter computes those at once.
    assert [step for step in done.steps if step[0] and step[2] != step[0]] == []
    if "Graphs" in scheduler:
        assert {longest for longest, _, _ in done.steps} == {*GRAPHS, MAX_DRAFT - 1, MAX_DRAFT}
    idle = [(several, passes) for longest, several, passes in done.steps if not longest]
    assert [step for step in idle if step[1] > step[0]] == []
    assert sum(not passes for _, passes in idle) > len(idle) / 4


@pytest.mark.parametrize("speculative_config", [DRAFT_MODEL, EAGLE3], ids=["draft model", "EAGLE-3"])
def test_a_drafter_that_catches_up_loses_no_acceptance(
    speculative_config: dict[str, Any], prompts: list[list[int]]
) -> None:
    seen: list[tuple[list[list[int]], float, float]] = []
    for scheduler in ("Scheduler", "SmallScheduler", "ConstantScheduler"):
        done = generate(
            prompts[:8],
            speculative_config | SCHEDULE,
            variables=V2,
            scheduler_cls=RANDOM + scheduler,
            additional_config={"turbospec": "static-1"},
            # Several at once come to the engine when they come, and its steps are then not the same twice.
            engine={"max_num_seqs": 1},
        )
        seen.append((done.tokens, done.metrics[DRAFTED], done.metrics[ACCEPTED]))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_variable_makes_a_server_adaptive(
    asynchronous: bool, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    variables = V2 | {"TURBOSPEC_POLICY": "adaptive"}
    done = generate(prompts, EAGLE3, variables=variables, **{"async": asynchronous})
    assert "TurboSpec chooses draft lengths by policy adaptive" in done.log
    assert "TurboSpec failed" not in done.log
    assert done.tokens == reference
    assert done.metrics[ACCEPTED] > 0


@pytest.mark.parametrize(("number", "passes"), [(None, 8), (0, 1), (3, 3)])
def test_a_draft_model_that_runs_in_every_step_runs_as_many_passes_as_are_drafted(
    number: int | None, passes: int
) -> None:
    """Where its input cannot be kept. vLLM's draft model runs those of the longest draft whatever is asked for."""
    from types import SimpleNamespace

    from turbospec.hosts.vllm.worker.speculator_on_demand import install_passes

    ran: list[int] = []
    speculator = SimpleNamespace(num_speculative_steps=8, draft_tokens=[1, 2, 3, 4])
    speculator.propose = lambda *given, **named: ran.append(speculator.num_speculative_steps)
    install_passes(SimpleNamespace(speculator=speculator))
    drafts = speculator.propose(SimpleNamespace(num_reqs=2), None, num_speculative_tokens=number)
    assert ran == [passes]
    assert drafts == [1, 2]
    assert speculator.num_speculative_steps == 8
