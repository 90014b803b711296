"""Compiled kernels that do not outlive their sources."""

from __future__ import annotations

from pathlib import Path

from turbospec.runtime.kernels import drop_stale_kernels


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
