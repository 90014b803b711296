"""Figures that would expose faked acceptance: loops, distinct-n, and the replay of draft cycles."""

from __future__ import annotations

import numpy as np

from training.evaluate import accepted_lengths, greedy_acceptance
from training.repetition import distinct_share, ends_in_loop


def test_periodic_tail_is_a_loop() -> None:
    assert ends_in_loop([*range(50), *([1, 2, 3] * 16)])
    assert ends_in_loop([5] * 48)


def test_varied_tail_is_no_loop() -> None:
    assert not ends_in_loop(list(range(96)))
    assert not ends_in_loop([*([1, 2, 3] * 15), 9, 8, 7])
    assert not ends_in_loop(list(range(24)) * 4)


def test_distinct_share_counts_n_grams() -> None:
    assert distinct_share([1, 1, 1, 1], 1) == 0.25
    assert distinct_share([1, 2, 3, 4], 2) == 1.0


def test_cycles_are_replayed_as_in_speculative_decoding() -> None:
    agrees = np.array([[True, True, False, True, False, False, True, True, True]])
    # cycle at 0 accepts 2 and goes on at 3; accepts 1, on at 5; accepts 0, on at 6, where fewer than 3 + 1 remain
    assert accepted_lengths(agrees, 3) == [2, 1, 0]


def test_conditional_acceptance_of_a_perfect_drafter_is_one() -> None:
    figures = greedy_acceptance(np.ones((2, 60), dtype=bool))
    assert figures["position"] == [1.0] * 8
    assert figures["mean_accepted_k5"] == 5.0
