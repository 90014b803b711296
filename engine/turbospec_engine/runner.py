"""Runs one model over ragged batches, with a KV cache of its own."""

from __future__ import annotations

import inspect
import weakref
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle
from transformers import PretrainedConfig, PreTrainedModel

from turbospec import UserError
from turbospec.interface import IntArray
from turbospec_engine.attention import PagedAttention, RaggedBatch
from turbospec_engine.hidden_states import HiddenStates
from turbospec_engine.kv_store import KVMemory, KVShape, KVStore
from turbospec_engine.transfer import on_device

NEEDED = ("position_ids", "logits_to_keep")
"""Arguments of a model's `forward` without which a pass over several requests gives wrong logits. Some architectures
lack them, and ignore arguments that they do not know."""


def kv_shape(model: PreTrainedModel) -> KVShape:
    """Shape of a token in a model's KV cache.

    Raises:
        UserError: the model has no attention.
    """
    config: PretrainedConfig = model.config.get_text_config()
    num_heads: int | None = getattr(config, "num_attention_heads", None)
    if not num_heads:
        raise UserError(f"{model.name_or_path}: the model has no attention; this engine runs transformers only")
    return KVShape(
        config.num_hidden_layers,
        getattr(config, "num_key_value_heads", None) or num_heads,
        getattr(config, "head_dim", None) or config.hidden_size // num_heads,
    )


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes that one token's keys and values take in all layers."""
    shape = kv_shape(model)
    return 2 * shape.layers * shape.width * kv_dtype(model).itemsize


def kv_dtype(model: PreTrainedModel) -> torch.dtype:
    """Type of the KV cache: float32 on a CPU, because its attention kernel computes in float32."""
    return torch.float32 if model.device.type == "cpu" else model.dtype


def block_table(block_lists: Sequence[array[int]]) -> IntArray:
    """(n, most blocks) ids of n requests' KV blocks, padded with 0."""
    table = np.zeros((len(block_lists), max(map(len, block_lists))), np.int64)
    for row, block_ids in enumerate(block_lists):
        table[row, : len(block_ids)] = block_ids
    return table


def kv_memory(model: PreTrainedModel, num_blocks: int, block_size: int) -> KVMemory:
    """Memory for a model's KV cache."""
    return KVMemory(kv_shape(model), num_blocks, block_size, dtype=kv_dtype(model), device=model.device)


def _record(
    entering: dict[int, torch.Tensor],
    layer: int,
    module: object,
    given: tuple[torch.Tensor, ...],
    named: dict[str, Any],
) -> None:
    entering[layer] = given[0] if given else named["hidden_states"]


def _remove(hooks: Sequence[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


class ModelRunner:
    """One model and its KV cache.

    Args:
        model: the model.
        store: its KV cache.
        hidden_states: receives the hidden states of each pass; None: they are not kept.

    Raises:
        UserError: the model's layers cannot be found, and hidden states are to be kept.
    """

    def __init__(self, model: PreTrainedModel, store: KVStore, hidden_states: HiddenStates | None = None) -> None:
        self.model = model
        self.device = model.device
        self.store = store
        self.hidden_states = hidden_states
        self._entering: dict[int, torch.Tensor] = {}
        """(1, tokens, width) hidden states of the last pass, by the layer that they enter."""
        if hidden_states is not None:
            # Versions of transformers differ in what a list of layers as `output_hidden_states` means.
            layers = getattr(cast(Any, model).get_decoder(), "layers", None)
            if layers is None:
                raise UserError(f"{model.name_or_path}: a head cannot read this target's layers; use a draft model")
            hooks = [
                layers[layer].register_forward_pre_hook(partial(_record, self._entering, layer), with_kwargs=True)
                for layer in hidden_states.layers
            ]
            # Engines may share a model; its hooks end with the engine.
            weakref.finalize(self, _remove, hooks)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one token through the model, so that kernels are compiled before the first request.

        Raises:
            UserError: the engine cannot run the model, its logits are not finite, or memory does not suffice.
        """
        one, first = np.ones(1, np.int64), np.zeros((1, 1), np.int64)
        where = self.model.name_or_path
        taken = inspect.signature(self.model.forward).parameters
        if absent := [name for name in NEEDED if name not in taken]:
            raise UserError(
                f"{where}: the model takes no {' and no '.join(absent)}, which this engine needs; use another "
                "architecture"
            )
        try:
            token = torch.zeros(1, dtype=torch.long, device=self.device)
            batch = RaggedBatch(one, one, first)
            paged = PagedAttention(batch, self.store, self.device)
            logits = self._forward(token, batch.positions, paged, first[0])
        except (UserError, MemoryError):
            raise
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"{where}: {self.device} has too little memory left for a pass; lower max_model_len, max_num_seqs or "
                "num_blocks"
            ) from error
        except Exception as error:  # of an architecture that does not call attention as the engine expects
            raise UserError(
                f"{where}: this engine cannot run the model ({type(error).__name__}: {error}); use another architecture"
            ) from error
        layers = self.store.shape.layers
        if paged.layers != {*range(layers)}:
            # Such layers would see the tokens of all requests in a pass as one text, and none of the passes before.
            raise UserError(
                f"{where}: {layers - len(paged.layers)} of {layers} layers do not call the attention that keeps the KV "
                "cache; use an architecture whose layers all have softmax attention"
            )
        if not torch.isfinite(logits).all():
            raise UserError(
                f"{where}: the model gives no finite logits in {self.model.dtype}; use another dtype or checkpoint"
            )

    def forward(self, input_ids: torch.Tensor, batch: RaggedBatch, logits_at: IntArray) -> torch.Tensor:
        """One pass over the tokens of all rows, without padding.

        Args:
            input_ids: (tokens,) on the model's device, the rows end to end.
            batch: the rows.
            logits_at: (positions,) indices of the tokens whose logits are returned.

        Returns:
            (positions, vocab) logits in float32.
        """
        paged = PagedAttention(batch, self.store, self.device)
        return self._forward(input_ids, batch.positions, paged, logits_at)

    def _forward(
        self, input_ids: torch.Tensor, positions: IntArray, paged: PagedAttention, logits_at: IntArray
    ) -> torch.Tensor:
        kept = self.hidden_states
        output = self.model(
            input_ids=input_ids[None],
            position_ids=on_device(positions, self.device)[None],
            use_cache=False,
            logits_to_keep=on_device(logits_at, self.device),
            paged=paged,
        )
        if kept is not None:
            kept.write(paged.slots, [self._entering[layer] for layer in kept.layers])
            self._entering.clear()
        return output.logits[0].float()
