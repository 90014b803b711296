"""Whether the output is text or a loop: drafts for a model that repeats itself are accepted for the wrong reason."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LOOP_WINDOW_TOKENS = 48
LOOP_MAX_PERIOD_TOKENS = 16


def distinct(tokens: Sequence[int], n: int) -> float:
    """Distinct n-grams over all n-grams of a text; 1 where it has none."""
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Whether the last 48 tokens repeat with a period of at most 16."""
    if len(tokens) < LOOP_WINDOW_TOKENS:
        return False
    tail = np.asarray(tokens[-LOOP_WINDOW_TOKENS:])
    return any(bool((tail[period:] == tail[:-period]).all()) for period in range(1, LOOP_MAX_PERIOD_TOKENS + 1))


def text_figures(texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """`distinct_2`, `distinct_4` and `loop_share`, each a mean over the requests of a run.

    `loop_share` is over the texts that are long enough to show a loop, and not a number where there are none.
    """
    loops = [ends_in_loop(tokens) for tokens in texts if len(tokens) >= LOOP_WINDOW_TOKENS]
    return {
        "distinct_2": float(np.mean([distinct(tokens, 2) for tokens in texts])),
        "distinct_4": float(np.mean([distinct(tokens, 4) for tokens in texts])),
        "loop_share": float(np.mean(loops)) if loops else math.nan,
    }
