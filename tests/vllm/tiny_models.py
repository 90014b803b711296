"""Tiny drafters for the methods that the repository has no trained one for, made with a fixed seed.

Most have random weights: their drafts are rarely accepted, which changes no output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

MODELS = Path(__file__).parents[2] / "models"
HIDDEN, HEADS, HEAD_SIZE, INTERMEDIATE, VOCABULARY = 256, 4, 64, 256, 3072
"""Of the repository's target, but for its MLPs."""
MASK_TOKEN = 2

Weights = dict[str, torch.Tensor]


def drafter_that_splits(folder: Path) -> Path:
    """The repository's draft model with a fourth attention head of zeros: the same drafts, and two halves."""
    weights = load_file(MODELS / "drafter" / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            weights[name] = torch.cat([weight, torch.zeros(HEAD_SIZE, weight.shape[1], dtype=weight.dtype)])
        elif name.endswith("o_proj.weight"):
            weights[name] = torch.cat([weight, torch.zeros(weight.shape[0], HEAD_SIZE, dtype=weight.dtype)], dim=1)
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    return _save(folder, weights, _config("drafter") | heads)


def parallel_drafter(folder: Path) -> Path:
    """The repository's draft model for `parallel_drafting` (PARD). Not trained for it: only first tokens are good."""
    return _save(
        folder, load_file(MODELS / "drafter" / "model.safetensors"), _config("drafter") | {"pard_token": MASK_TOKEN}
    )


def eagle(folder: Path) -> Path:
    """An EAGLE head of one layer."""
    config = _config("target") | {"num_hidden_layers": 1, "intermediate_size": INTERMEDIATE}
    weights = _layer("layers.0") | {"fc.weight": _random(HIDDEN, 2 * HIDDEN)}
    del weights["layers.0.input_layernorm.weight"]
    return _save(folder, weights, config)


def medusa(folder: Path, heads: int) -> Path:
    """Medusa heads with the target's own output layer."""
    output = load_file(MODELS / "target" / "model.safetensors")["model.embed_tokens.weight"]
    weights = {f"blocks.{head}.layers.0.weight": _random(HIDDEN, HIDDEN) for head in range(heads)}
    weights |= {f"lm_heads.{head}.weight": output.clone() for head in range(heads)}
    config = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN, "num_hidden_layers": 1}
    return _save(folder, weights, config | {"num_heads": heads, "vocab_size": VOCABULARY})


def target_with_mtp(folder: Path) -> Path:
    """A MiMo model of two layers with one module for multi-token prediction."""
    config = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
        "num_hidden_layers": 2,
        "intermediate_size": INTERMEDIATE,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    }
    weights = {"model.embed_tokens.weight": _random(VOCABULARY, HIDDEN, scale=1.0)}
    weights |= {"lm_head.weight": _random(VOCABULARY, HIDDEN, scale=1.0), "model.norm.weight": torch.ones(HIDDEN)}
    module = "model.mtp_layers.0"
    for prefix in ("model.layers.0", "model.layers.1", module):
        weights |= _layer(prefix)
        weights |= {f"{prefix}.self_attn.{each}_proj.bias": _random(HIDDEN) for each in "qkv"}
    weights |= {f"{module}.{each}_layernorm.weight": torch.ones(HIDDEN) for each in ("token", "hidden", "final")}
    weights[f"{module}.input_proj.weight"] = _random(HIDDEN, 2 * HIDDEN)
    return _save(folder, weights, _config("target") | config)


def dspark(folder: Path, block: int) -> Path:
    """A DSpark drafter of one layer."""
    weights = _block_drafter()
    weights |= {f"markov_head.markov_w{each}.weight": _random(VOCABULARY, 8) for each in (1, 2)}
    fields = {"mask_token_id": MASK_TOKEN, "target_layer_ids": [1, 3], "block_size": block, "markov_rank": 8}
    return _save(folder, weights, _qwen3("Qwen3DSparkModel") | fields)


def _block_drafter() -> Weights:
    norms = {f"{each}.weight": torch.ones(HIDDEN) for each in ("hidden_norm", "norm")}
    norms |= {f"layers.0.self_attn.{each}_norm.weight": torch.ones(HEAD_SIZE) for each in "qk"}
    return _layer("layers.0") | norms | {"fc.weight": _random(HIDDEN, 2 * HIDDEN)}


def _qwen3(architecture: str) -> dict[str, Any]:
    own = {"architectures": [architecture], "model_type": "qwen3", "num_hidden_layers": 1}
    return _config("target") | own | {"intermediate_size": INTERMEDIATE, "tie_word_embeddings": False}


def _layer(prefix: str) -> Weights:
    shapes = {f"self_attn.{each}_proj": (HIDDEN, HIDDEN) for each in "qkvo"}
    shapes |= {"mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN)}
    shapes["mlp.down_proj"] = (HIDDEN, INTERMEDIATE)
    weights = {f"{prefix}.{name}.weight": _random(*shape) for name, shape in shapes.items()}
    return weights | {f"{prefix}.{each}_layernorm.weight": torch.ones(HIDDEN) for each in ("input", "post_attention")}


_generator = torch.Generator().manual_seed(0)


def _random(*shape: int, scale: float = 0.05) -> torch.Tensor:
    return torch.randn(*shape, generator=_generator) * scale


def _config(model: str) -> dict[str, Any]:
    return json.loads((MODELS / model / "config.json").read_text())


def _save(folder: Path, weights: Weights, config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
