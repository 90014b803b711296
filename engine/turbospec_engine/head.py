"""Heads: drafters that read hidden states of the target. What their kinds have in common."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaPreTrainedModel, LlamaRMSNorm, LlamaRotaryEmbedding

from turbospec import UserError
from turbospec_engine.hidden_states import HiddenStates

DEFAULT_LAYERS = 3
"""Number of the target's layers that a head reads if its config does not name them."""
MEND = "use a head trained for this target"


class Head(LlamaPreTrainedModel):
    """What all heads have. None has an embedding of its own: it reads the target's."""

    config: Any
    """Of a class of its own for each kind, for which transformers' Auto classes make its model. `kind` is what errors
    call a head, with its article; the head reads the hidden states that enter the `target_layers` of the target, where
    None is a choice by their number."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        width, layers = self.config.hidden_size, len(self.config.target_layers or range(DEFAULT_LAYERS))
        self.fc = nn.Linear(layers * width, width, bias=False)
        self.norm = LlamaRMSNorm(width, eps=self.config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(self.config)

    def target_layers(self, num_layers: int) -> tuple[int, ...]:
        """The layers that the head reads of a target with `num_layers` layers; by default vLLM's choice."""
        return tuple(self.config.target_layers or (2, num_layers // 2, num_layers - 3))

    def hidden_states(self, target: PreTrainedModel, num_blocks: int, block_size: int) -> HiddenStates:
        """Room for the hidden states that the head reads, in as many blocks as the target's KV cache has."""
        config = target.config.get_text_config()
        return HiddenStates(
            self.target_layers(config.num_hidden_layers),
            config.hidden_size,
            num_blocks,
            block_size,
            dtype=target.dtype,
            device=target.device,
        )

    def check_fits(self, target: PreTrainedModel, folder: object) -> None:
        """Check that the head can read a target's hidden states and predict its tokens.

        Raises:
            UserError: it cannot.
        """
        config, kind = target.config.get_text_config(), self.config.kind
        for name, what in (("hidden_size", "width"), ("vocab_size", "vocabulary")):
            ours, theirs = getattr(self.config, name), getattr(config, name)
            if ours != theirs:
                raise UserError(f"{folder}: {kind} for a target of {what} {ours}, not {theirs}; {MEND}")
        layers = self.target_layers(config.num_hidden_layers)
        if min(layers) < 0 or max(layers) >= config.num_hidden_layers:
            raise UserError(
                f"{folder}: {kind} that reads the layers {', '.join(map(str, layers))}, but the target has "
                f"{config.num_hidden_layers}; {MEND}"
            )
