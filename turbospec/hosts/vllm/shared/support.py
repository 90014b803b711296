"""Which configurations of vLLM let TurboSpec choose the draft length."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from turbospec.interface import MAX_DRAFT_LENGTH

ADDITIONAL_CONFIG_KEY = "turbospec"
ENVIRONMENT = "TURBOSPEC_"
"""What the names of TurboSpec's environment variables begin with."""
STARTED = "TurboSpec chooses draft lengths"
"""In the log of a server that runs TurboSpec."""
POLICY_VARIABLE = f"{ENVIRONMENT}POLICY"
SYNC_SCHEDULER = "turbospec.hosts.vllm.scheduler.schedulers.TurboSpecScheduler"
ASYNC_SCHEDULER = "turbospec.hosts.vllm.scheduler.schedulers.TurboSpecAsyncScheduler"

OLDEST_VERSION = (0, 29)
NEWEST_VERSION = (0, 32)
OLDEST_V2_VERSION = (0, 32)
"""The first version whose model runner V2 takes a step's draft length from the scheduler."""

SEQUENTIAL_METHODS = ("draft_model", "eagle", "eagle3", "mtp")
LOOK_UP_METHODS = ("ngram", "ngram_gpu", "suffix")
BLOCK_METHODS = ("medusa", "dflash", "dspark", "custom_class")
"""One pass of these drafts all positions."""
HEAD_METHODS = ("medusa", "custom_class")
"""Drafters without a KV cache of their own, as far as TurboSpec knows. They are called only in steps that draft."""
BESIDE_LOOKUP = (*SEQUENTIAL_METHODS, "dflash", "dspark")
"""Drafters that a look-up can be offered beside."""
LOOKUP_VERSION = (0, 32)
"""The first version in which a look-up was run beside a drafter."""
NO_DRAFTER = {
    "extract_hidden_states": "method 'extract_hidden_states' drafts nothing: vLLM uses it to hand out hidden states",
    "mlp_speculator": "vLLM has no drafter for method 'mlp_speculator'",
}

KEPT_TOKENS = {"draft_model": 65536} | dict.fromkeys(("eagle", "eagle3", "mtp", "dflash", "dspark"), 8192)
"""Tokens whose input is kept so that a drafter can catch up. All but a draft model's include the target's hidden
states: about 24 kB a token for an EAGLE head of an 8 B model, 200 MB in all."""
MLA_OF_ANY_LENGTHS = {"FLASH_ATTN_MLA": (0, 29), "FLASHINFER_MLA": (0, 31)}
"""Attention backends of vLLM that decode requests with different numbers of tokens in one MLA pass, and the first
version in which they do."""
WINDOWS = ("sliding_window", "sliding_window_size")
"""Fields of a model's configuration for the width of its windows; None or -1 where it has none."""


@dataclass(slots=True, frozen=True)
class SetUp:
    """The part of a server's configuration that decides whether TurboSpec can control it."""

    version: Sequence[int | str]
    """Of vLLM, as its `__version_tuple__`."""
    method: str | None
    """Drafting method as vLLM resolved it; None without speculation."""
    draft_tokens: int = 1
    """vLLM's `num_speculative_tokens`, the longest draft."""
    adaptive_verification: bool = False
    """vLLM's `enable_adaptive_verification`."""
    data_parallel_size: int = 1
    experts: bool = False
    """Whether the target is a mixture of experts."""
    pipeline_parallel_size: int = 1
    scheduler_per_rank: bool = False
    """Whether each of several ranks has a scheduler, and all must decide alike: vLLM's executor `external_launcher`."""
    model_runner_v2: bool = False
    """Model runner V2, vLLM's default where Triton is available."""
    lookup: bool = False
    """Whether a look-up is wanted beside the drafter."""
    watermarks_drafts: bool = False
    """Whether vLLM's watermarking allows no draft tokens without a watermark."""
    target_mla: bool = False
    """Whether the target has multi-head latent attention."""
    attention_backend: str = ""
    """Name of the one that the user chose; empty where vLLM chooses."""
    async_scheduling: bool = False


