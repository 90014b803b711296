"""Names of policies in the rows of the results."""

from __future__ import annotations

OFF = "off"
ADAPTIVE = "adaptive"
STATIC_PREFIX = "static-"


def fixed_length(policy: str) -> int | None:
    """K of `static-K` and 0 of `off`; None of any other name, a user's `static-mine` or `off-hours` too."""
    if policy == OFF:
        return 0
    length = policy.removeprefix(STATIC_PREFIX)
    return int(length) if length != policy and length.isdecimal() else None
