"""How repetitive a generated text is, in token ids."""

from __future__ import annotations

from collections.abc import Sequence

LOOP_TAIL = 48
LOOP_PERIOD = 16


def distinct_share(tokens: Sequence[int], n: int) -> float:
    """Distinct n-grams over all n-grams of one text (distinct-n)."""
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(set(grams)) / max(1, len(grams))


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Whether the last ``LOOP_TAIL`` tokens repeat with a period of at most ``LOOP_PERIOD`` tokens."""
    tail = list(tokens[-LOOP_TAIL:])
    return any(tail[period:] == tail[:-period] for period in range(1, LOOP_PERIOD + 1))
