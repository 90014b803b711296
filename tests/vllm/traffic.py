"""Serves requests of many kinds with a vLLM of its own, and writes down the results.

    python -m tests.vllm.traffic ANSWER alone|sync|async

`alone` is vLLM without speculation. The others draft at random, and then test what only they can show: requests that
are aborted or preempted while they draft, and a controller that fails. The engine core is in this process, so that its
steps follow from the requests alone and its scheduler can be looked into.

Nothing of TurboSpec is imported at the top: the worker, a process of its own, imports this file again, and vLLM's
search for kernels on a CPU trips over numba.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.vllm.generate import MODELS, build
from tests.vllm.script import REPOSITORY

MAX_DRAFT = 6
BATCHED_TOKENS = 64
BUSY_STEP = 12
"""By then all of eight prompts of 48 tokens are drafting."""
NO_DRAFTS = {"turbospec_max_draft": 0}

Batch = list[tuple[list[int], Any]]
"""Prompts with their sampling parameters."""


def traffic(tokenizer: Any) -> dict[str, Batch]:
    """Batches by their kind, in the order in which they are served."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams as Grammar

    lines = (REPOSITORY / "workloads" / "code.jsonl").read_text().splitlines()
    text = [token for line in lines for token in tokenizer(json.loads(line)["text"])["input_ids"]]
    prompts = [text[start : start + 48] for start in range(0, 8 * 48, 48)]
    greedy = partial(SamplingParams, temperature=0.0, max_tokens=40)
    seeded = partial(SamplingParams, temperature=0.8, max_tokens=40, ignore_eos=True)
    item = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}
    grammars = [
        Grammar(json=item | {"required": ["name", "n"]}),
        Grammar(regex="[a-f]{3,20}-[0-9]{2}"),
        Grammar(choice=["positive", "negative", "neither of both"]),
        None,
    ]
    stops = [id for word in ("\n", ",", ".", "(") for id in tokenizer(word)["input_ids"]]
    shared = [(text[:70] + prompt[:8], greedy()) for prompt in prompts]
    return {
        "plain": [(prompt, greedy(ignore_eos=True)) for prompt in prompts],
        "grammar": [(prompts[i], greedy(structured_outputs=grammars[i % 4])) for i in range(8)],
        "shared prefix": shared,
        "shared prefix again": shared,
        "long prompt": [(text[start : start + 200], greedy()) for start in range(0, 400, 50)],
        "length": [(prompts[i], greedy(max_tokens=3 * i + 1, ignore_eos=True)) for i in range(8)],
        "stop token": [(prompt, greedy(stop_token_ids=stops)) for prompt in prompts],
        "stop string": [(prompt, greedy(stop=["s", "\n    "])) for prompt in prompts],
        "penalty": [(prompt, greedy(repetition_penalty=1.3, ignore_eos=True)) for prompt in prompts],
        # Their prompts fit into one step: on a CPU vLLM cannot seed a request whose prompt is cut into chunks.
        "seeded": [(prompts[i][:10], seeded(seed=i, extra_args=NO_DRAFTS if i % 2 else None)) for i in range(4)],
    }


def fail(_: Any) -> None:
    raise RuntimeError("fails on purpose")


def build_for(mode: str) -> Any:
    speculation = {
        "method": "draft_model",
        "model": str(MODELS / "drafter"),
        "num_speculative_tokens": MAX_DRAFT,
        "num_speculative_tokens_per_batch_size": [[1, 1, MAX_DRAFT]],
    }
    schedulers = {"sync": "RandomScheduler", "async": "RandomAsyncScheduler"}
    return build(
        asynchronous=mode == "async",
        max_num_batched_tokens=BATCHED_TOKENS,
        block_size=32,
        enable_prefix_caching=True,
        distributed_executor_backend="mp",
        speculative_config=None if mode == "alone" else speculation,
        additional_config={} if mode == "alone" else {"turbospec": "static-1"},
        scheduler_cls=None if mode == "alone" else f"tests.vllm.random_lengths.{schedulers[mode]}",
    )


def serve(llm: Any, batch: Batch, *, when_busy: Callable[[], None] | None = None) -> dict[str, Any]:
    """The outputs of a batch, and what vLLM counted meanwhile; an aborted request has no answer."""
    engine = llm.llm_engine
    before = counters(llm)
    for i, (prompt, params) in enumerate(batch):
        engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
    answers: list[list[Any] | None] = [None] * len(batch)
    cached = 0
    for step in itertools.count():
        if not engine.has_unfinished_requests():
            break
        if step == BUSY_STEP and when_busy is not None:
            when_busy()
        for output in engine.step():
            if output.finished:
                answer = output.outputs[0]
                answers[int(output.request_id)] = [answer.text, answer.finish_reason, answer.stop_reason]
                cached += output.num_cached_tokens or 0
    counted = {name: value - before[name] for name, value in counters(llm).items()}
    return counted | {"answers": answers, "cached": cached}


def counters(llm: Any) -> dict[str, float]:
    names = {f"vllm:spec_decode_num_{each}": each for each in ("drafts", "draft_tokens", "accepted_tokens")}
    names["vllm:num_preemptions"] = "preemptions"
    counted = dict.fromkeys(names.values(), 0.0)
    for metric in llm.get_metrics():
        if metric.name in names:
            counted[names[metric.name]] += metric.value
    return counted


def main() -> None:
    answer, mode = sys.argv[1:]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    llm = build_for(mode)
    batches = traffic(llm.get_tokenizer())
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    served = {kind: serve(llm, batch) for kind, batch in batches.items()} if mode == "alone" else {}
    known: list[int] = []
    if mode != "alone":
        from tests.vllm.random_lengths import RandomLengths

        loop = scheduler._loop
        plain = batches["plain"]
        for kind, batch in batches.items():
            loop.controller = RandomLengths()
            served[kind] = serve(llm, batch)
            known.append(len(loop.known))
        abort = partial(llm.llm_engine.abort_request, [str(i) for i in range(1, 8, 2)])
        served["aborted"] = serve(llm, plain, when_busy=abort)
        served["after aborts"] = serve(llm, plain)
        known.append(len(loop.known))
        preempt = partial(llm.reset_prefix_cache, reset_running_requests=True)
        served["preempted"] = serve(llm, plain, when_busy=preempt)
        served["after the preemption"] = serve(llm, plain)
        # The step that is under way then has drafts, which are still to come.
        loop.controller = RandomLengths(idle=0.0)
        spoil = partial(setattr, loop.controller, {"sync": "plan", "async": "observe"}[mode], fail)
        served["failing"] = serve(llm, plain, when_busy=spoil)
        loop.controller = RandomLengths()
        served["healed"] = serve(llm, plain)
        loop.controller.plan = fail
        while scheduler._loop is not None:
            served["failing for good"] = serve(llm, plain)
        served["off"] = serve(llm, plain)
    Path(answer).write_text(json.dumps({"served": served, "known": known}))


if __name__ == "__main__":
    main()
