"""The cache of compiled kernels follows the sources."""

from __future__ import annotations

from pathlib import Path

from turbospec.runtime.kernels import drop_stale_kernels


def test_kernels_are_kept_while_all_sources_are_the_same(tmp_path: Path) -> None:
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


def test_sources_of_the_packages_that_are_used_count_too(tmp_path: Path) -> None:
    package, used = tmp_path / "sim", tmp_path / "core"
    kernel = package / "__pycache__" / "steps.draft-9.py311.nbc"
    for folder in (kernel.parent, used):
        folder.mkdir(parents=True)
    drop_stale_kernels(package, used)
    kernel.touch()
    (used / "planner.py").write_text("x = 1\n")
    drop_stale_kernels(package, used)
    assert not kernel.exists()


def test_kernels_of_subpackages_are_dropped_and_other_files_kept(tmp_path: Path) -> None:
    caches = tmp_path / "models" / "__pycache__"
    caches.mkdir(parents=True)
    kernel, bytecode = caches / "acceptance._observe-120.py311.2.nbc", caches / "acceptance.cpython-311.pyc"
    kernel.touch()
    bytecode.touch()
    drop_stale_kernels(tmp_path)
