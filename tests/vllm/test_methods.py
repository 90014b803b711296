"""Methods other than draft model, EAGLE-3 and n-gram, on a real vLLM: with lengths at random the output is that of no
speculation, and the drafter runs as often as its method needs, and not at all where nothing is drafted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("vllm")

from tests.vllm import tiny_models
from tests.vllm.script import REPOSITORY, V2, run_script
from tests.vllm.test_generate import (
    ACCEPTED,
    DRAFT_MODEL,
    DRAFTED,
    MAX_DRAFT,
    MODELS,
    NEW_TOKENS,
    PEAGLE,
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
    eagle, mimo = models.eagle(folder / "eagle"), models.target_with_mtp(folder / "mimo")
    pard, medusa = models.parallel_drafter(folder / "pard"), models.medusa(folder / "medusa", MAX_DRAFT)
    parallel = {"parallel_drafting": True}
    return {
        "eagle": Method({"method": "eagle", "model": str(eagle)} | CAPPED, "one a token", asynchronous=True),
        "mtp": Method({"method": "mtp", "model": str(mimo)} | CAPPED, "one a token", asynchronous=True),
        "P-EAGLE": Method(PEAGLE, "one a block", asynchronous=True, accepts=True),
        "PARD": Method(DRAFT_MODEL | {"model": str(pard)} | parallel, "one a block", accepts=True),
        "dflash": Method({"method": "dflash", "model": str(MODELS / "dflash")} | CAPPED, "one a block", accepts=True),
        "medusa": Method({"method": "medusa", "model": str(medusa)} | CAPPED, "one a block", on_demand=False),
        "suffix": Method({"method": "suffix"} | CAPPED, "none", on_demand=False, accepts=True),
    }


NAMES = ("eagle", "mtp", "P-EAGLE", "PARD", "dflash", "medusa", "suffix")


def job(method: Method, prompts: list[list[int]], **engine: Any) -> dict[str, Any]:
    scheduler = "RandomAsyncScheduler" if method.asynchronous else "RandomScheduler"
    return {
        "speculative_config": method.config | {"num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]]},
        "additional_config": {"turbospec": "static-1"},
        "scheduler_cls": f"tests.vllm.random_lengths.{scheduler}",
        "async": method.asynchronous,
        "prompts": prompts,
        "max_tokens": NEW_TOKENS,
        "extra_args": None,
        "engine": engine,
    }


@pytest.fixture(scope="module")
def served(prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By method; sync and async ones in two processes at a time."""
    known = methods(tmp_path_factory.mktemp("models"))
    assert tuple(known) == NAMES
    mimo = {"model": known["mtp"].config["model"], "tokenizer": str(MODELS / "target")}
    lanes = [{name: method for name, method in known.items() if method.asynchronous == each} for each in (False, True)]
    jobs = [[job(each, prompts, **(mimo if name == "mtp" else {})) for name, each in lane.items()] for lane in lanes]
    undrafted = job(known["mtp"], prompts, **mimo) | {"speculative_config": None, "scheduler_cls": None}
    jobs[1].append(undrafted | {"additional_config": {}})
    with ThreadPoolExecutor(2) as pool:
        (sync, log), (asynchronous, other_log) = pool.map(
            lambda core: run_script(
                "methods", job=jobs[core], variables=SUFFIX_TREE | {"VLLM_CPU_OMP_THREADS_BIND": str(core)}
            ),
            range(2),
        )
    assert "TurboSpec failed" not in log + other_log
    results = sync + asynchronous
    found = dict(zip([*lanes[0], *lanes[1], "mtp's target alone"], results, strict=True))
    return {name: found[name] | {"method": known.get(name)} for name in found}


@pytest.mark.parametrize("name", NAMES)
def test_random_lengths_leave_the_output_as_it_is(
    name: str, served: dict[str, dict[str, Any]], reference: list[list[int]]
) -> None:
    done = served[name]
    method: Method = done["method"]
    assert done["tokens"] == (served["mtp's target alone"]["tokens"] if name == "mtp" else reference)
    assert done["metrics"][DRAFTED] > len(reference)
    if method.accepts:
        assert done["metrics"][ACCEPTED] > len(reference)
    check_passes(method, done["steps"][0])


@pytest.mark.parametrize("name", ["dspark", "dflash"])
def test_block_drafters_on_model_runner_v2(
    name: str, prompts: list[list[int]], reference: list[list[int]], tmp_path: Path
) -> None:
    """Which alone has the first."""
    model = MODELS / "dflash" if name == "dflash" else tiny_models.dspark(tmp_path / "dspark", MAX_DRAFT)
    method = Method({"method": name, "model": str(model)} | CAPPED, "one a block", asynchronous=True)
    asked = job(method, prompts[:8])
    done = generate(asked.pop("prompts"), asked.pop("speculative_config"), variables=V2, **asked)
    assert "TurboSpec failed" not in done.log
    assert done.tokens == reference[:8]
    assert done.metrics[DRAFTED] > 8
    if name == "dflash":
        assert done.metrics[ACCEPTED] > 8
    check_passes(method, done.steps)


def check_passes(method: Method, steps: list[list[int]]) -> None:
    """None at K = 0, but for one after drafts or a prompt where the drafter computes those at once."""
    expected = {"one a token": lambda longest: longest, "one a block": lambda _: 1, "none": lambda _: 0}[method.passes]
    assert [step for step in steps if step[0] and step[2] != expected(step[0])] == []
    idle = [(several, passes) for longest, several, passes in steps if not longest]
    assert [step for step in idle if step[1] > step[0] * method.on_demand] == []
    assert sum(not passes for _, passes in idle) > len(idle) / 4
