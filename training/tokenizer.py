"""Train the byte-level BPE tokenizer shared by every checkpoint and tokenise the corpus with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.corpus import CACHE, Document, Kind, Split, load

VOCABULARY = 3072
CONTEXT = 1024
END_OF_TEXT = "<|endoftext|>"
PADDING = "<|pad|>"
END_OF_TEXT_ID = 0


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with ``VOCABULARY`` entries; ``<|endoftext|>`` (id 0) is both bos and eos."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> np.ndarray:
    """All documents as one ``uint16`` stream, each followed by ``<|endoftext|>``."""
    pieces: list[list[int]] = []
    for start in range(0, len(documents), 256):
        pieces += tokenizer([document.text for document in documents[start : start + 256]])["input_ids"]
    return np.concatenate([np.asarray([*piece, END_OF_TEXT_ID], dtype=np.uint16) for piece in pieces])


def stream(split: Split, kind: Kind, cache: Path = CACHE) -> np.ndarray:
    """Token stream written by :func:`main`, shape ``[tokens]``."""
    return np.load(cache / f"{split}-{kind}.npy")


def main(
    out: Annotated[Path, typer.Option(help="Folder for the tokenizer files.")] = CACHE / "tokenizer",
    sample_megabytes: Annotated[int, typer.Option(help="Characters of training text the merges are learnt on.")] = 12,
    existing: Annotated[Path | None, typer.Option(help="Use this checkpoint's tokenizer, and learn none.")] = None,
    cache: Path = CACHE,
) -> None:
    """Learn the merges on training documents only, then write the token streams of both splits."""
    train = load("train", cache)
    if existing is None:
        sample: list[str] = []
        for document in train:
            if sum(map(len, sample)) > sample_megabytes * 1_000_000:
                break
            sample.append(document.text)
        tokenizer = train_tokenizer(sample)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(existing)
    tokenizer.save_pretrained(out)
    for split, documents in (("train", train), ("heldout", load("heldout", cache))):
        for kind in ("code", "prose"):
            chosen = [document for document in documents if document.kind == kind]
            tokens = encode(tokenizer, chosen)
            np.save(cache / f"{split}-{kind}.npy", tokens)
            ratio = sum(len(document.text) for document in chosen) / len(tokens)
            typer.echo(f"{split:8} {kind:6} {len(tokens) / 1e6:7.3f} M tokens, {ratio:.2f} characters per token")


if __name__ == "__main__":
    typer.run(main)
