from __future__ import annotations

import os
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec.files.reading import parse_json, read_bytes, read_json, read_lines, read_text

HINT = "make one with `turbospec profile`"


def error_of(path: Path, **arguments: int) -> str:
    with pytest.raises(UserError) as error:
        read_text(path, "profile", hint=HINT, **arguments)
    return str(error.value).replace(str(path), "x")


def test_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(tmp_path / "x", "profile") == "a\r\nb"
    assert read_bytes(tmp_path / "x", "profile").startswith(b"\xef")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert error_of(tmp_path) == "x: this is a folder; name a profile in it"
    assert error_of(tmp_path / "pipe") == "x: this is a pipe, socket or device; name a profile"
    assert error_of(Path("/dev/zero")) == "x: this is a pipe, socket or device; name a profile"


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert error_of(tmp_path / "none") == f"x: no such profile; {HINT}"
    assert error_of(tmp_path / "file" / "x") == f"x: cannot read the profile (Not a directory); {HINT}"
    assert error_of(tmp_path / ("n" * 300)) == f"x: cannot read the profile (File name too long); {HINT}"
    assert error_of(tmp_path / "loop") == f"x: cannot read the profile (Too many levels of symbolic links); {HINT}"
    assert "not a file name" in error_of(tmp_path / "nul\0")


def test_size_and_encoding_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"ab\xff")
    assert error_of(path) == f"x: not a text file in UTF-8 (byte 2); {HINT}"
    assert error_of(path, limit=2) == "x: larger than 0 KiB, which no profile is"
    assert read_bytes(path, "profile", limit=3) == b"ab\xff"


def test_lines_are_read_one_by_one_and_have_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbospec.files.reading.MAX_LINE_BYTES", 5)
    (tmp_path / "x").write_bytes(b"1234\n\xff\n12345678901234\nend")
    lines = read_lines(tmp_path / "x", "trace")
    assert list(lines) == ["1234\n", "\ufffd\n", "12345", "end"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ('{"a": NaN}', "NaN is not JSON; numbers must be finite"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e400", "the number 1e400 is out of range"),
        ("9" * 400, "the number 99999999999999999999… is out of range"),
        ("-9223372036854775809", "is out of range"),
        ("[" * 101 + "]" * 101, "nested more than 100 levels deep"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested more than 100 levels deep"),
        ('["\\ud800"]', "half of a surrogate pair"),
        ('{"\\uDC00": 1}', "half of a surrogate pair"),
    ],
)
def test_json_outside_the_limits_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse_json(text)
    assert why in str(error.value)
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x\.json: not a results file \(.*\); make one"):
        read_json(tmp_path / "x.json", "results file", hint="make one")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[" * 100 + "]" * 100, None),
        ("-9223372036854775807", -(2**63) + 1),
        ('"\\ud83d\\ude00"', "😀"),
        ('{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
    ],
)
def test_json_within_the_limits_is_read(text: str, value: object) -> None:
    assert value is None or parse_json(text) == value
