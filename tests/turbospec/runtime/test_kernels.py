"""Compiled kernels that do not outlive their sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba import config as numba_config
from numba import njit

from turbospec.runtime.kernels import drop_stale_kernels, kernels_are_cached, on_first_compilation


def test_kernels_live_as_long_as_every_source_is_the_same(tmp_path: Path) -> None:
    caches = tmp_path / "__pycache__"
    source, kernel = tmp_path / "logistic.py", caches / "acceptance._observe-120.py311.nbi"
    source.write_text("x = 1\n")
    drop_stale_kernels(tmp_path)
    kernel.touch()
    drop_stale_kernels(tmp_path)
    assert kernel.exists()
    source.write_text("x = 1.5\n")
    drop_stale_kernels(tmp_path)
    assert not kernel.exists()


def test_and_as_every_source_of_the_packages_that_they_use(tmp_path: Path) -> None:
    package, used = tmp_path / "sim", tmp_path / "core"
    kernel = package / "__pycache__" / "steps.draft-9.py311.nbc"
    for folder in (kernel.parent, used):
        folder.mkdir(parents=True)
    drop_stale_kernels(package, used)
    kernel.touch()
    (used / "planner.py").write_text("x = 1\n")
    drop_stale_kernels(package, used)
    assert not kernel.exists()


def test_a_package_that_cannot_be_written_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").write_text("in the way")
    drop_stale_kernels(tmp_path)


def test_kernels_on_disk_are_found(tmp_path: Path) -> None:
    assert not kernels_are_cached(tmp_path)
    kernel = tmp_path / "planning" / "__pycache__" / "exact._best-9.py311.nbi"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    assert kernels_are_cached(tmp_path)


@pytest.mark.skipif(numba_config.DISABLE_JIT, reason="nothing is compiled")
def test_a_compilation_is_reported_once_and_a_compiled_kernel_is_not() -> None:
    said: list[str] = []
    compiled_already = njit(lambda x: x + 1)
    compiled_already(1)
    on_first_compilation(lambda: said.append("compiling"))
    compiled_already(2)
    assert said == []
    for kernel in (njit(lambda x: x + 2), njit(lambda x: x + 3)):
        kernel(1)
    assert said == ["compiling"]
