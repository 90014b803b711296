"""Attribution of the difference between two configurations to their differing parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

Changes = frozenset[str]
"""The parts that are changed from the first configuration to the second."""


def subsets(parts: Sequence[str]) -> list[Changes]:
    """All ways to change some of the parts, from none to all."""
    return [frozenset(some) for size in range(len(parts) + 1) for some in combinations(parts, size)]


def shapley(parts: Sequence[str], values: Mapping[Changes, float]) -> dict[str, float]:
    """Shapley values of the parts: what each adds, averaged over all orders in which the parts can be changed (Shapley,
    "A value for n-person games", 1953). They add up to the whole difference.

    Args:
        parts: what is changed; computing time grows with the factorial of their number.
        values: the figure of each of `subsets(parts)`.
    """
    shares = dict.fromkeys(parts, 0.0)
    orders = list(permutations(parts))
    for order in orders:
        changed: Changes = frozenset()
        for part in order:
            shares[part] += (values[changed | {part}] - values[changed]) / len(orders)
            changed |= {part}
    return shares
