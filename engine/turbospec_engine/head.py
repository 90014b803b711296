"""Heads: drafters that read hidden states of the target. What their kinds have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaPreTrainedModel, LlamaRMSNorm, LlamaRotaryEmbedding

from turbospec import UserError
from turbospec_engine.hidden_states import HiddenStates

DEFAULT_LAYERS = 3
"""Number of the target's layers that a head reads if its config does not name them."""
MEND = "use a head trained for this target"


class HeadConfig(Protocol):
    """A head's config; each kind has a class of its own, for which transformers' Auto classes make its model."""

    kind: ClassVar[str]
    """What errors call a head, with its article."""
    target_layers: Any
    """The head reads the hidden states that enter these layers of the target; None: a choice by their number."""
    hidden_size: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int


class Head(LlamaPreTrainedModel):
    """What all heads have. None has an embedding of its own: it reads the target's."""

    config: HeadConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        width, layers = config.hidden_size, len(config.target_layers or range(DEFAULT_LAYERS))
        self.fc = nn.Linear(layers * width, width, bias=False)
        self.norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)  # pyright: ignore[reportArgumentType]

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
