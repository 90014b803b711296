"""Methods other than draft model, EAGLE-3 and n-gram, on a real vLLM: with lengths at random the output is that of no
speculation, and the drafter runs as often as its method needs, and not at all where nothing is drafted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("vllm")

from tests.vllm import tiny_models
from tests.vllm.script import REPOSITORY, V2
from tests.vllm.test_generate import (
    ACCEPTED,
    DRAFT_MODEL,
    DRAFTED,
    MAX_DRAFT,
    MODELS,
    PEAGLE,
    Generated,
    generate,
    prompts,
    reference,
)

__all__ = ["prompts", "reference"]  # fixtures

SUFFIX_TREE = {"PYTHONPATH": f"{REPOSITORY / 'tests' / 'vllm' / 'suffix_tree'}:{REPOSITORY}"}
CAPPED = {"num_speculative_tokens": MAX_DRAFT}


@dataclass(slots=True, frozen=True)
class Method:
    config: dict[str, Any]
    """The `speculative_config`."""
    passes: Literal["one a token", "one a block", "none"]
    on_demand: bool = True
    """Whether the drafter has a KV cache, and catches up."""
    asynchronous: bool = False
    accepts: bool = False
    """Whether some of its drafts are accepted."""


def methods(folder: Path) -> dict[str, Method]:
    models = tiny_models
    eagle, medusa = models.eagle(folder / "eagle"), models.medusa(folder / "medusa", MAX_DRAFT)
    pard = models.parallel_drafter(folder / "pard")
    parallel = {"parallel_drafting": True}
    return {
        "eagle": Method({"method": "eagle", "model": str(eagle)} | CAPPED, "one a token", asynchronous=True),
        "P-EAGLE": Method(PEAGLE, "one a block", asynchronous=True, accepts=True),
        "PARD": Method(DRAFT_MODEL | {"model": str(pard)} | parallel, "one a block", accepts=True),
        "dflash": Method({"method": "dflash", "model": str(MODELS / "dflash")} | CAPPED, "one a block", accepts=True),
        "medusa": Method({"method": "medusa", "model": str(medusa)} | CAPPED, "one a block", on_demand=False),
        "suffix": Method({"method": "suffix"} | CAPPED, "none", on_demand=False, accepts=True),
    }


NAMES = ("eagle", "P-EAGLE", "PARD", "dflash", "medusa", "suffix")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Method]:
    found = methods(tmp_path_factory.mktemp("models"))
    assert tuple(found) == NAMES
    return found


def drafted(method: Method, prompts: list[list[int]], **job: Any) -> Generated:
    """Generate with lengths at random."""
    scheduler = "RandomAsyncScheduler" if method.asynchronous else "RandomScheduler"
    done = generate(
        prompts,
        method.config | {"num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]]},
        additional_config={"turbospec": "static-1"},
        scheduler_cls=f"tests.vllm.random_lengths.{scheduler}",
        **{"async": method.asynchronous} | job,
    )
    assert "TurboSpec failed" not in done.log
    assert done.metrics[DRAFTED] > len(prompts)
    if method.accepts:
        assert done.metrics[ACCEPTED] > len(prompts)
    check_passes(method, done.steps)
    return done


@pytest.mark.parametrize("name", NAMES)
def test_random_lengths_leave_the_output_as_it_is(
    name: str, known: dict[str, Method], prompts: list[list[int]], reference: list[list[int]]
) -> None:
    variables = SUFFIX_TREE if name == "suffix" else {}
    assert drafted(known[name], prompts, variables=variables).tokens == reference


def test_random_lengths_leave_the_output_of_a_target_with_mtp_as_it_is(
    prompts: list[list[int]], tmp_path: Path
) -> None:
    mimo = str(tiny_models.target_with_mtp(tmp_path / "mimo"))
    mtp = Method({"method": "mtp", "model": mimo} | CAPPED, "one a token", asynchronous=True)
    engine = {"model": mimo, "tokenizer": str(MODELS / "target")}
    assert drafted(mtp, prompts, engine=engine).tokens == generate(prompts, None, engine=engine).tokens


@pytest.mark.parametrize("name", ["dspark", "dflash"])
def test_block_drafters_on_model_runner_v2(
    name: str, prompts: list[list[int]], reference: list[list[int]], tmp_path: Path
) -> None:
    """Which alone has the first."""
    model = MODELS / "dflash" if name == "dflash" else tiny_models.dspark(tmp_path / "dspark", MAX_DRAFT)
    config = {"method": name, "model": str(model)} | CAPPED
    method = Method(config, "one a block", asynchronous=True, accepts=name == "dflash")
    assert drafted(method, prompts[:8], variables=V2).tokens == reference[:8]


def check_passes(method: Method, steps: list[list[int]]) -> None:
    """None at K = 0, but for one after drafts or a prompt where the drafter computes those at once."""
    expected = {"one a token": lambda longest: longest, "one a block": lambda _: 1, "none": lambda _: 0}[method.passes]
    assert [step for step in steps if step[0] and step[2] != expected(step[0])] == []
    idle = [(several, passes) for longest, several, passes in steps if not longest]
    assert [step for step in idle if step[1] > step[0] * method.on_demand] == []
    assert sum(not passes for _, passes in idle) > len(idle) / 4
