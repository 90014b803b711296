"""Parallel heads: EAGLE-3 heads that draft all tokens in one pass.

The first draft position is an EAGLE-3 head's. Each later one reads a learnt state and the embedding of a mask token,
because the target's hidden state and the token before it are not known yet (Hui et al., "P-EAGLE: Parallel-Drafting
EAGLE with Scalable Training", 2026). Layers after the first are ordinary ones. The names of weights and config fields
are those that vLLM loads with `parallel_drafting`: a config is an EAGLE-3 head's, but names a mask token.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from turbospec_engine.attention import PagedAttention
from turbospec_engine.eagle3_head import Eagle3Layer, EagleConfig
from turbospec_engine.head import Head

MASK_FIELDS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Config fields that may name the mask token, in vLLM's order."""


def named_mask_token(config: PretrainedConfig) -> Any:
    """The mask token that a head's config names; None for a head that drafts token by token."""
    return next((token for name in MASK_FIELDS if (token := getattr(config, name, None)) is not None), None)


class ParallelConfig(EagleConfig):
    """Of a parallel head."""

    model_type = "turbospec_parallel"
    kind = "a parallel head"
    mask_token: Any = None
    """Id of the token that the head reads in place of draft tokens, which are not known yet."""

    @classmethod
    def of(cls, config: PretrainedConfig) -> Self:
        head = super().of(config)
        if not head.tie_word_embeddings:
            raise ValueError(f"{cls.kind} with an output layer of its own, which this engine does not run")
        head.mask_token = named_mask_token(config)
        if type(head.mask_token) is not int or not 0 <= head.mask_token < head.vocab_size:
            raise ValueError(f"the mask token {head.mask_token} is no token from 0 to {head.vocab_size - 1}")
        return head


class ParallelHead(Head):
    """The head. Its output layer is the target's."""

    config_class = ParallelConfig  # pyright: ignore[reportAssignmentType]

    def __init__(self, config: ParallelConfig) -> None:
        super().__init__(config)
        self.mask_token: int = config.mask_token
        self.mask_hidden = nn.Parameter(torch.zeros(1, self.fc.in_features))
        """(1, layers · width) what the head reads at mask positions in place of the target's hidden states."""
        later = [LlamaDecoderLayer(config, index) for index in range(1, config.num_hidden_layers)]
        self.layers = nn.ModuleList([Eagle3Layer(config), *later])
        self.post_init()

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
        """One pass over ragged rows; arguments and result as those of `Eagle3Head.forward`."""
        options: dict[str, Any] = {
            "position_embeddings": self.rotary_emb(hidden[None], positions[None]),
            "attention_mask": None,
            "paged": paged,
        }
        first, *later = self.layers
        states = first(embedded[None], hidden[None], **options)
        for layer in later:
            states = layer(states, **options)
        return states[0]


AutoModelForCausalLM.register(ParallelConfig, ParallelHead)
