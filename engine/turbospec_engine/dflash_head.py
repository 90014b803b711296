"""DFlash heads: block drafters, which draft all tokens in one pass over a block with attention in both directions.

A block is the newest token and a mask token for each draft token; the mask at a position is for the token there (Chen
et al., "DFlash: Block Diffusion for Flash Speculative Decoding", 2026). In each layer it attends to itself and to the
tokens before it. Their keys and values are made from hidden states of the target alone, so that they stay valid as long
as the tokens. The names of weights and config fields are those that vLLM loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, apply_rotary_pos_emb

from turbospec_engine.attention import PagedAttention
from turbospec_engine.head import Head

ARCHITECTURE = "DFlashDraftModel"
"""What a config calls a head of this kind."""
VARIANTS: dict[str, object] = {
    "is_causal": False,
    "causal": False,
    "use_swa": False,
    "attention_sink_bias": False,
    "add_swa_attention_sink_bias": False,
    "attention_value_scale": None,
    "is_neox_style": True,
    "use_aux_hidden_state": True,
    "logit_scale": 1.0,
    "has_own_lm_head": False,
    "eagle_aux_hidden_state_layer_ids": None,
}
"""Config fields that change what a head computes, and the values that are implemented."""


class DFlashConfig(Qwen3Config):
    """Of a DFlash head."""

    model_type = "turbospec_dflash"
    kind: ClassVar[str] = "a DFlash head"
    target_layers: Any = None
    mask_token: Any = None
    """Id of the token that the head reads in place of draft tokens."""

    @classmethod
    def of(cls, config: PretrainedConfig) -> Self:
        """A head's config from what `AutoConfig` reads.

        Raises:
            ValueError: it describes a head that the engine does not compute.
        """
        fields = config.to_dict()
        named = fields.get("dflash_config")
        if not isinstance(config, Qwen3Config) or not isinstance(named, dict):
            raise ValueError(f"{cls.kind} needs layers of Qwen3 and a dflash_config")
        options = fields | cast("dict[str, Any]", named)
        for name, implemented in VARIANTS.items():
            if options.get(name) not in (None, implemented):
                raise ValueError(f"{cls.kind} with {name} = {options[name]}, which this engine does not run")
        if set(fields.get("layer_types") or ()) - {"full_attention"}:
            raise ValueError(f"{cls.kind} with sliding attention, which this engine does not run")
        for name, usual in (("draft_vocab_size", "vocab_size"), ("target_hidden_size", "hidden_size")):
            if fields.get(name) not in (None, fields[usual]):
                raise ValueError(f"{cls.kind} whose {name} is not its {usual}, which this engine does not run")
        layers, mask_token = options.get("target_layer_ids"), options.get("mask_token_id")
        if not isinstance(layers, list) or not layers or any(type(layer) is not int for layer in layers):
            raise ValueError(f"target_layer_ids = {layers} is no list of layers")
        if type(mask_token) is not int or not 0 <= mask_token < config.vocab_size:
            raise ValueError(f"the mask token {mask_token} is no token from 0 to {config.vocab_size - 1}")
        head = cast("Self", cls.from_dict(fields))
        # It names layers by their output, which enters the next one.
        head.target_layers = [layer + 1 for layer in layers]
        head.mask_token = mask_token
        return head


class DFlashHead(Head):
    """The head. Its output layer is the target's."""

    config_class = DFlashConfig  # pyright: ignore[reportAssignmentType]

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        self.mask_token: int = config.mask_token
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.post_init()

    def context(self, states: torch.Tensor, positions: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of tokens that the target has computed, for each layer.

        Args:
            states: (tokens, layers · width) the target's hidden states.
            positions: (tokens,).

        Yields:
            (tokens, kv_heads, head_dim) keys, and values of the same shape.
        """
        hidden = self.hidden_norm(self.fc(states))
        rotation = self.rotary_emb(hidden[None], positions[None])
        for layer in cast("list[Qwen3DecoderLayer]", self.layers):
            attention = layer.self_attn
            key, value = (
                project(hidden).unflatten(-1, (-1, attention.head_dim))
                for project in (attention.k_proj, attention.v_proj)
            )
            key = attention.k_norm(key)[None].transpose(1, 2)
            yield apply_rotary_pos_emb(key, key, *rotation)[0][0].transpose(0, 1), value

    def forward(self, embedded: torch.Tensor, positions: torch.Tensor, paged: PagedAttention) -> torch.Tensor:
        """One pass over blocks, whose contexts' keys and values are in the cache.

        Args:
            embedded: (tokens, width) embeddings of the newest and the mask tokens.
            positions: (tokens,).
            paged: the rows; not causal.

        Returns:
            (tokens, width) hidden states.
        """
        hidden = embedded[None]
        rotation = self.rotary_emb(hidden, positions[None])
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotation, attention_mask=None, paged=paged)
        return hidden[0]


AutoModelForCausalLM.register(DFlashConfig, DFlashHead)
