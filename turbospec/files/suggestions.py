"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that names the known name closest to `name`; where none is close, the list of known names."""
    names = sorted(known)
    match = get_close_matches(name, names, n=1)
    return f"did you mean `{match[0]}`?" if match else f"known: {', '.join(names)}"
