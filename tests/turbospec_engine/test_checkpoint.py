"""Checkpoints whose model would generate other text than it should, or none, are refused in one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import RwkvConfig, RwkvForCausalLM, XGLMConfig, XGLMForCausalLM

from tests.turbospec_engine.harness import Pair, RandomPlans
from turbospec import UserError
from turbospec_engine import Engine, Models

WEIGHTS = "model.safetensors"
LAST_LAYER = "model.layers.1."


@pytest.fixture
def copy(llama: Pair, tmp_path: Path) -> Pair:
    return Pair(*(Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in (llama.target, llama.drafter)))


def change_config(folder: Path, name: str = "config.json", /, **fields: object) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def drop_layer(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if name.startswith(LAST_LAYER)]:
        del weights[name]


def spoil(value: float) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"][3] = value

    return change


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def integers(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int64)


def huge_token(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": 100_000, "content": "<far>"})
    (folder / "tokenizer.json").write_text(json.dumps(document))


def code_of_its_own(folder: Path) -> None:
    (folder / "model.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    change_config(folder, model_type="own", auto_map={"AutoConfig": "model.Own", "AutoModelForCausalLM": "model.Own"})


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a layer's tensors are absent": (lambda f: change_weights(f, drop_layer), "lack what its config describes"),
    "a tensor is absent": (lambda f: change_weights(f, lambda w: w.pop("lm_head.weight")), "lm_head.weight"),
    "more layers in the config": (lambda f: change_config(f, num_hidden_layers=3), "lack what its config describes"),
    "fewer layers in the config": (lambda f: change_config(f, num_hidden_layers=1), "does not describe"),
    "other shapes": (lambda f: change_config(f, intermediate_size=80), "other shapes"),
    "no number": (lambda f: change_weights(f, spoil(float("nan"))), "not finite"),
    "an infinite number": (lambda f: change_weights(f, spoil(float("-inf"))), "not finite"),
    "integers": (lambda f: change_weights(f, integers), "no floating-point numbers"),
    "terabytes": (lambda f: change_config(f, hidden_size=10**7), "."),
    "a giant vocabulary": (lambda f: change_config(f, vocab_size=10**12), "its files hold"),
    "a million layers": (lambda f: change_config(f, num_hidden_layers=10**6), "1000000 layers"),
    "a billion labels": (lambda f: change_config(f, num_labels=10**9), "num_labels = 1000000000 is out of range"),
    "a negative size": (lambda f: change_config(f, hidden_size=-8), "."),
    "a text for a number": (lambda f: change_config(f, num_hidden_layers="two"), "."),
    "no context": (lambda f: change_config(f, num_attention_heads=0), "."),
    "another kind of model": (lambda f: change_config(f, model_type="vit"), "cannot load"),
    "an EAGLE head": (lambda f: change_config(f, architectures=["EagleLlamaForCausalLM"]), "EAGLE head"),
    "code of its own": (code_of_its_own, "cannot load"),
    "an output that never ends": (lambda f: change_config(f, "generation_config.json", eos_token_id=9999), "9999"),
    "weights cut short": (lambda f: cut(f / WEIGHTS), "cannot load"),
    "empty weights": (lambda f: (f / WEIGHTS).write_bytes(b""), "cannot load"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "no weights in safetensors"),
    "pickled weights": (pickled, "no weights in safetensors"),
    "weights in a pipe": (lambda f: replace_by_pipe(f / WEIGHTS), "is a pipe"),
    "garbage": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe{"), "not a text file in UTF-8"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "must be a JSON object"),
    "deep nesting": (lambda f: (f / "config.json").write_text("[" * 10**5), "nested"),
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "a tokenizer cut short": (lambda f: cut(f / "tokenizer.json"), "tokenizer"),
    "a tokenizer of nothing": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer"),
    "no tokenizer": (lambda f: [p.unlink() for p in f.glob("*token*")], "tokenizer"),
    "a tokenizer that cannot encode": (
        lambda f: change_config(f, "tokenizer_config.json", model_max_length="long"),
        "tokenizer",
    ),
    "tokens beyond the embedding": (huge_token, "but the model only"),
}


@pytest.mark.parametrize(
    ("what", "role"),
    [
        *((what, "target") for what in BROKEN),
        *((what, "drafter") for what in ("a layer's tensors are absent", "no number", "an EAGLE head", "no config")),
    ],
)
def test_a_broken_checkpoint_is_refused_by_folder_and_role(copy: Pair, role: str, what: str) -> None:
    breaks, words = BROKEN[what]
    folder = copy.target if role == "target" else copy.drafter
    breaks(folder)

    with pytest.raises(UserError, match=words) as refusal:
        Models.load(copy.config())

    message = str(refusal.value)
    assert str(folder) in message
    assert role in message
    assert ";" in message
    assert not (folder / "ran").exists()


def test_a_model_whose_layers_do_not_use_the_kv_cache_is_refused(copy: Pair) -> None:
    """It would give text: that of all requests of a step read as one."""
    torch.manual_seed(0)
    shape = {"vocab_size": 300, "d_model": 64, "attention_heads": 4, "num_layers": 2, "ffn_dim": 96}
    XGLMForCausalLM(XGLMConfig(**shape)).save_pretrained(copy.target)
    with pytest.raises(UserError, match=r"2 of 2 layers do not call the attention|cannot run the model"):
        Engine(copy.config(drafter=None, max_model_len=128), RandomPlans())


def test_a_model_without_attention_is_refused(copy: Pair) -> None:
    RwkvForCausalLM(RwkvConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2)).save_pretrained(copy.target)
    with pytest.raises(UserError, match="the model has no attention"):
        Engine(copy.config(drafter=None, max_model_len=128), RandomPlans())


def test_layers_of_other_kinds_are_refused(copy: Pair) -> None:
    change_config(copy.target, layer_types=["full_attention", "chunked_attention"])
    with pytest.raises(UserError, match="has layers of chunked_attention"):
        Engine(copy.config(), RandomPlans())


def test_position_embeddings_that_follow_the_longest_request_are_for_short_requests_only(copy: Pair) -> None:
    half = copy.config().max_model_len // 2
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    change_config(
        copy.target,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": half, **factors
        },
    )  # fmt: skip
    with pytest.raises(UserError, match="set max_model_len to at most that"):
        Engine(copy.config(), RandomPlans())
    Engine(copy.config(max_model_len=half), RandomPlans())


def test_tied_weights_may_be_absent(copy: Pair) -> None:
    change_config(copy.drafter, tie_word_embeddings=True)
    change_weights(copy.drafter, lambda weights: weights.pop("lm_head.weight"))
    assert Models.load(copy.config()).drafter is not None


def test_a_pickle_beside_the_weights_is_not_read(copy: Pair) -> None:
    (copy.target / "pytorch_model.bin").write_bytes(b"no pickle")
    assert Models.load(copy.config()).target is not None
