"""Configuration of an engine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from turbospec import UserError
from turbospec.interface import MAX_DRAFT_LENGTH
from turbospec_engine.limits import check_integer

NGRAM = "ngram"
"""The `drafter` or `lookup` that proposes what followed the last tokens earlier in the request (prompt look-up)."""
SUFFIX = "suffix"
"""The `drafter` or `lookup` that proposes what mostly followed them in the request and in earlier answers (suffix
decoding)."""
LOOKUPS = (NGRAM, SUFFIX)

EmitOrder = Literal["before_draft", "after_draft"]

DrafterMemory = Literal["shared", "reserved"]

DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")

THREADS_A_CORE = 4
"""Most threads for each core. They only wait for one another, and the process ends where no more can be started."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    Raises:
        UserError: a value is out of range.
    """

    target: str | Path
    """Checkpoint folder of the target model."""
    drafter: str | Path | None = None
    """Checkpoint folder of a draft model, an EAGLE-3 head, a parallel head or a DFlash head; "ngram" for prompt
    look-up, "suffix" for suffix decoding, or None for no speculation."""
    lookup: str | None = None
    """A second source of drafts, beside a drafter that is a model: "ngram", "suffix" or None. The controller chooses
    the source of each draft."""
    device: str = "cpu"
    dtype: str = "float32"
    max_num_seqs: int = 32
    """Batch slots: requests that may run at once."""
    max_num_batched_tokens: int = 512
    """Decode tokens and prefill chunks scheduled in one step; draft tokens are not counted."""
    block_size: int = 16
    """Tokens in a block of the KV cache."""
    num_blocks: int | None = None
    """Blocks of the KV cache, of which the drafter takes its own; None: enough for `max_num_seqs` requests of
    `max_model_len` tokens, up to 2 GiB."""
    drafter_memory: DrafterMemory = "shared"
    """Whether KV blocks of a drafter that is off for long are given back to the target ("shared"), or every request
    holds them as long as it runs ("reserved")."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; None: the target's own limit."""
    max_draft: int = 15
    """Largest draft length K of the drafter, of any request in any step."""
    max_lookup: int = 15
    """Longest draft of the look-up beside the drafter."""
    emit: EmitOrder = "before_draft"
    """Whether a step's tokens are emitted before or after drafting for the next step; "after_draft" is vLLM's order."""
    num_threads: int | None = None
    """CPU threads; None: torch's own choice."""
    seed: int = 0
    """Seeds the requests that have no seed of their own."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            check_integer(name, getattr(self, name), 1)
        for name in ("num_blocks", "max_model_len"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        if self.num_threads is not None:
            check_integer("num_threads", self.num_threads, 1, THREADS_A_CORE * (os.cpu_count() or 1))
        check_integer("max_draft", self.max_draft, 0, MAX_DRAFT_LENGTH)
        check_integer("max_lookup", self.max_lookup, 1, MAX_DRAFT_LENGTH)
        if self.lookup is not None and self.lookup not in LOOKUPS:
            raise UserError(f"lookup={self.lookup!r} is unknown; use {' or '.join(map(repr, LOOKUPS))}")
        if self.lookup is not None and self.drafter_is_lookup:
            raise UserError(
                f"lookup={self.lookup!r} is a second source, but drafter={str(self.drafter)!r} is a look-up too; leave "
                "out lookup, or name a draft model or head as drafter"
            )
        check_integer("seed", self.seed, 0)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs={self.max_num_seqs}; "
                "every running request needs one token a step, so raise it"
            )
        if self.emit not in ("before_draft", "after_draft"):
            raise UserError(f"emit={self.emit!r} is unknown; use 'before_draft' or 'after_draft'")
        if self.drafter_memory not in ("shared", "reserved"):
            raise UserError(f"drafter_memory={self.drafter_memory!r} is unknown; use 'shared' or 'reserved'")
        if not isinstance(self.device, str) or not DEVICE.fullmatch(self.device):
            raise UserError(f"device={self.device!r} is unknown; use cpu, cuda, or cuda:1 for the second of them")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise UserError(f"dtype={self.dtype!r} is unknown; use one of {', '.join(DTYPES)}")

    @property
    def drafter_is_lookup(self) -> bool:
        """Whether a look-up is the only source of drafts."""
        return str(self.drafter) in LOOKUPS

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]
