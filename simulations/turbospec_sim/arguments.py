"""Types of the scripts' options."""

from __future__ import annotations

import argparse


def not_negative(text: str) -> int:
    """Raises:
    argparse.ArgumentTypeError: not a whole number of 0 or more.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of 0 or more (got {text})")
    return int(text)


def positive(text: str) -> int:
    """Raises:
    argparse.ArgumentTypeError: not a whole number above 0.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0 (got {text})")
    return int(text)
