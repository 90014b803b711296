from __future__ import annotations

import platform
from pathlib import Path

import pytest

from turbospec_bench import machine
from turbospec_bench.machine import processor, source_digest


def test_the_processors_name_is_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert processor() == platform.machine()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nmodel name\t: another\n")
    assert processor() == "Some CPU @ 2 GHz"


def test_a_digest_is_of_the_sources_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somebodys_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "code.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = source_digest("somebodys_package")
    assert source_digest("somebodys_package", "not_installed_anywhere") == before
    (package / "notes.txt").write_text("no source")
    assert source_digest("somebodys_package") == before
    (package / "inner" / "code.py").write_text("ONE = 2\n")
    assert source_digest("somebodys_package") != before
