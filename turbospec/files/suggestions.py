"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name closest to a misspelt one, as a question; all known names where none is close."""
    names = sorted(known)
    match = get_close_matches(name, names, n=1)
    return f"did you mean `{match[0]}`?" if match else f"known: {', '.join(names)}"
