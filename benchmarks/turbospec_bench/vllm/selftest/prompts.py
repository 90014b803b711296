"""Prompts for a model that we know nothing about."""

from __future__ import annotations

import itertools
from pathlib import Path

from turbospec_bench.texts import read_texts

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
    texts = [text[:characters] for path in files for text in read_texts(path)]
    if not files:
        texts = [f"{task} {subject}." for subject, task in itertools.product(SUBJECTS, TASKS)]
    return list(itertools.islice(itertools.cycle(texts), count))
