"""Attributes of vLLM's objects that have another value during a call."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(target: Any, **attributes: Any) -> Generator[None]:
    """Set attributes of an object, and set them back at the end."""
    before = {name: getattr(target, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
