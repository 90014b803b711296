"""What the subcommands that run vLLM share."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions, version

from turbospec.errors import UserError


def installed_vllm() -> str:
    """The version of vLLM, whatever its distribution is called.

    Raises:
        UserError: it is not installed beside us.
    """
    if not (names := packages_distributions().get("vllm")):
        raise UserError(f"vLLM is not installed for {sys.executable}; run this with the Python that has it")
    return version(names[0])


def gpu_name() -> str | None:
    """The first GPU's, of NVIDIA, AMD or Intel; None where vLLM runs on the CPU."""
    import torch

    for devices in (torch.cuda, torch.xpu):
        if devices.is_available():
            return devices.get_device_name()
    return None
