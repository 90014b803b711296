"""Which set-ups of vLLM can change their draft length from step to step."""

from __future__ import annotations

from collections.abc import Sequence

OLDEST_VERSION = (0, 29)
NEWEST_VERSION = (0, 32)

SEQUENTIAL_METHODS = ("draft_model", "eagle", "eagle3", "mtp")
PARALLEL_METHODS = ("ngram",)


def unsupported(version: Sequence[int | str], method: str | None, data_parallel_size: int) -> str | None:
    """Why this set-up keeps a draft length of its own; None where it need not.

    Args:
        version: of vLLM, as its `__version_tuple__`.
        method: of speculation, as vLLM resolved it; None for no speculation.
        data_parallel_size: engines that step together.
    """
    if method is None:
        return "there is no --speculative-config, so there is nothing to control"
    release = tuple(int(part) for part in version[:2])
    if not OLDEST_VERSION <= release <= NEWEST_VERSION:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_VERSION, NEWEST_VERSION))
        return f"vLLM {'.'.join(map(str, release))} is not among the versions it was tested with, {oldest} to {newest}"
    if method not in SEQUENTIAL_METHODS + PARALLEL_METHODS:
        known = ", ".join(SEQUENTIAL_METHODS + PARALLEL_METHODS)
        return f"method {method!r} drafts a length of its own; those that can be told are {known}"
    if data_parallel_size > 1:
        return "with data parallelism the engines must draft alike, and vLLM fixes their draft length"
    return None
