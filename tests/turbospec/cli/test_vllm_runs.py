"""What the subcommands that run vLLM share."""

from __future__ import annotations

import pytest
import torch

from turbospec.cli.vllm_runs import gpu_name


@pytest.mark.parametrize("kind", ["cuda", "xpu", None])
def test_a_gpu_of_any_maker_is_one(kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("cuda", "xpu"):
        devices = getattr(torch, each)
        monkeypatch.setattr(devices, "is_available", lambda each=each: each == kind)
        monkeypatch.setattr(devices, "get_device_name", lambda each=each: f"a GPU of {each}")
    assert gpu_name() == (kind and f"a GPU of {kind}")
