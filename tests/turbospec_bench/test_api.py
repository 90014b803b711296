"""What a script may import, and what that imports."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "package", ["turbospec_bench", *(f"turbospec_bench.{of}" for of in ("embedded", "vllm", "reports"))]
)
def test_every_exported_name_is_there(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name).__module__.startswith(("turbospec_bench", "collections"))
    with pytest.raises(AttributeError, match="absent"):
        _ = module.absent


@pytest.mark.parametrize("package", ["turbospec_bench", "turbospec_bench.vllm", "turbospec_bench.reports"])
def test_packages_are_light(package: str) -> None:
    heavy = ("torch", "transformers", "matplotlib", "numba", "scipy", "turbospec_sim", "turbospec_engine")
    code = f"import sys, {package}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
