"""`tests.turbospec.hosts.vllm.fuzz_loop` with vLLM's own scheduler and KV cache in place of the stand-in.

    python -m tests.vllm.fuzz_scheduler --steps 50000 --seed 1

No model runs: what is sampled and drafted is random. Nothing is blocked, and grammars are as in the stand-in.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Literal

if __name__ == "__main__":
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"  # before vLLM is imported

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tests.turbospec.hosts.vllm import fuzz_loop
from tests.turbospec.hosts.vllm.fuzzing.server import Added, Setup
from tests.turbospec.hosts.vllm.fuzzing.worker import END
from tests.vllm.generate import MODELS
from turbospec.hosts.vllm.scheduler import schedulers

BLOCK = 16
PAUSES = {"none": PauseState.UNPAUSED, "new": PauseState.PAUSED_NEW, "all": PauseState.PAUSED_ALL}


class RealServer:
    """A `Server` with vLLM's scheduler."""

    hosted = schedulers
    scheduler: Any

    def __init__(self, setup: Setup, rng: random.Random) -> None:
        self._setup = setup
        self._rng = rng
        self._grammars: set[str] = set()
        self._hasher = None
        if setup.prefix_caching:
            init_none_hash(sha256)
            self._hasher = get_request_block_hasher(BLOCK, sha256)

    def build(self, extend: Callable[[Any], Any]) -> None:
        setup = self._setup
        config = _configuration(setup)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        # One block is never given out.
        blocks = 1 + setup.caches * -(-(setup.max_model_len + setup.longest) // BLOCK)
        config.cache_config.num_gpu_blocks = blocks
        base = schedulers.TurboSpecAsyncScheduler if setup.asynchronous else schedulers.TurboSpecScheduler
        self.scheduler = extend(base)(
            config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
        )
        self.scheduler.use_v2_model_runner = setup.v2
        self.scheduler.structured_output_manager.validate_tokens = self._validate

    def add(self, request: Added) -> None:
        self.scheduler.add_request(self._request(request.name, request.prompt, request.max_tokens, request))
        if request.grammar:
            self._grammars.add(request.name)

    def abort(self, names: Iterable[str]) -> None:
        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def pause(self, what: Literal["none", "new", "all"]) -> None:
        self.scheduler.set_pause_state(PAUSES[what])

    def reset(self) -> None:
        # vLLM raises where a session between two turns holds blocks, after it has preempted the others.
        with suppress(RuntimeError):
            self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def blocked(self) -> list[str]:
        return []

    def unblock(self, name: str) -> None:
        raise NotImplementedError

    def between_turns(self) -> list[str]:
        waits = RequestStatus.WAITING_FOR_STREAMING_REQ
        return [name for name, request in self.scheduler.requests.items() if request.status == waits]

    def next_turn(self, name: str, tokens: int, max_tokens: int) -> None:
        again = Added(name, tokens, max_tokens, None, 0.0, session=True)
        self.scheduler.add_request(self._request(name, tokens, max_tokens, again))

    def fail(self, name: str) -> None:
        self.scheduler.grammar_compile_error_reqs.add(name)

    def rule_out(self, output: Any) -> None:
        drafts = {name: [1] * len(tokens) for name, tokens in output.scheduled_spec_decode_tokens.items()}
        self.scheduler.update_draft_token_ids_in_output(DraftTokenIds(list(drafts), list(drafts.values())), output)

    def model_output(self, names: Sequence[str], sampled: Sequence[list[int]]) -> ModelRunnerOutput:
        return ModelRunnerOutput(list(names), {name: row for row, name in enumerate(names)}, list(sampled))

    def drafts(self, names: Sequence[str], tokens: Sequence[list[int]]) -> DraftTokenIds:
        return DraftTokenIds(list(names), list(tokens))

    def post_step(self, take: Callable[[], Any], executed: bool) -> None:
        core: Any = SimpleNamespace(
            scheduler=self.scheduler,
            check_for_draft_tokens=True,
            async_scheduling=False,
            model_executor=SimpleNamespace(take_draft_token_ids=take),
        )
        EngineCore.post_step(core, executed)

    def _request(self, name: str, prompt: int, max_tokens: int, added: Added) -> Request:
        sampling = {"max_tokens": max_tokens, "stop_token_ids": [END]}
        arguments = None if added.params is None else added.params.extra_args
        try:
            params = SamplingParams(**sampling, extra_args=arguments if isinstance(arguments, dict) else None)
        except VLLMValidationError:
            params = SamplingParams(**sampling)
        return Request(
            name,
            [1] * prompt,
            params,
            None,
            client_index=added.client,
            arrival_time=added.arrived,
            resumable=added.session,
            block_hasher=self._hasher,
        )

    def _validate(self, request: Request, drafts: list[int]) -> list[int]:
        return drafts[: self._rng.randint(0, len(drafts))] if request.request_id in self._grammars else drafts


def _configuration(setup: Setup) -> Any:
    speculation = {
        "method": "draft_model",
        "model": str(MODELS / "drafter"),
        "num_speculative_tokens": setup.longest,
        "num_speculative_tokens_per_batch_size": [list(entry) for entry in setup.table],
    }
    config = EngineArgs(
        model=str(MODELS / "target"),
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        enable_prefix_caching=setup.prefix_caching,
        speculative_config=speculation,
        additional_config={"turbospec": {"policy": str(setup.policy)} | ({"lookup": "ngram"} if setup.lookup else {})},
        enforce_eager=True,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = setup.asynchronous  # which vLLM turns off on a CPU
    return config


if __name__ == "__main__":
    sys.exit(fuzz_loop.main(RealServer))
