from __future__ import annotations

from pathlib import Path

import pytest

from turbospec.errors import UserError
from turbospec.files.shipped import find_file, is_name, shipped_files

SHIPPED = {"adaptive": Path("/shipped/adaptive.yaml"), "off": Path("/shipped/off.yaml")}


@pytest.mark.parametrize(
    ("source", "name"), [("adaptive", True), ("adaptive.yaml", False), ("policies/adaptive", False), ("./off", True)]
)
def test_a_name_has_neither_suffix_nor_folder(source: str, name: bool) -> None:
    assert is_name(source) == name


def test_a_shipped_file_is_found_by_name_and_any_other_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").touch()
    Path("off").touch()
    assert find_file("off", SHIPPED, "policy") == SHIPPED["off"]
    assert find_file("mine", SHIPPED, "policy") == Path("mine")
    assert find_file("gone/off.yaml", SHIPPED, "policy") == Path("gone/off.yaml")


@pytest.mark.parametrize(
    ("source", "hint"),
    [("adaptve", "did you mean `adaptive`?"), ("zzz", "known: adaptive, off"), ("", "known: adaptive, off")],
)
def test_an_unknown_name_is_an_error_with_a_hint(source: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        find_file(source, SHIPPED, "policy")
    assert str(error.value) == f"no policy is called `{source}`; {hint} (or give a file's path)"


def test_files_are_shipped_beside_the_package_or_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    for folder, name in ((tmp_path / "settings", "a"), (package / "settings", "b")):
        folder.mkdir(parents=True)
        (folder / f"{name}.yaml").touch()
        (folder / "README.md").touch()
        monkeypatch.setattr("turbospec.files.shipped.resources.files", lambda _: package)
        assert shipped_files("package", "settings") == {name: folder / f"{name}.yaml"}