def is_asked_for(additional_config: object) -> bool:
    """Whether the user asked for TurboSpec in this server.

    Args:
        additional_config: vLLM's, whatever its type.
    """
    return settings_in(additional_config) is not None or bool(os.environ.get(POLICY_VARIABLE))


def settings_in(additional_config: object) -> Any:
    """TurboSpec's part of vLLM's `--additional-config`; None where there is none."""
    if not isinstance(additional_config, Mapping):
        return None
    return cast("Mapping[str, Any]", additional_config).get(ADDITIONAL_CONFIG_KEY)


def may_be_scheduled_by_us(vllm_config: Any) -> bool:
    """Whether a worker's steps may come from TurboSpec's scheduler; each step's orders say for sure.

    Args:
        vllm_config: vLLM's.
    """
    scheduler = vllm_config.scheduler_config.scheduler_cls
    if vllm_config.speculative_config is None or scheduler is None:
        return False
    # The environment does not reach every worker, as with Ray; the scheduler's name does. A `--scheduler-cls` may be a
    # subclass of ours, as in the self-test, which its name does not tell.
    return scheduler in (SYNC_SCHEDULER, ASYNC_SCHEDULER) or is_asked_for(vllm_config.additional_config)


def drafts_in_one_pass(speculation: Any) -> bool:
    """Whether drafting costs about the same for any draft length.

    Args:
        speculation: vLLM's `SpeculativeConfig`.
    """
    return speculation.method in LOOK_UP_METHODS + BLOCK_METHODS or bool(speculation.parallel_drafting)


def kept_tokens(vllm_config: Any) -> int:
    """`KEPT_TOKENS` of a server; 0 where its drafter runs in every step, drafts or not.

    Args:
        vllm_config: vLLM's, whose speculation is supported.
    """
    speculation, model = vllm_config.speculative_config, vllm_config.model_config
    if model.is_multimodal_model or _cannot_catch_up(speculation.draft_model_config):
        return 0
    # With context parallelism a worker has a part of each request's tokens.
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return 0
    # A KV connector transfers the drafter's KV cache with the target's; without padding the drafter's input has no rows
    # for rejected tokens.
    if vllm_config.kv_transfer_config is not None or speculation.disable_padded_drafter_batch:
        return 0
    if speculation.method == "mtp" and not _is_like_eagle(speculation, vllm_config.use_v2_model_runner):
        return 0
    return KEPT_TOKENS.get(speculation.method, 0)


def _cannot_catch_up(drafter: Any) -> bool:
    """Whether a drafter's attention rules out a pass that catches up.

    MLA computes the longer rows of such a pass as prefill, over their whole context and with lengths known to the host,
    which under async scheduling are upper bounds. Nobody has measured it.

    Args:
        drafter: vLLM's `ModelConfig`; None for a drafter without a model.
    """
    return drafter is not None and (drafter.use_mla or _has_window(drafter.hf_text_config))


def _has_window(config: Any) -> bool:
    """Whether a drafter attends to its latest tokens only, in some layer.

    vLLM frees the KV blocks of the others, and gives them to other requests. A pass that catches up would write there.

    Args:
        config: of the drafter's text model.
    """
    of_dflash: Any = getattr(config, "dflash_config", None)
    if of_dflash and of_dflash.get("use_swa"):
        return True  # whatever `layer_types` says
    kinds, local_layers = getattr(config, "layer_types", None), getattr(config, "local_layer_ids", None)
    if kinds is not None or local_layers is not None:
        return bool(local_layers) or any("sliding" in kind or "chunked" in kind for kind in kinds or ())
    names = WINDOWS if getattr(config, "use_sliding_window", True) else ()
    return any(getattr(config, name, None) not in (None, -1) for name in (*names, "attention_chunk_size"))


