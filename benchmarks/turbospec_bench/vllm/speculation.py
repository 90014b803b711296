"""vLLM's `--speculative-config` for each drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_DRAFT = 15
"""Longest draft under TurboSpec."""

NGRAM = "n-gram"
DRAFTERS: dict[str, tuple[str, str | None]] = {
    "good": ("draft_model", "drafter"),
    "weak": ("draft_model", "drafter-weak"),
    "mismatched": ("draft_model", "drafter-mismatched"),
    "eagle3": ("eagle3", "eagle3"),
    "eagle3-untrained": ("eagle3", "eagle3-untrained"),
    "peagle": ("eagle3", "peagle"),
    "dflash": ("dflash", "dflash"),
    NGRAM: ("ngram", None),
}
"""Method and folder of each drafter."""
ONE_PASS = ("peagle", "dflash")
"""Drafters that draft all tokens in one pass."""
PARALLEL_DRAFTING = ("peagle",)
"""Those of them that need vLLM's `parallel_drafting`: without it the method `eagle3` drafts token by token."""
PROMPT_LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}

Lengths = Sequence[tuple[int, int, int]]
"""Draft lengths by batch size: first and last batch size, both inclusive, and K."""


def speculative_config(drafter: str, models: Path, length: int, lengths: Lengths | None = None) -> dict[str, Any]:
    """The configuration of a drafter.

    Args:
        length: K; with `lengths` the largest K.
        lengths: draft lengths by batch size.
    """
    method, folder = DRAFTERS[drafter]
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": length}
    config |= {"parallel_drafting": True} if drafter in PARALLEL_DRAFTING else {}
    config |= PROMPT_LOOKUP if folder is None else {"model": str((models / folder).resolve())}
    return config if lengths is None else config | {"num_speculative_tokens_per_batch_size": [*map(list, lengths)]}
