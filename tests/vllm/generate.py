"""Generates with vLLMs of its own, one after the other, as a user's script would.

Reads jobs from stdin, one a line, and writes each result to stdout as a line. What vLLM prints goes to stderr.

{"speculative_config": {…} or null, "additional_config": {…}, "scheduler_cls": "…" or null, "async": false,
 "prompts": [[token ids], …], "max_tokens": 48, "extra_args": [{…}, …] or null, "engine": {more arguments},
 "variables": {of the environment}}
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

MODELS = Path(__file__).parents[2] / "models"


def build(*, asynchronous: bool, **arguments: Any) -> Any:
    """A small vLLM with the repository's target, unless told otherwise; the arguments are vLLM's own."""
    from vllm import LLM
    from vllm.platforms.cpu import CpuPlatform

    own = {
        "model": str(MODELS / "target"),
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "enforce_eager": True,
        "seed": 0,
        "disable_log_stats": False,
    }
    check = CpuPlatform.check_and_update_config.__func__

    def check_and_allow(cls: Any, config: Any) -> None:
        """vLLM turns async scheduling off on a CPU as of no use there; its code runs all the same."""
        check(cls, config)
        if asynchronous:
            config.scheduler_config.async_scheduling = True

    with patch.object(CpuPlatform, "check_and_update_config", classmethod(check_and_allow)):
        return LLM(**(own | arguments))


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One job, with a vLLM of its own."""
    from vllm import SamplingParams

    llm = build(
        asynchronous=job["async"],
        speculative_config=job["speculative_config"],
        additional_config=job["additional_config"],
        scheduler_cls=job["scheduler_cls"],
        **job["engine"],
    )
    each = job["extra_args"] or [None] * len(job["prompts"])
    params = [
        SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True, extra_args=args) for args in each
    ]
    from turbospec_bench.vllm.selftest import passes

    llm.collective_rpc(passes.count)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], params, use_tqdm=False)
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    result = {"tokens": [list(output.outputs[0].token_ids) for output in outputs], "metrics": metrics}
    result["steps"] = llm.collective_rpc(passes.counted)
    llm.llm_engine.engine_core.shutdown()
    return result


def fork_engines() -> None:
    """Fork engine and workers, as vLLM does on a GPU. On a CPU it spawns them, and each imports vLLM for seconds."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.triton_utils import dispatcher

    check, rebind = CpuPlatform.check_and_update_config.__func__, dispatcher._rebind_kernels

    def check_and_fork(cls: Any, config: Any) -> None:
        check(cls, config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    def rebind_elsewhere(overrides: Any) -> None:
        """vLLM looks for its kernels in all modules, and fails at llvmlite's, which a forked worker has from numba."""
        modules = {name: module for name, module in sys.modules.items() if not name.startswith("llvmlite")}
        with patch.object(sys, "modules", modules):
            rebind(overrides)

    CpuPlatform.check_and_update_config = classmethod(check_and_fork)
    dispatcher._rebind_kernels = rebind_elsewhere


def main() -> None:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    fork_engines()
    for line in sys.stdin:
        job = json.loads(line)
        with patch.dict(os.environ, job["variables"]):
            print(json.dumps(run(job)), file=results, flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
