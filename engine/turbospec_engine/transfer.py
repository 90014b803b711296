"""Copies of host arrays on a model's device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def on_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor on `device`; on the CPU the two may share their memory.

    A copy to a GPU is made from pinned memory and does not wait for earlier work there. A copy from pageable memory
    would wait, and the launches of the next pass could not overlap the pass that runs.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
