"""Generates with a vLLM of its own, as a user's script would: reads a job from stdin, writes its results to a file.

{"speculative_config": {…} or null, "additional_config": {…}, "scheduler_cls": "…" or null, "async": false,
 "prompts": [[token ids], …], "max_tokens": 48, "extra_args": [{…}, …] or null, "engine": {more arguments}}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parents[2] / "models"


def allow_async_scheduling() -> None:
    """vLLM turns async scheduling off on a CPU as of no use there; its code runs all the same."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_allow(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_allow)


def build(*, asynchronous: bool, **arguments: Any) -> Any:
    """A small vLLM with the repository's target, unless told otherwise; the arguments are vLLM's own."""
    from vllm import LLM

    if asynchronous:
        allow_async_scheduling()
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
    return result


def main() -> None:
    Path(sys.argv[1]).write_text(json.dumps(run(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
