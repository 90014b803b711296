"""Types of the scripts' options."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Raises:
    argparse.ArgumentTypeError: not a whole number above 0.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0 (got {text})")
    return int(text)
