"""Compiled kernels that do not outlive their sources."""

from __future__ import annotations

from pathlib import Path

from turbospec.compiled import drop_stale_kernels


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


def test_a_package_that_cannot_be_written_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").write_text("in the way")
    drop_stale_kernels(tmp_path)
