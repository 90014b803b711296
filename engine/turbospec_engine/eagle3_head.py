"""EAGLE-3 heads: the model, what it has in common with other heads, and whether a head fits a target.

A head is one decoder layer (Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", 2025). At position t it reads hidden states of the target there and the embedding of token t + 1,
and predicts token t + 2, out of a draft vocabulary. For further tokens its own hidden state takes the place of the
target's. The names of weights and config fields are those that vLLM loads.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from turbospec import UserError
from turbospec_engine.attention import PagedAttention
from turbospec_engine.hidden_states import HiddenStates

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
DEFAULT_LAYERS = 3
"""Number of the target's layers that a head reads if its config does not name them."""


class HeadConfig(LlamaConfig):
    """A head's config; each kind has a class of its own, for which transformers' Auto classes make its model."""

    kind: ClassVar[str]
    """What errors call a head, with its article."""
    target_layers: Any = None
    """Layers of the target whose hidden states the head reads; None: a choice by the target's number of layers."""

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


class Eagle3Config(HeadConfig):
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

    def __init__(self, config: HeadConfig) -> None:
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


class Head(LlamaPreTrainedModel):
    """What all heads have. None has an embedding of its own: it reads the target's."""

    config_class = HeadConfig  # pyright: ignore[reportAssignmentType]
    config: HeadConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        width, layers = config.hidden_size, len(config.target_layers or range(DEFAULT_LAYERS))
        self.fc = nn.Linear(layers * width, width, bias=False)
        self.norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)

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

    @abstractmethod
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
        ...


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

    @property
    def token_ids(self) -> torch.Tensor:
        """(draft vocabulary,) the target's id of each token that the head predicts."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
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


def check_fits(head: Head, target: PreTrainedModel, folder: object) -> None:
    """Check that a head can read a target's hidden states and predict its tokens.

    Raises:
        UserError: their sizes differ, or an EAGLE-3 head's maps between the vocabularies contradict each other.
    """
    config = target.config.get_text_config()
    kind = head.config.kind
    mend = "use a head trained for this target"
    for name, what in (("hidden_size", "width"), ("vocab_size", "vocabulary")):
        ours, theirs = getattr(head.config, name), getattr(config, name)
        if ours != theirs:
            raise UserError(f"{folder}: {kind} for a target of {what} {ours}, not {theirs}; {mend}")
    layers = head.target_layers(config.num_hidden_layers)
    if min(layers) < 0 or max(layers) >= config.num_hidden_layers:
        raise UserError(
            f"{folder}: {kind} that reads the layers {', '.join(map(str, layers))}, but the target has "
            f"{config.num_hidden_layers}; {mend}"
        )
    if isinstance(head, Eagle3Head) and not torch.equal(head.token_ids.sort().values, head.t2d.nonzero().flatten()):
        raise UserError(f"{folder}: d2t and t2d of the EAGLE-3 head name different tokens; use another checkpoint")
