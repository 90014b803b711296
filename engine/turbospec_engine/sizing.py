"""Sizes of an engine: longest request, and number of KV blocks."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch

from turbospec import UserError
from turbospec_engine.config import EngineConfig
from turbospec_engine.head import Head
from turbospec_engine.kv_store import drafter_parts
from turbospec_engine.limits import check_integer
from turbospec_engine.models import Models
from turbospec_engine.runner import kv_bytes_per_token, kv_shape

DEFAULT_CACHE_BYTES = 2 << 30
DEFAULT_MODEL_LEN = 2048
"""Longest request in tokens, where neither configuration nor checkpoint gives one."""
GPU_SHARE = 0.9
"""Of the GPU memory that the models leave, for the KV cache at most: passes need the rest."""
ATTENTION_KINDS = {"full_attention", "sliding_attention"}
"""In a config's `layer_types`; a window must cover the longest request."""


def max_model_len(config: EngineConfig, models: Models) -> int:
    """Most tokens of prompt and output together that the target can process.

    Raises:
        UserError: the configuration asks for more, or the longest draft does not fit.
    """
    text_config = models.target.config.get_text_config()
    limit = getattr(text_config, "max_position_embeddings", None) or DEFAULT_MODEL_LEN
    check_integer(f"{config.target}: max_position_embeddings", limit, 1)
    length = config.max_model_len or limit
    if length > limit:
        raise UserError(f"max_model_len={length} is above the target's {limit} positions; lower it")
    window = _window(config, text_config)
    if window is not None and window < length:
        raise UserError(
            f"{config.target}: uses sliding-window attention over {window} tokens, which this engine does not support; "
            "set max_model_len to at most that"
        )
    if others := sorted({*(getattr(text_config, "layer_types", None) or ())} - ATTENTION_KINDS):
        raise UserError(
            f"{config.target}: has layers of {', '.join(others)}, which this engine does not support; use another model"
        )
    _check_positions(config, text_config, length)
    if config.max_draft >= length:
        raise UserError(f"max_draft={config.max_draft} does not fit in max_model_len={length}; lower it")
    return length


def _window(config: EngineConfig, text_config: Any) -> int | None:
    """Tokens that a layer with sliding-window attention sees; None where the target has no such layer."""
    window = getattr(text_config, "sliding_window", None)
    if window is not None:
        check_integer(f"{config.target}: sliding_window", window, 0)
    # Models without this field in their config, as Mistral's, ignore it in a file: all their layers have the window.
    named = "layer_types" in inspect.signature(type(text_config)).parameters
    kinds = text_config.layer_types if named else None
    if kinds and "sliding_attention" not in kinds:
        return None
    return window or None  # some configs say 0 for none


def _check_positions(config: EngineConfig, text_config: Any, length: int) -> None:
    """Refuse rotary embeddings that follow the longest position in a pass, which another request may have.

    transformers computes those of the type `longrope` so (`dynamic_rope_update`). Up to the length that the model was
    first trained for nothing changes.
    """
    parameters: Any = getattr(text_config, "rope_parameters", None) or {}
    for each in (parameters, *(kind for kind in parameters.values() if isinstance(kind, dict))):
        limit = each.get("original_max_position_embeddings")
        if each.get("rope_type") == "longrope" and limit and length > limit:
            raise UserError(
                f"{config.target}: its longrope position embeddings change for all requests of a step once one of them "
                f"is longer than {limit} tokens; set max_model_len to at most that"
            )


def num_blocks(config: EngineConfig, models: Models, longest: int) -> int:
    """Blocks of the KV cache: as configured, else for `max_num_seqs` requests of `longest` tokens, up to 2 GiB.

    Raises:
        UserError: they are larger than the memory that the device has, or on a GPU has left.
    """
    block_bytes = _bytes_per_token(config, models) * config.block_size
    blocks = config.num_blocks
    if blocks is None:
        per_request = -(-longest // config.block_size)
        if (parts := _parts(config, models)) is not None:
            per_request += -(-longest // (parts[0] * parts[1]))
        blocks = max(per_request, min(config.max_num_seqs * per_request, DEFAULT_CACHE_BYTES // block_bytes))
    if (size := blocks * block_bytes) > (memory := _memory_bytes(models.target.device)):
        raise UserError(
            f"the KV cache needs {size / 2**30:.1f} GiB, more than the {memory / 2**30:.1f} GiB that {config.device} "
            "has for it; lower max_model_len or num_blocks"
        )
    return blocks


def _parts(config: EngineConfig, models: Models) -> tuple[int, int] | None:
    """The drafter's KV blocks in one of the target's, and their tokens; None where it takes none of them."""
    if models.drafter is None:
        return None
    return drafter_parts(kv_shape(models.target), kv_shape(models.drafter), config.block_size)


def _bytes_per_token(config: EngineConfig, models: Models) -> int:
    """Bytes of one token in the target's KV cache, in that of a drafter with memory of its own, and of the hidden
    states kept for the drafter."""
    size = kv_bytes_per_token(models.target)
    if models.drafter is not None and _parts(config, models) is None:
        size += kv_bytes_per_token(models.drafter)
    if isinstance(models.drafter, Head):
        size += models.drafter.fc.in_features * models.target.dtype.itemsize
    return size


def _memory_bytes(device: torch.device) -> int:
    """Memory of the host; of a GPU, a share of what the models leave."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # of torch's own
        return int(GPU_SHARE * (torch.cuda.mem_get_info(device)[0] + unused))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
