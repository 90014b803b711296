"""How much of a difference between two set-ups each of their differing parts makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

Changes = frozenset[str]
"""The parts that are changed from the first set-up to the second."""


def subsets(parts: Sequence[str]) -> list[Changes]:
    """All ways to change some of the parts, from none to all."""
    return [frozenset(some) for size in range(len(parts) + 1) for some in combinations(parts, size)]


def shapley(parts: Sequence[str], values: Mapping[Changes, float]) -> dict[str, float]:
    """What each part adds, averaged over all orders in which they can be changed (Shapley, "A value for n-person
    games", 1953). The parts' shares add up to the whole difference.

    Args:
        parts: what is changed; time grows with the factorial of their number.
        values: of each of `subsets(parts)`.
    """
    shares = dict.fromkeys(parts, 0.0)
    orders = list(permutations(parts))
    for order in orders:
        changed: Changes = frozenset()
        for part in order:
            shares[part] += (values[changed | {part}] - values[changed]) / len(orders)
            changed |= {part}
    return shares
