"""The cache of compiled kernels follows the sources."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.caching import FunctionCache

from turbospec.runtime import kernels
from turbospec.runtime.kernels import compile_for, compiled, drop_stale_kernels


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


def twice(x: int) -> int:
    return 2 * x


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings so far, in a process that has not warned yet."""
    monkeypatch.setenv(kernels.UNCACHED, "1")  # restores it afterwards, also where the test sets it
    monkeypatch.delenv(kernels.UNCACHED)
    caplog.set_level(logging.WARNING, logger="turbospec")
    return lambda: [record.getMessage() for record in caplog.records]


def test_without_a_folder_kernels_are_compiled_in_every_process_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    first, second = compiled(twice), compiled(twice)
    assert (first(2), second(3)) == (4, 6)
    (line,) = warnings()
    assert "NUMBA_CACHE_DIR" in line
    assert "\n" not in line


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), EOFError()])
@pytest.mark.parametrize("access", ["save", "load"])
def test_a_cache_that_fails_stops_nothing(
    error: Exception, access: str, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]], tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    function: Any = compiled(twice)
    monkeypatch.setattr(function._cache._cache_file, access, fail)
    assert function(2) == 4
    (line,) = warnings()
    assert "NUMBA_CACHE_DIR" in line


def test_a_kernel_for_some_types_compiles_for_no_others() -> None:
    def length(values: np.ndarray) -> int:
        return len(values)

    function: Any = compiled(length)
    compile_for(function, np.zeros(1, np.int64))
    assert function(np.zeros(3, np.int64)) == 3
    for other in (np.zeros(3), np.zeros((3, 3), np.int64), np.zeros(6, np.int64)[::2], None, [1, 2], "text"):
        with pytest.raises(TypeError):
            function(other)
    assert len(function.signatures) == 1
