# pyright: basic, reportMissingImports=false
"""One vLLM in a process of its own: reads a `Job` as JSON from a file, writes its result to another.

The result: the output tokens of every prompt, seconds and tokens of every timed batch, the drafter passes of every
step, and what vLLM resolved the settings to.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from turbospec_bench.vllm.selftest import passes
from turbospec_bench.vllm.selftest.job import Job

ACCEPTED, DRAFTED = "vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_draft_tokens"


def allow_async_scheduling() -> None:
    """Lift vLLM's refusal of async scheduling on a CPU, where it is of no use; its code runs all the same."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_allow(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_allow)


def run(job: Job) -> dict[str, Any]:
    """Run one job with a vLLM of its own."""
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    # On a CPU vLLM would compile for most of a minute.
    engine: dict[str, Any] = {"enforce_eager": current_platform.is_cpu()} | dict(job.engine)
    if job.asynchronous is not None:
        if job.asynchronous and current_platform.is_cpu():
            allow_async_scheduling()
        else:
            engine["async_scheduling"] = job.asynchronous
    llm = LLM(**engine, disable_log_stats=False)
    if job.count_passes:
        llm.collective_rpc(passes.count)
    params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, logprobs=job.logprobs or None)
    batches = [job.prompts[first : first + job.concurrency] for first in range(0, len(job.prompts), job.concurrency)]
    began, batch = time.perf_counter(), cycle(batches)
    while time.perf_counter() - began < job.warm_up_seconds:
        llm.generate(next(batch), params, use_tqdm=False)
    before, timed = _metrics(llm), list[tuple[float, int]]()
    outputs: list[Any] = []
    began, batch = time.perf_counter(), cycle(batches)
    # Whole cycles: batches differ, and contenders are to be timed over the same ones.
    while len(timed) % len(batches) or not timed or time.perf_counter() - began < job.timed_seconds:
        began_batch = time.perf_counter()
        done = llm.generate(next(batch), params, use_tqdm=False)
        timed.append((time.perf_counter() - began_batch, sum(len(each.outputs[0].token_ids) for each in done)))
        outputs += done if len(outputs) < len(job.prompts) else []
    after = _metrics(llm)
    config = llm.llm_engine.vllm_config
    return {
        "prompt_tokens": [len(each.prompt_token_ids) for each in outputs],
        "tokens": [list(each.outputs[0].token_ids) for each in outputs],
        "logprobs": [_logprobs(each.outputs[0].logprobs) for each in outputs] if job.logprobs else None,
        "batches": timed,
        "drafted": after[DRAFTED] - before[DRAFTED],
        "accepted": after[ACCEPTED] - before[ACCEPTED],
        "passes": llm.collective_rpc(passes.counted) if job.count_passes else None,
        "resolved": {
            "model_runner": "V2" if config.use_v2_model_runner else "V1",
            "async_scheduling": config.scheduler_config.async_scheduling,
            "device": current_platform.get_device_name(),
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "dtype": str(config.model_config.dtype),
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "method": config.speculative_config.method if config.speculative_config else None,
        },
    }


def _metrics(llm: Any) -> dict[str, float]:
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return {name: found.get(name, 0.0) for name in (DRAFTED, ACCEPTED)}


def _logprobs(positions: Any) -> list[dict[int, float]]:
    return [{token: each.logprob for token, each in position.items()} for position in positions]


def main() -> None:
    """Run a job; the arguments are its file and the result's."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(run(job)), encoding="utf-8")


if __name__ == "__main__":
    main()
