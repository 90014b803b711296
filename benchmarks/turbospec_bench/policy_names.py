"""Names of policies in the rows of the results."""

from __future__ import annotations

OFF = "off"
ADAPTIVE = "adaptive"
STATIC_PREFIX = "static-"


def fixed_length(policy: str) -> int | None:
    """K of `static-K` and 0 of `off`; None of any other name, a user's `static-mine` or `off-hours` too."""
    return 0 if policy == OFF else number_after(STATIC_PREFIX, policy)


def number_after(prefix: str, policy: str) -> int | None:
    """The number that follows a prefix and ends the name; None of any other name."""
    number = policy.removeprefix(prefix)
    return int(number) if number != policy and number.isdecimal() else None
