"""Prompts for a model that we know nothing about."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from turbospec.errors import UserError

TASKS = (
    "Write a Python function, with a docstring and an example, that",
    "Explain to a new colleague, step by step, how one",
    "Write the beginning of a short story in which somebody",
    "List the advantages and the disadvantages of software that",
    "Write a friendly email to a customer whose product no longer",
)
SUBJECTS = (
    "sorts a list of dates",
    "translates a letter into French",
    "repairs an old bicycle",
    "counts the birds in a park",
    "sends a parcel overseas",
    "reads a map in the dark",
    "bakes bread without yeast",
    "answers questions about the weather",
    "finds the shortest way home",
    "copies a database while it is in use",
)


def prompt_texts(count: int, files: list[Path], characters: int = 400) -> list[str]:
    """Prompts, different ones as far as there are any.

    Args:
        count: how many.
        files: JSON lines with a field `text`, of which prompts are the beginnings; empty for the built-in ones.
        characters: longest prompt from a file.

    Raises:
        UserError: a file cannot be read, or has no texts.
    """
    texts = [text[:characters] for path in files for text in _texts(path)]
    if not files:
        texts = [f"{task} {subject}." for subject, task in itertools.product(SUBJECTS, TASKS)]
    return list(itertools.islice(itertools.cycle(texts), count))


def _texts(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines if line.strip()]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError):
        raise UserError(f'{path}: must have one JSON object with a field "text" in each line') from None
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f"{path}: has no texts, or empty ones")
    return texts
