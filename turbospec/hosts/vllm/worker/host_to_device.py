# pyright: basic, reportMissingImports=false
"""Copies from the host to the device that the stream does not wait for. Runs in the worker."""

from __future__ import annotations

import numpy as np
import torch


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on the device. From pageable memory CUDA would wait for the stream, whatever `non_blocking` says."""
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
