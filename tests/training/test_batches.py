"""Batches depend on nothing but the seed and the step, and the learning rate follows the share done."""

from __future__ import annotations

import numpy as np
import torch

from training.batches import Windows


def test_a_resumed_run_sees_the_same_batches() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    ahead = Windows([tokens], length=10, batch=4, seed=3)
    seen = [ahead.at(step) for step in range(40)]
    assert torch.equal(seen[-1], Windows([tokens], length=10, batch=4, seed=3).at(39))
    assert seen[-1].shape == (4, 11)


def test_an_epoch_covers_every_window_once() -> None:
    windows = Windows([np.arange(101, dtype=np.uint16)], length=10, batch=5, seed=1)
    starts = torch.cat([windows.at(step)[:, 0] for step in range(2)])
    assert sorted(starts.tolist()) == list(range(0, 100, 10))
