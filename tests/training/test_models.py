"""The shipped checkpoints load with the ordinary Hugging Face classes and fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = ("target", "drafter", "drafter-weak", "drafter-mismatched")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_loads_and_predicts(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODELS / name)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    assert model.dtype == torch.bfloat16
    assert len(tokenizer) == model.config.vocab_size == 3072
    assert model.config.vocab_size % 64 == 0
    assert model.config.head_dim in (32, 64)
    assert tokenizer.bos_token == tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.bos_token_id == model.config.bos_token_id == model.config.eos_token_id
    assert tokenizer.pad_token_id == model.config.pad_token_id
    text = "def add(first, second):\n    return first + second\n"
    tokens = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(tokens[0]) == text
    assert torch.isfinite(model(input_ids=tokens).logits).all()


def test_tokenizers_are_identical() -> None:
    for file in TOKENIZER_FILES:
        assert len({(MODELS / name / file).read_bytes() for name in NAMES}) == 1


def test_shapes_and_weights_on_disk() -> None:
    assert AutoConfig.from_pretrained(MODELS / "target").num_hidden_layers == 8
    assert AutoConfig.from_pretrained(MODELS / "drafter").num_hidden_layers == 1
    for name in NAMES:
        with safe_open(MODELS / name / "model.safetensors", "pt") as weights:
            types = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118 no mapping
        assert types == {"BF16"}


def test_mismatched_drafter_is_the_drafter_with_its_vocabulary_permuted() -> None:
    key = "model.embed_tokens.weight"
    good, bad = (
        AutoModelForCausalLM.from_pretrained(MODELS / name).state_dict() for name in ("drafter", "drafter-mismatched")
    )
    assert all(torch.equal(good[other], bad[other]) for other in good if other not in (key, "lm_head.weight"))
    assert not torch.equal(good[key], bad[key])
    assert torch.equal(good[key].float().sum(1).sort().values, bad[key].float().sum(1).sort().values)


def test_the_pair_stays_within_24_megabytes_and_the_heads_within_15() -> None:
    sizes = {path.parent.name: path.stat().st_size for path in MODELS.rglob("*.safetensors")}
    heads = {"eagle3", "eagle3-untrained", "peagle", "dflash"}
    assert sum(size for name, size in sizes.items() if name not in heads) <= 24_000_000
    assert sum(sizes[name] for name in heads) <= 15_000_000
