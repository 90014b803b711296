"""A pair of tiny random Llama checkpoints with a character tokenizer, and workload files, as files on disk."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = ["<|endoftext|>", "<|unk|>", *string.ascii_letters, *string.digits, *string.punctuation, " ", "\n"]


def write_models(folder: Path) -> None:
    """Target, good, weak and mismatched drafter."""
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", bos_token="<|endoftext|>", unk_token="<|unk|>"
    )
    for seed, name in enumerate(("target", "drafter", "drafter-weak", "drafter-mismatched")):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(CHARACTERS),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2 if name == "target" else 1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
        )
        LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def write_workloads(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("code", "prose"):
        records = [{"id": f"{kind}-{n}", "source": "test", "text": f"{kind} {n} = f({n}) " * 40} for n in range(8)]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{kind}.jsonl").write_text(lines, encoding="utf-8")
