"""The cache of compiled kernels follows the sources."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

import numba
import pytest

from turbospec.runtime.kernels import STAMP, drop_stale_kernels, unnamed


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
    assert not kernel.exists()
    assert bytecode.exists()


def test_a_read_only_package_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tmp_path / "__pycache__" / "planner._scan-9.py311.nbc"
    kernel.parent.mkdir()
    kernel.touch()
    refused: list[str] = []

    def refuse(path: Path, *arguments: object, **options: object) -> NoReturn:
        refused.append(path.name)
        raise PermissionError(path)

    for write in ("unlink", "write_text", "mkdir"):
        monkeypatch.setattr(Path, write, refuse)
    drop_stale_kernels(tmp_path)
    assert refused == [kernel.name], "the first write fails, and no other is tried"
    assert kernel.exists()
    assert not (kernel.parent / STAMP).exists()


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
@pytest.mark.skipif("NUMBA_CACHE_DIR" in os.environ, reason="kernels are cached elsewhere")
def test_a_change_of_an_inlined_function_reaches_its_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba alone looks only at the file of the cached function itself; once it looks further, the stamp can go."""
    monkeypatch.syspath_prepend(str(tmp_path))
    inner, outer = tmp_path / "inlined_function.py", tmp_path / "cached_function.py"
    outer.write_text(
        "import numba\nimport inlined_function\nvalue = inlined_function.value\n"
        "@numba.njit(cache=True)\ndef twice():\n    return 2 * value()\n"
    )

    def answer(value: int, *, drop: bool) -> int:
        inner.write_text(f"import numba\n@numba.njit\ndef value():\n    return {value}\n")
        if drop:
            drop_stale_kernels(tmp_path)
        monkeypatch.setitem(__import__("sys").modules, "inlined_function", load(inner, "inlined_function"))
        return int(load(outer, "cached_function").twice())

    assert answer(7, drop=True) == 14
    assert answer(21, drop=False) == 14, "numba's own cache is stale"
    assert answer(100, drop=True) == 200


class Pair(NamedTuple):
    first: int
    second: float


def test_unnamed_keeps_the_values_and_drops_the_type() -> None:
    values = unnamed(Pair(1, 2.0))
    assert type(values) is tuple
    assert Pair(*values) == Pair(1, 2.0)
