"""Which set-ups of vLLM can change their draft length from step to step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

ADDITIONAL_CONFIG_KEY = "turbospec"
POLICY_VARIABLE = "TURBOSPEC_POLICY"

OLDEST_VERSION = (0, 29)
NEWEST_VERSION = (0, 32)

SEQUENTIAL_METHODS = ("draft_model", "eagle", "eagle3", "mtp")
PARALLEL_METHODS = ("ngram",)
"""Those whose drafts cost about the same whatever their length."""

KEPT_TOKENS = {"draft_model": 65536, "eagle": 8192, "eagle3": 8192}
"""Tokens kept for drafters that are left out of steps and caught up later. Of the latter two with the target's hidden
states: about 24 kB a token with an 8 B model, 200 MB in all."""


@dataclass(slots=True, frozen=True)
class SetUp:
    """What of a server decides whether its draft length can be told."""

    version: Sequence[int | str]
    """Of vLLM, as its `__version_tuple__`."""
    method: str | None
    """Of speculation, as vLLM resolved it; None for no speculation."""
    parallel_drafting: bool = False
    """All positions in one pass of a drafter that was trained for it."""
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    second_model_runner: bool = False
    """vLLM's newer model runner, which it takes where Triton is."""


def is_asked_for(additional_config: object) -> bool:
    """Whether the user wants TurboSpec in this server.

    Args:
        additional_config: vLLM's, whatever its type.
    """
    return settings_in(additional_config) is not None or bool(os.environ.get(POLICY_VARIABLE))


def settings_in(additional_config: object) -> Any:
    """What is said of TurboSpec in vLLM's `--additional-config`; None for nothing."""
    if not isinstance(additional_config, Mapping):
        return None
    return cast("Mapping[str, Any]", additional_config).get(ADDITIONAL_CONFIG_KEY)


def may_be_scheduled_by_us(vllm_config: Any) -> bool:
    """Whether a worker's steps may come from a scheduler of TurboSpec's or one derived from it; what a step asks of the
    worker says so for sure. vLLM's second model runner has none of what is wrapped for them.

    Args:
        vllm_config: vLLM's.
    """
    return (
        vllm_config.speculative_config is not None
        and vllm_config.scheduler_config.scheduler_cls is not None
        and is_asked_for(vllm_config.additional_config)
        and not vllm_config.use_v2_model_runner
    )


def kept_tokens(vllm_config: Any) -> int:
    """`KEPT_TOKENS` of a server; 0 where its drafter is left to run in every step, drafts or not.

    Args:
        vllm_config: vLLM's, whose speculation is supported.
    """
    speculation, model = vllm_config.speculative_config, vllm_config.model_config
    if model.is_multimodal_model or vllm_config.parallel_config.decode_context_parallel_size > 1:
        return 0
    # A connector carries off the drafter's cache with the target's; without padding its input has no place for tokens
    # that were rejected.
    if vllm_config.kv_transfer_config is not None or speculation.disable_padded_drafter_batch:
        return 0
    return KEPT_TOKENS.get(speculation.method, 0)


def drafts_late(vllm_config: Any) -> bool:
    """Whether a server's drafter, where it runs on demand, can wait until a step's tokens have left. Under async
    scheduling nobody asks for drafts then.

    Args:
        vllm_config: vLLM's, whose speculation is supported.
    """
    return kept_tokens(vllm_config) > 0 and not vllm_config.scheduler_config.async_scheduling


def unsupported(setup: SetUp) -> str | None:
    """Why this set-up keeps a draft length of its own; None where it need not."""
    if setup.method is None:
        return "there is no --speculative-config, so there is nothing to control"
    release = tuple(int(part) for part in setup.version[:2])
    if not OLDEST_VERSION <= release <= NEWEST_VERSION:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_VERSION, NEWEST_VERSION))
        return f"vLLM {'.'.join(map(str, release))} is not among the versions that it knows, {oldest} to {newest}"
    if setup.method not in SEQUENTIAL_METHODS + PARALLEL_METHODS:
        known = ", ".join(SEQUENTIAL_METHODS + PARALLEL_METHODS)
        return f"method {setup.method!r} drafts a length of its own; those that can be told are {known}"
    if setup.parallel_drafting:
        return "with parallel_drafting vLLM's buffers are cut for one draft length"
    if setup.data_parallel_size > 1:
        return "with data parallelism the engines must draft alike, and vLLM fixes their draft length"
    if setup.pipeline_parallel_size > 1:
        return "with pipeline parallelism a request's steps do not follow one another"
    if setup.second_model_runner:
        return "vLLM's second model runner drafts its full length for most methods; set VLLM_USE_V2_MODEL_RUNNER=0"
    return None
