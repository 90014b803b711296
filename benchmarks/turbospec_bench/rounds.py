"""Interleaved rounds: every contender serves the same load before any of them serves the next."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from turbospec_bench.contender import Contender, Run

LoadT = TypeVar("LoadT")

WARM_UP = -1
"""Number of the round that is played first and not counted."""


def play_rounds(
    contenders: Sequence[Contender[LoadT]],
    draw: Callable[[int], LoadT],
    rounds: int,
    seed: int,
    on_run: Callable[[Contender[LoadT]], None] = lambda _: None,
) -> Iterator[list[Run]]:
    """Yield each counted round's runs, after a warm-up that is not counted.

    Args:
        draw: the load of a round.
        on_run: told of every run that is about to begin, the warm-up's too.
    """
    with _frozen():
        for index in range(WARM_UP, rounds):
            runs = play_round(contenders, draw(index), (seed, index - WARM_UP), on_run)
            if index != WARM_UP:
                yield runs


def play_round(
    contenders: Sequence[Contender[LoadT]],
    load: LoadT,
    order: tuple[int, int],
    on_run: Callable[[Contender[LoadT]], None] = lambda _: None,
) -> list[Run]:
    """One round's runs in the contenders' order; they run in an order drawn by the seeds in `order`."""
    runs: dict[int, Run] = {}
    for place in np.random.default_rng(order).permutation(len(contenders)):
        on_run(contenders[place])
        with _no_collection():
            runs[int(place)] = contenders[place].serve(load)
    return [runs[place] for place in range(len(contenders))]


@contextmanager
def _frozen() -> Iterator[None]:
    """What exists now, models above all, is not looked through at every collection."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect before, so that nothing has to be collected during."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
