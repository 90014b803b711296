from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turbospec.errors import UserError
from turbospec.files.yaml_source import YamlSource

NESTED = """\
# a comment
version: 1
classes:
  - name: chat
    lengths:
      mean: 80

  - {name: code,
     share: 0.5}
8: eight
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


def read(path: Path, text: str) -> YamlSource:
    path.write_text(text)
    return YamlSource(path, "scenario")


@pytest.mark.parametrize(
    ("location", "line"),
    [
        ((), 2),
        (("version",), 2),
        (("classes",), 3),
        (("classes", 0), 4),
        (("classes", 0, "lengths", "mean"), 6),
        (("classes", 1, "share"), 9),
        ((8,), 10),
        (("classes", 0, "lengths", "median"), 5),
        (("classes", 7), 3),
        (("other", "mean"), 2),
    ],
)
def test_a_value_has_its_line_and_a_missing_one_that_of_what_is_around_it(
    path: Path, location: tuple[int | str, ...], line: int
) -> None:
    source = read(path, NESTED)
    assert source.line(location) + 1 == line
    assert str(source.error(source.line(location), "f", "wrong")) == f"{path}:{line}: f: wrong"


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("007", 7),
        ("1e-3", 1e-3),
        ("5e8", 5e8),
        ("1:30", "1:30"),
        ("'3'", "3"),
    ],
)
def test_unquoted_scalars_mean_what_they_do_in_yaml_1_2(path: Path, scalar: str, value: Any) -> None:
    found = read(path, f"a: {scalar}\n").data["a"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: [*x]\n", "2: not valid YAML (aliases (*name) are not supported"),
        ("a: 1\nb: " + "[" * 10_000 + "]" * 10_000, "2: nested more than 50 levels deep"),
        ("a: 1\nb: !!python/object/apply:os.system [exit]\n", "2: not valid YAML (could not determine a constructor"),
        ("a: 1\nb: !mine 3\n", "2: not valid YAML (could not determine a constructor"),
        ("a: 1\nb: 2024-99-99\n", "2: not valid YAML (not a value of its type: 2024-99-99"),
        ("a: 1\nb: !!int many\n", "2: not valid YAML (not a value of its type: many"),
        ("a: 1\nb: !!bool maybe\n", "2: not valid YAML (not a value of its type: maybe"),
        ("a: " + "9" * 5000, "1: not valid YAML (not a value of its type: 999"),
        ('a: 1\nb: "\\0"\n', "2: not valid YAML (a NUL character or half of a surrogate pair in a text"),
        ('a: 1\nb: "\\ud800"\n', "2: not valid YAML (a NUL character or half of a surrogate pair in a text"),
        ('a: "\\Uffffffff"\n', "1: not valid YAML ("),
        ("".join(f"k{i}: 1\n" for i in range(80_000)), "10000: not valid YAML (more than 20000 keys and values"),
        ("a:\n  b: 1\n  c: 1\n  b: 2\n", "4: b: given twice (first on line 2); keep one"),
        ("1: a\n'1': b\n", "2: 1: given twice (first on line 1); keep one"),
        ("a: 1\n<<: {b: 1}\n", "2: the name of a field must be plain text"),
        ("", "1: the file is empty; start it with `version: 1`"),
        ("!!set {policy}\n", "1: not `field: value` lines (tag tag:yaml.org,2002:set); remove the tag"),
        ("- 1\n", "1: this is a list; a scenario file holds `field: value` lines"),
    ],
)
def test_what_is_no_plain_mapping_is_refused_with_its_line(path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        read(path, text)
    assert str(error.value).startswith(f"{path}:{message}")
    assert "\n" not in str(error.value)
