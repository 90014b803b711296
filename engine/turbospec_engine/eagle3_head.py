"""EAGLE-3 heads: the model, and what its config has in common with that of parallel heads.

A head is one decoder layer (Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", 2025). At position t it reads hidden states of the target there and the embedding of token t + 1,
and predicts token t + 2, out of a draft vocabulary. For further tokens its own hidden state takes the place of the
target's. The names of weights and config fields are those that vLLM loads.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
)

from turbospec import UserError
from turbospec_engine.attention import PagedAttention
from turbospec_engine.head import Head

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""What a config calls a head of this kind."""
VARIANTS: dict[str, object] = {
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "logit_scale": 1.0,
}
"""Config fields that change what a head computes, and the values that are implemented."""


class EagleConfig(LlamaConfig):
    """Of an EAGLE-3 or a parallel head."""

    kind: ClassVar[str]
    target_layers: Any = None

    @classmethod
    def of(cls, config: PretrainedConfig) -> Self:
        """A head's config from what `AutoConfig` reads.

        Raises:
            ValueError: it describes a head that the engine does not compute.
        """
        fields = config.to_dict()
        options = fields | (fields.get("eagle_config") or {})
        if not isinstance(config, LlamaConfig):
            raise ValueError(f"{cls.kind} of other layers than Llama's, which this engine does not run")
        for name, implemented in VARIANTS.items():
            if options.get(name) not in (None, implemented):
                raise ValueError(f"{cls.kind} with {name} = {options[name]}, which this engine does not run")
        layers = options.get("eagle_aux_hidden_state_layer_ids")
        named = isinstance(layers, list) and bool(layers) and all(type(layer) is int for layer in layers)
        if layers is not None and not named:
            raise ValueError(f"eagle_aux_hidden_state_layer_ids = {layers} is no list of layers")
        head = cast("Self", cls.from_dict(fields))
        head.target_layers = layers
        return head


class Eagle3Config(EagleConfig):
    """Of an EAGLE-3 head."""

    model_type = "turbospec_eagle3"
    kind = "an EAGLE-3 head"

    @classmethod
    def of(cls, config: PretrainedConfig) -> Self:
        head = super().of(config)
        if head.num_hidden_layers != 1:
            raise ValueError(f"{cls.kind} other than one Llama layer, which this engine does not run")
        return head


class Eagle3Layer(nn.Module):
    """The decoder layer. Its attention reads the embedding and the hidden state, each normalised, side by side."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            usual: nn.Linear = getattr(self.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, usual.out_features, bias=usual.bias is not None)
            setattr(self.self_attn, name, wide)
        self.mlp = LlamaMLP(config)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, **attention: Any) -> torch.Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.self_attn(both, **attention)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(Head):
    """The head."""

    config_class = Eagle3Config  # pyright: ignore[reportAssignmentType]
    d2t: torch.Tensor
    """(draft vocabulary,) the target's id of each token, less its id in the draft vocabulary."""
    t2d: torch.Tensor
    """(vocabulary of the target,) whether the head predicts a token."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        vocabulary: int = getattr(config, "draft_vocab_size", None) or config.vocab_size
        self.midlayer = Eagle3Layer(config)
        self.lm_head = nn.Linear(config.hidden_size, vocabulary, bias=False)
        self.register_buffer("d2t", torch.zeros(vocabulary, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.post_init()

    def check_fits(self, target: PreTrainedModel, folder: object) -> None:
        super().check_fits(target, folder)
        if not torch.equal(self.token_ids.sort().values, self.t2d.nonzero().flatten()):
            raise UserError(f"{folder}: d2t and t2d of the EAGLE-3 head name different tokens; use another checkpoint")

    @property
    def token_ids(self) -> torch.Tensor:
        """(draft vocabulary,) the target's id of each token that the head predicts."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
        """One pass over ragged rows.

        Args:
            embedded: (tokens, width) embeddings of the tokens that follow each position.
            hidden: (tokens, width) what `fc` makes of the target's hidden states, or what the head has in their place.
            positions: (tokens,).
            paged: the rows.

        Returns:
            (tokens, width) hidden states.
        """
        rotation = self.rotary_emb(hidden[None], positions[None])
        return self.midlayer(
            embedded[None], hidden[None], position_embeddings=rotation, attention_mask=None, paged=paged
        )[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(tokens, vocabulary of the target) logits in float32, -inf outside the draft vocabulary."""
        own = self.lm_head(self.norm(hidden)).float()
        logits = own.new_full((len(own), self.config.vocab_size), -torch.inf)
        logits[:, self.token_ids] = own
        return logits


AutoModelForCausalLM.register(Eagle3Config, Eagle3Head)
