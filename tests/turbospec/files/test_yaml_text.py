from __future__ import annotations

from pathlib import Path

from turbospec.files.yaml_source import YamlSource
from turbospec.files.yaml_text import LINE_LENGTH, yaml_text


def test_settings_are_read_back_as_they_were(tmp_path: Path) -> None:
    settings = {
        "policy": "off",
        "name": "1e3",
        "none": None,
        "on": True,
        "rate": 5e-08,
        "words": "λ: " + "tokens " * 40 + "end",
        "slots": {8: {"candidates": [1, 3]}, 1: {"candidates": []}},
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml_text(settings))
    data = YamlSource(path).data
    assert data == settings
    assert [*data] == [*settings]
    assert "policy: off\n" in path.read_text()
    longest = max(map(len, path.read_text().splitlines()))
    assert longest <= LINE_LENGTH + len("tokens "), "a line ends with the word that reaches the length"
