"""The replay of draft cycles, from which acceptance is counted."""

from __future__ import annotations

import numpy as np

from training.evaluate import accepted_lengths, greedy_acceptance


def test_cycles_are_replayed_as_in_speculative_decoding() -> None:
    agrees = np.array([[True, True, False, True, False, False, True, True, True]])
    # the cycle at 0 accepts 2, the one at 3 accepts 1, the one at 5 accepts 0; at 6 fewer than 3 + 1 tokens remain
    assert accepted_lengths(agrees, 3) == [2, 1, 0]


def test_conditional_acceptance_of_a_perfect_drafter_is_one() -> None:
    figures = greedy_acceptance(np.ones((2, 60), dtype=bool))
    assert figures["position"] == [1.0] * 8
    assert figures["mean_accepted_k5"] == 5.0