def _is_like_eagle(speculation: Any, model_runner_v2: bool) -> bool:
    """Whether an MTP drafter is one module with a KV cache of its own, whose input is tokens and hidden states."""
    # Model runner V1 uses the first of several modules only.
    several = model_runner_v2 and speculation.use_multi_module_mtp()
    return not (several or speculation.use_gemma4_mtp() or speculation.use_step3p5_mtp())


def drafts_late(vllm_config: Any) -> bool:
    """Whether a server's drafter, where it runs on demand, can draft after a step's tokens were sent.

    Under async scheduling the engine core does not ask for drafts, and model runner V2 sends the tokens first itself.

    Args:
        vllm_config: vLLM's, whose speculation is supported.
    """
    asynchronous = vllm_config.scheduler_config.async_scheduling or vllm_config.use_v2_model_runner
    return kept_tokens(vllm_config) > 0 and not asynchronous


def unsupported(setup: SetUp) -> str | None:
    """Why TurboSpec cannot control this configuration; None where it can."""
    if setup.method is None:
        return "there is no --speculative-config"
    version = ".".join(map(str, setup.version[:2]))
    try:
        release = tuple(int(part) for part in setup.version[:2])
    except ValueError:  # of a build without a version
        release = ()
    if not OLDEST_VERSION <= release <= NEWEST_VERSION:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_VERSION, NEWEST_VERSION))
        return f"vLLM {version} is not supported; supported are {oldest} to {newest}"
    if setup.method in NO_DRAFTER:
        return NO_DRAFTER[setup.method]
    known = SEQUENTIAL_METHODS + LOOK_UP_METHODS + BLOCK_METHODS
    if setup.method not in known:
        return f"method {setup.method!r} is not known; known are {', '.join(known)}"
    if setup.draft_tokens > MAX_DRAFT_LENGTH:
        return f"num_speculative_tokens is {setup.draft_tokens}; TurboSpec chooses among up to {MAX_DRAFT_LENGTH}"
    if setup.adaptive_verification:
        return "enable_adaptive_verification is set: vLLM then chooses itself which drafts it verifies; leave it out"
    if setup.data_parallel_size > 1 and setup.experts:
        return "data parallelism with a mixture of experts: vLLM's engines then run every drafter pass together"
    if setup.pipeline_parallel_size > 1:
        return (
            "pipeline parallelism is not supported: a step's drafts are not verified by the next step, which vLLM "
            "gives to other requests"
        )
    if setup.scheduler_per_rank:
        return (
            "distributed_executor_backend is external_launcher: each rank would choose draft lengths by times that it "
            "measures itself, but all must choose alike; use mp or ray"
        )
    if setup.lookup and setup.method not in BESIDE_LOOKUP:
        return f"lookup is for servers with a drafter of {', '.join(BESIDE_LOOKUP)}, not {setup.method!r}; leave it out"
    if setup.lookup and release < LOOKUP_VERSION:
        return f"lookup needs vLLM {'.'.join(map(str, LOOKUP_VERSION))} or newer, and this is {version}; leave it out"
    if setup.lookup and setup.watermarks_drafts:
        return (
            "lookup's drafts have no watermark; set allow_target_only_watermarking in --watermark-config, or leave "
            "lookup out"
        )
    any_lengths = [name for name, first in MLA_OF_ANY_LENGTHS.items() if release >= first]
    if setup.target_mla and setup.async_scheduling and setup.attention_backend not in any_lengths:
        # Other backends compute rows of unequal length as prefill, with context lengths known to the host, which under
        # async scheduling assume that all drafts in flight are accepted: the output would be wrong.
        return (
            "the target has MLA, whose attention backend may not take drafts of different lengths under async "
            f"scheduling; set --attention-backend to {' or '.join(any_lengths)}, or --no-async-scheduling"
        )
    if setup.model_runner_v2 and release < OLDEST_V2_VERSION:
        return f"vLLM {version}'s model runner V2 has one draft length for all steps; set VLLM_USE_V2_MODEL_RUNNER=0"
    return None
