"""Small changes to a piece of code, as an edit makes them."""

from __future__ import annotations

import builtins
import keyword
import random
import re

WORD = re.compile(r"[A-Za-z_]\w{3,}")
FIXED = {*keyword.kwlist, *dir(builtins), "self"}
"""Words that no edit renames."""
ENDINGS = ("_value", "_list", "_new", "2")


def changed(lines: list[str], start: int, seed: str) -> list[str] | None:
    """The lines with an identifier renamed, and half of the time with a line less.

    Args:
        lines: of code.
        start: lines before it show the change, the others are the answer. The identifier is one that occurs on both
            sides, else one before it. The line that is left out is of the answer.
        seed: of what is chosen.

    Returns:
        ``None`` where no identifier can be renamed.
    """
    draw = random.Random(f"edit:{seed}")
    shown, hidden = (_names("\n".join(part)) for part in (lines[:start], lines[start:]))
    names = sorted(shown & hidden) or sorted(shown)
    if not names:
        return None
    name = draw.choice(names)
    new_name = name + draw.choice(ENDINGS)
    renamed = [re.sub(rf"\b{name}\b", new_name, line) for line in lines]
    if draw.random() < 0.5 and len(lines) - start > 2:
        del renamed[draw.randrange(start + 1, len(lines) - 1)]
    return renamed


def _names(text: str) -> set[str]:
    return {name for name in WORD.findall(text) if name not in FIXED}
